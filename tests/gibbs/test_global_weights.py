"""Global weights of a side's topics: exact for both constructions, and draws."""

import jax
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.gibbs import global_weights
from im3f_jax.model.log_joint import log_joint_of_counts
from tests import tiny
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit
from tests.stirling import log_stirling

joint_of_counts = quick_jit(log_joint_of_counts)
weak_limit = quick_jit(global_weights.conditional_weak_limit)
sticks = quick_jit(global_weights.conditional_sticks)

# Which construction each side has, and the reverse.
SPECS = {
    "weak_limit": {
        "user": tiny.make_spec(),
        "item": tiny.make_spec("stick_breaking", "weak_limit"),
    },
    "stick_breaking": {
        "user": tiny.make_spec("stick_breaking", "weak_limit"),
        "item": tiny.make_spec(),
    },
}
BIG = 6


def given(side, precision, construction):
    """Give prior, weights, counts and tables of a side with the construction."""
    spec, data, state = tiny.make(precision, SPECS[construction][side.name])
    prior = side.of(spec, "topic_prior")
    assert prior.construction == construction
    counts = tiny.topic_counts(side, state, data)[: side.number(data)]
    counts = counts + np.random.default_rng(1).integers(0, 3, counts.shape, np.int32)
    assert counts.max() <= BIG
    tables = np.ceil(counts / 2).astype(np.int32)
    return prior, side.of(state, "topic_weights"), counts, tables


def joints(prior, weights, counts, tables, log_pis, precision):
    stirling = log_stirling(BIG).astype(precision.dtype)
    return [
        joint_of_counts(
            prior,
            counts,
            tables,
            log_pi.astype(precision.dtype),
            weights.dish_concentration,
            weights.table_concentration,
            stirling,
        )
        for log_pi in log_pis
    ]


def check_weak_limit(side, precision, conditional=weak_limit):
    prior, weights, counts, tables = given(side, precision, "weak_limit")
    concentration = conditional(tables.sum(0, np.int32), weights.dish_concentration)
    assert concentration.dtype == precision.dtype
    rng = np.random.default_rng(2)
    log_pis = np.log(rng.dirichlet(np.ones(prior.num_topics), size=5))
    # The density is with respect to log pi: no -1 in the exponents.
    tiny.assert_same_differences(
        log_pis @ np.float64(concentration),
        joints(prior, weights, counts, tables, log_pis, precision),
        precision,
    )


def check_stick_breaking(side, precision, conditional=sticks):
    prior, weights, counts, tables = given(side, precision, "stick_breaking")
    a, b = conditional(tables.sum(0, np.int32), weights.dish_concentration)
    assert a.dtype == b.dtype == precision.dtype
    rng = np.random.default_rng(2)
    v = rng.uniform(0.05, 0.95, size=(5, prior.num_topics - 1))
    left = np.cumprod(np.concatenate([np.ones((5, 1)), 1 - v], axis=1), axis=1)
    pis = left * np.concatenate([v, np.ones((5, 1))], axis=1)
    np.testing.assert_allclose(pis.sum(axis=1), 1)
    tiny.assert_same_differences(
        stats.beta.logpdf(v, np.float64(a), np.float64(b)).sum(axis=1),
        joints(prior, weights, counts, tables, np.log(pis), precision),
        precision,
    )


CHECKS = {"weak_limit": check_weak_limit, "stick_breaking": check_stick_breaking}


@pytest.mark.parametrize("construction", CHECKS)
def test_conditional_is_exact(construction, side, precision):
    CHECKS[construction](side, precision)


def prior_missing(tables, beta):
    return weak_limit(tables, np.zeros_like(beta))


def prior_not_divided(tables, beta):
    return weak_limit(tables, beta * len(tables))


def tables_missing(tables, beta):
    return weak_limit(np.zeros_like(tables), beta)


def exponents_less_one(tables, beta):
    return np.asarray(weak_limit(tables, beta)) - 1


def own_tables_counted_as_later(tables, beta):
    a, b = map(np.asarray, sticks(tables, beta))
    return a, b + tables[:-1]


def own_tables_missing(tables, beta):
    a, b = sticks(tables, beta)
    return np.ones_like(a), b


def concentration_missing(tables, beta):
    return sticks(tables, np.ones_like(beta))


def earlier_for_later(tables, beta):
    a, _ = sticks(tables, beta)
    return a, beta + np.concatenate([[0], np.cumsum(tables)[:-2]])


def one_missing(tables, beta):
    a, b = sticks(tables, beta)
    return a - 0.9, b


MUTANTS = {
    "weak_limit": [
        prior_missing,
        prior_not_divided,
        tables_missing,
        exponents_less_one,
    ],
    "stick_breaking": [
        own_tables_counted_as_later,
        own_tables_missing,
        concentration_missing,
        earlier_for_later,
        one_missing,
    ],
}


@pytest.mark.parametrize(
    "construction, mutant",
    [(name, mutant) for name, mutants in MUTANTS.items() for mutant in mutants],
)
def test_a_mutant_is_found(construction, mutant, side, float64):
    with tiny.found():
        CHECKS[construction](side, float64, mutant)


TABLES = np.int32([5, 0, 2, 0, 11])


resample = quick_jit(
    jax.vmap(global_weights.resample_global_weights, (0, None, None, None)),
    static_argnums=1,
)


def draw(construction, beta, seed):
    keys = jax.random.split(jax.random.key(seed), 20_000)
    return np.float64(resample(keys, construction, TABLES, np.float32(beta)))


def test_draws_of_the_weak_limit():
    log_pi = draw("weak_limit", 1.5, 0)
    np.testing.assert_allclose(special.logsumexp(log_pi, axis=1), 0, atol=2e-6)
    concentration = 1.5 / 5 + TABLES
    for k, a in enumerate(concentration):
        marginal = stats.beta(a, concentration.sum() - a)
        assert_ks(np.exp(log_pi[:, k]), marginal.cdf, share=5)
    # Covariances, beyond the marginals.
    total = concentration.sum()
    mean = concentration / total
    expected = (np.diag(mean) - mean[:, None] * mean) / (total + 1)
    offset = np.exp(log_pi) - mean
    assert_mean(offset[:, :, None] * offset[:, None, :], expected)


def test_draws_of_sticks():
    log_pi = draw("stick_breaking", 1.5, 1)
    np.testing.assert_allclose(special.logsumexp(log_pi, axis=1), 0, atol=2e-6)
    pi = np.exp(log_pi)
    # v_k = pi_k / (pi_k + ... + pi_K), independent betas.
    later = np.cumsum(pi[:, ::-1], axis=1)[:, ::-1]
    v = (pi / later)[:, :-1]
    for k in range(4):
        marginal = stats.beta(1 + TABLES[k], 1.5 + TABLES[k + 1 :].sum())
        assert_ks(v[:, k], marginal.cdf, share=4)
    centred = (v - v.mean(0)) / v.std(0)
    products = centred[:, :, None] * centred[:, None, :]
    assert_mean(products[:, *np.triu_indices(4, 1)], 0)


@pytest.mark.parametrize("construction", CHECKS)
def test_small_concentrations_keep_every_weight(construction):
    log_pi = draw(construction, 1e-3, 2)
    assert np.all(np.isfinite(log_pi))
