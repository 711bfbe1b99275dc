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
    "dots_of_pairs",
    "draw_gaussian_in_order",
    "draw_gaussians",
    "draw_gaussians_across_rows",
    "draw_gaussians_by_library",
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
# Panels are taken in this many stretches, each of which leaves out the rows above its
# first column: a loop's shapes are fixed, so one stretch would work on all D rows.
STRETCHES = 3
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
    width = _panel_width(dim)
    more = -dim % width

    def solve(part):
        p, h, e = part
        matrix = lax.optimization_barrier(jnp.transpose(p, (2, 1, 0)))
        h, e = h.T, e.T
        if more:  # dimensions without meaning, independent of the others
            matrix = jnp.pad(matrix, ((0, more), (0, more), (0, 0)))
            ones = jnp.diag(jnp.arange(dim + more) >= dim).astype(matrix.dtype)
            matrix = matrix + ones[:, :, None]
            h, e = (jnp.pad(x, ((0, more), (0, 0))) for x in (h, e))
        root, half = _factor(matrix, h, width)
        return _solve_transposed(root, half + e, width)[:dim].T

    parts = (
        precision.reshape(-1, chunk, dim, dim),
        linear.reshape(-1, chunk, dim),
        noise.reshape(-1, chunk, dim),
    )
    return lax.map(solve, parts).reshape(rows, dim)


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


def _rows_in_cache(dim: int) -> int:
    """Choose how many systems to factorise together, a power of two."""
    fit = max(1, CACHE_BYTES // (4 * dim * dim))
    return min(MAX_ROWS, 1 << (fit.bit_length() - 1))


def _panel_width(dim: int) -> int:
    """Choose the panel that pads least, the widest of equals."""
    if dim <= PANEL:
        return dim
    return min(range(PANEL, PANEL // 2 - 1, -1), key=lambda w: (-dim % w, -w))


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

    def dot(pair):
        # The product is stored (the barrier) so that its sum runs over vectors.
        product = lax.optimization_barrier(left[pair[0]] * right[pair[1]])
        return jnp.sum(product, axis=-1)

    pairs = (left_row.reshape(-1, chunk), right_row.reshape(-1, chunk))
    return lax.map(dot, pairs).reshape(-1)
