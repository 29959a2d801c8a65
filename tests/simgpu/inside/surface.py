"""What scripts written for CUDA do, on the simulated device."""

from __future__ import annotations

import copy
import io
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import preassert.simgpu as simgpu


def check_devices() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.get_device_name(0) == "preassert simulated GPU"
    assert torch.device("cuda", torch.cuda.current_device()) == torch.zeros(1, device="cuda").device
    assert torch.accelerator.current_accelerator().type == "cuda"
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(1, device="cuda:1")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(3)


def check_factories() -> None:
    made = [
        torch.zeros(2, device="cuda"),
        torch.tensor([1.5, 2], device="cuda:0"),
        torch.arange(3, device=torch.device("cuda")),
        torch.randn(3).cuda(),
        torch.ones(2).to("cuda"),
        torch.ones(2).to(0),
        torch.ones(2).to(device="cuda", dtype=torch.float16),
        torch.eye(3, device="cuda").new_zeros(3),
        torch.full_like(torch.ones(2), 3, device="cuda"),
        torch.randperm(5, device="cuda"),
        torch.linspace(0, 1, 3, device="cuda"),
        torch.empty(2, 3, 4, 4, device="cuda", memory_format=torch.channels_last),
    ]
    for tensor in made:
        assert type(tensor) is torch.Tensor
        assert tensor.is_cuda
        assert str(tensor.device) == "cuda:0"
        assert not tensor.cpu().is_cuda
    assert made[-1].is_contiguous(memory_format=torch.channels_last)
    with torch.device("cuda"):
        assert torch.zeros(1).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    torch.set_default_device("cuda")
    try:
        assert (torch.zeros(2) + torch.rand(2)).is_cuda
    finally:
        torch.set_default_device("cpu")


def check_moving_to_where_it_is_copies_nothing() -> None:
    tensor = torch.ones(2, device="cuda")
    assert tensor.to("cuda") is tensor
    assert tensor.cuda() is tensor
    parameter = nn.Linear(2, 2).cuda()
    weight = parameter.weight
    assert parameter.to("cuda").weight is weight


def check_an_optimizer_made_before_the_move_trains_the_moved_parameters() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()
    before = model.weight.detach().clone()
    model(torch.ones(1, 3, device="cuda")).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def check_printing_and_reading_wait() -> None:
    for read in (
        str,
        float,
        lambda t: t.item(),
        bool,
        lambda t: t.cpu(),
        lambda t: t.tolist(),
        torch.nonzero,
        lambda t: t.unique(),
    ):
        tensor = torch.ones(1, device="cuda") * 2
        before = simgpu.synchronizations()
        read(tensor)
        assert simgpu.synchronizations() > before
    assert "device='cuda:0'" in str(torch.ones(2, device="cuda"))
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.ones(2, device="cuda").numpy()


def check_launching_does_not_wait() -> None:
    weight = torch.randn(5, 3, device="cuda", requires_grad=True)
    x, y = torch.randn(4, 3, device="cuda"), torch.arange(4).to("cuda")
    before, launched = simgpu.synchronizations(), simgpu.launches()
    loss = F.cross_entropy(x @ weight.t(), y)
    loss.backward()
    assert weight.grad is not None
    assert simgpu.synchronizations() == before
    assert simgpu.launches() - launched >= 5


def check_copies_wait_unless_pinned_and_non_blocking() -> None:
    host, device = torch.ones(3), torch.ones(3, device="cuda")
    expected = {
        "blocking upload": (lambda: host.to("cuda"), 1),
        "upload from pageable memory": (lambda: host.to("cuda", non_blocking=True), 0),
        "upload from pinned memory": (lambda: host.pin_memory().to("cuda", non_blocking=True), 0),
        "blocking download": (lambda: device.cpu(), 1),
        "download to pageable memory": (lambda: device.to("cpu", non_blocking=True), 1),
        "download to pinned memory": (lambda: torch.empty(3, pin_memory=True).copy_(device, non_blocking=True), 0),
    }
    for name, (copy_, waits) in expected.items():
        before = simgpu.synchronizations()
        copy_()
        assert simgpu.synchronizations() - before == waits, name


def check_a_staged_upload_has_the_values_of_the_call() -> None:
    host = torch.ones(3)
    device = host.to("cuda", non_blocking=True)
    host.fill_(7)
    assert device.tolist() == [1, 1, 1]


def check_sync_debug_mode() -> None:
    tensor = torch.ones(1, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        tensor.item()
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="synchronizing CUDA operation"):
        tensor.item()
    torch.cuda.set_sync_debug_mode("default")
    assert tensor.item() == 1


def check_streams_and_events() -> None:
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        value = torch.ones(2, device="cuda") * 3
        value.record_stream(stream)
    end.record(stream)
    assert not end.query()
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    assert value.tolist() == [3, 3]


def check_random_numbers_follow_the_seed() -> None:
    torch.manual_seed(5)
    first = torch.rand(3, device="cuda").tolist()
    torch.manual_seed(5)
    torch.rand(3)  # the host's generator is another one
    assert torch.rand(3, device="cuda").tolist() == first
    state = torch.cuda.get_rng_state()
    second = torch.rand(3, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(3, device="cuda").tolist() == second
    generator = torch.Generator(device="cuda").manual_seed(2)
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert str(generator.device) == "cuda:0"
    assert torch.rand(2, device="cuda", generator=generator).is_cuda


def check_memory_is_counted_and_limited() -> None:
    with simgpu.device(limit_bytes=1_000_000):
        kept = torch.zeros(1000, 100, device="cuda")
        view = kept[3:]
        assert torch.cuda.memory_allocated() == 400_000
        with pytest.raises(
            torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 781.25 KiB. GPU 0 has a total capacity"
        ):
            torch.zeros(1000, 200, device="cuda")
        del kept
        assert torch.cuda.memory_allocated() == 400_000
        del view
        assert torch.cuda.memory_allocated() == 0
        assert torch.zeros(1000, 200, device="cuda").sum().item() == 0
        assert torch.cuda.max_memory_allocated() >= 800_000
        free, total = torch.cuda.mem_get_info()
        assert total == 1_000_000
        assert free <= total


def check_checkpoints_go_back_and_forth() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).cuda()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for where, kind in ((None, "cuda"), ("cpu", "cpu"), ("cuda:0", "cuda"), (torch.device("cuda"), "cuda")):
        file.seek(0)
        state = torch.load(file, weights_only=True, map_location=where)
        assert state["0.weight"].device.type == kind
        assert torch.equal(state["0.weight"].cpu(), model[0].weight.cpu())
    model.load_state_dict(state)
    twin = copy.deepcopy(model)
    assert twin[0].weight.is_cuda
    assert torch.equal(twin[0].weight, model[0].weight)
    model.cpu()
    assert not model[0].weight.is_cuda


def check_autocast_and_grad_scaler() -> None:
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    x, y = torch.randn(8, 4, device="cuda"), torch.randint(0, 2, (8,), device="cuda")
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        assert logits.dtype is torch.float16
        assert loss.dtype is torch.float32
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 8.0
    with torch.autocast("cuda", enabled=False):
        assert model(x).dtype is torch.float32
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(torch.rand(2, device="cuda"), torch.ones(2, device="cuda"))


def check_optimizers() -> None:
    for options in ({"foreach": True}, {"foreach": False}, {"fused": True}, {}):
        torch.manual_seed(0)
        here, there = nn.Linear(3, 2), nn.Linear(3, 2).cuda()
        there.load_state_dict(here.state_dict())
        for model, device in ((here, "cpu"), (there, "cuda")):
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 3, device=device)).pow(2).sum().backward()
                optimizer.step()
        torch.testing.assert_close(there.weight.cpu(), here.weight)


def check_pinned_loader() -> None:
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(12, 3), torch.arange(12))
    seen = []
    for x, y in DataLoader(data, batch_size=4, num_workers=2, pin_memory=True):
        assert x.is_pinned()
        seen += y.to("cuda", non_blocking=True).tolist()
    assert seen == list(range(12))


def check_devices_are_not_mixed() -> None:
    device, host = torch.ones(2, 2, device="cuda"), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        device + host
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        nn.Linear(2, 2).cuda()(host)
    assert (device * torch.tensor(2.0)).sum().item() == 8  # a host scalar is fine
    assert device[torch.tensor([1, 0])].shape == (2, 2)  # so is a host index


def check_shape_errors_arise_at_the_call() -> None:
    device = torch.ones(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        device @ device
    with pytest.raises(RuntimeError, match="must match the size"):
        device.add_(torch.ones(7, device="cuda"))
    assert device.sum().item() == 6


def check_recurrent_cells_match_the_cpu() -> None:
    for kind in (nn.LSTM, nn.GRU):
        torch.manual_seed(0)
        here = kind(4, 5, 2, batch_first=True)
        there = copy.deepcopy(here).cuda()
        x = torch.randn(3, 6, 4)
        here(x)[0].pow(2).sum().backward()
        there(x.cuda())[0].pow(2).sum().backward()
        for mine, its in zip(here.parameters(), there.parameters(), strict=True):
            torch.testing.assert_close(its.grad.cpu(), mine.grad)


def check_views_and_writes_share_memory() -> None:
    base = torch.zeros(2, 3, device="cuda", requires_grad=True)
    result = base.clone()
    result[0].add_(1)
    result.view(3, 2)[2].mul_(5)
    result.t()[1].copy_(torch.tensor([8.0, 9.0], device="cuda"))
    assert result.tolist() == [[1, 8, 1], [0, 9, 0]]
    result.sum().backward()
    assert base.grad.tolist() == [[1, 0, 1], [1, 0, 5]]
    out = torch.empty(0, device="cuda")
    torch.add(base.detach(), 1, out=out)
    assert out.shape == (2, 3)
    grown = torch.ones(2, device="cuda").resize_(3)
    assert grown[:2].tolist() == [1, 1]


def check_activation_recomputing_and_vmap() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(4, 4, device="cuda", requires_grad=True)
    checkpoint(lambda t: F.dropout(t, 0.5).pow(2).sum(), x, use_reentrant=False).backward()
    assert set(x.grad.flatten().tolist()) <= {0.0, 8.0}
    assert torch.func.vmap(torch.sum)(torch.ones(3, 4, device="cuda")).tolist() == [4, 4, 4]


def check_the_real_torch_comes_back() -> None:
    simgpu.deactivate()
    try:
        assert not torch.cuda.is_available()
        with pytest.raises((AssertionError, RuntimeError)):
            torch.zeros(1, device="cuda")
        assert torch.ones(1).device.type == "cpu"
        assert str(torch.empty(1, pin_memory=False).device) == "cpu"
    finally:
        simgpu.activate(notice=False)


def check_threads() -> None:
    import threading

    found: list[object] = []

    def work() -> None:
        found.append((torch.ones(3, device="cuda") * 2).sum().item())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6.0] * 4


def check_a_forked_child_may_not_use_the_device() -> None:
    value = torch.ones(2, device="cuda") * 3  # in the queue: it is the parent's to run
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.manual_seed(1)
            torch.ones(1, device="cuda")
            os.write(writing, b"no error")
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000).startswith(b"Cannot re-initialize CUDA in forked subprocess")
    os.close(reading)
    os.close(writing)
    assert value.tolist() == [3, 3]


def check_packed_sequences() -> None:
    torch.manual_seed(0)
    here = nn.LSTM(3, 4)
    there = copy.deepcopy(here).cuda()
    x, lengths = torch.randn(5, 2, 3), torch.tensor([5, 3])
    results = []
    for model, sequence in ((here, x), (there, x.cuda())):
        packed = nn.utils.rnn.pack_padded_sequence(sequence, lengths)
        assert packed.batch_sizes.tolist() == [2, 2, 2, 1, 1]
        output, sizes = nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        assert sizes.tolist() == [5, 3]
        output.sum().backward()
        results.append([output.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
    torch.testing.assert_close(results[1], results[0])


def check_data_parallel_and_profiler_and_names() -> None:
    from torch.profiler import ProfilerActivity, profile

    model = nn.DataParallel(nn.Linear(2, 3), device_ids=[0]).cuda()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler, torch.cuda.nvtx.range("step"):
        assert model(torch.ones(4, 2)).shape == (4, 3)
    assert profiler.key_averages()
    assert torch.ones(1, device="cuda").type() == "torch.cuda.FloatTensor"
