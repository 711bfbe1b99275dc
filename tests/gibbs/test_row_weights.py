"""Weights of a side's rows over its topics: exact, and draws by their marginals."""

import jax
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.gibbs.row_weights import conditional_row_weights, resample_row_weights
from im3f_jax.model.topic_prior import row_concentration
from im3f_jax.numerics.random import log_dirichlet
from tests import tiny
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit

conditional = quick_jit(conditional_row_weights)


def given(side, state, data):
    weights = side.of(state, "topic_weights")
    return (
        row_concentration(weights.table_concentration, weights.log_global_weights),
        tiny.topic_counts(side, state, data),
    )


def check(side, precision, conditional=conditional, spec=None):
    spec, data, state = tiny.make(precision, spec)
    concentration = conditional(*given(side, state, data))
    assert concentration.dtype == precision.dtype
    number = side.number(data)
    concentration = np.float64(concentration)[:number]
    weights = side.of(state, "topic_weights")
    rng = np.random.default_rng(3)
    for rows in [slice(0, number), *range(number)]:
        values = []
        for _ in range(4):
            value = weights.log_row_weights.copy()
            shape = value[rows].shape[:-1]
            value[rows] = np.log(rng.dirichlet(np.ones(value.shape[1]), size=shape))
            values.append(value)
        # The density is with respect to log theta: no -1 in the exponents.
        tiny.assert_same_differences(
            [np.sum(concentration * value[:number]) for value in values],
            [
                tiny.joint(
                    side.put(state, topic_weights=weights._replace(log_row_weights=v)),
                    spec,
                    data,
                )
                for v in values
            ],
            precision,
        )


@pytest.mark.parametrize("topics", ["hdp", "finite"])
def test_conditional_is_exact(topics, side, precision):
    spec = tiny.make_spec("finite", "finite") if topics == "finite" else None
    check(side, precision, spec=spec)


def counts_missing(concentration, counts):
    return conditional(concentration, np.zeros_like(counts))


def prior_missing(concentration, counts):
    return conditional(0 * concentration, counts)


def exponents_less_one(concentration, counts):
    return np.asarray(conditional(concentration, counts)) - 1


@pytest.mark.parametrize("mutant", [counts_missing, prior_missing, exponents_less_one])
def test_a_mutant_is_found(side, mutant, float64):
    with tiny.found():
        check(side, float64, mutant)


def test_draws():
    side = tiny.SIDES["item"]
    _, data, state = tiny.make(tiny.PRECISIONS["float32"])
    concentration, counts = given(side, state, data)
    number = side.number(data)
    counts = counts[:number]
    draw = quick_jit(jax.vmap(resample_row_weights, (0, None, None)))
    keys = jax.random.split(jax.random.key(0), 10_000)
    log_theta = np.float64(draw(keys, concentration, counts))
    np.testing.assert_allclose(special.logsumexp(log_theta, axis=-1), 0, atol=2e-6)
    expected = np.float64(concentration)[None] + counts
    for row, k in np.ndindex(*counts.shape):
        a, total = expected[row, k], expected[row].sum()
        marginal = stats.beta(a, total - a)
        assert_ks(np.exp(log_theta[:, row, k]), marginal.cdf, share=counts.size)
    # Rows are independent.
    centred = np.exp(log_theta[:, :, 0]) - (expected / expected.sum(1)[:, None])[:, 0]
    products = centred[:, :, None] * centred[:, None, :]
    assert_mean(products[:, *np.triu_indices(number, 1)], 0)


def test_three_ratings_and_hardly_any_concentration_on_a_hundred_topics():
    # A Dirichlet of float32 would return zeros only: gamma(1e-8) is 0 there.
    number, concentration = (4_000, 100), np.float32(1e-6)
    keys = jax.random.split(jax.random.key(5), 3)
    tables = np.zeros(number, np.float32)
    tables[:, [3, 7]] = 1
    draw = quick_jit(log_dirichlet)
    log_pi = np.asarray(draw(keys[0], tables + concentration / number[1]))
    prior = np.asarray(draw(keys[1], np.full_like(tables, concentration / number[1])))
    counts = np.zeros(number, np.int32)
    counts[:, [3, 7]] = 2, 1
    shares = row_concentration(concentration, log_pi[0])
    theta = np.asarray(quick_jit(resample_row_weights)(keys[2], shares, counts))
    for log_weights, chosen, mean in (
        (log_pi, [3], 1 / 2),
        (prior, np.arange(50), 1 / 2),
        (theta, [3], 2 / 3),
    ):
        log_weights = np.float64(log_weights)
        assert np.all(np.isfinite(log_weights))
        np.testing.assert_allclose(special.logsumexp(log_weights, -1), 0, atol=2e-6)
        share = np.exp(log_weights[:, chosen]).sum(1)
        error = share.std() / np.sqrt(len(share))
        assert 0 < abs(share.mean() - mean) < 3 * error
