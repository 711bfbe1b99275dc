"""Block: the topics of tables, all the ratings of a table together.

Given their topics, the ratings of a row and a topic sit at the tables of a Chinese
restaurant with concentration gamma pi_k (the row's weights summed out); given the
tables, each draws its topic anew, and its ratings follow: the dish step of the paper's
franchise, for all tables at once. Rating by rating a row that has settled in a topic
leaves it only against all its other ratings; chains then keep the number of topics
that they start with (bench/mixing.py).

Where shards hold the ratings of a row together, one of them moves its ratings of the
row, given the topics of the others: to these the n_k ratings of the others in topic k
are part of the prior, so that gamma pi_k + n_k stands in the place of gamma pi_k. Which
shard that is, is drawn anew in every sweep. Rows being independent given pi, all shards
are at work, each on other rows.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.gibbs.state import TopicWeights
from im3f_jax.model.topic_prior import row_concentration
from im3f_jax.numerics.collectives import num_shards, own_key, sum_across
from im3f_jax.numerics.random import (
    chinese_restaurant_seating,
    invert_weights,
    standard_uniform,
)
from im3f_jax.numerics.reductions import add_by_row, count_by_cell

__all__ = [
    "conditional_table_topics",
    "resample_table_topics",
    "rows_in_turn",
    "table_room",
]


def table_room(num_ratings: int) -> int:
    """Tables that one sweep can move; those beyond it keep their topics."""
    return min(num_ratings, max(4_096, num_ratings // 16))


def rows_in_turn(key: Array, row: Array, axis: str) -> Array:
    """Tell of which rows this shard moves its ratings: bool, in the shape of `row`.

    Of each row it is one shard, and of all shards the key is the same.
    """
    number = num_shards(axis)
    shift = jax.random.randint(key, (), 0, number, jnp.int32)
    return (row + shift) % number == lax.axis_index(axis)


def conditional_table_topics(
    fit: Array, log_global_weights: Array, rating_variance: Array
) -> Array:
    """Full conditional of each table's topic: log pi_k + fit[t, k] / (2 sigma^2).

    Parameters
    ----------
    fit
        Sum over the table's ratings of x_n^2 - (x_n - bias[k])^2 (times their relative
        precisions), squared rating scale, shape (tables, K); x_n is the residual
        without the bias that the topic selects.
    log_global_weights
        log pi, shape (K,), or of each table, (tables, K).
    rating_variance
        sigma^2, scalar.

    Returns
    -------
    Array
        Log probabilities up to a constant a table, shape (tables, K).
    """
    return jnp.atleast_2d(log_global_weights) + 0.5 / rating_variance * fit


def resample_table_topics(
    key: Array,
    residual: Array,
    weight_row: Array,
    bias_row: Array,
    topic: Array,
    weights: TopicWeights,
    bias: Array,
    rating_variance: Array,
    num_ratings: Array,
    chunk: int,
    room: int,
    precision: Array | None = None,
    axis: str | None = None,
) -> Array:
    """Seat the ratings of a side, draw the tables' topics, and return the ratings'.

    Leaves the topics' distribution given all but the row weights as it is: row weights
    must be drawn anew before anything reads them.

    Parameters
    ----------
    residual, weight_row, bias_row, bias, rating_variance, chunk, precision
        As in `resample_topics`.
    topic
        Current topics, int32, shape (N,).
    weights
        Of the side; its row weights are not read.
    num_ratings
        Ratings that are no padding, int32 scalar.
    room
        Tables that are moved, static. Where there are more, these are the next ones
        in the order of their first ratings, from one that is drawn.
    axis
        Of shards that hold ratings of the same rows; None: these are all.

    Returns
    -------
    Array
        Topics of all ratings, int32, shape (N,).
    """
    if axis is not None:
        shared_key, key = jax.random.split(key)
        key = own_key(key, axis)
    seat_key, turn_key, topic_key = jax.random.split(key, 3)
    dtype = residual.dtype
    place = jnp.arange(residual.shape[0], dtype=jnp.int32)
    valid = place < num_ratings
    log_pi = weights.log_global_weights
    concentration = row_concentration(weights.table_concentration, log_pi)
    shape = weights.log_row_weights.shape
    if axis is not None:
        counts = count_by_cell(valid, weight_row, topic, shape)
        others = (sum_across(counts, axis) - counts).astype(dtype)
        prior, concentration = concentration, concentration[None] + others
        valid = valid & rows_in_turn(shared_key, weight_row, axis)
    founder, order = chinese_restaurant_seating(
        seat_key, weight_row, topic, shape[0], concentration, valid
    )
    # Which tables are moved must not depend on their topics: the first ratings do not.
    founded = (founder == place) & valid
    number = jnp.cumsum(founded, dtype=jnp.int32)
    total = jnp.maximum(number[-1], 1)
    turn = jax.random.randint(turn_key, (), 0, total, jnp.int32)
    table = jnp.where(valid, (number[founder] - 1 + turn) % total, room)

    def add(fit, part):
        x, row, table, precision = part
        b = bias[row]
        gain = b * (2 * x[:, None] - b)
        if precision is not None:
            gain = gain * precision[:, None]
        return add_by_row(fit, gain, table), None

    # In the order of their cells, so that a table's sums stay in the cache.
    parts = jax.tree.map(
        lambda x: x[order].reshape(-1, chunk), (residual, bias_row, table, precision)
    )
    fit, _ = lax.scan(add, jnp.zeros((room, bias.shape[1]), dtype), parts)
    if axis is not None:
        row_of_table = jnp.zeros(room, jnp.int32).at[table].set(weight_row, mode="drop")
        log_pi = log_pi[None] + jnp.log1p(others[row_of_table] / prior[None])
    drawn = invert_weights(
        conditional_table_topics(fit, log_pi, rating_variance),
        standard_uniform(topic_key, (room,), dtype),
    )
    return jnp.where(table < room, drawn[jnp.minimum(table, room - 1)], topic)
