"""Block: the topics of all ratings on one side, given those on the other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.errors import InputError
from im3f_jax.numerics.categories import draw_categories
from im3f_jax.numerics.random import invert_weights, standard_uniform

__all__ = ["KERNELS", "SelectingFactors", "conditional_topics", "resample_topics"]

# How the weights of topics are inverted: chunk by chunk as XLA compiles it, or by a
# kernel for GPUs. The first serves every device until a GPU has measured the second.
KERNELS = ("xla", "pallas")


class SelectingFactors(NamedTuple):
    """Factors of which this topic selects one side's, and the other topic the other's.

    For item topics v and w, and user topics; for user topics the sides change places.
    """

    own: Array  # shape (bias rows, K, dim)
    other: Array  # shape (weight rows, other topics, dim)
    other_topic: Array  # of each rating, int32, shape (N,)


def conditional_topics(
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    log_row_weights: Array,
    bias: Array,
    rating_variance: Array,
    precision: Array | None = None,
    product: Array | None = None,
) -> Array:
    """Full conditional of the topics of ratings on one side, unnormalised.

    For item topics: log theta_M[j, k] - (x_n - c_u[k])^2 / (2 sigma^2), with the
    residual x_n = r_n - chi_0 - a_u . b_j - d_j[zU_n]; for user topics the sides
    change places.

    Parameters
    ----------
    residual
        Residual without the bias that this topic selects, rating scale, shape (n,).
    weight_row, bias_row
        Row of the weights and row of the biases of each rating, int32, shape (n,).
        (The item's weights, the user's biases for item topics.)
    log_row_weights
        log theta, shape (rows, K).
    bias
        Rating scale, shape (other rows, K).
    rating_variance
        sigma^2, scalar.
    precision
        Relative precision of each rating's noise, shape (n,), by which its misfit is
        multiplied; None: all 1.
    product
        Inner products that the topics select beside the biases, v_u[k] . w_j[zU_n],
        shape (n, K); None: there are none.

    Returns
    -------
    Array
        Log probabilities up to a constant a rating, shape (n, K).
    """
    misfit = residual[:, None] - bias[bias_row]
    if product is not None:
        misfit = misfit - product
    half = 0.5 / rating_variance
    if precision is not None:
        half = half * precision[:, None]
    return log_row_weights[weight_row] - half * misfit**2


def resample_topics(
    key: Array,
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    log_row_weights: Array,
    bias: Array,
    rating_variance: Array,
    chunk: int,
    precision: Array | None = None,
    factors: SelectingFactors | None = None,
    kernel: str = "xla",
) -> Array:
    """Draw topics from `conditional_topics`, int32, shape (N,).

    Ratings are taken `chunk` at a time (a divisor of N), so that N x K numbers are
    never held at once; each costs one uniform. `kernel` is one of `KERNELS`, static;
    "pallas" needs no chunks, draws the same topics by the same uniforms (save within
    rounding of a running total), and knows no `factors`: InputError.
    """
    uniform = standard_uniform(key, residual.shape, residual.dtype)
    if kernel == "pallas":
        if factors is not None:
            raise InputError("kernel='pallas' cannot draw topics that select factors")
        half = jnp.broadcast_to(0.5 / rating_variance, residual.shape)
        if precision is not None:
            half = half * precision
        return draw_categories(
            uniform, residual, half, weight_row, bias_row, log_row_weights, bias
        )
    if kernel != "xla":
        raise InputError(f"kernel is {kernel!r}, but must be one of {KERNELS}")

    def draw(part):
        residual, weight_row, bias_row, uniform, precision, other_topic = part
        product = None
        if factors is not None:
            other = factors.other[weight_row, other_topic]
            product = jnp.sum(factors.own[bias_row] * other[:, None], axis=-1)
        log_weights = conditional_topics(
            residual,
            weight_row,
            bias_row,
            log_row_weights,
            bias,
            rating_variance,
            precision,
            product,
        )
        return invert_weights(log_weights, uniform)

    parts = jax.tree.map(
        lambda x: x.reshape(-1, chunk),
        (
            residual,
            weight_row,
            bias_row,
            uniform,
            precision,
            None if factors is None else factors.other_topic,
        ),
    )
    return lax.map(draw, parts).reshape(-1)
