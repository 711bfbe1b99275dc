"""A kernel for GPUs that draws categories without storing their weights.

Written in Pallas and compiled by Triton. JAX calls that backend deprecated since 0.11
and means to remove it; its successor, Mosaic GPU, cannot gather rows into registers
(0.12: an index that is an array is not implemented), which is all that this kernel is
about. So nothing uses it unless asked to (`kernel="pallas"` of `resample_topics`), and
Pallas is imported only then.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = ["draw_categories"]

# Weights that a block of threads holds at once: 16 a thread of its 4 warps. Compiled
# for an H100 (Triton 3.9) that takes 48 registers a thread at K = 128, and loads of 16
# bytes; 4096: 80 registers. No GPU has timed it yet: `python -m bench.kernels` does.
TILE = 2048
WARPS = 4


def draw_categories(
    uniform: Array,
    value: Array,
    scale: Array,
    weight_row: Array,
    center_row: Array,
    log_weights: Array,
    centers: Array,
    tile: int = TILE,
) -> Array:
    """Draw categories by `invert_weights`, of weights that are never stored.

    With i, j the weight_row and center_row of draw n, the log weight of category k is

        log_weights[i, k] - scale[n] (value[n] - centers[j, k])^2

    up to a constant. Each block of threads reads the rows of some draws, and inverts
    their running totals in registers: 8 K bytes a draw are read, 4 are written. A
    category of weight 0 is never drawn. On a CPU the kernel is interpreted, which is
    slow: it serves tests.

    Parameters
    ----------
    uniform
        Of `standard_uniform`, shape (N,); as there, the middles of its steps are taken.
    value, scale
        Shape (N,).
    weight_row, center_row
        int32, shape (N,).
    log_weights, centers
        Shapes (rows, K) and (other rows, K).
    tile
        Weights that a block of threads holds, static, a power of two.

    Returns
    -------
    Array
        int32, shape (N,). The draws of `invert_weights` by the same uniforms, save
        where a target lies within rounding of a running total.
    """
    (number,) = uniform.shape
    columns = max(16, _power_of_two(log_weights.shape[1]))
    block = max(1, min(tile // columns, _power_of_two(number)))
    per_draw = (uniform, value, scale, weight_row, center_row)
    per_draw = tuple(jnp.pad(x, (0, -number % block)) for x in per_draw)
    if number == 0:
        return jnp.zeros(0, jnp.int32)
    drawn = lax.platform_dependent(
        *per_draw,
        log_weights,
        centers,
        cpu=partial(_call, block=block, columns=columns, interpret=True),
        default=partial(_call, block=block, columns=columns, interpret=False),
    )
    return drawn[:number]


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def _call(*arguments: Array, block: int, columns: int, interpret: bool) -> Array:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    padded = arguments[0].shape[0]
    by_block = pallas.BlockSpec((block,), lambda step: (step,))
    whole = [
        pallas.BlockSpec(x.shape, lambda step: (0, 0))  # a pointer: nothing is copied
        for x in arguments[-2:]
    ]
    return pallas.pallas_call(
        partial(_draw_block, columns=columns, load=triton.load),
        out_shape=jax.ShapeDtypeStruct((padded,), jnp.int32),
        grid=(padded // block,),
        in_specs=[by_block] * 5 + whole,
        out_specs=by_block,
        compiler_params=triton.CompilerParams(num_warps=WARPS),
        interpret=interpret,
        name="draw_categories",
    )(*arguments)


def _draw_block(
    uniform, value, scale, weight_row, center_row, log_weights, centers, drawn,
    *, columns, load,
):  # fmt: skip
    """Draw for one block; all but the last two arguments are references."""
    shape = (drawn.shape[0], columns)
    number = log_weights.shape[1]
    category = lax.broadcasted_iota(jnp.int32, shape, 1)
    real = category < number

    def rows(table, row, other):
        row = jnp.broadcast_to(row[...][:, None], shape)
        return load(table.at[row, category], mask=real, other=other)

    misfit = value[...][:, None] - rows(centers, center_row, 0.0)
    logs = rows(log_weights, weight_row, 0.0) - scale[...][:, None] * (misfit * misfit)
    largest = jnp.max(jnp.where(real, logs, -jnp.inf), axis=1)
    weights = jnp.where(real, jnp.exp(logs - largest[:, None]), 0.0)
    running = jnp.cumsum(weights, axis=1)
    step = 0.5 * jnp.finfo(weights.dtype).eps
    target = (uniform[...] + step) * jnp.sum(weights, axis=1)
    # First category beyond the target. Running totals taken in parallel may rise by
    # rounding where a weight is 0, and may end below their sum: so only categories of
    # some weight count, the last of them where none is beyond. (NaN becomes 0.)
    positive = weights > 0
    last = jnp.max(jnp.where(positive, category, 0), axis=1)
    beyond = positive & (running > target[:, None])
    first = jnp.min(jnp.where(beyond, category, columns), axis=1)
    drawn[...] = jnp.minimum(first, last)
