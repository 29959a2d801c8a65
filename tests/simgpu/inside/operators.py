"""torch's own sample inputs of its operators: the simulated device gives what the CPU gives."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

# random results, uninitialised memory, decompositions that are unique up to a sign, or layouts beyond dense
LEFT_OUT = (
    "empty", "uniform", "normal", "rand", "bernoulli", "multinomial", "dropout", "cauchy", "exponential", "geometric",
    "poisson", "sparse", "item", "fractional", "rrelu", "svd", "pca_lowrank", "scaled_dot", "binomial", "jiterator",
    "linalg.eig", "as_strided", "tensor_split", "qr", "special_zeta",
)  # fmt: skip
EVERY = 31  # a sample of all families that takes seconds


def _moved(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone().cuda()
    return "cuda" if value == "cpu" or isinstance(value, torch.device) else value


def check_operators_match_the_cpu() -> None:
    compared, wrong = 0, []
    for op in op_db[::EVERY]:
        if torch.float32 not in op.dtypes or any(name in op.name for name in LEFT_OUT):
            continue
        for _, sample in zip(range(2), op.sample_inputs("cpu", torch.float32), strict=False):
            want = op(sample.input, *sample.args, **sample.kwargs)
            first, args, kwargs = tree_map(_moved, (sample.input, tuple(sample.args), dict(sample.kwargs)))
            got = tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, op(first, *args, **kwargs))
            compared += 1
            try:
                torch.testing.assert_close(got, want, equal_nan=True)
            except AssertionError as error:
                wrong.append(f"{op.name} {op.variant_test_name}: {error}")
    assert not wrong, "\n".join(wrong)
    assert compared > 25
