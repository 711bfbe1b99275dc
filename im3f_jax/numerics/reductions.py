"""Indexed sums, all of them, in one place.

A sum of N values into a few bins is fast or slow by the device and by the version of
its compiler (jax issue 38806: up to 2,000 times slower on NVIDIA GPUs with jaxlib
0.10.2 and 0.11.0, which the package excludes). So every indexed sum of the sampler
goes through this module, and its strategies are interchangeable:

- ``scatter``: one scatter-add.
- ``flat``: the same by one index a cell, where rows x columns stay within int32.
- ``sort``: sort the values by bin first, then one scatter-add of sorted indices.
- ``one_hot``: for few columns; a product with a one-hot matrix, chunk by chunk.

On a CPU a scatter is the choice at every size of the data: sorting takes 40 times as
long or more, one-hot rows several times as long, save for 9 million values in 4
columns; by one flat index it takes two thirds to three quarters of its time by two
(bench/results/reductions.json, measured beside other jobs; `python -m
bench.reductions`). ``scatter`` stays the default until a GPU has timed ``flat`` too.
Sums into few bins stay products, though a CPU scatters them faster: on a GPU all values
would wait for the same few cells, and a float32 total of chunks is the more accurate.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

__all__ = [
    "STRATEGIES",
    "add_by_row",
    "count_by_cell",
    "ranks_within_bins",
    "sum_by_cell",
    "sums_by_bin",
]


def _scatter(values: Array, row: Array, column: Array, shape: tuple[int, int]) -> Array:
    zeros = jnp.zeros(shape, values.dtype)
    return zeros.at[row, column].add(values, mode="drop")


def _flat(values: Array, row: Array, column: Array, shape: tuple[int, int]) -> Array:
    rows, columns = shape
    if rows * columns >= 2**31:
        return _scatter(values, row, column, shape)
    inside = (row < rows) & (column < columns)
    cell = jnp.where(inside, row * columns + column, rows * columns)
    zeros = jnp.zeros(rows * columns, values.dtype)
    return zeros.at[cell].add(values, mode="drop").reshape(shape)


def _sort(values: Array, row: Array, column: Array, shape: tuple[int, int]) -> Array:
    row, column, values = lax.sort((row, column, values), num_keys=2)
    zeros = jnp.zeros(shape, values.dtype)
    return zeros.at[row, column].add(values, mode="drop", indices_are_sorted=True)


def _one_hot(values: Array, row: Array, column: Array, shape: tuple[int, int]) -> Array:
    rows, columns = shape
    chunk = math.gcd(values.shape[0], 4096)

    def add(total, part):
        value, r, c = part
        hot = jnp.where(
            c[:, None] == jnp.arange(columns, dtype=c.dtype)[None],
            value[:, None],
            jnp.zeros((), value.dtype),
        )
        return total.at[r].add(hot, mode="drop"), None

    parts = tuple(x.reshape(-1, chunk) for x in (values, row, column))
    return lax.scan(add, jnp.zeros(shape, values.dtype), parts)[0]


STRATEGIES: dict[str, Callable[..., Array]] = {
    "scatter": _scatter,
    "flat": _flat,
    "sort": _sort,
    "one_hot": _one_hot,
}


def sum_by_cell(
    values: Array,
    row: Array,
    column: Array,
    shape: tuple[int, int],
    strategy: str = "scatter",
) -> Array:
    """Sum values into the cells of a table.

    Parameters
    ----------
    values
        Shape (N,).
    row, column
        Cell of each value, int32, shape (N,), not negative; values beyond the table
        are left out. Flattened only by ``flat``: rows x columns may exceed int32.
    shape
        (rows, columns) of the table.
    strategy
        One of `STRATEGIES`.

    Returns
    -------
    Array
        Shape (rows, columns), dtype of `values` (integers are not widened).
    """
    return STRATEGIES[strategy](values, row, column, shape)


def count_by_cell(
    valid: Array,
    row: Array,
    column: Array,
    shape: tuple[int, int],
    strategy: str = "scatter",
) -> Array:
    """Count the valid entries in the cells of a table, in int32.

    A float32 count would stop at 2^24. `valid` is bool, shape (N,).
    """
    return sum_by_cell(valid.astype(jnp.int32), row, column, shape, strategy)


def add_by_row(totals: Array, values: Array, row: Array) -> Array:
    """Add each of the vectors `values`, shape (n, K), to its row of `totals`.

    Rows beyond the last are left out.
    """
    return totals.at[row].add(values, mode="drop")


def sums_by_bin(values: Array, index: Array, num_bins: int) -> Array:
    """Sum vectors into few bins, by products with a one-hot matrix, chunk by chunk.

    Parameters
    ----------
    values
        Shape (Q, N).
    index
        Bin of each, int32, shape (N,); beyond the last bin nothing is summed.
    num_bins
        Static.

    Returns
    -------
    Array
        Shape (Q, num_bins), dtype of `values`.
    """
    columns, number = values.shape
    chunk = math.gcd(number, 4096)
    bins = jnp.arange(num_bins, dtype=index.dtype)

    def one_chunk(part):
        value, index = part
        hot = (index[:, None] == bins[None]).astype(value.dtype)
        return jnp.matmul(value, hot, precision="highest")

    parts = (
        jnp.moveaxis(values.reshape(columns, -1, chunk), 1, 0),
        index.reshape(-1, chunk),
    )
    return jnp.sum(lax.map(one_chunk, parts), axis=0)


def ranks_within_bins(counts: Array, total: int) -> tuple[Array, Array]:
    """Enumerate the members of bins: bin and rank (0, 1, ...) of each of them.

    Members stand in the order of their bins, so that a sum over the members of a bin
    is a difference of two cumulative sums.

    Parameters
    ----------
    counts
        Members of each bin, int32, shape (bins,).
    total
        Number of slots, static, at least the sum of `counts`.

    Returns
    -------
    tuple of Array
        bin and rank, int32, shape (total,). Slots beyond the last member have bin
        `bins` and an unspecified rank.
    """
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    starts = ends - counts
    (bins,) = counts.shape
    slot = jnp.arange(total, dtype=jnp.int32)
    # Each filled bin marks its first slot; the running maximum carries the mark on.
    marks = jnp.zeros(total, jnp.int32)
    first = jnp.where(counts > 0, starts, total)
    marks = marks.at[first].max(jnp.arange(bins, dtype=jnp.int32), mode="drop")
    bin_of = lax.cummax(marks)
    rank = slot - starts[bin_of]
    return jnp.where(slot < ends[-1], bin_of, bins), rank
