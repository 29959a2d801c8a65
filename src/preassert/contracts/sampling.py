"""Sampling. Source: aten/src/ATen/native/Distributions.cpp, cuda/MultinomialKernel.cu, cuda/DistributionTemplates.h."""

from __future__ import annotations

from preassert.contracts.domains import Distribution, Interval, Truth
from preassert.contracts.rows import Row, variants

DISTRIBUTION = "invalid-sampling-distribution"
PROBABILITY = "probability-outside-unit-interval"

# 0 is let through: the sample is then the smallest number, which is the limit of the distribution.
_SHAPE = Interval("self", highest=None)

ROWS: tuple[Row, ...] = (
    *variants("multinomial multinomial.out", DISTRIBUTION, Distribution("self"), call="torch.multinomial", covers=True),
    *variants("bernoulli bernoulli.out", PROBABILITY, Interval("self"), call="torch.bernoulli", covers=True),
    *variants("bernoulli_.Tensor bernoulli.Tensor", PROBABILITY, Interval("p"), call="Tensor.bernoulli_", covers=True),
    Row("aten::poisson", DISTRIBUTION, (Interval("self", highest=None),), "torch.poisson"),
    Row(
        "aten::binomial",
        DISTRIBUTION,
        (Interval("count", highest=None), Interval("prob", hazard=PROBABILITY)),
        "torch.binomial",
        cpu_silent="a number is returned; a NaN count never returns",
    ),
    Row(
        "aten::_standard_gamma",
        DISTRIBUTION,
        (_SHAPE,),
        "torch._standard_gamma",
        cpu_silent="the smallest number is returned",
    ),
    Row(
        "aten::_sample_dirichlet",
        DISTRIBUTION,
        (_SHAPE,),
        "torch._sample_dirichlet",
        covers=True,
        cpu_silent="the smallest number is returned",
    ),
    *variants(
        "normal.float_Tensor normal.float_Tensor_out normal.Tensor_Tensor normal.Tensor_Tensor_out",
        DISTRIBUTION,
        Interval("std", highest=None),
        call="torch.normal",
    ),
    *variants(
        "_assert_async _assert_async.msg _functional_assert_async.msg", "user-device-assert", Truth(), call="torch._assert_async"
    ),
)
