"""Block: each rating's residual in two halves, one for each of its two biases.

The residual x_n = c_u[zM_n] + d_v[zU_n] + e_n ties both topics of a rating, which in a
reciprocal model are topics of one franchise. Split as x_n = y_n + (x_n - y_n) with
y_n = c_u[zM_n] + e'_n and x_n - y_n = d_v[zU_n] + e''_n, where e'_n and e''_n are
independent Normal(0, sigma^2 / 2), it leaves two half-ratings that are independent
given the biases: the other blocks then read 2N ratings of one bias each. The halves are
drawn anew before each block that reads them.
"""

import jax.numpy as jnp
from jax import Array

from im3f_jax.numerics.parameters import NormalParameters
from im3f_jax.numerics.random import standard_normal

__all__ = ["conditional_halves", "resample_halves"]


def conditional_halves(
    residual: Array, user_part: Array, item_part: Array, rating_variance: Array
) -> NormalParameters:
    """Full conditional of the first half y_n: its bias, and half of what is left.

    Mean c_u[zM_n] + (x_n - c_u[zM_n] - d_v[zU_n]) / 2, variance sigma^2 / 4.

    Parameters
    ----------
    residual
        x_n without either bias, rating scale, shape (N,).
    user_part, item_part
        c_u[zM_n] and d_v[zU_n], shape (N,).
    rating_variance
        sigma^2, scalar.
    """
    return NormalParameters(
        mean=0.5 * (residual + user_part - item_part), variance=0.25 * rating_variance
    )


def resample_halves(
    key: Array,
    residual: Array,
    user_part: Array,
    item_part: Array,
    rating_variance: Array,
) -> tuple[Array, Array]:
    """Draw both halves, of the first person's bias, then the second's: (N,) each."""
    given = conditional_halves(residual, user_part, item_part, rating_variance)
    noise = standard_normal(key, residual.shape, residual.dtype)
    first = given.mean + jnp.sqrt(given.variance) * noise
    return first, residual - first
