# ruff: noqa: E501 - a printed line stands here as one line
"""Texts that use the words and mean something else: nothing may be invented for them."""

from __future__ import annotations

import pytest

from preassert.logs import explain_text

CLEAN = {
    "git_log": """\
a1b2c3d Fix CUDA error: device-side assert triggered when labels are -1
9f8e7d6 docs: explain `IndexError: Target 5 is out of bounds.`
77aa001 Merge pull request #12 from x/illegal-memory-access
0badf00 RuntimeError: CUDA error: device-side assert triggered is now caught in eval
""",
    "git_log_long": """\
commit 3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a
Author: A. Person <a@example.org>
Date:   Mon Mar 3 10:00:00 2025 +0000

    Fix device-side assert triggered in the embedding of the decoder

    The token ids were out of range; see `srcIndex < srcSelectDimSize`.
""",
    "changelog": """\
## 1.4.0
- Fixed `CUDA error: device-side assert triggered` when the batch is empty
- Fixed an illegal memory access was encountered in the fused kernel
* No more `IndexError: index out of range in self` for padded inputs
* out of memory is reported with the batch size
""",
    "pytest_pass": """\
============================= test session starts ==============================
tests/test_loss.py::test_target_out_of_bounds_raises PASSED                [ 20%]
tests/test_loss.py::test_cuda_error_device_side_assert_triggered PASSED    [ 40%]
tests/test_embed.py::test_index_out_of_range_in_self[cpu] PASSED           [ 60%]
tests/test_oom.py::test_cuda_out_of_memory_is_caught SKIPPED (no GPU)      [ 80%]
tests/test_nccl.py::test_watchdog_caught_collective_operation_timeout XFAIL [100%]
=================== 3 passed, 1 skipped, 1 xfailed in 4.12s ===================
""",
    "pytest_quiet": "........................s.........                                        [100%]\n33 passed, 1 skipped in 8.31s\n",
    "unittest": "test_cublas_status_not_initialized (t.T) ... ok\ntest_assertion_failed (t.T) ... ok\n\nRan 2 tests in 0.2s\n\nOK\n",
    "tap": "ok 1 - device-side assert triggered is reported\nok 2 - IndexError: Target 5 is out of bounds. is reported\n1..2\n",
    "source_python": """\
    try:
        loss = criterion(logits, target)
    except RuntimeError as error:
        if "CUDA error: device-side assert triggered" in str(error):
            raise ValueError("labels must be below num_classes") from error
    assert target.max() < num_classes, "Target is out of bounds."
""",
    "source_of_messages": '''\
"""Explain RuntimeError: CUDA error: device-side assert triggered."""
import torch

MESSAGES = [
    "CUDA error: device-side assert triggered",
    "IndexError: Target 5 is out of bounds.",
    'CUDA out of memory. Tried to allocate',
]
''',
    "source_cuda": """\
template <typename T>
__global__ void nll_loss_forward(T* input, int64_t* target, int n_classes) {
  CUDA_KERNEL_ASSERT(t >= 0 && t < n_classes);
  CUDA_KERNEL_ASSERT(index >= -sizes[i] && index < sizes[i] && "index out of bounds");
}
""",
    "grep": """\
aten/src/ATen/native/cuda/Loss.cu:106:      CUDA_KERNEL_ASSERT(input_val >= zero && input_val <= one);
c10/cuda/CUDAException.cpp:43:      "CUDA error: device-side assert triggered"
torch/csrc/autograd/engine.cpp:1120:  // RuntimeError: CUDA error: device-side assert triggered
tests/test_x.py:33:    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
""",
    "diff": """\
@@ -10,6 +10,8 @@
-    raise RuntimeError("CUDA error: device-side assert triggered")
+    # IndexError: Target 5 is out of bounds.
+    raise ValueError("index out of range in self")
""",
    "training": """\
Epoch 3/90: train loss 1.231, val error 0.22, errors: 0
validation: mean squared error: 0.113, failed: 0, out of range: 0
memory: 11.2 GiB of 24 GiB, out of memory retries: 0
CUDA errors since start: 0; assertions failed: 0
""",
    "ninja": """\
[12/90] Building CUDA object CMakeFiles/k.dir/NLLLoss2d.cu.o
NLLLoss2d.cu(95): warning #177-D: variable "t" was declared but never referenced
[90/90] Linking CXX shared library libk.so
""",
    "warnings": """\
/x/site-packages/torch/nn/functional.py:1:  UserWarning: Named tensors and all their associated APIs are an experimental feature
  warnings.warn(msg)
[rank0]:[W311 10:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.
done
""",
    "chat": """\
Q: What does "CUDA error: device-side assert triggered" mean?
A: It means that a kernel asserted, mostly because a label is out of range.
""",
    "sphinx": "reading sources... [ 10%] errors/cuda-out-of-memory\nwriting output... [ 90%] errors/illegal-memory-access\nbuild succeeded.\n",
    "pip": "Collecting torch==2.6.0\nInstalling collected packages: nvidia-nccl-cu12, triton, torch\nSuccessfully installed torch-2.6.0\n",
    "nccl_info": """\
host:123:456 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so), using internal implementation
host:123:456 [0] NCCL INFO Connected all rings
host:123:456 [0] NCCL INFO comm 0x55 rank 0 nranks 8 - Init COMPLETE
""",
    "json": """\
{"ts": "2025-05-01T10:00:00Z", "level": "info", "msg": "asserts are compiled out", "cuda_error": null}
{"ts": "2025-05-01T10:01:00Z", "level": "info", "msg": "step 100", "index_errors": 0, "note": "no CUDA error so far"}
""",
    "commit_graph": "* 3f2a1b0 (HEAD -> main) fix: RuntimeError: CUDA error: device-side assert triggered\n* 1c2d3e4 test(loss): IndexError: Target 5 is out of bounds.\n",
    "table_of_errors": "id,title\n1,CUDA error: device-side assert triggered\n2,IndexError: Target 5 is out of bounds.\n3,RuntimeError: CUDA out of memory\n",
    "json_empty_message": '{"content": {"message": "", "attributes": {"level": "error"}}}\n{"content": {"message": "step 1", "attributes": {"level": "error"}}}\n',
    "empty": "",
    "blank": "\n\n\n",
    "nvidia_smi": """\
|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:07:00.0 Off |                    0 |
| N/A   34C    P0              54W / 400W |   1234MiB / 40960MiB |      0%      Default |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
""",
    "slurm": "Submitted batch job 8841\nJOBID PARTITION NAME USER ST TIME NODES\n8841 gpu train me R 0:01 1\n",
    "compile_log": "torch._inductor: index expressions: 0 <= tmp4 < 24 checked; 3 kernels compiled\n",
    "readme": """\
# Troubleshooting
If you see `RuntimeError: CUDA error: device-side assert triggered`, see docs/faq.md.
For "CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate(handle)" check your labels first.
""",
    "access_log": '10.0.0.1 - - [02/Mar/2025:09:00:00 +0000] "POST /train HTTP/1.1" 200 512\nstatus: 200 OK\nstatus=204\n',
    "zero_errors": "checked 120 files: 0 errors, 2 warnings\n0 failed, 33 passed\n100% tests passed, 0 tests failed out of 12\nKilled 3 stale workers\n",
    "issue_list": "1234  OPEN  RuntimeError: CUDA error: device-side assert triggered (#1234)\n88  CLOSED  IndexError: Target 5 is out of bounds. (#88)\n",
    "shell_history": '  501  grep -rn "CUDA error: device-side assert triggered" logs/\n  502  python train.py\n',
    "search_results": "How to fix CUDA error: device-side assert triggered - Stack Overflow\npytorch - CUDA error: an illegal memory access was encountered - GitHub\n",
    "quoted_expression": "see the note about Assertion `srcIndex < srcSelectDimSize` failed in the wiki\nepoch 1 loss 0.5\n",
    "cuda_none": "CUDA error: none\nCUDA error: 0\n",
    "help": "  --assert-async   stop on device-side assertions (needs a build with TORCH_USE_CUDA_DSA)\n  --max-errors N   give up after N errors\n",
}

UNKNOWN = {
    "numpy": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    x[9]\nIndexError: index 9 is out of bounds for axis 0 with size 3\n',
    "list": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    x[9]\nIndexError: list index out of range\n',
    "string": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nIndexError: string index out of range\n',
    "pandas": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nIndexError: single positional indexer is out-of-bounds\n',
    "key": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nKeyError: "label"\n',
    "keyboard": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    loss.backward()\nKeyboardInterrupt\n',
    "c_assert": "a.out: main.c:12: main: Assertion `argc > 3' failed.\nAborted (core dumped)\n",
    "cpp_assert": "python: ../src/lexer.cpp:99: void lex(char*): Assertion `p != nullptr' failed.\n",
    "malloc": "python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av) && old_size == 0)' failed.\nAborted\n",
    "segfault": "epoch 1\nSegmentation fault (core dumped)\n",
    "killed": "epoch 1 loading data\nKilled\n",
    "onnxruntime": "onnxruntime.capi.onnxruntime_pybind11_state.Fail: [ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node.\n",
    "bitsandbytes": "Error invalid configuration argument at line 218 in file /mmfs1/bitsandbytes/csrc/ops.cu\n",
    "code_alone": "CUDA error 98 at kernel.cu:88\n",
    "one_hint": "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
    "keras": "Received a label value of 10 which is outside the valid range of [0, 10).  Label values: 3 10 2\n",
    "slurm_killed": "epoch 1\nslurmstepd: error: Detected 1 oom_kill event in StepId=8841.0. Some of the step tasks have been OOM Killed.\nsrun: error: node7: task 0: Out Of Memory\n",
    "slurm_killed_short": "epoch 1\nsrun: error: node7: task 0: Out Of Memory\n",
    "exception_without_the_word": "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 101376.\n",
    "compile_error": """\
[3/9] Building CUDA object k.o
FAILED: k.o
kernel.cu(17): error: identifier "n_clases" is undefined
      CUDA_KERNEL_ASSERT(t >= 0 && t < n_clases);
1 error detected in the compilation of "kernel.cu".
ninja: build stopped: subcommand failed.
""",
    "compile_error_quoting": """\
kernel.cu(20): error: expected a ";"
  // prints: Assertion `t >= 0 && t < n_classes` failed.
1 error detected in the compilation of "kernel.cu".
""",
    "tensorflow": """\
2024-01-01 10:00:00.123: W tensorflow/core/framework/op_kernel.cc:1830] OP_REQUIRES failed at gather_op.cc:158 : INVALID_ARGUMENT: indices[0,3] = 50 is not in [0, 50)
Traceback (most recent call last):
  File "a.py", line 3, in <module>
tensorflow.python.framework.errors_impl.InvalidArgumentError: indices[0,3] = 50 is not in [0, 50) [Op:ResourceGather]
""",
    "jax": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\njaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to execute XLA Runtime executable\n',
    "paddle": """\
Error: /paddle/paddle/phi/kernels/gpu/embedding_kernel.cu:56 Assertion `id >= 0` failed. Variable value (input) of OP(fluid.layers.embedding) expected >= 0 and < 10, but got 12. Please check input value.
""",
    "mxnet": 'Traceback (most recent call last):\n  File "a.py", line 2, in <module>\nmxnet.base.MXNetError: Check failed: e == cudaSuccess\n',
    "assertion_error": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    assert x.shape == y.shape, "index out of bounds"\nAssertionError: index out of bounds\n',
    "pytest_failure": """\
=================================== FAILURES ===================================
    def test_shape():
>       assert shape(x) == (3, 4)
E       AssertionError: assert (3, 5) == (3, 4)

tests/test_shape.py:9: AssertionError
=========================== short test summary info ============================
FAILED tests/test_shape.py::test_shape - AssertionError: assert (3, 5) == (3, 4)
1 failed in 0.31s
""",
    "cuda_unknown": "RuntimeError: CUDA error: unknown error\n",
    "cuda_init": "RuntimeError: CUDA error: initialization error\n",
    "ordinal": "RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call\n",
    "fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method\n",
    "shape": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (4x10 and 20x5)\n',
    "dtype": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nRuntimeError: expected scalar type Long but found Float\n',
    "mask": "IndexError: The shape of the mask [4] at index 0 does not match the shape of the indexed tensor [5] at index 0\n",
    "sqlite": 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\nsqlite3.OperationalError: no such table: target\n',
    "make": "make: *** [Makefile:12: all] Error 2\n",
    "rust": "thread 'main' panicked at src/main.rs:4:5:\nindex out of bounds: the len is 3 but the index is 99\n",
    "go": "panic: runtime error: index out of range [5] with length 3\n",
    "java": 'Exception in thread "main" java.lang.ArrayIndexOutOfBoundsException: Index 5 out of bounds for length 3\n',
    "node": "TypeError: Cannot read properties of undefined (reading 'map')\n    at Object.<anonymous> (/srv/app.js:3:9)\n",
    "disk": "OSError: [Errno 28] No space left on device\n",
    "exit": "ERROR: Job failed: exit status 1\n",
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean(name: str) -> None:
    report = explain_text(CLEAN[name])
    assert (report.verdict, report.restart_required, report.diagnoses) == ("clean", None, ()), report


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name: str) -> None:
    report = explain_text(UNKNOWN[name])
    assert (report.verdict, report.restart_required) == ("unknown", None)
    assert [each.role for each in report.diagnoses] == ["cause"]


@pytest.mark.parametrize("name", sorted({*CLEAN, *UNKNOWN} - {"quoted_expression"}))
def test_after_a_look_alike_a_real_failure_is_still_seen(name: str) -> None:
    """The guards against mentions must not hide the real thing."""
    text = {**CLEAN, **UNKNOWN}[name]
    line = "../aten/src/ATen/native/cuda/NLLLoss2d.cu:103: nll_loss2d_forward_kernel: block: [3,0,0], thread: [929,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    assert explain_text(text + line).verdict == "target-out-of-range"
    assert explain_text(text + "RuntimeError: CUDA error: device-side assert triggered\n").verdict == "device-assert-unlocated"
