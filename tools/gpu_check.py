"""Run every claim that needs a GPU, on a CUDA machine without a network, in under four minutes; write one JSON file.

    python tools/gpu_check.py [--out FILE] [--budget SECONDS]

Needs torch with CUDA and this checkout, nothing else. `--device cpu` runs what can run without a GPU: it shows that the script
works, never that a claim holds, and the report says so. Each section is one claim of docs/gpu.md; a section that fails or finds
no time is reported as such and the next one runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402  # after the path: the checkout must win over an installed copy
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import preassert  # noqa: E402
from preassert import Violation  # noqa: E402
from preassert.guard import flush, selftest  # noqa: E402

SCHEMA = "preassert.gpu-check/1"


class Clock:
    """Time left of the whole run."""

    def __init__(self, budget_s: float) -> None:
        self._end = time.monotonic() + budget_s

    def left_s(self) -> float:
        return self._end - time.monotonic()


class OutOfTime(Exception):
    pass


# --- models of real size, without torchvision or transformers ------------------------------------------------------------


class GPT(nn.Module):
    """GPT-2 small: 12 layers, 768 wide, 12 heads, 50,257 tokens, 1,024 positions."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257, positions: int = 1024
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.vocabulary = vocabulary

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device, dtype=x.dtype)
        x = self.blocks(x, mask=mask, is_causal=True)
        return F.cross_entropy((x @ self.tokens.weight.T).flatten(0, 1), target.flatten())


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        same = inside == 4 * width and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(inside, 4 * width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    """ResNet-50 in size: 3, 4, 6, 3 bottlenecks."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]
        inside = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                layers.append(Bottleneck(inside, width << stage, 2 if stage and not number else 1))
                inside = 4 * (width << stage)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inside, classes)

    def forward(self, images: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.features(images)), target)


def gpt_step(device: str, small: bool, *, compiled: bool = False) -> Callable[[], None]:
    torch.manual_seed(0)
    model: Any = (GPT(2, 64, 2, 500, 64) if small else GPT()).to(device)
    vocabulary = model.vocabulary
    shape = (2, 32) if small else (8, 512)
    ids = torch.randint(0, vocabulary, shape, device=device)
    return stepper(model, (ids, ids.roll(-1, 1)), device, compiled)


def resnet_step(device: str, small: bool, *, compiled: bool = False) -> Callable[[], None]:
    torch.manual_seed(0)
    model: Any = (ResNet((1, 1), 8, 10) if small else ResNet()).to(device)
    images = torch.randn(2 if small else 32, 3, 32 if small else 224, 32 if small else 224, device=device)
    target = torch.randint(0, 10, (len(images),), device=device)
    return stepper(model, (images, target), device, compiled)


def stepper(model: Any, batch: tuple[Tensor, ...], device: str, compiled: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    call = torch.compile(model) if compiled else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = call(*batch)
        loss.backward()
        optimizer.step()

    return step


STEPS = {"gpt2-small": gpt_step, "resnet-50": resnet_step}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_step_s(step: Callable[[], None], device: str, repeats: int) -> list[float]:
    out = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        step()
        synchronize(device)
        out.append(time.perf_counter() - start)
    return out


# --- sections ------------------------------------------------------------------------------------------------------------


def section_families(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """Every contract family in immediate and deferred mode, in this one process; the context is alive at the end."""
    out: dict[str, Any] = {}
    for mode in ("immediate", "deferred"):
        outcomes = list(selftest.check_mode(mode, device))  # type: ignore[arg-type]
        problems = [f"{o.plant.name} {o.value}: {o.problem}" for o in outcomes if o.problem]
        out[mode] = {"planted": sum(o.value is not None for o in outcomes), "problems": problems}
    out["alive"] = alive(device)
    out["ok"] = out["alive"] and not any(out[mode]["problems"] for mode in ("immediate", "deferred"))
    return out


def alive(device: str) -> bool:
    x = torch.ones(64, 64, device=device)
    return float((x @ x).sum()) == 64.0**3


def section_no_synchronisation(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """Deferred checks never synchronise: torch's sync debug mode raises at the first that does."""
    if device != "cuda":
        return {"ok": None, "why": "needs CUDA"}
    step = gpt_step(device, small=True)
    with preassert.guard(mode="deferred"):
        step()  # warm up: buffers, optimizer state, autotuning
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {"ok": True, "steps": 5}


def section_deferred_training(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """A bad label in a training step: raised before optimizer.step, weights untouched, the context alive, training goes on."""
    torch.manual_seed(0)
    model = nn.Linear(16, 5).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    x, good = torch.randn(64, 16, device=device), torch.randint(0, 5, (64,), device=device)
    bad = good.clone()
    bad[41] = 5
    seen: Violation | None = None
    with preassert.guard(mode="deferred"):
        for target in (good, bad, good):
            before = model.weight.detach().clone()
            try:
                optimizer.zero_grad()
                F.cross_entropy(model(x), target).backward()
                optimizer.step()
            except Violation as violation:
                seen = violation
                untouched = torch.equal(before, model.weight)
    ok = seen is not None and untouched and seen.elements[0].position == (41,) and seen.elements[0].value == 5 and alive(device)
    return {"ok": ok, "report": str(seen)}


def section_graph_capture(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """CUDA graphs: capture under the guard does not fail; a replay on a bad value is reported at the next flush."""
    if device != "cuda":
        return {"ok": None, "why": "needs CUDA"}
    table = torch.ones(10, 4, device=device)
    static = torch.zeros(8, dtype=torch.int64, device=device)
    with preassert.guard(mode="deferred"):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                F.embedding(static, table)
        torch.cuda.current_stream().wait_stream(side)
        flush()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            F.embedding(static, table)
        graph.replay()
        flush()
        static[3] = 10
        graph.replay()
        try:
            flush()
            return {"ok": False, "why": "the replay on a bad value was not reported"}
        except Violation as violation:
            report = str(violation)
        static.zero_()
        graph.replay()
        flush()
    with preassert.guard(mode="immediate"):  # must not synchronise inside a capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            F.embedding(static, table)
        graph.replay()
    return {"ok": alive(device), "report": report}


CHILD = """
import sys
sys.path.insert(0, {src!r})
import torch
from preassert.guard import selftest
plant = next(p for p in selftest.PLANTS if p.name == {name!r})
plant.run(plant.tensor(torch.device({device!r}), {value}))
if {device!r} == "cuda":
    torch.cuda.synchronize()
"""


def section_what_asserts(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """Unguarded, one child a family: does the GPU really assert, and does `explain` read what it prints?"""
    plants = selftest.PLANTS[:3] if small else selftest.PLANTS

    def one(plant: selftest.Plant) -> dict[str, Any]:
        value = f"float('{plant.bad[-1]}')" if plant.floating else repr(plant.bad[-1])
        code = CHILD.format(src=str(ROOT / "src"), name=plant.name, device=device, value=value)
        if clock.left_s() < 20:
            return {"name": plant.name, "value": str(plant.bad[-1]), "skipped": "out of time"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
        report = preassert.explain(done.stdout + done.stderr).to_dict()
        printed = [line for line in done.stderr.splitlines() if "Assertion" in line][:1]
        return {
            "name": plant.name,
            "value": str(plant.bad[-1]),
            "returncode": done.returncode,
            "printed": printed,
            "verdict": report["verdict"],
            "agrees": report["verdict"] == plant.hazard,
        }

    with ThreadPoolExecutor(max_workers=6) as pool:
        results = list(pool.map(one, plants))
    asserted = [r for r in results if r.get("printed")]
    return {"ok": all(r["agrees"] for r in asserted) if device == "cuda" else None, "asserted": len(asserted), "results": results}


def section_overhead(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """Step time of real-size models: unguarded, deferred, immediate; interleaved, medians."""
    out: dict[str, Any] = {}
    repeats = 3 if small else 12
    for name, build in STEPS.items():
        step = build(device, small)
        times: dict[str, list[float]] = {"unguarded": [], "deferred": [], "immediate": []}
        time_step_s(step, device, 3)
        for _ in range(3):
            times["unguarded"] += time_step_s(step, device, repeats)
            for mode in ("deferred", "immediate"):
                with preassert.guard(mode=mode):
                    time_step_s(step, device, 1)
                    times[mode] += time_step_s(step, device, repeats)
        medians = {key: statistics.median(value) for key, value in times.items()}
        ratios = {key: medians[key] / medians["unguarded"] for key in ("deferred", "immediate")}
        out[name] = {"step_s": medians, "ratio": ratios, "launch_blocking": launch_blocking(name, device, small, clock)}
        del step
        if device == "cuda":
            torch.cuda.empty_cache()
    return {"ok": True, **out}


def launch_blocking(name: str, device: str, small: bool, clock: Clock) -> float | str:
    """Median step time in a child with CUDA_LAUNCH_BLOCKING=1."""
    if device != "cuda" or clock.left_s() < 60:
        return "not run"
    environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": "1"}
    command = [sys.executable, __file__, "--time-step", name, *(["--small"] if small else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else f"failed: {done.stderr[-300:]}"


def section_compiled(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """torch.compile: the planted values are caught in one whole graph; step time guarded against unguarded."""
    if clock.left_s() < 70:
        raise OutOfTime
    outcomes = list(selftest.check_mode("compiled", device))
    problems = [f"{o.plant.name} {o.value}: {o.problem}" for o in outcomes if o.problem]
    out: dict[str, Any] = {"ok": not problems, "planted": sum(o.value is not None for o in outcomes), "problems": problems}
    if clock.left_s() < 60:
        return {**out, "step_s": "out of time"}
    medians = {}
    for guarded in (False, True):
        torch._dynamo.reset()
        step = gpt_step(device, small, compiled=True)
        if guarded:
            with preassert.guard(mode="deferred"):
                time_step_s(step, device, 3)
                medians["guarded"] = statistics.median(time_step_s(step, device, 15))
        else:
            time_step_s(step, device, 3)
            medians["unguarded"] = statistics.median(time_step_s(step, device, 15))
    return {**out, "step_s": medians, "ratio": medians["guarded"] / medians["unguarded"]}


def section_label_map(device: str, small: bool, clock: Clock) -> dict[str, Any]:
    """LabelMap on tensors of the device: the result stays there and equals the host's."""
    ids = torch.randint(0, 1000, (10_000 if small else 20_000_000,)) * 7
    label_map = preassert.LabelMap.from_classes(list(range(0, 7000, 7)))
    there = ids.to(device)
    synchronize(device)
    start = time.perf_counter()
    out = label_map.transform(there)
    synchronize(device)
    elapsed = time.perf_counter() - start
    same = out.device == there.device and torch.equal(out.cpu(), torch.as_tensor(label_map.transform(ids)))
    return {"ok": bool(same), "elements": len(ids), "transform_s": elapsed}


SECTIONS = {
    "families": section_families,
    "deferred-training": section_deferred_training,
    "no-synchronisation": section_no_synchronisation,
    "graph-capture": section_graph_capture,
    "label-map": section_label_map,
    "overhead": section_overhead,
    "what-asserts": section_what_asserts,
    "compiled": section_compiled,
}


def environment(device: str) -> dict[str, Any]:
    has_cuda = device == "cuda"
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": torch.cuda.get_device_name() if has_cuda else "cpu: shows that the script runs, not that a claim holds",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": torch._C._cuda_getDriverVersion() if has_cuda else None,
        "python": platform.python_version(),
        "preassert": preassert.__version__,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models (to try the script itself)")
    parser.add_argument("--budget", type=float, default=230.0, help="seconds for the whole run")
    parser.add_argument("--out", type=Path, help="default: gpu-check.json in $OUT or docs/gpu-results/")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="run these sections only")
    parser.add_argument("--time-step", choices=list(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: no CUDA device here. Nothing was run, nothing is claimed.", file=sys.stderr)
        return 3
    if options.time_step:
        step = STEPS[options.time_step](options.device, options.small)
        time_step_s(step, options.device, 3)
        print(statistics.median(time_step_s(step, options.device, 12)))
        return 0
    clock = Clock(options.budget)
    report: dict[str, Any] = {"schema": SCHEMA, "environment": environment(options.device), "sections": {}}
    for name in options.only or SECTIONS:
        start = time.monotonic()
        try:
            if clock.left_s() < 10:
                raise OutOfTime
            result = SECTIONS[name](options.device, options.small, clock)
        except OutOfTime:
            result = {"ok": None, "why": "out of time"}
        except Exception as error:
            result = {"ok": False, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]}
        result["took_s"] = round(time.monotonic() - start, 2)
        report["sections"][name] = result
        print(
            f"{name}: {'ok' if result['ok'] else 'not run' if result['ok'] is None else 'FAILED'} ({result['took_s']} s)",
            flush=True,
        )
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else ROOT / "docs" / "gpu-results"
    out = options.out or folder / "gpu-check.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    part.replace(out)
    print(f"written: {out}")
    return int(any(result["ok"] is False for result in report["sections"].values()))


if __name__ == "__main__":
    sys.exit(main())
