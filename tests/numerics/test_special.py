"""The gamma function against scipy, to the error that its doc-string states."""

import jax
import numpy as np
import pytest
from scipy import special

from im3f_jax.numerics.special import log_gamma_function
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
