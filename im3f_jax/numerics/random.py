"""Random draws that stay exact where float32 would underflow.

Every function takes a typed key first and consumes it once. Draws of gammas are
returned as logarithms: a gamma of shape 1e-3 is exactly 0 in 92 % of float32 draws.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import ndtr, ndtri

from im3f_jax.numerics.bits import high_product, normal, random_bits, uniform
from im3f_jax.numerics.reductions import ranks_within_bins
from im3f_jax.numerics.special import log_mills_ratio

__all__ = [
    "standard_normal",
    "standard_uniform",
    "chinese_restaurant_seating",
    "chinese_restaurant_tables",
    "invert_weights",
    "log_beta_pair",
    "log_dirichlet",
    "log_gamma",
    "normal_wishart",
    "truncated_inverse_gamma",
    "truncated_normal",
]


def standard_normal(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Draw standard normals, stored once.

    Without the barrier the compiler repeats the draw in each of its consumers. They are
    drawn in one row: a minor axis of 10 would leave a CPU's vectors half empty.
    """
    drawn = normal(key, (math.prod(shape),), dtype)
    return lax.optimization_barrier(drawn).reshape(shape)


def standard_uniform(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Draw uniforms on [0, 1), stored once."""
    return lax.optimization_barrier(uniform(key, shape, dtype))


def log_gamma(key: Array, shape: Array) -> Array:
    """Draw logarithms of Gamma(shape, rate 1) variables.

    Marsaglia and Tsang (2000), for all elements at once, repeated while any is
    rejected (a proposal is accepted with probability above 0.95); shapes below 1 are
    drawn at shape + 1 and multiplied by U^(1/shape), in log space.

    Parameters
    ----------
    key
        A typed key.
    shape
        Shapes, any array shape, positive (tested from 1e-30 to 1e6).

    Returns
    -------
    Array
        Logarithms of the draws, in the shape and dtype of `shape`.
    """
    boost_key, loop_key = jax.random.split(key)
    dtype = shape.dtype
    small = shape < 1
    d = jnp.where(small, shape + 1, shape) - 1 / 3
    if d.size < COMPACT:
        log_v = _marsaglia_tsang(loop_key, d, jnp.zeros(d.shape, bool))
    else:
        log_v = _compacted(loop_key, d.reshape(-1)).reshape(d.shape)
    # U^(1/shape) is far from 0 where 1 - U is below the shape, however small that is:
    # by `jax.random.uniform`, whose steps are 2^-23, all shapes below 1e-7 would act
    # as if they were 1e-7.
    rest = _fine_uniform(boost_key, shape.shape, dtype)
    return jnp.log(d) + log_v + jnp.where(small, jnp.log1p(-rest) / shape, 0)


def _fine_uniform(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Draw uniforms on (0, 1) from 64 random bits, in fine steps near 0."""
    high, low = random_bits(key, (2, *shape))
    u = high.astype(dtype) * 2.0**-32 + (low.astype(dtype) + 0.5) * 2.0**-64
    return jnp.minimum(u, 1 - jnp.finfo(dtype).epsneg)


# From this size on, rejected elements are gathered before they are proposed again.
COMPACT = 1 << 14


def _propose(key: Array, d: Array) -> tuple[Array, Array]:
    """Propose log V for Gamma(d + 1/3), and whether each proposal is accepted."""
    # One draw gives the normal (as jax.random.normal makes it) and the uniform.
    least = np.nextafter(np.asarray(-1, d.dtype), np.asarray(0, d.dtype))
    w = uniform(key, (2, *d.shape), d.dtype, least, 1)
    x = lax.optimization_barrier(math.sqrt(2) * lax.erf_inv(w[0]))
    log_u = jnp.log(0.5 * (w[1] + 1))
    # V = (1 + y)^3; log U <= x^2/2 + d (1 - V + log V). For large d the terms cancel,
    # so they are summed from small parts.
    y = x * lax.rsqrt(9 * d)
    negative = y <= -1
    log_1p = jnp.log1p(jnp.where(negative, 0, y))
    slack = d * (3 * (log_1p - y) - y * y * (3 + y))
    # Said by what is rejected: NaN is accepted, and found by the check of the state. It
    # would be proposed again without end.
    return 3 * log_1p, ~(negative | (log_u > 0.5 * x * x + slack))


def _marsaglia_tsang(key: Array, d: Array, done: Array) -> Array:
    """Propose for all elements while any is not done; log V, in the shape of d."""

    def body(carry):
        log_v, done, step = carry
        proposal, accept = _propose(jax.random.fold_in(key, step), d)
        return jnp.where(done, log_v, proposal), done | accept, step + 1

    carry = (jnp.zeros_like(d), done, jnp.zeros((), jnp.int32))
    return lax.while_loop(lambda carry: ~jnp.all(carry[1]), body, carry)[0]


def _compacted(key: Array, d: Array) -> Array:
    """Propose for all elements once, then for the few rejected ones until accepted."""
    (size,) = d.shape
    capacity = size // 8  # of 5 % or fewer; were there more, the loop would go on
    first_key, key = jax.random.split(key)
    carry = (*_propose(first_key, d), key)

    def body(carry):
        log_v, done, key = carry
        key, subkey = jax.random.split(key)
        (index,) = jnp.nonzero(~done, size=capacity, fill_value=size)
        d_of = d.at[index].get(mode="fill", fill_value=1)
        again = _marsaglia_tsang(subkey, d_of, index == size)
        log_v = log_v.at[index].set(again, mode="drop")
        return log_v, done.at[index].set(True, mode="drop"), key

    return lax.while_loop(lambda carry: ~jnp.all(carry[1]), body, carry)[0]


def log_dirichlet(key: Array, concentration: Array) -> Array:
    """Draw logarithms of Dirichlet weights along the last axis.

    Parameters
    ----------
    key
        A typed key.
    concentration
        Positive, shape (..., K).

    Returns
    -------
    Array
        Log weights, shape (..., K), of which each row's exponentials sum to 1.
    """
    # Less the largest first, by log_softmax: logarithms near -1000 are rounded to 6e-5.
    return jax.nn.log_softmax(log_gamma(key, concentration), axis=-1)


def log_beta_pair(key: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Draw log V and log(1 - V) with V ~ Beta(a, b), both without cancellation.

    `a` and `b` have one shape; so have both results.
    """
    pair = log_dirichlet(key, jnp.stack([a, b], axis=-1))
    return pair[..., 0], pair[..., 1]


def truncated_inverse_gamma(
    key: Array, shape: Array, scale: Array, floor: Array
) -> Array:
    """Draw x with density proportional to x^(-shape-1) exp(-scale/x) on x >= floor.

    Exact, also where all the mass of the untruncated density lies below the floor.
    The precision p = 1/x is a Gamma(shape, scale) cut at 1/floor. Where the cut lies
    well below its mode, p is drawn by rejection from the exponential that touches the
    log density at the cut (the log density is concave for shape >= 1); elsewhere by
    rejection from the gamma itself.

    Parameters
    ----------
    key
        A typed key.
    shape, scale
        Scalars; shape >= 1, scale > 0.
    floor
        Scalar >= 0, in the units of x.

    Returns
    -------
    Array
        A scalar, >= floor.
    """
    dtype = jnp.result_type(shape)
    # In units of 1/scale: q = p * scale ~ Gamma(shape, 1) on (0, bound].
    tiny = jnp.finfo(dtype).tiny
    bound = jnp.maximum(scale / jnp.maximum(floor, tiny), tiny)
    mode, spread = shape - 1, jnp.sqrt(shape)
    tangent = (bound < mode - 0.5 * spread) | ((shape < 20) & (bound < shape))
    peak = jnp.minimum(jnp.maximum(mode, 0), bound)
    slope = jnp.maximum(mode / bound - 1, 0)

    def from_tangent(key):
        step_key, accept_key = jax.random.split(key)
        u = standard_uniform(step_key, (), dtype)
        # Distance below the bound: exponential of rate slope, cut at the bound itself.
        reach = slope * bound
        step = jnp.where(
            reach > 1e-4,
            -jnp.log1p(u * jnp.expm1(-reach)) / jnp.where(slope > 0, slope, 1),
            u * bound,
        )
        q = bound - step
        ratio = (q - peak) / jnp.where(peak > 0, peak, 1)
        # log density at q less its tangent at the peak, from small parts.
        gap = jnp.where(
            peak > 0, mode * jnp.log1p(jnp.maximum(ratio, -1)) - (q - peak), -q
        )
        gap = gap - slope * (q - bound)
        reject = jnp.log(standard_uniform(accept_key, (), dtype)) > gap
        return q, ~(reject | (q <= 0))  # NaN is accepted, as in `_propose`

    def from_gamma(key):
        q = jnp.exp(log_gamma(key, jnp.asarray(shape, dtype)))
        return q, ~(q > bound)

    def body(carry):
        _, _, key = carry
        key, subkey = jax.random.split(key)
        q, accept = lax.cond(tangent, from_tangent, from_gamma, subkey)
        return q, accept, key

    q, _, _ = lax.while_loop(
        lambda carry: ~carry[1],
        body,
        (jnp.zeros((), dtype), jnp.zeros((), bool), key),
    )
    return jnp.maximum(scale / q, floor)


def truncated_normal(key: Array, low: Array, high: Array) -> Array:
    """Draw standard normals given that they lie in (low, high), by inverse CDF.

    Where an interval reaches within TAIL of 0, from the nearer of both tails of the
    CDF. Further out, where Phi comes to underflow (float32: at -13), only ratios to the
    bound that is nearer to 0 are formed: with x its distance from 0,
    log Phi(-x - t) - log Phi(-x) = -(x t + t^2 / 2) + log R(x + t) - log R(x) for the
    Mills ratio R, solved for t by Newton's method from the exponential law that it
    tends to.

    Parameters
    ----------
    key
        A typed key.
    low, high
        Of one shape, low < high; finite, with bounds far out (1e4) for open ends.

    Returns
    -------
    Array
        Draws within [low, high], in the shape and dtype of `low`. Equal to a bound
        only by rounding.
    """
    dtype = low.dtype
    # The middles of the steps of `jax.random.uniform`: never 0 or 1.
    u = standard_uniform(key, low.shape, dtype) + 0.5 * jnp.finfo(dtype).eps
    flip = low + high > 0
    a, b = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    tail = b < -TAIL

    below, above, upto = lax.optimization_barrier((ndtr(a), ndtr(-b), ndtr(b)))
    mass = upto - below
    from_below, from_above = below + u * mass, above + (1 - u) * mass
    nearer = jnp.minimum(from_below, from_above)
    central = ndtri(jnp.where(tail, 0.25, nearer))
    central = jnp.where(from_below < from_above, central, -central)

    # Hardly ever needed, and then by few.
    far = lax.cond(
        jnp.any(tail),
        lambda: _in_tail(u, jnp.where(tail, -b, TAIL), high - low),
        lambda: jnp.zeros_like(u),
    )
    draw = jnp.where(tail, far, central)
    return jnp.clip(jnp.where(flip, -draw, draw), low, high)


def _in_tail(u: Array, x: Array, width: Array) -> Array:
    """Invert the CDF of a normal within (-x - width, -x), for x >= TAIL, from above."""
    log_mills = log_mills_ratio(x)

    def log_ratio(step):
        return -step * (x + 0.5 * step) + log_mills_ratio(x + step) - log_mills

    # log of Phi(draw) / Phi(-x), between 0 and that of the far bound.
    target = jnp.log1p(u * jnp.expm1(log_ratio(width)))
    v = -target
    v = jnp.maximum(v - 0.5 * jnp.log1p(2 * v / (x * x)), 0)
    step = 2 * v / (x + jnp.sqrt(x * x + 2 * v))
    for _ in range(2):
        slope = jnp.exp(-log_mills_ratio(x + step))
        step = jnp.maximum(step + (log_ratio(step) - target) / slope, 0)
    return -(x + step)


# Below minus this the tail form of `truncated_normal` serves; Phi(-8) times the least
# uniform is no subnormal number yet.
TAIL = 8.0


def normal_wishart(
    key: Array,
    mean: Array,
    mean_precision: Array,
    degrees_of_freedom: Array,
    inverse_scale: Array,
) -> tuple[Array, Array]:
    """Draw Lambda ~ Wishart(W, nu) and mu ~ Normal(mean, (lambda Lambda)^-1).

    Bartlett's decomposition with W given by its inverse: with W^-1 = C C' and a lower
    triangular A (chi and normal draws), Lambda = F F' for F = C'^-1 A, and
    C A'^-1 z has covariance Lambda^-1. No matrix is inverted.

    Parameters
    ----------
    key
        A typed key.
    mean
        Shape (D,).
    mean_precision, degrees_of_freedom
        Scalars lambda > 0 and nu >= D.
    inverse_scale
        W^-1, shape (D, D), positive definite.

    Returns
    -------
    tuple of Array
        mu, shape (D,), and Lambda, shape (D, D).
    """
    chi_key, below_key, mean_key = jax.random.split(key, 3)
    (dim,) = mean.shape
    dtype = mean.dtype
    triangular_solve = lax.linalg.triangular_solve
    half = 0.5 * (degrees_of_freedom - jnp.arange(dim).astype(dtype))
    chi = jnp.exp(0.5 * (jnp.log(2.0).astype(dtype) + log_gamma(chi_key, half)))
    below = jnp.tril(standard_normal(below_key, (dim, dim), dtype), -1)
    bartlett = below + jnp.diag(chi)
    root = lax.linalg.cholesky(inverse_scale)
    factor = triangular_solve(
        root, bartlett, left_side=True, lower=True, transpose_a=True
    )
    precision = jnp.matmul(factor, factor.T, precision="highest")
    z = standard_normal(mean_key, (dim, 1), dtype)
    y = triangular_solve(bartlett, z, left_side=True, lower=True, transpose_a=True)
    offset = jnp.matmul(root, y, precision="highest")[:, 0]
    return mean + offset * lax.rsqrt(mean_precision), precision


def chinese_restaurant_seating(
    key: Array,
    row: Array,
    column: Array,
    rows: int,
    concentration: Array,
    valid: Array,
) -> tuple[Array, Array]:
    """Seat customers at the tables of Chinese restaurants, all at once.

    Customer i = 0, 1, .. of a restaurant opens a table with probability a / (a + i),
    else joins the table of one of those before, each alike. Whom each joins is drawn in
    parallel; the founder of a table is found by following the links, which doubles the
    distance each round.

    Parameters
    ----------
    key
        A typed key.
    row, column
        Restaurant of each customer, int32, shape (N,).
    rows
        Rows of restaurants, static.
    concentration
        a of each column, positive, shape (K,), or of each restaurant, (rows, K).
    valid
        False for padding, shape (N,).

    Returns
    -------
    tuple of Array
        The founder of each customer's table, int32, shape (N,): the first of the
        table's customers (padding founds tables of its own); and the customers in the
        order of their restaurants, int32, shape (N,).
    """
    open_key, join_key = jax.random.split(key)
    place = jnp.arange(row.shape[0], dtype=jnp.int32)
    columns = concentration.shape[-1]
    row = jnp.where(valid, row, rows)
    if (rows + 1) * columns < 2**31:  # sorting by one number takes an eighth
        cell, customer = lax.sort((row * columns + column, place), num_keys=1)
        row, column = cell // columns, cell % columns
    else:
        row, column, customer = lax.sort((row, column, place), num_keys=2)
    fresh = jnp.ones(row.shape, bool)
    fresh = fresh.at[1:].set((row[1:] != row[:-1]) | (column[1:] != column[:-1]))
    fresh = fresh | (row == rows)
    start = lax.cummax(jnp.where(fresh, place, 0))
    rank = place - start
    if concentration.ndim == 1:
        a = concentration[column]
    else:
        a = concentration[jnp.minimum(row, rows - 1), column]
    u = standard_uniform(open_key, row.shape, a.dtype)
    opens = fresh | (u < a / (a + rank.astype(a.dtype)))
    bits = random_bits(join_key, row.shape)
    joined = start + high_product(bits, jnp.maximum(rank, 1))
    link = jnp.where(opens, place, joined)
    link = lax.while_loop(
        lambda link: jnp.any(link[link] != link), lambda link: link[link], link
    )
    return jnp.zeros_like(place).at[customer].set(customer[link]), customer


def chinese_restaurant_tables(
    key: Array,
    counts: Array,
    concentration: Array,
    total: int,
    before: Array | None = None,
) -> Array:
    """Draw the numbers of tables of Chinese restaurants, summed over rows.

    The tables of n customers are a sum of independent Bernoulli(a / (a + i)),
    i = 0 .. n - 1 (Antoniak 1974): one Bernoulli a customer, exact whatever the counts.

    Parameters
    ----------
    key
        A typed key.
    counts
        Customers in each restaurant, int32, shape (rows, K).
    concentration
        a of each column, positive, shape (K,).
    total
        At least the sum of `counts`, static.
    before
        Customers that came to each restaurant before these, whose tables are not
        counted: int32, shape (rows, K). None: 0.

    Returns
    -------
    Array
        Tables of each column, int32, shape (K,).
    """
    rows, columns = counts.shape
    # Restaurants by column, so that a column's customers stand together.
    cell, rank = ranks_within_bins(counts.T.reshape(-1), total)
    column = cell // rows
    if before is not None:
        rank = rank + before.T.reshape(-1)[jnp.minimum(cell, before.size - 1)]
    a = concentration[jnp.minimum(column, columns - 1)]
    u = standard_uniform(key, (total,), concentration.dtype)
    # Rank 0 opens a table for certain, also where a underflows.
    opened = (rank == 0) | (u < a / (a + rank.astype(a.dtype)))
    running = jnp.cumsum(opened & (column < columns), dtype=jnp.int32)
    ends = jnp.cumsum(jnp.sum(counts, axis=0, dtype=jnp.int32), dtype=jnp.int32)
    upto = jnp.where(ends > 0, running[jnp.maximum(ends - 1, 0)], 0)
    return jnp.diff(upto, prepend=jnp.zeros(1, jnp.int32))


# Categories are summed in groups of this many before one is picked within its group.
GROUP = 16


def invert_weights(log_weights: Array, uniform: Array) -> Array:
    """Draw a category a row by inverting its cumulative weights, one uniform a row.

    In two levels: first the group of GROUP categories, then the category in it. One of
    weight 0 is never drawn: the target is kept strictly below the running total that it
    is compared to.

    Parameters
    ----------
    log_weights
        Log probabilities up to a constant a row, shape (n, K).
    uniform
        Of `standard_uniform`, shape (n,). The middles of its steps are taken: its 0,
        once in 2^23 draws, would pick the first category however small its weight.

    Returns
    -------
    Array
        int32, shape (n,).
    """
    uniform = uniform + 0.5 * jnp.finfo(uniform.dtype).eps
    log_weights = lax.optimization_barrier(log_weights)
    largest = jnp.max(log_weights, axis=-1, keepdims=True)
    weights = lax.optimization_barrier(jnp.exp(log_weights - largest))
    return jnp.minimum(_invert(weights, uniform), weights.shape[1] - 1)


def _invert(weights: Array, uniform: Array) -> Array:
    num_topics = weights.shape[1]
    if num_topics <= GROUP:
        return _pick(weights, uniform * _running(weights)[-1])[0]
    padded = jnp.pad(weights, ((0, 0), (0, -num_topics % GROUP)))
    groups = padded.reshape(weights.shape[0], -1, GROUP)
    # Summed in the order in which `_pick` sums, so that both totals agree.
    totals = jnp.sum(groups, axis=-1)
    group, rest = _pick(totals, uniform * _running(totals)[-1])
    within = lax.optimization_barrier(
        jnp.take_along_axis(groups, group[:, None, None], axis=1)[:, 0]
    )
    topic, _ = _pick(within, rest)
    return group * GROUP + topic


def _running(weights: Array) -> list[Array]:
    totals = [weights[:, 0]]
    for k in range(1, weights.shape[1]):
        totals.append(totals[-1] + weights[:, k])
    return totals


def _pick(weights: Array, target: Array) -> tuple[Array, Array]:
    """First column whose running total exceeds the target, and the target within it."""
    totals = _running(weights)
    last = totals[-1]
    target = jnp.minimum(target, jnp.nextafter(last, jnp.zeros_like(last)))
    index = jnp.zeros(target.shape, jnp.int32)
    before = jnp.zeros_like(target)
    for total in totals[:-1]:
        passed = target >= total
        index = index + passed.astype(jnp.int32)
        before = jnp.where(passed, total, before)
    return index, target - before
