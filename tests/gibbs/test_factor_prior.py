"""Mean and precision of a side's factors: exact, and draws by their moments."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs.factor_prior import (
    conditional_factor_prior,
    resample_factor_prior,
)
from im3f_jax.gibbs.state import FactorPriorState
from im3f_jax.model.factor_prior import IsotropicNormal
from tests import tiny
from tests.gof import assert_ks, assert_mean
from tests.quick import quick_jit

conditional = quick_jit(conditional_factor_prior)


def log_density(parameters, mean, precision):
    """Normal-Wishart log density, by scipy."""
    center, mean_precision, nu, inverse_scale = (np.float64(x) for x in parameters)
    wishart = stats.wishart(nu, np.linalg.inv(inverse_scale))
    normal = stats.multivariate_normal(
        center, np.linalg.inv(mean_precision * precision)
    )
    return wishart.logpdf(precision) + normal.logpdf(mean)


def check(side, precision, conditional=conditional, seed=0):
    spec, data, state = tiny.make(precision, seed=seed)
    parameters = conditional(
        spec.factor_prior, side.of(state, "factors"), np.int32(side.number(data))
    )
    assert all(x.dtype == precision.dtype for x in parameters)
    rng = np.random.default_rng(seed + 100)
    values = [
        FactorPriorState(
            rng.normal(size=tiny.LATENT_DIM).astype(precision.dtype),
            tiny.positive_definite(rng).astype(precision.dtype),
        )
        for _ in range(6)
    ]
    tiny.assert_same_differences(
        [log_density(parameters, *map(np.float64, value)) for value in values],
        [tiny.joint(side.put(state, factor_prior=v), spec, data) for v in values],
        precision,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact(side, precision, seed):
    check(side, precision, seed=seed)


def rows_of_padding_counted(prior, factors, number):
    return conditional(prior, factors, np.int32(len(factors)))


def one_degree_of_freedom_more(prior, factors, number):
    result = conditional(prior, factors, number)
    return result._replace(degrees_of_freedom=result.degrees_of_freedom + 1)


def mean_not_shrunk(prior, factors, number):
    mean = factors[:number].mean(axis=0)
    return conditional(prior, factors, number)._replace(mean=mean)


def scatter_about_zero(prior, factors, number):
    result = conditional(prior, factors, number)
    n, mean = int(number), factors[:number].mean(axis=0)
    extra = n * mean[:, None] * mean
    return result._replace(inverse_scale=result.inverse_scale + extra)


def prior_mean_of_the_wrong_sign(prior, factors, number):
    return conditional(dataclasses.replace(prior, mean=-prior.mean), factors, number)


def distance_of_means_missing(prior, factors, number):
    mean = float(factors[:number].mean())
    result = conditional(prior, factors, number)
    moved = conditional(dataclasses.replace(prior, mean=mean), factors, number)
    return result._replace(inverse_scale=moved.inverse_scale)


def scale_not_inverted(prior, factors, number):
    return conditional(
        dataclasses.replace(prior, scale=1 / prior.scale), factors, number
    )


@pytest.mark.parametrize(
    "mutant",
    [
        rows_of_padding_counted,
        one_degree_of_freedom_more,
        mean_not_shrunk,
        scatter_about_zero,
        prior_mean_of_the_wrong_sign,
        distance_of_means_missing,
        scale_not_inverted,
    ],
)
@pytest.mark.parametrize("name", tiny.PRECISIONS)
def test_a_mutant_is_found(side, mutant, name):
    with tiny.in_precision(name) as precision, tiny.found():
        check(side, precision, mutant)


def test_draws():
    side = tiny.SIDES["user"]
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"])
    given = side.of(state, "factors"), np.int32(side.number(data))
    draw = quick_jit(jax.vmap(resample_factor_prior, (None, 0, None, None)))
    keys = jax.random.split(jax.random.key(0), 10_000)
    mean, precision = (np.float64(x) for x in draw(spec.factor_prior, keys, *given))
    center, mean_precision, nu, inverse_scale = (
        np.float64(x) for x in conditional(spec.factor_prior, *given)
    )
    assert_mean(mean, center)
    assert_mean(precision, nu * np.linalg.inv(inverse_scale))
    root = np.linalg.cholesky(precision)
    z = np.sqrt(mean_precision) * np.einsum("nde,nd->ne", root, mean - center)
    assert_ks(z, stats.norm.cdf)


def test_the_prior_of_pmf_is_fixed():
    prior = IsotropicNormal(1.7)
    drawn = resample_factor_prior(
        prior, jax.random.key(0), np.ones((64, 3), np.float32), np.int32(5)
    )
    np.testing.assert_array_equal(drawn.mean, np.zeros(3))
    np.testing.assert_array_equal(drawn.precision, np.float32(1.7) * np.eye(3))


def test_an_unknown_prior_is_refused():
    with pytest.raises(TypeError, match="no factor prior"):
        resample_factor_prior("wishart", jax.random.key(0), np.ones((64, 3)), 5)
