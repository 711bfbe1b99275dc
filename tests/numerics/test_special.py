"""Special functions against scipy, to the errors that their doc-strings state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from im3f_jax.numerics.special import (
    log_gamma_function,
    log_less_digamma,
    log_mills_ratio,
    log_normal_interval,
    log_student,
    student_cdf,
    trigamma_less_inverse,
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


def binet(x):
    """Log x - digamma(x) and trigamma(x) - 1 / x in float64, by Binet's integral.

    Near 0 by scipy, of which the differences cancel where x is large.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = 4 * (nodes + 1)
    weights = 4 * weights * t / np.expm1(2 * np.pi * t)
    apart = np.maximum(x, 1)[:, None] ** 2 + t**2
    first = 1 / (2 * x) + 2 * np.sum(weights / apart, axis=1)
    second = 1 / (2 * x**2) + 4 * x * np.sum(weights / apart**2, axis=1)
    small = x < 3
    return (
        np.where(small, np.log(x) - special.digamma(x), first),
        np.where(small, special.polygamma(1, x) - 1 / x, second),
    )


@pytest.mark.parametrize(
    "dtype, errors, above_8",
    [
        (np.float64, (1e-11, 1e-10), (1e-11, 1e-10)),
        (np.float32, (4e-6,) * 2, (3e-7, 5e-7)),
    ],
)
def test_digamma_and_trigamma_less_their_leading_terms(dtype, errors, above_8):
    points = np.concatenate(
        [np.geomspace(1e-12, 1e12, 4_001), np.linspace(0.5, 20, 801)]
    )
    points = points.astype(dtype)
    functions = log_less_digamma, trigamma_less_inverse
    for n, expected in enumerate(binet(np.float64(points))):
        with jax.enable_x64(dtype is np.float64):
            found = quick_jit(functions[n])(points)
        assert found.dtype == dtype
        distance = np.abs(np.float64(found) / expected - 1)
        assert np.max(distance) < errors[n]
        assert np.max(distance[points > 8]) < above_8[n]


def test_trigamma_is_the_derivative_of_digamma():
    with jax.enable_x64():
        points = jnp.asarray(np.geomspace(1e-3, 1e5, 41))
        slope = quick_jit(jax.vmap(jax.grad(log_less_digamma)))(points)
        found = quick_jit(trigamma_less_inverse)(points)
    np.testing.assert_allclose(found, -slope, rtol=1e-9)


DEGREES = [0.02, 0.5, 1, 2.7, 5, 9.99, 10, 14, 30, 1e3, 1e7]
OUT = np.concatenate([np.geomspace(1e-6, 1e4, 601), np.linspace(0.1, 6, 200)])
STUDENT = np.concatenate([-OUT, [0.0], OUT])


@pytest.mark.parametrize("dtype, error", [(np.float64, 2e-12), (np.float32, 4e-7)])
def test_log_student(dtype, error):
    x = STUDENT.astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        density = quick_jit(log_student)
        for degrees in DEGREES:
            found = density(dtype(degrees), x)
            assert found.dtype == dtype
            expected = stats.t.logpdf(np.float64(x), np.float64(dtype(degrees)))
            distance = np.abs(found - expected) / np.maximum(1, np.abs(expected))
            assert np.max(distance) < error, degrees


# By the incomplete beta function of the jax that is there.
COARSE = 5e-7 if jax.__version_info__ >= (0, 12) else 1e-5


@pytest.mark.parametrize("dtype, error", [(np.float64, 1e-9), (np.float32, COARSE)])
def test_student_cdf(dtype, error):
    if dtype is np.float32 and jax.__version_info__ < (0, 11):
        error = 1e-5  # its incomplete beta function rounds more
    x = STUDENT.astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        cdf = quick_jit(student_cdf)
        for degrees in DEGREES:
            found = np.asarray(cdf(dtype(degrees), x))
            assert found.dtype == dtype
            expected = special.stdtr(np.float64(dtype(degrees)), np.float64(x))
            assert np.max(np.abs(found - expected)) < error, degrees
            # The lower tail keeps its digits.
            tail = (x < 0) & (expected > 1e-10)
            relative = np.abs(found[tail] / expected[tail] - 1)
            assert np.max(relative) < 1e-3, degrees
            ends = np.asarray(cdf(dtype(degrees), dtype([-np.inf, np.inf])))
            np.testing.assert_allclose(ends, [0, 1], atol=1e-30)


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
