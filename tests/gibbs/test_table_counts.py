"""Table counts: exact against the log joint of counts, and draws by frequencies."""

import jax
import numpy as np
import pytest
from scipy import special

from im3f_jax.gibbs.table_counts import (
    conditional_table_counts,
    resample_table_counts,
)
from im3f_jax.model.log_joint import log_joint_of_counts
from im3f_jax.model.topic_prior import row_concentration
from tests import tiny
from tests.gof import assert_frequencies
from tests.quick import quick_jit
from tests.stirling import log_stirling

joint_of_counts = quick_jit(log_joint_of_counts)
conditional = quick_jit(conditional_table_counts, static_argnums=1)


def log_pmf_of_sum(chances):
    """Log probabilities of a sum of independent Bernoulli variables: 0 .. n."""
    pmf = np.ones(1)
    for chance in np.float64(chances):
        pmf = np.convolve(pmf, [1 - chance, chance])
    with np.errstate(divide="ignore"):
        return np.log(pmf)


def check(side, precision, conditional=conditional):
    spec, data, state = tiny.make(precision)
    prior = side.of(spec, "topic_prior")
    weights = side.of(state, "topic_weights")
    counts = tiny.topic_counts(side, state, data)[: side.number(data)]
    # More than the twelve ratings give: cells of many customers.
    counts = counts + np.random.default_rng(1).integers(0, 6, counts.shape, np.int32)
    tables = np.minimum(counts, 1)
    chances = conditional(
        row_concentration(weights.table_concentration, weights.log_global_weights),
        int(counts.max()),
    )
    assert chances.dtype == precision.dtype
    stirling = log_stirling(int(counts.max())).astype(precision.dtype)
    for row, k in np.ndindex(*counts.shape):
        n = counts[row, k]
        if n < 2:
            continue
        joints = []
        for m in range(1, n + 1):
            value = tables.copy()
            value[row, k] = m
            joints.append(
                joint_of_counts(
                    prior,
                    counts,
                    value,
                    weights.log_global_weights,
                    weights.dish_concentration,
                    weights.table_concentration,
                    stirling,
                )
            )
        log_pmf = log_pmf_of_sum(chances[:n, k])
        assert log_pmf[0] == -np.inf  # the first customer opens a table for certain
        tiny.assert_same_differences(log_pmf[1:], joints, precision)


def test_conditional_is_exact_over_every_number(side, precision):
    check(side, precision)


def ranks_from_one(concentration, number):
    chances = np.array(conditional(concentration, number + 1))
    chances[1] = 1
    return chances[1:]


def concentration_doubled(concentration, number):
    return conditional(2 * concentration, number)


@pytest.mark.parametrize("mutant", [ranks_from_one, concentration_doubled])
def test_a_mutant_is_found(side, mutant, float64):
    with tiny.found():
        check(side, float64, mutant)


def test_draws():
    side = tiny.SIDES["item"]
    _, data, state = tiny.make(tiny.PRECISIONS["float32"])
    counts = 3 * tiny.topic_counts(side, state, data)
    weights = side.of(state, "topic_weights")
    concentration = 3 * row_concentration(
        weights.table_concentration, weights.log_global_weights
    )
    draw = quick_jit(
        jax.vmap(resample_table_counts, (0, None, None, None)), static_argnums=3
    )
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(draw(keys, counts, concentration, 3 * len(data.rating)))
    assert drawn.dtype == np.int32
    for k, a in enumerate(np.float64(concentration)):
        expected = np.ones(1)
        for n in counts[:, k]:
            log_weight = log_stirling(36)[n, : n + 1] + np.arange(n + 1) * np.log(a)
            pmf = np.exp(log_weight - special.logsumexp(log_weight))
            expected = np.convolve(expected, pmf)
        assert_frequencies(np.bincount(drawn[:, k], minlength=len(expected)), expected)
