"""Latent ratings: their bounds, and draws against the truncated normal, far out too."""

import jax
import numpy as np
import pytest
from scipy import special

from im3f_jax.gibbs.latent_ratings import (
    conditional_latent_ratings,
    resample_latent_ratings,
)
from tests.gof import assert_ks
from tests.quick import quick_jit

NUMBER = 20_000
CUTS = np.array([-1.0, 0.5, 2.0], np.float32)

conditional = quick_jit(conditional_latent_ratings)
resample = quick_jit(resample_latent_ratings)


def test_bounds_are_those_of_the_level():
    level = np.array([0, 1, 2, 3], np.int32)
    mean = np.array([0.3, -0.2, 5.0, 0.0], np.float32)
    found = conditional(level, mean, CUTS)
    np.testing.assert_array_equal(found.mean, mean)
    np.testing.assert_allclose(found.low[1:], CUTS - mean[1:])
    np.testing.assert_allclose(found.high[:-1], CUTS - mean[:-1])
    assert found.low[0] < -1e3 and found.high[3] > 1e3


def cdf(low, high):
    """Distribution function of a standard normal on (low, high), in the nearer tail."""

    def upto(x):
        # Relative to the mass below the end that is nearer to 0.
        ratio = np.exp(special.log_ndtr(x) - special.log_ndtr(high))
        least = np.exp(special.log_ndtr(low) - special.log_ndtr(high))
        return (ratio - least) / (1 - least)

    return upto


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("mean", [-30.0, -9.0, -3.0, 0.2, 4.0, 8.5, 30.0])
def test_draws_are_truncated_normals(level, mean):
    key = jax.random.fold_in(jax.random.key(0), level)
    full = np.full(NUMBER, mean, np.float32)
    latent = resample(key, np.full(NUMBER, level, np.int32), full, CUTS)
    latent = np.asarray(latent)
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    assert np.all(np.isfinite(latent))
    assert np.all((latent > edges[level]) & (latent < edges[level + 1]))
    low, high = edges[level] - mean, edges[level + 1] - mean
    draws = np.float64(latent) - mean
    if abs(low) > abs(high):
        law = cdf(low, high)
    else:
        draws, law = -draws, cdf(-high, -low)
    # At a distance x from the mean a step of the numbers holds x 2^-23 |mean|.
    distance = min(abs(low), abs(high))
    assert_ks(draws, law, grain=distance * abs(mean) * 2.0**-22, share=28)


@pytest.mark.parametrize("root", [0.2, 3.0])
def test_noise_that_differs_scales_the_draws(root):
    mean, shape = 0.2, np.full(NUMBER, np.float32(root))
    full = np.full(NUMBER, mean, np.float32)
    for level in range(4):
        key = jax.random.fold_in(jax.random.key(2), level)
        given = np.full(NUMBER, level, np.int32), full, CUTS, shape
        latent = np.float64(resample(key, *given))
        edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
        assert np.all((latent > edges[level]) & (latent < edges[level + 1]))
        low, high = root * (edges[level : level + 2] - mean)
        draws = root * (latent - mean)
        if abs(low) > abs(high):
            law = cdf(low, high)
        else:
            draws, law = -draws, cdf(-high, -low)
        assert_ks(draws, law, grain=1e-6, share=8)
        with pytest.raises(AssertionError, match="distance"):
            assert_ks(draws / root, law, grain=1e-6, share=8)


@pytest.mark.parametrize("root", [1e-15, 1e3])
def test_the_least_and_a_large_precision_do_no_harm(root):
    # 1e-15 is the root of three precisions of the least size.
    level = np.tile(np.arange(4, dtype=np.int32), 500)
    mean = np.linspace(-5, 5, 2000, dtype=np.float32)
    given = level, mean, CUTS, np.full(2000, np.float32(root))
    latent = np.asarray(resample(jax.random.key(3), *given))
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    assert np.all((latent > edges[level]) & (latent < edges[level + 1]))
    assert np.all(np.isfinite((latent - mean) ** 2))


@pytest.mark.parametrize("mean", [-1e3, -30.0, 0.0, 30.0, 1e3])
def test_narrow_levels_hold_their_latents(mean):
    cuts = np.array([0.5, 0.5 + 1e-5, 0.5 + 3e-3], np.float32)
    level = np.tile(np.arange(4, dtype=np.int32), 500)
    full = np.full(2000, mean, np.float32)
    latent = np.asarray(resample(jax.random.key(1), level, full, cuts))
    edges = np.concatenate([[-np.inf], cuts, [np.inf]])
    assert np.all((latent > edges[level]) & (latent < edges[level + 1]))
    assert np.all(np.isfinite(latent))
