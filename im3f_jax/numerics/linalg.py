"""Draws from many small Gaussians given by their precisions.

A batch of thousands of 10 x 10 or 40 x 40 systems is slow through LAPACK (a call a
row). On a CPU the factorisation is therefore written across rows: the row is the
minor axis, so that every scalar of the textbook algorithm is a vector of rows, and
columns are taken in panels so that the compiled code stays small. Elsewhere the
library's batched Cholesky is used.
"""

import math
from functools import partial
from itertools import pairwise

import jax.numpy as jnp
from jax import Array, lax

__all__ = [
    "add_moments_in_lanes",
    "dots_of_pairs",
    "draw_gaussian_in_order",
    "draw_gaussians",
    "draw_gaussians_across_rows",
    "draw_gaussians_by_library",
    "draw_gaussians_in_lanes",
    "weighted_moments",
]

# Rows are factorised together, as many (to MAX_ROWS) as stay in the second-level cache.
# Measured for 1,024 rows on one core: 0.5 ms at D = 10, 7 at D = 40, 29 at D = 64;
# LAPACK needs 3 and 30 at the first two.
CACHE_BYTES = 1 << 20
MAX_ROWS = 128
# The widest panel of columns. Panels are loops, what is in a panel is written out, so
# that the compiled code does not grow with D.
PANEL = 5
# And for one set of 8 lanes, whose loops are short: 2.3 us a row at D = 40, against 3.3
# for wider panels of 128 rows, the sums turned on the way.
NARROW_PANEL = 4
# Panels are taken in this many stretches, each of which leaves out the rows above its
# first column: a loop's shapes are fixed, so one stretch would work on all D rows.
STRETCHES = 3
# Stretches of columns, at most, that `add_moments_in_lanes` takes; each leaves out the
# rows above its first column.
PRODUCT_PANELS = 4
# The longest vectors that `weighted_moments` turns.
TURNED = 16


def draw_gaussians(precision: Array, linear: Array, noise: Array) -> Array:
    """Draw from Normal(P^-1 h, P^-1), a row at a time: P^-1 h + L'^-1 noise, P = L L'.

    Parameters
    ----------
    precision
        P, shape (rows, D, D), symmetric positive definite.
    linear
        h, shape (rows, D).
    noise
        Standard normal draws, shape (rows, D); zeros give the mean.

    Returns
    -------
    Array
        Shape (rows, D). A row whose precision is not positive definite becomes NaN.
    """
    return lax.platform_dependent(
        precision,
        linear,
        noise,
        cpu=draw_gaussians_across_rows,
        default=draw_gaussians_by_library,
    )


def draw_gaussians_by_library(precision: Array, linear: Array, noise: Array) -> Array:
    """`draw_gaussians` by the batched Cholesky and solves of XLA's library."""
    solve = lax.linalg.triangular_solve
    root = lax.linalg.cholesky(precision, symmetrize_input=False)
    half = solve(root, linear[..., None], left_side=True, lower=True)
    return solve(
        root, half + noise[..., None], left_side=True, lower=True, transpose_a=True
    )[..., 0]


def draw_gaussians_across_rows(precision: Array, linear: Array, noise: Array) -> Array:
    """`draw_gaussians` with rows as the minor axis, some at a time."""
    rows, dim = linear.shape
    chunk = math.gcd(rows, _rows_in_cache(dim))
    width = _panel_width(dim, PANEL)

    def solve(part):
        p, h, e = part
        matrix = lax.optimization_barrier(jnp.transpose(p, (2, 1, 0)))
        return _draw_chunk(matrix, h.T, e.T, width).T

    parts = (
        precision.reshape(-1, chunk, dim, dim),
        linear.reshape(-1, chunk, dim),
        noise.reshape(-1, chunk, dim),
    )
    return lax.map(solve, parts).reshape(rows, dim)


def draw_gaussians_in_lanes(precision: Array, linear: Array, noise: Array) -> Array:
    """`draw_gaussians` of rows that lie as `add_moments_in_lanes` sums them.

    Parameters
    ----------
    precision
        P, shape (sets, D, D, lanes), of which only `[:, d, d:]` is read.
    linear, noise
        Shape (sets, D, lanes).

    Returns
    -------
    Array
        Shape (sets x lanes, D).
    """
    sets, dim, lanes = linear.shape
    # Short systems need many rows for long loops; of long ones a set stays in cache.
    together = _rows_in_cache(dim) // lanes if dim <= TURNED else 1
    chunk = math.gcd(sets, max(1, together))
    width = _panel_width(dim, PANEL if chunk > 1 else NARROW_PANEL)

    def solve(part):
        def minor(x):
            x = jnp.moveaxis(x, 0, -2)
            return lax.optimization_barrier(x.reshape(*x.shape[:-2], -1))

        return _draw_chunk(*(minor(x) for x in part), width).T

    parts = tuple(
        x.reshape(-1, chunk, *x.shape[1:]) for x in (precision, linear, noise)
    )
    return lax.map(solve, parts).reshape(sets * lanes, dim)


def draw_gaussian_in_order(precision: Array, linear: Array, noise: Array) -> Array:
    """Draw from one Normal(P^-1 h, P^-1), whose first elements know no others.

    P = L D L': forwards one column after another, then L'^-1 (D^-1 L^-1 h + D^-1/2
    noise) backwards. Dimensions at the end that are independent of those before leave
    these as they are, bit for bit; 2 D dependent steps, so for one small matrix.

    Parameters
    ----------
    precision
        P, shape (D, D), symmetric positive definite.
    linear, noise
        h and standard normal draws, shape (D,).

    Returns
    -------
    Array
        Shape (D,); not a number where P is not positive definite.
    """
    dim = linear.shape[0]
    place = jnp.arange(dim, dtype=jnp.int32)

    def forwards(k, carry):
        rest, root, half = carry  # what is left of P; L' above its diagonal; L^-1 h
        row = jnp.where(place > k, rest[k], 0)
        column = row / rest[k, k]
        return (
            rest - column[:, None] * row[None],
            root.at[k].set(column),
            half - column * half[k],
        )

    start = precision, jnp.zeros_like(precision), linear
    rest, root, half = lax.fori_loop(0, dim, forwards, start)
    scale = jnp.diagonal(rest)
    value = half / scale + lax.rsqrt(scale) * noise

    def backwards(step, value):
        k = dim - 1 - step
        return value - root[:, k] * value[k]

    return lax.fori_loop(0, dim, backwards, value)


def _draw_chunk(matrix: Array, linear: Array, noise: Array, width: int) -> Array:
    """Draw for rows that are the minor axis: (D, D, rows) and twice (D, rows)."""
    dim = matrix.shape[0]
    more = -dim % width
    if more:  # dimensions without meaning, independent of the others
        matrix = jnp.pad(matrix, ((0, more), (0, more), (0, 0)))
        ones = jnp.diag(jnp.arange(dim + more) >= dim).astype(matrix.dtype)
        matrix = matrix + ones[:, :, None]
        linear, noise = (jnp.pad(x, ((0, more), (0, 0))) for x in (linear, noise))
    root, half = _factor(matrix, linear, width)
    return _solve_transposed(root, half + noise, width)[:dim]


def _rows_in_cache(dim: int) -> int:
    """Choose how many systems to factorise together, a power of two."""
    fit = max(1, CACHE_BYTES // (4 * dim * dim))
    return min(MAX_ROWS, 1 << (fit.bit_length() - 1))


def _panel_width(dim: int, widest: int) -> int:
    """Choose the panel that pads least, the widest of equals."""
    if dim <= widest:
        return dim
    return min(range(widest, widest // 2, -1), key=lambda w: (-dim % w, -w))


def _factor(matrix: Array, linear: Array, width: int) -> tuple[Array, Array]:
    """Factor P = L L' for one chunk, and solve L y = h on the way.

    Left-looking, a panel of columns at a time; `linear` rides along as one more row of
    the matrix, which turns it into y.

    Parameters
    ----------
    matrix
        P by column, shape (D, D, rows).
    linear
        h, shape (D, rows).
    width
        Columns a panel, a divisor of D.

    Returns
    -------
    tuple of Array
        L by column, shape (D, D, rows), its entries above the diagonal without meaning,
        and y, shape (D, rows).
    """
    barrier = lax.optimization_barrier  # ends a fusion: each step is one short loop
    dim = matrix.shape[0]
    augmented = jnp.concatenate([matrix, linear[:, None]], axis=1)
    columns_of = partial(lax.dynamic_slice_in_dim, slice_size=width, axis=0)
    rows_of = partial(lax.dynamic_slice_in_dim, slice_size=width, axis=1)

    def factor_panel(p, root, top):
        """Turn panel p of the matrix into columns of L, from row `top` on."""
        first = p * width

        def subtract(q, panel):
            before = columns_of(root, q * width)[:, top:]
            heads = rows_of(before, first - top)
            for j in range(width):
                panel = panel - heads[j][:, None] * before[j][None]
            return panel

        panel = columns_of(augmented, first)[:, top:]
        panel = lax.fori_loop(0, p, subtract, panel)
        # The panel's own square first, then all its rows by that square.
        square = rows_of(panel, first - top)
        heads, scales = [], []
        for k in range(width):
            column = square[k]
            for before in heads:
                column = column - before * before[k][None]
            scales.append(lax.rsqrt(column[k]))
            heads.append(column * scales[k][None])
        head, scale = barrier(jnp.stack(heads)), barrier(jnp.stack(scales))
        columns = []
        for k in range(width):
            column = panel[k]
            for j, before in enumerate(columns):
                column = column - before * head[j, k][None]
            columns.append(column * scale[k][None])
        return lax.dynamic_update_slice(root, jnp.stack(columns), (first, top, 0))

    root = jnp.zeros_like(augmented)
    panels = dim // width
    bounds = [panels * s // STRETCHES for s in range(STRETCHES + 1)]
    for start, stop in pairwise(bounds):
        if start < stop:
            root = lax.fori_loop(
                start, stop, partial(factor_panel, top=start * width), root
            )
    return root[:, :dim], root[:, dim]


def _solve_transposed(root: Array, value: Array, width: int) -> Array:
    """Solve L' x = value for one chunk: L as `_factor` gives it, value (D, rows)."""
    panels = root.shape[0] // width
    columns_of = partial(lax.dynamic_slice_in_dim, slice_size=width, axis=0)
    rows_of = partial(lax.dynamic_slice_in_dim, slice_size=width, axis=1)

    def solve_panel(step, solution):
        p = panels - 1 - step
        panel = columns_of(root, p * width)

        def subtract(q, rest):
            block = rows_of(panel, q * width)
            known = columns_of(solution, q * width)
            for j in range(width):
                rest = rest - block[:, j] * known[j][None]
            return rest

        rest = lax.fori_loop(p + 1, panels, subtract, columns_of(value, p * width))
        square = rows_of(panel, p * width)
        rows: list[Array] = [rest[0]] * width
        for k in reversed(range(width)):
            row = rest[k]
            for j in range(k + 1, width):
                row = row - square[k, j] * rows[j]
            rows[k] = row / square[k, k]
        return lax.dynamic_update_slice_in_dim(
            solution, jnp.stack(rows), p * width, axis=0
        )

    return lax.fori_loop(0, panels, solve_panel, jnp.zeros_like(value))


def weighted_moments(vectors: Array, weights: Array) -> tuple[Array, Array]:
    """Sum x x' and w x over the vectors of each block.

    Parameters
    ----------
    vectors
        x, shape (blocks, n, D).
    weights
        w, shape (blocks, n).

    Returns
    -------
    tuple of Array
        Shapes (blocks, D, D) and (blocks, D).
    """
    # Stored first (the barrier): a product whose operand is gathered on the fly is
    # slow. Short vectors are turned, so that both operands contract their minor axis:
    # on a CPU that takes a third off the time at D = 10, and costs 15 % at D = 40.
    turned = vectors.shape[2] <= TURNED
    axes = "dn" if turned else "nd"
    if turned:
        vectors = jnp.swapaxes(vectors, 1, 2)
    vectors = lax.optimization_barrier(vectors)
    one, two = f"t{axes}", f"t{axes.replace('d', 'e')}"
    return (
        jnp.einsum(f"{one},{two}->tde", vectors, vectors, precision="highest"),
        jnp.einsum(f"{one},tn->td", vectors, weights, precision="highest"),
    )


def add_moments_in_lanes(
    gram: Array, linear: Array, row: Array, vectors: Array, weights: Array
) -> tuple[Array, Array]:
    """Add `weighted_moments` of blocks to their rows' sums, some rows at a time.

    Lane beside lane, so that a vector of the processor holds one element of each row:
    half the products suffice, the sums lie as the Cholesky across rows reads them, and
    vectors that are short (D = 10) leave no room empty.

    Parameters
    ----------
    gram, linear
        Sums of all rows, shapes (sets, D, D, lanes) and (sets, D, lanes). Of `gram`
        only `[:, d, d:]` has a meaning.
    row
        Row of each block, shape (blocks,): `lanes` blocks in succession are of the rows
        of one set, and the first is of its first row. Rows beyond all sets are dropped.
    vectors, weights
        Shapes (blocks, n, D) and (blocks, n).

    Returns
    -------
    tuple of Array
        The sums after.
    """
    _, dim, lanes = linear.shape
    length = vectors.shape[1]
    # Lanes are turned in memory: a flat shape leaves the compiler no other layout.
    turned = jnp.moveaxis(vectors.reshape(-1, lanes, length, dim), 1, 3)
    turned = lax.optimization_barrier(turned.reshape(-1, length, dim * lanes))
    x = turned.reshape(-1, length, dim, lanes)
    w = jnp.moveaxis(weights.reshape(-1, lanes, length), 1, 2)
    at = row[::lanes] // lanes
    width = max(PANEL, -(-dim // PRODUCT_PANELS))
    for first in range(0, dim, width):
        left, right = x[:, :, first : first + width], x[:, :, first:]
        product = left[:, 0, :, None] * right[:, 0, None]
        for n in range(1, length):
            product = product + left[:, n, :, None] * right[:, n, None]
        product = lax.optimization_barrier(product)
        gram = gram.at[at, first : first + width, first:].add(product, mode="drop")
    cross = w[:, 0, None] * x[:, 0]
    for n in range(1, length):
        cross = cross + w[:, n, None] * x[:, n]
    cross = lax.optimization_barrier(cross)
    return gram, linear.at[at].add(cross, mode="drop")


def dots_of_pairs(
    left: Array, right: Array, left_row: Array, right_row: Array, chunk: int
) -> Array:
    """Inner products of many pairs of rows: left[left_row] . right[right_row].

    Parameters
    ----------
    left, right
        Shape (rows, D) and (other rows, D).
    left_row, right_row
        int32, shape (N,).
    chunk
        Pairs at a time, a divisor of N: N x D numbers are never held at once.

    Returns
    -------
    Array
        Shape (N,).
    """
    ones = jnp.ones(left.shape[1], left.dtype)

    def dot(pair):
        # Products are stored (the barrier) and summed by a matrix product: on one core
        # 7 ns a pair at D = 10 and 24 at D = 40; a sum over so short an axis: 12, 31.
        product = lax.optimization_barrier(left[pair[0]] * right[pair[1]])
        return jnp.matmul(product, ones, precision="highest")

    pairs = (left_row.reshape(-1, chunk), right_row.reshape(-1, chunk))
    return lax.map(dot, pairs).reshape(-1)
