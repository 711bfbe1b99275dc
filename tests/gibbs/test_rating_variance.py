"""The variance of a rating: exact above its floor, and draws by their distribution."""

import jax
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs.rating_variance import (
    conditional_rating_variance,
    resample_rating_variance,
)
from im3f_jax.model.likelihood import Gaussian
from im3f_jax.model.scalars import InverseGamma
from tests import tiny
from tests.gof import assert_ks
from tests.quick import quick_jit

conditional = quick_jit(conditional_rating_variance)


def check(precision, conditional=conditional, seed=0, spec=None):
    spec, data, state = tiny.make(precision, spec, seed)
    shape, scale, floor = conditional(
        spec.likelihood,
        np.asarray(tiny.squared_error(state, data), precision.dtype),
        data.num_ratings,
    )
    assert shape.dtype == scale.dtype == precision.dtype
    assert floor == np.asarray(spec.likelihood.variance_floor, precision.dtype)
    values = np.array([0.09, 0.3, 1.0, 3.0, 10.0])
    tiny.assert_same_differences(
        tiny.log_inverse_gamma(values, shape, scale),
        [
            tiny.joint(state._replace(rating_variance=precision.dtype(v)), spec, data)
            for v in values
        ],
        precision,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_conditional_is_exact(precision, seed):
    check(precision, seed=seed)


def test_conditional_is_exact_where_the_noise_differs(precision):
    # Squares are then weighted by the precisions.
    spec = tiny.noisy(tiny.make_spec())
    check(precision, spec=spec)
    _, data, state = tiny.make(precision, spec)
    plain = np.sum(tiny.residual(state, data, without=()) ** 2)

    def not_weighted(likelihood, squared_error, number):
        return conditional(likelihood, precision.dtype(plain), number)

    with tiny.found():
        check(precision, not_weighted, spec=spec)


def prior_missing(likelihood, squared_error, number):
    shape, scale, floor = conditional(likelihood, squared_error, number)
    prior = likelihood.variance
    return shape - prior.shape, scale - prior.scale, floor


def shape_less_one(likelihood, squared_error, number):
    shape, scale, floor = conditional(likelihood, squared_error, number)
    return shape - 1, scale, floor


def squares_not_halved(likelihood, squared_error, number):
    return conditional(likelihood, 2 * squared_error, number)


def number_not_halved(likelihood, squared_error, number):
    return conditional(likelihood, squared_error, 2 * number)


def padding_counted(likelihood, squared_error, number):
    return conditional(likelihood, squared_error, np.int32(64))


@pytest.mark.parametrize(
    "mutant",
    [
        prior_missing,
        shape_less_one,
        squares_not_halved,
        number_not_halved,
        padding_counted,
    ],
)
@pytest.mark.parametrize("name", tiny.PRECISIONS)
def test_a_mutant_is_found(mutant, name):
    with tiny.in_precision(name) as precision, tiny.found():
        check(precision, mutant)


resample = quick_jit(jax.vmap(resample_rating_variance, (0, *[None] * 4)))


@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
def test_draws(floor):
    likelihood = Gaussian(InverseGamma(2.5, 0.8), floor)
    keys = jax.random.split(jax.random.key(0), 10_000)
    squared_error, number = np.float32(9.0), np.int32(40)
    draws = resample(keys, likelihood, np.float32(0.5), squared_error, number)
    whole = stats.invgamma(22.5, scale=5.3)
    floor = np.float32(floor)
    assert np.all(np.asarray(draws) >= floor)
    below, above = whole.cdf(floor), whole.sf(floor)
    assert_ks(draws, lambda x: (whole.cdf(x) - below) / above)


def test_a_fixed_number_stays():
    drawn = resample_rating_variance(
        jax.random.key(0), Gaussian(0.7, 0.083), np.float32(0.7), 9.0, np.int32(40)
    )
    assert drawn == np.float32(0.7)
