# ruff: noqa: E501 - a printed line stands here as one line
"""Failures without an assertion line: every wording of the catalogue, and how runtimes wrap them."""

from __future__ import annotations

from typing import Any

import pytest

from preassert import hazards
from preassert.logs import explain_text
from preassert.logs.failures import required_literals

HINTS = """\
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
WORDINGS = [(slug, record) for slug in hazards.slugs() for record in hazards.raw()[slug]["host"]]
DEVICE = {
    "device-assert-unlocated",
    "illegal-memory-access",
    "hardware-fault",
    "blas-or-dnn-failure",
    "communication-failure",
    "unsupported-device-code",
    "out-of-memory",
}


@pytest.mark.parametrize(("slug", "record"), WORDINGS, ids=[f"{slug}-{record['pattern'][:30]}" for slug, record in WORDINGS])
def test_every_wording_of_the_catalogue(slug: str, record: dict[str, Any]) -> None:
    if "is not compatible with the current PyTorch" in record["example"]:
        pytest.skip("a warning: it explains a failure, it is none")
    example = record["example"]
    text = f'Traceback (most recent call last):\n  File "/home/user/train.py", line 9, in <module>\n    main()\n{example}\n'
    report = explain_text(text)
    assert report.verdict == slug
    cause = report.cause
    assert cause is not None
    assert cause.line == 4
    if slug not in DEVICE:
        assert report.restart_required is (None if "AcceleratorError" in example else False)
        if len(record["operators"]) == 1:
            assert cause.operator == record["operators"][0]


@pytest.mark.parametrize(("slug", "record"), WORDINGS, ids=[f"{slug}-{record['pattern'][:30]}" for slug, record in WORDINGS])
def test_the_literals_of_a_pattern_occur_in_what_it_matches(slug: str, record: dict[str, Any]) -> None:
    literals = required_literals(record["pattern"])
    assert not literals or any(literal in record["example"] for literal in literals)


# text, verdict, restart, line of the cause
CASES: dict[str, tuple[str, str, bool | None, int]] = {
    "accelerator": ("torch.AcceleratorError: CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://x for more information.\n", "device-assert-unlocated", True, 1),
    "old_59": ("x\nRuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/src/THC/generic/THCStorage.cpp:36\n", "device-assert-unlocated", True, 2),
    "old_710": ("THCudaCheck FAIL file=/pytorch/aten/src/THC/THCReduceAll.cuh line=327 error=710 : device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "criterion": ("RuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/src/THCUNN/generic/SpatialClassNLLCriterion.cu:128\n", "target-out-of-range", True, 1),
    "bce_criterion": ("RuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/src/THCUNN/generic/BCECriterion.cu:57\n", "probability-outside-unit-interval", True, 1),
    "triton": ("RuntimeError: Triton Error [CUDA]: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "copy_if": ("RuntimeError: copy_if failed to synchronize: cudaErrorAssert: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "terminate": ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert triggered\nAborted (core dumped)\n", "device-assert-unlocated", True, 2),
    "hip": ("RuntimeError: HIP error: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "hip_launch": ("RuntimeError: HIP error: unspecified launch failure\n", "illegal-memory-access", True, 1),
    "rocdevice": (":0:rocdevice.cpp            :2692: 88210021 us: Device::callbackQueue aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016\n", "device-assert-unlocated", True, 1),
    "memory_fault": ("Memory access fault by GPU node-2 (Agent handle: 0x55d0) on address 0x7f00. Reason: Page not present or supervisor privilege.\nAborted (core dumped)\n", "illegal-memory-access", True, 1),
    "cupy": ("cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered\n", "illegal-memory-access", True, 1),
    "driver_assert": ("pycuda._driver.LogicError: cuCtxSynchronize failed: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "misaligned": ("RuntimeError: CUDA error: misaligned address\n" + HINTS, "illegal-memory-access", True, 1),
    "sanitizer": ("========= Invalid __global__ read of size 4 bytes\n=========     at k(int*)+0x70\n", "illegal-memory-access", True, 1),
    "xid_31": ("kernel: NVRM: Xid (PCI:0000:07:00): 31, pid=1204, name=python, Ch 00000008, intr 00000000. MMU Fault\n", "illegal-memory-access", True, 1),
    "xid_79": ("[ 1234.5] NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n", "hardware-fault", True, 1),
    "ecc_214": ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n" + HINTS, "hardware-fault", True, 1),
    "oom": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB\n", "out-of-memory", False, 1),
    "oom_old": ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity)\n", "out-of-memory", False, 1),
    "oom_hip": ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB\n", "out-of-memory", False, 1),
    "oom_mps": ("RuntimeError: MPS backend out of memory (MPS allocated: 17 GB, other allocations: 1 GB, max allowed: 18 GB)\n", "out-of-memory", False, 1),
    "no_image": ("RuntimeError: CUDA error: no kernel image is available for execution on the device\n" + HINTS, "unsupported-device-code", False, 1),
    "driver_old": ("RuntimeError: The NVIDIA driver on your system is too old (found version 10010).\n", "unsupported-device-code", False, 1),
    "ptx": ("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.\n", "unsupported-device-code", False, 1),
    "cublas": ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb)`\n", "blas-or-dnn-failure", None, 1),
    "cudnn": ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\n", "blas-or-dnn-failure", None, 1),
    "cublas_then_assert": ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: device-side assert triggered\n", "device-assert-unlocated", True, 3),
    "nccl_then_assert": ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'device-side assert triggered'\n", "device-assert-unlocated", True, 4),
    "nccl_numbered": ("[rank0]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error\n[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank0]: Last error:\n[rank0]: Cuda failure 700 'an illegal memory access was encountered'\n", "illegal-memory-access", True, 4),
    "key_value": ("ts=2025-03-01T10:11:12Z level=error msg=\"inference failed\" err=\"CUDA error: device-side assert triggered\" gpu=0\n", "device-assert-unlocated", True, 1),
    "structlog": ("2025-03-01T10:11:12Z [error    ] step failed          error='CUDA error: device-side assert triggered' step=120\n", "device-assert-unlocated", True, 1),
    "fbgemm_old": ("EmbeddingBoundsCheck: (at least one) Out of bounds access for batch: 1, table: 0, bag element: 2, idx: 12, num_rows: 10. Setting idx to zero.\n", "embedding-index-out-of-range", False, 1),
    "shouted": ("got prompt\n!!! Exception during processing !!! CUDA error: an illegal memory access was encountered\ngot prompt\n", "illegal-memory-access", True, 2),
    "bitsandbytes": ("Error an illegal memory access was encountered at line 119 in file /mmfs1/bitsandbytes/csrc/ops.cu\n", "illegal-memory-access", True, 1),
    "sentry": ('{"exception": {"values": [{"type": "RuntimeError", "value": "CUDA error: device-side assert triggered", "stacktrace": {"frames": [{"function": "embedding"}]}}]}}\n', "device-assert-unlocated", True, 1),
    "lost_path_below_a_source_line": ("../aten/src/ATen/native/cuda/IndexKernel.cu(92): warning #177-D: variable \"index\" was declared but never referenced\ndone\nmasked_scatter_size_check: block: [0,0,0], thread: [0,0,0] Assertion `totalElements <= srcSize` failed.\n", "index-out-of-range", True, 3),
    "cut_before_a_healthy_line": ("lambda [](int)->auto::operator()(int)->auto: block: [0,0,0], thread: [0,0,0] Assertion `index >= -sizes[i] && index < si\nmax label 9 < n_classes 10, 0 failed\n", "index-out-of-range", True, 1),
    "grpc": ("grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.INTERNAL\n\tdetails = \"Failed to process the request(s), message: RuntimeError: CUDA error: device-side assert triggered\"\n", "device-assert-unlocated", True, 3),
    "something_printed_into_an_expression": ("block: [0,0,0], thread: [5,0,0] Assertion `t >= \nERROR 2025-03-01T10:11:12Z [resource.labels.taskName: pool0-0] 0 && t < n_classes` failed.\nRuntimeError: CUDA error: device-side assert triggered\n", "target-out-of-range", True, 1),
    "something_printed_into_a_generated_bound": ("x.py:30: unknown: block: [2,0,0], thread: [8,0,0] Assertion `index out \n[pool 0-0] of bounds: 0 <= tmp4 < 24` failed.\n", "compiled-index-out-of-range", True, 1),
    "damaged_beyond_recognition": ("block: [0,0,0], thread: [5,0,0] Assertion `t > 1 %% t  n_classes` failed.\n", "unknown", True, 1),
    "own_assertion_without_its_file": ("block: [0,0,0], thread: [5,0,0] Assertion `rows must be sorted` failed.\n", "user-device-assert", True, 1),
    "escaped_twice": ("&amp;lt;frozen importlib._bootstrap_external&amp;gt;:843: _call_with_frames_removed: block: [45,2,0], thread: [32,0,0] Assertion `index out of bounds: 0 &amp;lt;= tmp4 &amp;lt; 24` failed.\n", "compiled-index-out-of-range", True, 1),
    "nccl_only": ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n", "communication-failure", None, 1),
    "gloo": ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:1234\n", "communication-failure", None, 1),
    "illegal_first": ("RuntimeError: CUDA error: an illegal memory access was encountered\nTHCudaCheck FAIL file=x.cpp line=278 error=710 : device-side assert triggered\n", "illegal-memory-access", True, 1),
    "labelled": ("step 12 failed: CUDA error: device-side assert triggered\nstep 13 failed: CUDA error: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "glued_bar": ("  0%|      | 0/10 [00:00<?, ?it/s]RuntimeError: CUDA error: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "logger": ("2025-01-01 10:00:00,123 ERROR trainer Exception: CUDA error: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "pytest": ("E       RuntimeError: CUDA error: device-side assert triggered\nE       CUDA kernel errors might be asynchronously reported\n", "device-assert-unlocated", True, 1),
    "pytest_host": ("E       IndexError: Target 5 is out of bounds.\n\nloss.py:9: IndexError\n", "target-out-of-range", False, 1),
    "then_cpu": ("RuntimeError: CUDA error: device-side assert triggered\n$ python train.py --device cpu\nIndexError: Target 5 is out of bounds.\n", "target-out-of-range", True, 1),
    "inductor_cpu": ("RuntimeError: kernel, /tmp/torchinductor_u/cx/cxyz.main.cpp:21, index out of bounds: 0 <= tmp2 < 5L\n", "compiled-index-out-of-range", False, 1),
    "gather_cpu": ("RuntimeError: index 4 is out of bounds for dimension 1 with size 4\n", "gather-index-out-of-range", False, 1),
    "index_cpu": ("IndexError: index 7 is out of bounds for dimension 0 with size 5\n", "index-out-of-range", False, 1),
    "mps": ("torch.AcceleratorError: index 4096 is out of bounds: 0, range 0 to 512\n", "index-out-of-range", None, 1),
    "fbgemm": ("EmbeddingBoundsCheck (VBE false): (at least one) Out of bounds access for batch: 1, table: 0, bag element: 2, idx: 12, num_rows: 10, indices_start: 0, indices_end: 3 Setting idx to zero.\n", "embedding-index-out-of-range", False, 1),
    "oom_then_assert": ("caught: CUDA out of memory. Tried to allocate 2 GiB\nretry\nRuntimeError: CUDA error: device-side assert triggered\n", "device-assert-unlocated", True, 3),
    "serving_json": ('{"level": "error", "message": "engine died", "exception": "RuntimeError: CUDA error: device-side assert triggered"}\n', "device-assert-unlocated", True, 1),
    "numba": ("numba.cuda.cudadrv.driver.CudaAPIError: [710] Call to cuMemcpyDtoH results in CUDA_ERROR_ASSERT\n", "device-assert-unlocated", True, 1),
    "numba_700": ("numba.cuda.cudadrv.driver.CudaAPIError: [700] Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS\n", "illegal-memory-access", True, 1),
    "onnxruntime": ("CUDA failure 710: device-side assert triggered ; GPU=0 ; hostname=a ; expr=cudaMemcpy\n", "device-assert-unlocated", True, 1),
    "tensorrt": ("[E] 1: [cudaDriverHelpers.cpp::operator()::94] Error Code 1: Cuda Driver (device-side assert triggered)\n", "device-assert-unlocated", True, 1),
    "thrust": ("terminate called after throwing an instance of 'thrust::system::system_error'\n  what():  parallel_for failed: cudaErrorAssert: device-side assert triggered\n", "device-assert-unlocated", True, 2),
    "gpuassert": ("GPUassert: device-side assert triggered kernel.cu 45\n", "device-assert-unlocated", True, 1),
    "warning": ("[W CUDAGuardImpl.h:113] Warning: CUDA warning: device-side assert triggered (function destroyEvent)\n", "device-assert-unlocated", True, 1),
    "driver_error": ("RuntimeError: CUDA driver error: device-side assert triggered\n", "device-assert-unlocated", True, 1),
    "old_77": ("RuntimeError: cuda runtime error (77) : an illegal memory access was encountered at /pytorch/aten/src/THC/generic/THCTensorCopy.c:20\n", "illegal-memory-access", True, 1),
    "old_48": ("RuntimeError: cuda runtime error (48) : no kernel image is available for execution on the device at /pytorch/a.cu:1\n", "unsupported-device-code", False, 1),
    "old_8": ("RuntimeError: cuda runtime error (8) : invalid device function at /pytorch/aten/src/THC/a.cu:1\n", "unsupported-device-code", False, 1),
    "old_4": ("RuntimeError: cuda runtime error (4) : unspecified launch failure at /pytorch/aten/src/THC/a.cu:1\n", "illegal-memory-access", True, 1),
    "old_2": ("RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58\n", "out-of-memory", False, 1),
    "copy_to_cpu": ("RuntimeError: CUDA error: an illegal memory access was encountered (copy_to_cpu at /pytorch/aten/src/a.cu:199)\n", "illegal-memory-access", True, 1),
    "colab": ("---------------------------------------------------------------------------\nRuntimeError                              Traceback (most recent call last)\n<ipython-input-5-1> in <module>()\n----> 1 model.to('cuda')\n\nRuntimeError: CUDA error: device-side assert triggered\n", "device-assert-unlocated", True, 6),
    "hints_only": ("For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n", "unknown", None, 1),
    "user_triton": ("/home/u/k.py:12: kernel: block: [0,0,0], thread: [0,0,0] Assertion `x must be positive` failed.\n", "user-device-assert", True, 1),
    "triton_helpers": ("/x/torch/_inductor/runtime/triton_helpers.py:123: unknown: block: [1,0,0], thread: [2,0,0] Assertion `index out of bounds: 0 <= tl.broadcast_to(tmp13, [XBLOCK]) < 512` failed.\n", "compiled-index-out-of-range", True, 1),
    "extension": ("/home/u/ops/knn_cuda_kernel.cu:88: knn: block: [0,0,0], thread: [3,0,0] Assertion `k <= MAX_K` failed.\n", "user-device-assert", True, 1),
    "torch_unknown": ("/pytorch/aten/src/ATen/native/cuda/NewKernel.cu:88: new_kernel: block: [0,0,0], thread: [3,0,0] Assertion `something >= 0` failed.\n", "unknown", True, 1),
    "paddle_device": ("/paddle/paddle/phi/kernels/gpu/x.cu:47: operator(): block: [0,0,0], thread: [3,0,0] Assertion `id >= 0` failed.\n", "unknown", True, 1),
    "rocm_silent": (":0:rocdevice.cpp :2692: 882 us: Device::callbackQueue aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29\n", "illegal-memory-access", True, 1),
    "bare_compiled": ("Assertion `index out of bounds: 0 <= tmp16 < 32768` failed.\nRuntimeError: CUDA error: device-side assert triggered\n", "compiled-index-out-of-range", True, 1),
    "bare_expression": ("x Assertion `srcIndex < srcSelectDimSize` failed.\nRuntimeError: CUDA error: device-side assert triggered\n", "embedding-index-out-of-range", True, 1),
    "lost_path": ("void indexSelectLargeIndex(TensorInfo<T, IndexType>, int) [with T = float, IndexType = unsigned int]: block: [1,0,0], thread: [2,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n", "embedding-index-out-of-range", True, 1),
    "rank_of_assert": ("../aten/src/ATen/native/cuda/Loss.cu:242: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n[rank3]: RuntimeError: CUDA error: device-side assert triggered\n[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n", "target-out-of-range", True, 1),
    "repr": ("Error(RuntimeError('CUDA error: device-side assert triggered\\nCUDA kernel errors might be asynchronously reported'))\n", "device-assert-unlocated", True, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_wording(name: str) -> None:
    text, verdict, restart, line = CASES[name]
    report = explain_text(text)
    cause = report.cause
    assert (report.verdict, report.restart_required, cause and cause.line) == (verdict, restart, line)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: parallel_for failed: cudaErrorIllegalAddress: an illegal memory access was encountered\n",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR\n",
        "RuntimeError: cuda runtime error (59) : device-side assert triggered at /pytorch/aten/src/THC/THCStorage.cpp:36\n",
    ],
)
def test_a_line_that_says_it_twice_counts_once(text: str) -> None:
    cause = explain_text(text).cause
    assert cause is not None
    assert cause.count == 1


def test_the_rank_that_asserted_is_told_from_the_one_that_waited() -> None:
    cause = explain_text(CASES["rank_of_assert"][0]).cause
    assert cause is not None
    assert cause.rank == 3


FRAMES = {
    "embedding-index-out-of-range": '  File "/x/site-packages/torch/nn/functional.py", line 2210, in embedding\n    return torch.embedding(weight, input)\n',
    "target-out-of-range": '  File "/home/user/train.py", line 41, in step\n    loss = F.cross_entropy(logits, y)\n',
    "gather-index-out-of-range": '  File "/home/user/train.py", line 41, in step\n    onehot = F.one_hot(mask, 2)\n',
    "invalid-sampling-distribution": '  File "/x/site-packages/transformers/generation/utils.py", line 3297, in _sample\n    next_tokens = torch.multinomial(probs, 1)\n',
    "probability-outside-unit-interval": '  File "/home/user/train.py", line 41, in step\n    loss = F.binary_cross_entropy(p, y)\n',
    "index-out-of-range": '  File "/home/user/train.py", line 41, in step\n    cos = cos[position_ids].unsqueeze(1)\n',
    "ctc-target-invalid": '  File "/home/user/train.py", line 41, in step\n    loss = F.ctc_loss(lp, y, n, m)\n',
}


@pytest.mark.parametrize("hazard", FRAMES)
def test_frames_make_a_hazard_likely_but_do_not_decide(hazard: str) -> None:
    text = "Traceback (most recent call last):\n" + FRAMES[hazard] + "RuntimeError: CUDA error: device-side assert triggered\n"
    report = explain_text(text)
    assert report.verdict == "device-assert-unlocated"
    assert report.extra["likely"][0]["hazard"] == hazard


INNOCENT = [
    "loss.backward()",
    "optimizer.step()",
    "torch.cuda.synchronize()",
    "torch.cuda.empty_cache()",
    "print(x)",
    "x = torch.arange(10).cuda()",
    "x.cpu()",
]


@pytest.mark.parametrize("source", INNOCENT)
def test_innocent_frames_speak_for_nothing(source: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/home/user/train.py", line 41, in main\n    {source}\nRuntimeError: CUDA error: device-side assert triggered\n'
    report = explain_text(text)
    assert report.verdict == "device-assert-unlocated"
    assert report.extra["likely"] == []


BOUNDS = "RuntimeError: index 4 is out of bounds for dimension 1 with size 4"
ONE_OF_SEVERAL = {
    "chosen = logp.gather(1, actions)": ("gather-index-out-of-range", "aten::gather"),
    "out.scatter_add_(1, target, ones)": ("gather-index-out-of-range", "aten::scatter_add"),
    "pooled.index_add_(0, graph, h)": ("index-out-of-range", "aten::index_add"),
    "loss = step(batch)": ("gather-index-out-of-range", None),
}


@pytest.mark.parametrize("source", ONE_OF_SEVERAL)
def test_the_frame_tells_which_operator_the_host_refused(source: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/home/user/train.py", line 41, in main\n    {source}\n{BOUNDS}\n'
    report = explain_text(text)
    assert report.cause is not None
    assert (report.verdict, report.cause.operator) == ONE_OF_SEVERAL[source]


def test_on_rocm_a_launch_failure_may_be_an_assertion() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/home/user/train.py", line 9, in step\n    loss = F.cross_entropy(logits, y)\n'
        "torch.AcceleratorError: HIP error: unspecified launch failure\n"
        "Search for `hipErrorLaunchFailure' in https://rocm.docs.amd.com/projects/HIP/en/latest/index.html for more information.\n"
    )
    report = explain_text(text)
    assert (report.verdict, report.restart_required, len(report.diagnoses)) == ("illegal-memory-access", True, 1)
    assert report.extra["confidence"] == "undetermined"
    assert [clue["hazard"] for clue in report.extra["likely"]] == ["device-assert-unlocated", "target-out-of-range"]
    on_cuda = explain_text(text.replace("HIP", "CUDA").replace("hipError", "cudaError"))
    assert (on_cuda.extra["confidence"], on_cuda.extra["likely"], len(on_cuda.diagnoses)) == ("determined", [], 1)
