"""Rows of one side given all else: the sweep of new users, or of new items.

Given the other side's rows and what the rows of a side have in common, these are
independent of each other, and of the data that the rest was drawn from. Their factors,
biases, weights, precisions and the topics of their ratings are drawn by the blocks of
`gibbs_sweep`, in its order but for the factors, which come last: a start needs no draw.

Below, "own" topics are those that the new rows have weights over, which select the
other side's biases; "other" topics those of the other side, which select the new rows'.
In the layout the new rows stand in the place of the users, whichever side they are of.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.biases import bias_statistics, resample_rows
from im3f_jax.gibbs.factors import resample_factors
from im3f_jax.gibbs.latent_ratings import resample_latent_ratings
from im3f_jax.gibbs.noise import resample_precisions
from im3f_jax.gibbs.row_weights import resample_row_weights
from im3f_jax.gibbs.state import BiasPriorState, FactorPriorState, NoiseState
from im3f_jax.gibbs.topics import resample_topics
from im3f_jax.model.bias_prior import bias_of_ratings
from im3f_jax.model.likelihood import Gaussian, Ordinal
from im3f_jax.model.noise import ConstantNoise, GammaNoise, precision_of_ratings
from im3f_jax.numerics.linalg import dots_of_pairs
from im3f_jax.numerics.reductions import count_by_cell, sum_by_cell

__all__ = ["NewRows", "Others", "Population", "start_rows", "sweep_rows"]


class Others(NamedTuple):
    """The other side's rows in a draw."""

    factors: Array  # shape (other rows, D); 0 in rows of padding
    bias: Array  # rating scale, shape (other rows, own topics)
    log_weights: Array  # shape (other rows, other topics)
    precision: Array | None  # shape (other rows,); None: all 1


class Population(NamedTuple):
    """What the new rows have in common with those of their side, in a draw."""

    factor_prior: FactorPriorState
    bias_prior: BiasPriorState  # its `shared` and topic-mean variance are not read
    # gamma pi, shape (own topics,), or one more for the topics beyond the columns
    concentration: Array
    noise_shape: Array | None  # scalar; None: all relative precisions are 1
    global_bias: Array  # chi_0, rating scale, scalar
    rating_variance: Array  # sigma^2, squared rating scale, scalar
    cut_points: Array  # of the ordinal likelihood, (L - 1,); Gaussian: (0,)


class NewRows(NamedTuple):
    """A draw of the new rows, and of what belongs to their ratings."""

    factors: Array  # shape (rows, D); 0 in rows of padding
    bias: Array  # rating scale, shape (rows, other topics)
    log_weights: Array  # shape (rows, own topics)
    precision: Array | None  # shape (rows,)
    own_topic: Array  # int32, shape (N,)
    other_topic: Array  # int32, shape (N,)
    rating_precision: Array | None  # shape (N,)


def start_rows(
    population: Population,
    num_own_topics: int,
    data: RatingLayout,
    rating_noise: ConstantNoise | GammaNoise,
) -> NewRows:
    """Start at what the prior expects, all ratings in the topics of most weight.

    Parameters
    ----------
    population
        Of the new rows' side.
    num_own_topics
        Columns of the weights; 0 without own topics.
    data
        The new rows' ratings, the new rows as users.
    rating_noise
        The spec's.
    """
    rows, dtype = data.user_rows, data.rating.dtype
    count = data.rating.shape
    alpha = population.concentration[:num_own_topics]
    log_weights = jnp.log(alpha) - jnp.log(jnp.sum(alpha))

    def all_rows(values):
        return jnp.broadcast_to(values, (rows, *values.shape))

    best = jnp.argmax(alpha).astype(jnp.int32) if num_own_topics else jnp.int32(0)
    return NewRows(
        factors=all_rows(population.factor_prior.mean),
        bias=all_rows(population.bias_prior.topic_mean),
        log_weights=all_rows(log_weights),
        precision=None if population.noise_shape is None else jnp.ones(rows, dtype),
        own_topic=jnp.broadcast_to(best, count),
        other_topic=jnp.zeros(count, jnp.int32),
        rating_precision=jnp.ones(count, dtype)
        if isinstance(rating_noise, GammaNoise)
        else None,
    )


def sweep_rows(
    key: Array,
    rows: NewRows,
    others: Others,
    population: Population,
    data: RatingLayout,
    likelihood: Gaussian | Ordinal,
    rating_noise: ConstantNoise | GammaNoise,
) -> NewRows:
    """Draw all that belongs to the new rows once from its full conditional.

    Latent ratings of an ordinal model, other topics, own topics, weights, biases,
    factors, precisions. Rows without a rating get a draw from their prior.

    Parameters
    ----------
    key
        A typed key, consumed.
    rows
        The draw before.
    others, population
        Held fixed.
    data
        Ratings of the new rows, in the place of the users; its item blocks are not
        read.
    likelihood, rating_noise
        The spec's.
    """
    keys = iter(jax.random.split(key, 9))
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    variance = population.rating_variance
    # By the topics that select them.
    own_topics, other_topics = others.bias.shape[1], rows.bias.shape[1]
    own_topic, other_topic = rows.own_topic, rows.other_topic
    bias, log_weights = rows.bias, rows.log_weights
    noise = NoiseState(rows.precision, others.precision, rows.rating_precision)
    precision = precision_of_ratings(noise, data.user, data.item)
    dots = dots_of_pairs(rows.factors, others.factors, data.user, data.item, data.chunk)
    own_part = bias_of_ratings(bias, data.user, other_topic)
    other_part = bias_of_ratings(others.bias, data.item, own_topic)

    response = data.rating
    latent_key = next(keys)
    if isinstance(likelihood, Ordinal):
        response = resample_latent_ratings(
            latent_key,
            likelihood.level_of(data.rating),
            population.global_bias + dots + own_part + other_part,
            population.cut_points,
            None if precision is None else jnp.sqrt(precision),
        )
    response = jnp.where(valid, response - population.global_bias, 0)

    x = response - dots
    other_key, own_key, weight_key = next(keys), next(keys), next(keys)
    if other_topics > 1:
        other_topic = resample_topics(
            other_key,
            x - other_part,
            data.item,
            data.user,
            others.log_weights,
            bias,
            variance,
            data.chunk,
            precision,
        )
        own_part = bias_of_ratings(bias, data.user, other_topic)
    if own_topics > 1:
        own_topic = resample_topics(
            own_key,
            x - own_part,
            data.user,
            data.item,
            log_weights,
            others.bias,
            variance,
            data.chunk,
            precision,
        )
        other_part = bias_of_ratings(others.bias, data.item, own_topic)
        counts = count_by_cell(valid, data.user, own_topic, log_weights.shape)
        log_weights = resample_row_weights(weight_key, population.concentration, counts)

    bias_key, shared_key = next(keys), next(keys)
    if other_topics:
        statistics = bias_statistics(
            x - other_part, valid, data.user, other_topic, bias.shape, precision
        )
        shares = population.bias_prior.shared_variance is not None
        bias, _ = resample_rows(
            bias_key,
            shared_key if shares else None,
            population.bias_prior,
            statistics,
            variance,
        )
        own_part = bias_of_ratings(bias, data.user, other_topic)

    x = jnp.where(valid, response - own_part - other_part, 0)
    factors = resample_factors(
        next(keys),
        population.factor_prior,
        x,
        others.factors,
        variance,
        data.user_blocks,
        data.num_users,
        precision,
    )
    squares = (
        x - dots_of_pairs(factors, others.factors, data.user, data.item, data.chunk)
    ) ** 2
    squares = jnp.where(valid, squares, 0)
    row_key, rating_key = next(keys), next(keys)
    if rows.precision is not None:
        known = precision_of_ratings(noise._replace(user=None), data.user, data.item)
        error = squares if known is None else known * squares
        column, cells = jnp.zeros_like(data.user), (data.user_rows, 1)
        noise = noise._replace(
            user=resample_precisions(
                row_key,
                population.noise_shape,
                count_by_cell(valid, data.user, column, cells)[:, 0],
                sum_by_cell(error, data.user, column, cells)[:, 0],
                variance,
            )
        )
    if isinstance(rating_noise, GammaNoise):
        known = precision_of_ratings(noise._replace(rating=None), data.user, data.item)
        noise = noise._replace(
            rating=resample_precisions(
                rating_key,
                rating_noise.shape,
                valid.astype(jnp.int32),
                squares if known is None else known * squares,
                variance,
            )
        )
    return NewRows(
        factors=factors,
        bias=bias,
        log_weights=log_weights,
        precision=noise.user,
        own_topic=own_topic,
        other_topic=other_topic,
        rating_precision=noise.rating,
    )
