"""Ratings drawn from the model, with everything that was planted in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError

__all__ = ["Planted", "PlantedTruth", "planted_ratings"]


@dataclass(frozen=True, eq=False)
class PlantedTruth:
    """What `planted_ratings` drew; row k of every array belongs to code k.

    A user topic indexes the biases of items and an item topic those of users, so
    that `item_bias` has a column for each user topic.
    """

    global_bias: float  # chi_0, rating scale
    rating_variance: float  # sigma^2
    user_factors: np.ndarray  # a, (num_users, latent_dim)
    item_factors: np.ndarray  # b, (num_items, latent_dim)
    user_weights: np.ndarray  # theta_U, (num_users, user_topics)
    item_weights: np.ndarray  # theta_M, (num_items, item_topics)
    user_bias_mean: np.ndarray  # mu_k, (item_topics,)
    item_bias_mean: np.ndarray  # mu_i, (user_topics,)
    user_bias: np.ndarray  # c, (num_users, item_topics)
    item_bias: np.ndarray  # d, (num_items, user_topics)
    user_topic_of_rating: np.ndarray  # z^U, (N,), int32; 0 where user_topics is 0
    item_topic_of_rating: np.ndarray  # z^M, (N,), int32; 0 where item_topics is 0
    rating_mean: np.ndarray  # mean of each rating given all of the above, (N,)


@dataclass(frozen=True, eq=False)
class Planted:
    """Synthetic ratings and the truth behind them."""

    ratings: Ratings
    truth: PlantedTruth


def planted_ratings(
    *,
    num_users: int = 800,
    num_items: int = 400,
    num_ratings: int = 60_000,
    latent_dim: int = 3,
    user_topics: int = 4,
    item_topics: int = 3,
    rating_variance: float = 0.25,
    factor_scale: float = 0.6,
    bias_scale: float = 0.3,
    topic_mean_scale: float = 0.7,
    user_topic_concentration: float = 1.0,
    item_topic_concentration: float = 1.0,
    global_bias: float = 3.5,
    seed: int = 0,
    levels: Sequence[float] | None = None,
) -> Planted:
    """Draw ratings from the model with finite topics.

    The pairs that are rated are distinct, and some users and items are more active
    than others. Ids are 0, 1, ..., equal to the codes; all users and items are in the
    index, also those that happen to have no rating.

    Parameters
    ----------
    num_users, num_items, num_ratings : int
        Sizes; at most num_users * num_items ratings.
    latent_dim : int
        Length of the factors.
    user_topics, item_topics : int
        Topics of each side; 0 leaves the other side's biases out.
    rating_variance : float
        Variance of a rating about its mean, squared rating scale.
    factor_scale : float
        Standard deviation of a factor's elements, whose mean is 0.
    bias_scale : float
        Standard deviation of a bias about its topic's mean, rating scale.
    topic_mean_scale : float
        Standard deviation of the topics' means about 0, rating scale.
    user_topic_concentration, item_topic_concentration : float
        Weights of a row are Dirichlet(concentration / topics, ...).
    global_bias : float
        Mean of the scale.
    seed : int
        Of a generator of its own.
    levels : sequence of float, optional
        Round each rating to the nearest of these levels.

    Returns
    -------
    Planted
        `ratings` and `truth`.

    Raises
    ------
    InputError
        Where more ratings are asked for than there are pairs.

    Notes
    -----
    The source is the model of the paper: a rating of user u and item j is
    Normal(chi_0 + a_u . b_j + c_u[z^M] + d_j[z^U], sigma^2).
    """
    if num_ratings > num_users * num_items:
        raise InputError(
            f"num_ratings = {num_ratings} exceeds the {num_users * num_items} pairs of "
            f"{num_users} users and {num_items} items"
        )
    rng = np.random.default_rng(seed)
    user, item = _draw_pairs(rng, num_users, num_items, num_ratings)

    user_factors = rng.normal(0.0, factor_scale, (num_users, latent_dim))
    item_factors = rng.normal(0.0, factor_scale, (num_items, latent_dim))
    user_weights = _draw_weights(rng, num_users, user_topics, user_topic_concentration)
    item_weights = _draw_weights(rng, num_items, item_topics, item_topic_concentration)
    user_bias_mean = rng.normal(0.0, topic_mean_scale, item_topics)
    item_bias_mean = rng.normal(0.0, topic_mean_scale, user_topics)
    user_bias = rng.normal(user_bias_mean, bias_scale, (num_users, item_topics))
    item_bias = rng.normal(item_bias_mean, bias_scale, (num_items, user_topics))
    user_topic = _draw_topics(rng, user_weights, user)
    item_topic = _draw_topics(rng, item_weights, item)

    mean = global_bias + np.einsum("nd,nd->n", user_factors[user], item_factors[item])
    if item_topics:
        mean += user_bias[user, item_topic]
    if user_topics:
        mean += item_bias[item, user_topic]
    rating = rng.normal(mean, np.sqrt(rating_variance))
    if levels is not None:
        rating = _round_to(rating, np.sort(np.asarray(levels, dtype=np.float64)))

    users = IdIndex(np.arange(num_users), "user")
    items = IdIndex(np.arange(num_items), "item")
    truth = PlantedTruth(
        global_bias=global_bias,
        rating_variance=rating_variance,
        user_factors=user_factors,
        item_factors=item_factors,
        user_weights=user_weights,
        item_weights=item_weights,
        user_bias_mean=user_bias_mean,
        item_bias_mean=item_bias_mean,
        user_bias=user_bias,
        item_bias=item_bias,
        user_topic_of_rating=user_topic,
        item_topic_of_rating=item_topic,
        rating_mean=mean,
    )
    return Planted(Ratings(user, item, rating, users, items), truth)


def _draw_pairs(rng, num_users, num_items, num_ratings):
    """Distinct (user, item) codes, int32, each of shape (num_ratings,)."""
    user_activity = rng.gamma(2.0, size=num_users)
    item_activity = rng.gamma(2.0, size=num_items)
    num_pairs = num_users * num_items
    if num_ratings > num_pairs // 10:
        # Weighted draws without replacement: the smallest of exponential times.
        times = rng.exponential(size=(num_users, num_items))
        times /= np.outer(user_activity, item_activity)
        pair = np.argpartition(times.ravel(), num_ratings - 1)[:num_ratings]
        pair = rng.permutation(pair)
    else:
        pair = np.empty(0, dtype=np.int64)
        while len(pair) < num_ratings:
            more = num_ratings - len(pair) + 100
            user = _draw_categorical(rng, user_activity, more)
            item = _draw_categorical(rng, item_activity, more)
            pair = pd.unique(np.concatenate([pair, user * np.int64(num_items) + item]))
        pair = pair[:num_ratings]
    user, item = np.divmod(pair, num_items)
    return user.astype(np.int32), item.astype(np.int32)


def _draw_categorical(rng, weights, size):
    edges = np.cumsum(weights)
    return np.searchsorted(edges[:-1], rng.uniform(0.0, edges[-1], size), side="right")


def _draw_weights(rng, rows, topics, concentration):
    """Topic weights, shape (rows, topics)."""
    if topics == 0:
        return np.empty((rows, 0))
    return rng.dirichlet(np.full(topics, concentration / topics), rows)


def _draw_topics(rng, weights, row):
    """Draw each rating's topic from the weights of its row, int32, shape (N,)."""
    edges = np.cumsum(weights, axis=1)
    uniform = rng.random(len(row))
    topic = np.zeros(len(row), dtype=np.int32)
    for column in edges.T[:-1]:
        topic += uniform >= column[row]
    return topic


def _round_to(rating, levels):
    return levels[np.searchsorted((levels[:-1] + levels[1:]) / 2, rating)]
