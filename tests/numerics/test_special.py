"""Special functions against scipy, to the errors that their doc-strings state."""

import jax
import numpy as np
import pytest
from scipy import special

from im3f_jax.numerics.special import (
    log_gamma_function,
    log_mills_ratio,
    log_normal_interval,
)
from tests.quick import quick_jit

POINTS = np.concatenate(
    [
        np.geomspace(1e-30, 1e12, 4_001),
        np.linspace(0.5, 12, 1_001),
        np.arange(1, 40.0),
    ]
)


@pytest.mark.parametrize("dtype, error", [(np.float64, 2e-13), (np.float32, 4e-6)])
def test_log_gamma_function(dtype, error):
    points = POINTS.astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        values = quick_jit(log_gamma_function)(points)
    assert values.dtype == dtype
    expected = special.gammaln(np.float64(points))
    distance = np.abs(np.float64(values) - expected) / np.maximum(1, np.abs(expected))
    assert np.max(distance) < error


NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def log_interval(low, high):
    """Log of Phi(high) - Phi(low) in float64, by quadrature where it is narrow."""
    low, high = np.where(low + high > 0, [-high, -low], [low, high])
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    at = half[:, None] * NODES
    narrow = np.sum(WEIGHTS * np.exp(-at * (middle[:, None] + 0.5 * at)), axis=1)
    narrow = np.log(half * narrow) - 0.5 * (middle**2 + np.log(2 * np.pi))
    upto = special.log_ndtr(high)
    wide = upto + np.log1p(-np.exp(special.log_ndtr(low) - upto))
    return np.where(half < 1.5, narrow, wide)


@pytest.mark.parametrize(
    "reach, dtype, error",
    [(8, np.float64, 1e-9), (30, np.float64, 1e-8), (8, np.float32, 1e-4)]
    + [(30, np.float32, 2e-3)],
)
def test_log_normal_interval(reach, dtype, error):
    rng = np.random.default_rng(0)
    low = rng.uniform(-reach, reach, 4_000).astype(dtype)
    width = np.geomspace(1e-3, 20, 4_000).astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        found = quick_jit(log_normal_interval)(low, low + width)
    assert found.dtype == dtype
    expected = log_interval(np.float64(low), np.float64(low + width))
    assert np.max(np.abs(np.float64(found) - expected)) < error


def test_log_normal_interval_far_out_and_open():
    low = np.array([-1e4, 0.0, -1e4, 30.0, 5000.0, 2.0, -1e4], np.float32)
    high = np.array([1e4, 1e4, -30.0, 1e4, 5001.0, 2.0000002, 0.0], np.float32)
    found = np.asarray(quick_jit(log_normal_interval)(low, high))
    assert np.all(np.isfinite(found))
    tail = special.log_ndtr(-30.0)
    np.testing.assert_allclose(
        found[[0, 1, 2, 3, 6]], [0, np.log(0.5), tail, tail, np.log(0.5)], atol=1e-4
    )


def test_log_mills_ratio():
    x = np.geomspace(8, 1e4, 500)
    with jax.enable_x64():
        found = quick_jit(log_mills_ratio)(x)
    expected = np.log(special.erfcx(x / np.sqrt(2)) * np.sqrt(np.pi / 2))
    np.testing.assert_allclose(found, expected, atol=1e-9)
