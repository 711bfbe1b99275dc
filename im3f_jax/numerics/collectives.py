"""What devices that share one computation tell one another.

Each holds a part of the rows, a shard; a named axis counts the shards (`jax.shard_map`,
or `jax.vmap` with an `axis_name`, which runs them all on one device). Everywhere
`axis` may be None: there is one part then, and nothing is told.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

__all__ = [
    "all_rows",
    "any_across",
    "num_shards",
    "own_key",
    "own_rows",
    "sum_across",
    "sum_of_own_rows",
    "sums_before",
]


def num_shards(axis: str | None) -> int:
    """Count the shards: static."""
    return 1 if axis is None else lax.psum(1, axis)


def own_key(key: Array, axis: str | None) -> Array:
    """Make a key of this shard's own from one that all have."""
    return key if axis is None else jax.random.fold_in(key, lax.axis_index(axis))


def sum_across(values: Any, axis: str | None) -> Any:
    """Sum arrays (any pytree) over the shards; all get the sums."""
    return values if axis is None else lax.psum(values, axis)


def any_across(values: Array, axis: str | None) -> Array:
    """Tell where any shard has True, in the shape of `values`."""
    if axis is None:
        return values
    return lax.psum(values.astype(jnp.int32), axis) > 0


def sums_before(values: Array, axis: str | None) -> Array:
    """Sum over the shards before this one, in the shape of `values`.

    In log2(shards) rounds, each of which tells as much as `values` holds.
    """
    if axis is None:
        return jnp.zeros_like(values)
    number, own = num_shards(axis), lax.axis_index(axis)
    upto, step = values, 1
    while step < number:
        ring = [(shard, (shard + step) % number) for shard in range(number)]
        told = lax.ppermute(upto, axis, ring)
        upto = upto + jnp.where(own >= step, told, jnp.zeros_like(told))
        step *= 2
    return upto - values


def own_rows(values: Array, axis: str | None) -> Array:
    """Take this shard's part of rows that all have; shards must divide their number."""
    if axis is None:
        return values
    size = values.shape[0] // num_shards(axis)
    return lax.dynamic_slice_in_dim(values, lax.axis_index(axis) * size, size)


def sum_of_own_rows(values: Array, axis: str | None) -> Array:
    """`own_rows` of the sum over the shards, which no shard gets as a whole."""
    if axis is None:
        return values
    return lax.psum_scatter(values, axis, scatter_dimension=0, tiled=True)


def all_rows(values: Array, axis: str | None) -> Array:
    """Put every shard's rows together, in the order of the shards: as `own_rows` cut.

    Gives all shards the whole.
    """
    return values if axis is None else lax.all_gather(values, axis, tiled=True)
