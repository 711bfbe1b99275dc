"""Precisions of the factors' columns: exact, draws by their pivots, and the start."""

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs.column_precisions import (
    column_squares,
    conditional_increments,
    resample_column_precisions,
)
from im3f_jax.gibbs.init import START_RANGE, init_state
from im3f_jax.model.factor_prior import MultiplicativeGamma
from tests import tiny
from tests.gof import assert_ks
from tests.quick import quick_jit

NUM_ROWS = np.int32(tiny.NUM_USERS + tiny.NUM_ITEMS)
SPEC = tiny.shrink(tiny.make_spec("none", "none"))

conditional = quick_jit(conditional_increments)


def check(precision, conditional=conditional, seed=0):
    spec, data, state = tiny.make(precision, SPEC, seed)
    squares = column_squares(state.user_factors, state.item_factors)
    given = spec.factor_prior, state.column_increments, squares, NUM_ROWS
    shape, rate = conditional(*given)
    assert shape.dtype == rate.dtype == precision.dtype
    for h in range(spec.latent_dim):
        values = np.random.default_rng(seed + h).uniform(0.2, 3, size=6)

        def put(value, h=h):
            increments = state.column_increments.copy()
            increments[h] = value
            return tiny.put_increments(state, increments)

        tiny.assert_same_differences(
            [tiny.log_gamma_density(x, shape[h], rate[h]) for x in values],
            [tiny.joint(put(x), spec, data) for x in values],
            precision,
        )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditionals_are_exact(precision, seed):
    check(precision, seed=seed)


def rows_of_one_side(prior, increments, squares, number):
    return conditional(prior, increments, squares, np.int32(tiny.NUM_ITEMS))


def columns_off_by_one(prior, increments, squares, number):
    result = conditional(prior, increments, squares, number)
    return result._replace(shape=result.shape - number.astype(squares.dtype) / 2)


def own_increment_left_in(prior, increments, squares, number):
    result = conditional(prior, increments, squares, number)
    rates = prior.parameters(3, squares.dtype)[1]
    return result._replace(rate=rates + (result.rate - rates) * increments)


def later_columns_left_out(prior, increments, squares, number):
    rates = prior.parameters(3, squares.dtype)[1]
    rate = rates + np.cumprod(increments) * squares / increments / 2
    return conditional(prior, increments, squares, number)._replace(rate=rate)


def first_rate_for_all(prior, increments, squares, number):
    result = conditional(prior, increments, squares, number)
    rates = prior.parameters(3, squares.dtype)[1]
    return result._replace(rate=result.rate - rates + rates[0])


@pytest.mark.parametrize(
    "mutant",
    [
        rows_of_one_side,
        columns_off_by_one,
        own_increment_left_in,
        later_columns_left_out,
        first_rate_for_all,
    ],
)
@pytest.mark.parametrize("name", tiny.PRECISIONS)
def test_a_mutant_is_found(mutant, name):
    with tiny.in_precision(name) as precision, tiny.found():
        check(precision, mutant)


def test_draws():
    spec, _, state = tiny.make(tiny.PRECISIONS["float32"], SPEC)
    prior, before = spec.factor_prior, state.column_increments
    given = prior, before, state.user_factors, state.item_factors, NUM_ROWS
    draw = quick_jit(jax.vmap(resample_column_precisions, (0, *[None] * 5)))
    keys = jax.random.split(jax.random.key(0), 10_000)
    increments, (mean, precision) = jax.tree.map(np.asarray, draw(keys, *given))
    assert not np.any(mean)
    for h in range(3):
        np.testing.assert_allclose(
            precision[:, h, h], np.prod(increments[:, : h + 1], axis=1), rtol=1e-5
        )
    assert not np.any(precision * (1 - np.eye(3, dtype=np.float32)))
    # Each is a gamma given those drawn before it and the old ones after it: times its
    # rate, a standard one.
    squares = column_squares(state.user_factors, state.item_factors)
    for h in range(3):
        now = np.array(increments)
        now[:, h:] = before[h:]
        rates = jax.vmap(conditional_increments, (None, 0, None, None))(
            prior, now, squares, NUM_ROWS
        )
        standard = np.asarray(increments[:, h] * rates.rate[:, h], np.float64)
        assert_ks(standard, stats.gamma(float(rates.shape[0, h])).cdf, share=3)


def test_without_rows_the_draws_are_the_priors():
    prior = MultiplicativeGamma(2.5, 3.4, 1.7)
    rows = np.zeros((64, 3), np.float32)
    draw = quick_jit(jax.vmap(resample_column_precisions, (0, *[None] * 5)))
    keys = jax.random.split(jax.random.key(1), 10_000)
    before = np.float32([0.3, 2, 5])
    increments, _ = draw(keys, prior, before, rows, rows, np.int32(0))
    laws = [stats.gamma(2.5, scale=1 / 1.7), *[stats.gamma(3.4)] * 2]
    for values, law in zip(np.asarray(increments).T, laws, strict=True):
        assert_ks(values, law.cdf, share=3)


def test_many_columns_stay_finite():
    # As many as a spec with this shape may have; the last precision is near 1e34.
    dim = 72
    prior = MultiplicativeGamma(3.0, 3.0, 0.3)
    increments = np.full(dim, 3.0, np.float32)
    precision = np.cumprod(increments, dtype=np.float64)
    factors = np.random.default_rng(0).normal(size=(100, dim)) / np.sqrt(precision)
    factors = factors.astype(np.float32)
    drawn, (_, precision) = quick_jit(resample_column_precisions)(
        jax.random.key(0), prior, increments, factors, factors, np.int32(200)
    )
    assert np.all(np.isfinite(drawn)) and np.all(drawn > 0)
    assert np.all(np.isfinite(precision)) and precision[-1, -1] > 1e30


def test_a_chain_starts_with_the_precisions_of_its_factors():
    precision = tiny.PRECISIONS["float32"]
    data = tiny.make_data(precision.dtype)
    rng = np.random.default_rng(3)
    # What stands in rows of padding must not matter; the last column has no weight.
    users, items = (
        rng.normal(size=(rows, 3)).astype(np.float32) * np.float32([2, 0.5, 1e-9])
        for rows in (data.user_rows, data.item_rows)
    )
    state = quick_jit(init_state.__wrapped__)(
        jax.random.key(0), SPEC, data, users, items
    )
    own = np.concatenate([users[: tiny.NUM_USERS], items[: tiny.NUM_ITEMS]])
    expected = 1 / np.mean(np.float64(own) ** 2, axis=0)
    expected[2] = START_RANGE * expected[0]
    for prior in (state.user_factor_prior, state.item_factor_prior):
        np.testing.assert_allclose(np.diag(prior.precision), expected, rtol=1e-5)
        assert not np.any(prior.mean)
    np.testing.assert_allclose(np.cumprod(state.column_increments), expected, rtol=1e-5)
