"""How sure predictions are: of the mean, and of the rating itself."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from im3f_jax.data.times import TimeColumns
from im3f_jax.inference.features import (
    TOPICS,
    largest_weights,
    mixture_of_pairs,
    noise_of_pairs,
)
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.spec import ModelSpec
from im3f_jax.posterior.score import probabilities_of_pairs, time_of_pairs

__all__ = ["Prediction", "Spread", "spread_of_pairs"]

# Numbers that one step holds of each kind: 16 MB of float32.
HELD = 1 << 22
LEAST_BLOCK = 8
# Halvings of an interval of some hundred standard deviations: to 1e-6 of one.
HALVINGS = 30
# Standard deviations of the noise beyond all means within which quantiles lie; those of
# Student's t are looked for further out.
REACH, REACH_OF_STUDENT = 10.0, 1e4


class Prediction(NamedTuple):
    """What `Posterior.predict` gives where it is asked how sure it is.

    On the rating scale, each of shape (n,), `quantiles` of shape (n, number of
    quantiles); None where it was not asked for.
    """

    mean: np.ndarray
    std_of_mean: np.ndarray | None
    std_of_rating: np.ndarray | None
    quantiles: np.ndarray | None


class Spread(NamedTuple):
    """Spreads of pairs, rating scale."""

    std_of_mean: np.ndarray  # shape (n,)
    std_of_rating: np.ndarray  # shape (n,)
    quantiles: np.ndarray  # shape (n, Q)


def spread_of_pairs(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    quantiles: np.ndarray,
    levels: np.ndarray,
    times: TimeColumns | None = None,
    new_user: np.ndarray | None = None,
    new_item: np.ndarray | None = None,
) -> Spread:
    """Find standard deviations and quantiles of pairs' ratings.

    A rating is a mixture: of the kept draws, and in each of its topics and its noise.
    With m_s and v_s the mean and the variance in draw s, the standard deviation of the
    mean is that of m_s over the draws, and that of the rating is
    sqrt(mean of v_s + variance of m_s), by the law of total variance; v_s has the
    variance of the mean over the topics and that of the noise. Quantiles are those of
    the whole mixture. Of topics those of largest weight count, as in `log_score`. Pairs
    are taken in blocks.

    Parameters
    ----------
    draws, spec, user_row, item_row, times
        As in `log_score`.
    quantiles
        Between 0 and 1, shape (Q,).
    levels
        Of an ordinal model, ascending, shape (L,).
    new_user, new_item
        Vectors that stand for the last row, (chain, draw, F): draws of a new one.
    """
    number = draws.global_bias.size
    topics = min(TOPICS, max(spec.num_user_topics, 1)) * min(
        TOPICS, max(spec.num_item_topics, 1)
    )
    each = number * max(draws.user_features.shape[-1], topics)
    block = max(LEAST_BLOCK, 1 << max(HELD // each, 1).bit_length() - 1)
    block = min(block, max(LEAST_BLOCK, 1 << max(len(user_row) - 1, 0).bit_length()))
    parts = []
    for start in range(0, len(user_row), block):
        place = slice(start, start + block)
        rows = user_row[place], item_row[place]
        cut = None if times is None else TimeColumns(*(x[place] for x in times))
        given = rows, cut, (new_user, new_item), quantiles, levels
        parts.append(_block(draws, spec, *given, block))
    nothing = np.zeros(0), np.zeros(0), np.zeros((0, len(quantiles)))
    joined = zip(nothing, *parts, strict=True)
    return Spread(*(np.concatenate(values).astype(np.float64) for values in joined))


def _block(draws, spec, rows, times, new, quantiles, levels, size: int) -> list:
    count, number = len(rows[0]), draws.global_bias.size

    def gather(features, row, new):
        vectors = features[:, :, np.pad(row, (0, size - count))]
        if new is not None:
            vectors[:, :, :count][:, :, row == features.shape[2] - 1] = new[:, :, None]
        return vectors.reshape(number, size, -1)

    features = (draws.user_features, draws.item_features)
    vectors = [gather(*given) for given in zip(features, rows, new, strict=True)]
    bias = np.zeros((number, size), np.float32)
    for s, place in enumerate(np.ndindex(draws.global_bias.shape)):
        part = time_of_pairs(draws, place, *rows, times)
        bias[s, :count] = draws.global_bias[place] + (0 if part is None else part)
    if isinstance(spec.likelihood, Ordinal):
        cut_points = draws.cut_points.reshape(number, -1).astype(np.float32)
        variance = np.ones(number, np.float32)
        probability = np.asarray(
            _probabilities(*vectors, bias, variance, cut_points, spec), np.float64
        )
        found = _spread_of_levels(probability, levels, quantiles)
    else:
        variance = draws.rating_variance.reshape(number).astype(np.float32)
        asked = quantiles.astype(np.float32)
        found = _spread(*vectors, bias, variance, asked, spec)
    return [np.asarray(values)[:count] for values in found]


@jax.jit
def _probabilities(users, items, bias, variance, cut_points, spec):
    """Probability of each level in each draw, shape (draws, pairs, L)."""
    pair = jnp.arange(users.shape[1], dtype=jnp.int32)

    def of_draw(given):
        users, items, bias, variance, edges = given
        largest = largest_weights(users, items, spec)
        given = users, items, largest, spec, bias, pair, pair
        return probabilities_of_pairs(*given, variance, edges)[0]

    return lax.map(of_draw, (users, items, bias, variance, cut_points))


def _spread_of_levels(probability: np.ndarray, levels: np.ndarray, quantiles):
    """Spreads of pairs whose levels have these probabilities, (draws, pairs, L)."""
    mean = probability @ levels
    within = np.sum(probability * (levels - mean[..., None]) ** 2, axis=-1)
    between = np.var(mean, axis=0)
    reached = np.cumsum(np.mean(probability, axis=0), axis=-1)
    # The first level that reaches the quantile, but for rounding.
    index = np.sum(reached[:, None] < quantiles[None, :, None] - 1e-6, axis=-1)
    index = np.minimum(index, len(levels) - 1)
    return (
        np.sqrt(between),
        np.sqrt(np.mean(within, axis=0) + between),
        np.asarray(levels)[index],
    )


@jax.jit
def _spread(users, items, bias, variance, quantiles, spec):
    """Spreads of a block of pairs of a Gaussian model, whose vectors stand in order.

    `users` and `items` have shape (draws, pairs, F), `bias` (draws, pairs) is the
    global one and what depends on time.
    """
    pair = jnp.arange(users.shape[1], dtype=jnp.int32)
    student = isinstance(spec.rating_noise, GammaNoise)

    def of_draw(given):
        users, items, bias, variance = given
        largest = largest_weights(users, items, spec)
        mean, weight = mixture_of_pairs(users, items, largest, spec, bias, pair, pair)
        shape = jnp.broadcast_shapes(mean.shape, weight.shape)
        mean, weight = (jnp.broadcast_to(x, shape) for x in (mean, weight))
        mean, weight = (x.reshape(len(pair), -1) for x in (mean, weight))
        weight = weight / jnp.sum(weight, axis=1, keepdims=True)
        root, _, _ = noise_of_pairs(users, items, spec, pair, pair)
        scale = jnp.full(pair.shape, jnp.sqrt(variance))
        if root is not None:
            scale = scale / root[:, 0, 0]
        over_topics = jnp.sum(weight * mean, axis=1)
        within = jnp.sum(weight * (mean - over_topics[:, None]) ** 2, axis=1)
        # The mean itself is over all topics: the inner product of both vectors.
        exact = bias + jnp.sum(users * items, axis=1)
        return mean, weight, scale, exact, within

    mean, weight, scale, exact, within = lax.map(
        of_draw, (users, items, bias, variance)
    )
    factor = 1.0
    if student:
        shape = spec.rating_noise.shape
        factor = jnp.where(shape > 1, shape / jnp.maximum(shape - 1, 1e-30), jnp.inf)
    centre = jnp.mean(exact, axis=0)
    between = jnp.mean((exact - centre[None]) ** 2, axis=0)
    total = jnp.mean(within + scale**2 * factor, axis=0) + between
    # The noise's own units do not depend on the pair.
    _, cdf, _ = noise_of_pairs(users[0], items[0], spec, pair, pair)

    def below(value):
        """Probability that the rating is below a value of each pair, shape (n,)."""

        def add(total, given):
            mean, weight, scale = given
            z = (value[:, None] - mean) / scale[:, None]
            return total + jnp.sum(weight * cdf(z), axis=1), None

        total, _ = lax.scan(add, jnp.zeros_like(value), (mean, weight, scale))
        return total / users.shape[0]

    reach = (REACH_OF_STUDENT if student else REACH) * jnp.max(scale, axis=0)
    low, high = jnp.min(mean, axis=(0, 2)) - reach, jnp.max(mean, axis=(0, 2)) + reach

    def find(quantile):
        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            right = below(middle) < quantile
            return jnp.where(right, middle, low), jnp.where(right, high, middle)

        low_, high_ = lax.fori_loop(0, HALVINGS, halve, (low, high))
        return 0.5 * (low_ + high_)

    return jnp.sqrt(between), jnp.sqrt(total), lax.map(find, quantiles).T
