"""Precisions of the factors' columns: exact, draws by their pivots, and the start."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs.column_precisions import (
    column_squares,
    conditional_column_means,
    conditional_increments,
    resample_column_precisions,
)
from im3f_jax.gibbs.init import START_RANGE, init_state
from im3f_jax.model.factor_prior import MultiplicativeGamma
from tests import tiny
from tests.gof import assert_ks
from tests.quick import quick_jit

NUM_USERS, NUM_ITEMS = np.int32(tiny.NUM_USERS), np.int32(tiny.NUM_ITEMS)
NUM_ROWS = NUM_USERS + NUM_ITEMS
SPEC = tiny.shrink(tiny.make_spec("none", "none"))

conditional = quick_jit(conditional_increments)
squares_of_side = quick_jit(column_squares)


def squares_of(prior, state, squares_of_side=squares_of_side):
    return squares_of_side(prior, state.user_factors, NUM_USERS) + squares_of_side(
        prior, state.item_factors, NUM_ITEMS
    )


def log_means(prior, state):
    """Log density of both sides' means given all else."""
    total = 0.0
    for side, number in zip(tiny.SIDES.values(), (NUM_USERS, NUM_ITEMS), strict=True):
        given = conditional_column_means(
            prior, state.column_increments, side.of(state, "factors"), number
        )
        mean, variance = (np.asarray(x, float) for x in given)
        found = side.of(state, "factor_prior").mean
        total += stats.norm.logpdf(found, mean, np.sqrt(variance)).sum()
    return total


def check(precision, conditional=conditional, seed=0, squares_of_side=squares_of_side):
    spec, data, state = tiny.make(precision, SPEC, seed)
    squares = squares_of(spec.factor_prior, state, squares_of_side)
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
            # With the means summed out: the joint less their conditional.
            [
                tiny.joint(put(x), spec, data) - log_means(spec.factor_prior, put(x))
                for x in values
            ],
            precision,
        )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditionals_are_exact(precision, seed):
    check(precision, seed=seed)


def check_means(precision, wrong=lambda given: given, seed=0):
    spec, data, state = tiny.make(precision, SPEC, seed)
    for side, number in zip(tiny.SIDES.values(), (NUM_USERS, NUM_ITEMS), strict=True):
        mean, variance = wrong(
            conditional_column_means(
                spec.factor_prior,
                state.column_increments,
                side.of(state, "factors"),
                number,
            )
        )
        assert mean.dtype == variance.dtype == precision.dtype
        values = np.random.default_rng(seed).normal(size=(6, 3)).astype(mean.dtype)
        prior = side.of(state, "factor_prior")
        tiny.assert_same_differences(
            [stats.norm.logpdf(x, mean, np.sqrt(variance)).sum() for x in values],
            [
                tiny.joint(
                    side.put(state, factor_prior=prior._replace(mean=x)), spec, data
                )
                for x in values
            ],
            precision,
        )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditionals_of_the_means_are_exact(precision, seed):
    check_means(precision, seed=seed)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda given: given._replace(mean=-given.mean),
        lambda given: given._replace(variance=2 * given.variance),
        lambda given: given._replace(mean=1.2 * given.mean),
    ],
)
def test_a_mutant_of_the_means_is_found(wrong, float64):
    with tiny.found():
        check_means(float64, wrong)


@pytest.mark.parametrize("kappa", [0.0, 1e6])
def test_squares_about_another_centre_are_found(kappa, float64):
    # About the columns' means, and about 0.
    def wrong(prior, *given):
        prior = dataclasses.replace(prior, mean_precision=kappa)
        return squares_of_side(prior, *given)

    with tiny.found():
        check(float64, squares_of_side=wrong)


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
    given = prior, before, state.user_factors, state.item_factors, NUM_USERS, NUM_ITEMS
    draw = quick_jit(jax.vmap(resample_column_precisions, (0, *[None] * 6)))
    keys = jax.random.split(jax.random.key(0), 10_000)
    increments, *drawn = jax.tree.map(np.asarray, draw(keys, *given))
    for side, number, (mean, precision) in zip(
        tiny.SIDES.values(), given[-2:], drawn, strict=True
    ):
        for h in range(3):
            np.testing.assert_allclose(
                precision[:, h, h], np.prod(increments[:, : h + 1], axis=1), rtol=1e-5
            )
        assert not np.any(precision * (1 - np.eye(3, dtype=np.float32)))
        # The means, about those expected, times their precisions: a standard normal.
        given_side = prior, increments, side.of(state, "factors"), number
        expected = jax.vmap(conditional_column_means, (None, 0, None, None))(
            *given_side
        )
        standard = (mean - expected.mean) / np.sqrt(expected.variance)
        for h in range(3):
            assert_ks(np.asarray(standard[:, h]), stats.norm.cdf, share=9)
    first, second = (np.asarray(mean)[:, 0] for mean, _ in drawn)
    assert abs(stats.spearmanr(first, second).statistic) < 0.05  # keys of their own
    # Each is a gamma given those drawn before it and the old ones after it: times its
    # rate, a standard one.
    squares = squares_of(prior, state)
    for h in range(3):
        now = np.array(increments)
        now[:, h:] = before[h:]
        rates = jax.vmap(conditional_increments, (None, 0, None, None))(
            prior, now, squares, NUM_ROWS
        )
        standard = np.asarray(increments[:, h] * rates.rate[:, h], np.float64)
        assert_ks(standard, stats.gamma(float(rates.shape[0, h])).cdf, share=9)


def test_without_rows_the_draws_are_the_priors():
    prior = MultiplicativeGamma(2.5, 3.4, 1.7, 2.5)
    rows = np.ones((64, 3), np.float32)  # of padding
    draw = quick_jit(jax.vmap(resample_column_precisions, (0, *[None] * 6)))
    keys = jax.random.split(jax.random.key(1), 10_000)
    before = np.float32([0.3, 2, 5])
    increments, (mean, _), _ = draw(keys, prior, before, rows, rows, *[np.int32(0)] * 2)
    standard = mean * np.sqrt(2.5 * np.cumprod(increments, axis=1))
    assert_ks(np.asarray(standard[:, 2]), stats.norm.cdf, share=4)
    laws = [stats.gamma(2.5, scale=1 / 1.7), *[stats.gamma(3.4)] * 2]
    for values, law in zip(np.asarray(increments).T, laws, strict=True):
        assert_ks(values, law.cdf, share=4)


def test_many_columns_stay_finite():
    # As many as a spec with this shape may have; the last precision is near 1e34.
    dim = 72
    prior = MultiplicativeGamma(3.0, 3.0, 0.3)
    increments = np.full(dim, 3.0, np.float32)
    precision = np.cumprod(increments, dtype=np.float64)
    factors = np.random.default_rng(0).normal(size=(100, dim)) / np.sqrt(precision)
    factors = factors.astype(np.float32)
    drawn, (mean, precision), _ = quick_jit(resample_column_precisions)(
        jax.random.key(0), prior, increments, factors, factors, *[np.int32(100)] * 2
    )
    assert np.all(np.isfinite(mean)) and np.all(mean != 0)
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
