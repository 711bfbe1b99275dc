"""Block: the latent factors of a side, all rows at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.data.layout import PairBlocks, RowBlocks
from im3f_jax.gibbs.state import FactorPriorState
from im3f_jax.numerics.collectives import all_rows, own_rows, sum_of_own_rows
from im3f_jax.numerics.linalg import (
    add_moments_in_lanes,
    draw_gaussians,
    draw_gaussians_in_lanes,
    weighted_moments,
)
from im3f_jax.numerics.random import standard_normal

__all__ = [
    "FactorParameters",
    "conditional_factors",
    "conditional_pair_factors",
    "resample_factors",
    "resample_pair_factors",
]


class FactorParameters(NamedTuple):
    """Natural parameters: row u is Normal(P_u^-1 h_u, P_u^-1)."""

    linear: Array  # h, shape (rows, D)
    precision: Array  # P, shape (rows, D, D)


def conditional_factors(
    prior: FactorPriorState,
    residual: Array,
    other_factors: Array,
    rating_variance: Array,
    blocks: RowBlocks,
    precision: Array | None = None,
    other_row: Array | None = None,
) -> FactorParameters:
    """Full conditional of a side's factors given the other side's.

    P_u = Lambda + sum_j b_j b_j' / sigma^2 and
    h_u = Lambda mu + sum_j b_j x_uj / sigma^2 over the row's ratings, with
    x_uj = r_uj - chi_0 - c_u[zM] - d_j[zU] (the paper's conditionals of a_u and b_j;
    the covariance of b_j is its own (Lambda_j^M*)^-1, misprinted there). With relative
    precisions each term of both sums is multiplied by its rating's.

    Parameters
    ----------
    prior
        mu, shape (D,), and Lambda, shape (D, D).
    residual
        x without the factors, rating scale, shape (N,) in canonical order, 0 in
        padding.
    other_factors
        Shape (other rows, D), 0 in rows of padding.
    rating_variance
        sigma^2, scalar.
    blocks
        This side's ratings, row by row.
    precision
        Relative precision of each rating's noise, shape (N,); None: all 1. 0 leaves a
        rating out.
    other_row
        Row of `other_factors` that each rating reads, int32, shape (N,); None: that of
        its other side. Where it is given, `precision` must be 0 in padding.
    """
    num_batches = blocks.batch_start.shape[0] - 1
    root = None if precision is None else jnp.sqrt(precision)
    parts = lax.map(
        lambda batch: _batch_parameters(
            prior,
            residual,
            other_factors,
            rating_variance,
            blocks,
            root,
            batch,
            other_row,
        ),
        jnp.arange(num_batches),
    )
    return jax.tree.map(lambda x: blocks.by_row(x.reshape(-1, *x.shape[2:])), parts)


def resample_factors(
    key: Array,
    prior: FactorPriorState,
    residual: Array,
    other_factors: Array,
    rating_variance: Array,
    blocks: RowBlocks,
    num_rows: Array,
    precision: Array | None = None,
    other_row: Array | None = None,
    axis: str | None = None,
) -> Array:
    """Draw a side's factors from `conditional_factors`, shape (rows, D).

    Rows are taken in batches, so that rows x D x D numbers are never held at once.
    Rows beyond `num_rows` are padding and become 0. Where shards, counted by `axis`,
    hold ratings of the same rows, sums go to the shard that draws the row: of each
    batch every shard draws its part.
    """
    num_batches = blocks.batch_start.shape[0] - 1
    dim = other_factors.shape[1]
    rows = blocks.rows
    noise = standard_normal(key, (rows, dim), other_factors.dtype)
    root = None if precision is None else jnp.sqrt(precision)

    def draw(batch_and_noise):
        batch, noise = batch_and_noise
        given = prior, residual, other_factors, rating_variance, blocks, root, batch
        if blocks.lanes > 1:
            linear, precision = _batch_parameters_in_lanes(*given, other_row, axis)
            noise = own_rows(noise.reshape(-1, dim, blocks.lanes), axis)
            drawn = draw_gaussians_in_lanes(precision, linear, noise)
        else:
            linear, precision = _batch_parameters(*given, other_row, axis)
            drawn = draw_gaussians(precision, linear, own_rows(noise, axis))
        return all_rows(drawn, axis)

    factors = lax.map(
        draw, (jnp.arange(num_batches), noise.reshape(num_batches, -1, dim))
    )
    factors = blocks.by_row(factors.reshape(rows, dim))
    return jnp.where(
        (jnp.arange(rows, dtype=jnp.int32) < num_rows)[:, None], factors, 0
    )


def conditional_pair_factors(
    prior: FactorPriorState,
    residual: Array,
    factors: Array,
    rating_variance: Array,
    pairs: PairBlocks,
) -> FactorParameters:
    """Full conditional of each person's factors given those of all others.

    P_p = Lambda + sum_q a_q a_q' / sigma^2 and h_p = Lambda mu + sum_q a_q x_pq /
    sigma^2 over the person's pairs, whichever of the two is named first. Rows as in
    `factors`, shape (rows, D), 0 in rows of padding; other parameters as in
    `conditional_factors`.
    """
    rows = factors.shape[0]

    def put(batch):
        return _batch_parameters(
            prior, residual, factors, rating_variance, pairs.blocks, None, batch
        )

    parts = lax.map(put, jnp.arange(pairs.person.shape[0]))
    person = pairs.person.reshape(-1)

    def by_row(x):
        x = x.reshape(-1, *x.shape[2:])
        return jnp.zeros((rows, *x.shape[1:]), x.dtype).at[person].set(x, mode="drop")

    return jax.tree.map(by_row, parts)


def resample_pair_factors(
    key: Array,
    prior: FactorPriorState,
    residual: Array,
    factors: Array,
    rating_variance: Array,
    pairs: PairBlocks,
) -> Array:
    """Draw the factors of persons from `conditional_pair_factors`, shape (rows, D).

    Batch by batch, each given the new factors of the batches before it. No two persons
    of a batch are a pair: given all others they are independent.
    """
    noise = standard_normal(key, factors.shape, factors.dtype)
    last = factors.shape[0] - 1

    def draw(factors, given):
        batch, person = given
        linear, precision = _batch_parameters(
            prior, residual, factors, rating_variance, pairs.blocks, None, batch
        )
        own = noise[jnp.minimum(person, last)]
        drawn = draw_gaussians(precision, linear, own)
        return factors.at[person].set(drawn, mode="drop"), None

    batches = jnp.arange(pairs.person.shape[0])
    return lax.scan(draw, factors, (batches, pairs.person))[0]


def _batch_parameters(
    prior: FactorPriorState,
    residual: Array,
    other_factors: Array,
    rating_variance: Array,
    blocks: RowBlocks,
    root: Array | None,
    batch: Array,
    other_row: Array | None = None,
    axis: str | None = None,
) -> FactorParameters:
    """Natural parameters of one batch of rows, summed group by group.

    Of a shard's part of the batch, where `axis` counts the shards.
    """
    if blocks.lanes > 1:
        linear, precision = _batch_parameters_in_lanes(
            prior,
            residual,
            other_factors,
            rating_variance,
            blocks,
            root,
            batch,
            other_row,
            axis,
        )
        linear, precision = (
            jnp.moveaxis(x, -1, 1).reshape(-1, *x.shape[1:-1])
            for x in (linear, precision)
        )
        upper = jnp.triu(precision)
        return FactorParameters(linear, upper + jnp.swapaxes(jnp.triu(upper, 1), 1, 2))
    dim = other_factors.shape[1]
    dtype = other_factors.dtype
    rows = blocks.rows // (blocks.batch_start.shape[0] - 1)

    def add_group(group, sums):
        gram, linear = sums
        row, vectors, x = _read_group(
            residual, other_factors, blocks, root, group, other_row
        )
        products, cross = weighted_moments(vectors, x)
        return (
            gram.at[row].add(products, mode="drop"),
            linear.at[row].add(cross, mode="drop"),
        )

    gram, linear = lax.fori_loop(
        blocks.batch_start[batch],
        blocks.batch_start[batch + 1],
        add_group,
        (jnp.zeros((rows, dim, dim), dtype), jnp.zeros((rows, dim), dtype)),
    )
    gram, linear = sum_of_own_rows(gram, axis), sum_of_own_rows(linear, axis)
    pull = jnp.matmul(prior.precision, prior.mean, precision="highest")
    return FactorParameters(
        linear=pull[None] + linear / rating_variance,
        precision=prior.precision[None] + gram / rating_variance,
    )


def _batch_parameters_in_lanes(
    prior: FactorPriorState,
    residual: Array,
    other_factors: Array,
    rating_variance: Array,
    blocks: RowBlocks,
    root: Array | None,
    batch: Array,
    other_row: Array | None = None,
    axis: str | None = None,
) -> FactorParameters:
    """`_batch_parameters` of sets of rows, as `draw_gaussians_in_lanes` reads them."""
    dim, lanes = other_factors.shape[1], blocks.lanes
    dtype = other_factors.dtype
    sets = blocks.rows // (blocks.batch_start.shape[0] - 1) // lanes

    def add_group(group, sums):
        return add_moments_in_lanes(
            *sums,
            *_read_group(residual, other_factors, blocks, root, group, other_row),
        )

    gram, linear = lax.fori_loop(
        blocks.batch_start[batch],
        blocks.batch_start[batch + 1],
        add_group,
        (
            jnp.zeros((sets, dim, dim, lanes), dtype),
            jnp.zeros((sets, dim, lanes), dtype),
        ),
    )
    gram, linear = sum_of_own_rows(gram, axis), sum_of_own_rows(linear, axis)
    pull = jnp.matmul(prior.precision, prior.mean, precision="highest")
    return FactorParameters(
        linear=pull[None, :, None] + linear / rating_variance,
        precision=prior.precision[None, :, :, None] + gram / rating_variance,
    )


def _read_group(
    residual: Array,
    other_factors: Array,
    blocks: RowBlocks,
    root: Array | None,
    group: Array,
    other_row: Array | None,
) -> tuple[Array, Array, Array]:
    """Row of each block of a group, and its ratings' vectors and residuals."""
    row, position = blocks.row[group], blocks.position[group]
    other = blocks.other[group] if other_row is None else other_row[position]
    vectors, x = other_factors[other], residual[position]
    if root is not None:  # the square root of the precisions, on both sides
        scale = root[position]
        vectors, x = vectors * scale[..., None], x * scale
    return row, vectors, x
