"""The factors of a side: exact against the log joint, draws against their moments."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.data.layout import BlockSizes
from im3f_jax.gibbs.factors import (
    FactorParameters,
    conditional_factors,
    resample_factors,
)
from tests import tiny
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit

conditional = quick_jit(conditional_factors)
NOISY = tiny.noisy(tiny.make_spec())


def arguments(side, state, data):
    """Arguments of the conditional of a side's factors."""
    x = tiny.residual(state, data, without=("factors",))
    return (
        side.of(state, "factor_prior"),
        x.astype(data.rating.dtype),
        side.other.of(state, "factors"),
        state.rating_variance,
        side.of(data, "blocks"),
        tiny.precision_of(state, data),
    )


def log_density(parameters, factors):
    """Sum over rows of h'a - a'P a / 2, up to a constant."""
    h, p = (np.float64(x) for x in parameters)
    a = np.float64(factors)
    return np.sum(h * a) - 0.5 * np.einsum("ud,ude,ue->", a, p, a)


def check(side, precision, conditional=conditional, seed=0, spec=None):
    spec, data, state = tiny.make(precision, spec, seed)
    parameters = conditional(*arguments(side, state, data))
    assert all(x.dtype == precision.dtype for x in parameters)
    rng = np.random.default_rng(seed + 100)
    number, current = side.number(data), side.of(state, "factors")
    # All rows at once, then each row alone.
    for rows in [slice(0, number), *range(number)]:
        values = []
        for _ in range(4):
            value = current.copy()
            value[rows] = rng.normal(size=value[rows].shape)
            values.append(value)
        tiny.assert_same_differences(
            [log_density(parameters, value) for value in values],
            [tiny.joint(side.put(state, factors=v), spec, data) for v in values],
            precision,
        )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact(side, precision, seed):
    check(side, precision, seed=seed)


def test_conditional_is_exact_where_the_noise_differs(side, precision):
    check(side, precision, spec=NOISY)


def prior_mean_missing(prior, *rest):
    return conditional(prior._replace(mean=np.zeros_like(prior.mean)), *rest)


def prior_precision_missing(prior, *rest):
    h, p = conditional(prior, *rest)
    return FactorParameters(h, p - prior.precision[None])


def residual_of_the_wrong_sign(prior, x, *rest):
    return conditional(prior, -x, *rest)


def products_not_divided_by_the_variance(prior, x, other, variance, *rest):
    h, _ = conditional(prior, x, other, variance, *rest)
    _, p = conditional(prior, x, other, np.ones_like(variance), *rest)
    return FactorParameters(h, p)


def linear_not_divided_by_the_variance(prior, x, other, variance, *rest):
    _, p = conditional(prior, x, other, variance, *rest)
    h, _ = conditional(prior, x, other, np.ones_like(variance), *rest)
    return FactorParameters(h, p)


def one_rating_missing(prior, x, other, variance, blocks, precision):
    left_out = blocks.position == 3
    fewer = type(blocks)(
        np.where(left_out, len(other) - 1, blocks.other),
        blocks.position,
        blocks.row,
        blocks.batch_start,
        blocks.rows,
    )
    return conditional(prior, x, other, variance, fewer, precision)


def precision_missing(*given):
    return conditional(*given[:-1], None)


def precision_missing_in_products(*given):
    return FactorParameters(conditional(*given)[0], conditional(*given[:-1], None)[1])


def precision_missing_in_linear(*given):
    return FactorParameters(conditional(*given[:-1], None)[0], conditional(*given)[1])


def precision_squared(*given):
    return conditional(*given[:-1], given[-1] ** 2)


def precision_of_another_rating(*given):
    return conditional(*given[:-1], np.roll(given[-1], 1))


@pytest.mark.parametrize(
    "mutant",
    [
        prior_mean_missing,
        prior_precision_missing,
        residual_of_the_wrong_sign,
        products_not_divided_by_the_variance,
        linear_not_divided_by_the_variance,
        one_rating_missing,
    ],
)
@pytest.mark.parametrize("name", tiny.PRECISIONS)
def test_a_mutant_is_found(side, mutant, name):
    with tiny.in_precision(name) as precision, tiny.found():
        check(side, precision, mutant)


@pytest.mark.parametrize(
    "mutant",
    [
        precision_missing,
        precision_missing_in_products,
        precision_missing_in_linear,
        precision_squared,
        precision_of_another_rating,
    ],
)
def test_a_mutant_of_the_noise_is_found(side, mutant, float64):
    with tiny.found():
        check(side, float64, mutant, spec=NOISY)


@pytest.mark.parametrize(
    "sizes",
    [
        BlockSizes(block=1, group=3, rows=64, chunk=8),  # a block a rating
        BlockSizes(block=2, group=2, rows=2, chunk=8),  # several batches of rows
        BlockSizes(block=64, group=4096, rows=65536, chunk=262144),
        BlockSizes(block=2, group=16, rows=64, chunk=8, lanes=8),
    ],
)
def test_conditional_does_not_depend_on_blocks_and_padding(side, float64, sizes):
    _, data, state = tiny.make(float64)
    others = tiny.make_data(float64.dtype, sizes)
    again = tiny.transplant(state, others)
    number = side.number(data)
    first = conditional(*arguments(side, state, data))
    second = conditional(*arguments(side, again, others))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a[:number], b[:number], atol=1e-12)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("noise", ["constant", "that differs"])
def test_draws(noise, lanes):
    side = tiny.SIDES["user"]
    spec = None if noise == "constant" else NOISY
    sizes = replace(tiny.SIZES, lanes=lanes)
    _, data, state = tiny.make(tiny.PRECISIONS["float32"], spec, sizes=sizes)
    given = arguments(side, state, data)
    draw = quick_jit(jax.vmap(resample_factors, (0, *[None] * 7)))
    keys = jax.random.split(jax.random.key(0), 4_000)
    number = side.number(data)
    draws = np.float64(draw(keys, *given[:-1], np.int32(number), given[-1]))
    assert not np.any(draws[:, number:])
    h, p = (np.float64(x)[:number] for x in conditional(*given))
    mean = np.linalg.solve(p, h[..., None])[..., 0]
    root = np.linalg.cholesky(p)
    z = np.einsum("ued,nue->nud", root, draws[:, :number] - mean)
    assert_mean(draws[:, :number], mean)
    assert_ks(z, stats.norm.cdf)
    z = z.reshape(len(z), -1)
    products = z[:, :, None] * z[:, None, :]
    assert_mean(products, np.eye(z.shape[1]))
