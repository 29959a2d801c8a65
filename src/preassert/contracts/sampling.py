"""Sampling. Source: aten/src/ATen/native/Distributions.cpp, cuda/MultinomialKernel.cu, cuda/DistributionTemplates.h."""

from __future__ import annotations

from preassert.contracts.domains import Distribution, Interval, Truth
from preassert.contracts.rows import Row, variants

DISTRIBUTION = "invalid-sampling-distribution"
PROBABILITY = "probability-outside-unit-interval"

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
        cpu_silent="any number is returned",
    ),
    Row(
        "aten::_standard_gamma",
        DISTRIBUTION,
        (Interval("self", highest=None, open_lowest=True),),
        "torch._standard_gamma",
        cpu_silent="the smallest number is returned",
    ),
    Row(
        "aten::_sample_dirichlet",
        DISTRIBUTION,
        (Interval("self", highest=None, open_lowest=True),),
        "torch._sample_dirichlet",
        covers=True,
        cpu_silent="the smallest number is returned",
    ),
    *variants(
        "_assert_async _assert_async.msg _functional_assert_async.msg", "user-device-assert", Truth(), call="torch._assert_async"
    ),
)
