"""The MAP fit of PMF by Adam: a start for chains, and a model of its own."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from im3f_jax.data.layout import RatingLayout, RowBlocks
from im3f_jax.numerics.linalg import dots_of_pairs

__all__ = ["MapFit", "fit_map", "order_columns"]

LEARNING_RATE = 0.03


class MapFit(NamedTuple):
    """Factors at the mode, and the objective on the way."""

    user_factors: Array  # shape (user rows, D)
    item_factors: Array  # shape (item rows, D)
    objective: Array  # negative log joint in nats up to a constant, shape (steps,)


@partial(jax.jit, static_argnames=("latent_dim", "num_steps", "one_table"))
def fit_map(
    key: Array,
    data: RatingLayout,
    latent_dim: int,
    global_bias: Array,
    rating_variance: Array,
    precision: Array,
    num_steps: int,
    one_table: bool = False,
) -> MapFit:
    """Find the mode of PMF's factors by full-batch Adam (optax).

    The objective is the negative log joint of PMF (Salakhutdinov and Mnih 2007):
    sum_n (r_n - chi_0 - a_u . b_j)^2 / (2 sigma^2) + precision (|A|^2 + |B|^2) / 2,
    which is the family's log joint without topics and with fixed normal factor
    priors. Its gradients are written out, by blocks: the gradient of a gather
    would be a scatter of N x D numbers.

    Parameters
    ----------
    key
        A typed key, for the random start.
    data
        Training ratings.
    latent_dim, num_steps
        D and the number of Adam steps, static.
    global_bias, rating_variance, precision
        chi_0, sigma^2 and the factors' prior precision, scalars.
    one_table
        Users and items are the same rows, and their factors the same, A = B, with one
        term |A|^2; static. Both are returned.
    """
    user_key, item_key = jax.random.split(key)
    dtype = data.rating.dtype
    scale = 0.3 * lax.rsqrt(precision)
    factors = (
        scale * jax.random.normal(user_key, (data.user_rows, latent_dim), dtype),
        scale * jax.random.normal(item_key, (data.item_rows, latent_dim), dtype),
    )
    users = jnp.arange(data.user_rows, dtype=jnp.int32) < data.num_users
    items = jnp.arange(data.item_rows, dtype=jnp.int32) < data.num_items
    factors = (
        jnp.where(users[:, None], factors[0], 0),
        jnp.where(items[:, None], factors[1], 0),
    )
    if one_table:
        factors = factors[:1] * 2
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    optimizer = optax.adam(LEARNING_RATE)

    def step(carry, _):
        (a, b), optimizer_state = carry
        dot = dots_of_pairs(a, b, data.user, data.item, data.chunk)
        error = jnp.where(valid, data.rating - global_bias - dot, 0) / rating_variance
        squares = jnp.sum(a**2) + (0 if one_table else jnp.sum(b**2))
        objective = 0.5 * (rating_variance * jnp.sum(error**2) + precision * squares)
        gradients = (
            precision * a - _weighted_sums(error, b, data.user_blocks),
            precision * b - _weighted_sums(error, a, data.item_blocks),
        )
        if one_table:  # a person's ratings in both roles
            gradients = (gradients[0] + gradients[1] - precision * a,) * 2
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates((a, b), updates), optimizer_state), objective

    (factors, _), objective = lax.scan(
        step, (factors, optimizer.init(factors)), None, length=num_steps
    )
    return MapFit(*factors, objective)


@jax.jit
def order_columns(
    user_factors: Array, item_factors: Array, num_users: Array, num_items: Array
) -> tuple[Array, Array]:
    """Turn factors so that their columns are in order, and their product the same.

    The columns are the singular vectors of A B', of largest singular value first,
    scaled so that the elements of a column have one mean square on both sides: where a
    prior with one precision a column (`MultiplicativeGamma`) expects them.

    Parameters
    ----------
    user_factors, item_factors
        A and B, shapes (user rows, D) and (item rows, D), 0 in rows of padding.
    num_users, num_items
        Numbers of rows that are not padding.

    Returns
    -------
    tuple of Array
        In the same shapes.
    """

    def factor(rows):
        # With fewer rows than columns some columns would be lost.
        missing = max(rows.shape[1] - rows.shape[0], 0)
        return jnp.linalg.qr(jnp.pad(rows, ((0, missing), (0, 0))))

    users, user_root = factor(user_factors)
    items, item_root = factor(item_factors)
    left, values, right = jnp.linalg.svd(
        jnp.matmul(user_root, item_root.T, precision="highest")
    )
    ratio = num_users.astype(values.dtype) / num_items.astype(values.dtype)
    scale, tilt = jnp.sqrt(values), ratio**0.25
    return (
        jnp.matmul(
            users[: user_factors.shape[0]],
            left * (scale * tilt)[None],
            precision="highest",
        ),
        jnp.matmul(
            items[: item_factors.shape[0]],
            right.T * (scale / tilt)[None],
            precision="highest",
        ),
    )


def _weighted_sums(values: Array, other: Array, blocks: RowBlocks) -> Array:
    """Sum of values x the other side's rows over each row's ratings, (rows, D)."""
    num_batches = blocks.batch_start.shape[0] - 1
    rows = blocks.rows // num_batches
    dim = other.shape[1]

    def sum_batch(batch):
        def add_group(group, total):
            part = jnp.einsum(
                "tnd,tn->td",
                other[blocks.other[group]],
                values[blocks.position[group]],
                precision="highest",
            )
            return total.at[blocks.row[group]].add(part, mode="drop")

        return lax.fori_loop(
            blocks.batch_start[batch],
            blocks.batch_start[batch + 1],
            add_group,
            jnp.zeros((rows, dim), other.dtype),
        )

    sums = lax.map(sum_batch, jnp.arange(num_batches)).reshape(blocks.rows, dim)
    return blocks.by_row(sums)
