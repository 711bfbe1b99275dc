"""The Chinese restaurant franchise forwards, in plain numpy, one customer at a time.

Written from the process's statement, and from nothing that the sampler uses.
"""

import jax
import numpy as np

from im3f_jax.gibbs.state import (
    BiasPriorState,
    FactorPriorState,
    Seating,
    State,
    TopicWeights,
)
from im3f_jax.model.bias_prior import SharedNormal
from im3f_jax.model.factor_prior import NormalWishart
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.scalars import Gamma, InverseGamma

__all__ = ["draw_seating", "draw_state"]


def draw_seating(rng, row, dish_concentration, table_concentration):
    """Seat customers, in their order, in the restaurants `row`; tables and dishes.

    Returns two lists: each customer's table, numbered within its row, and dish.
    """
    customers, dish_of, tables = {}, {}, []
    table_of_customer, dish_of_customer = [], []
    for r in np.asarray(row).tolist():
        seated = customers.setdefault(r, [])
        t = _sit(rng, [*seated, table_concentration])
        if t == len(seated):
            seated.append(0)
            k = _sit(rng, [*tables, dish_concentration])
            if k == len(tables):
                tables.append(0)
            tables[k] += 1
            dish_of[r, t] = k
        seated[t] += 1
        table_of_customer.append(t)
        dish_of_customer.append(dish_of[r, t])
    return table_of_customer, dish_of_customer


def _sit(rng, weights):
    point = rng.uniform() * sum(weights)
    for place, weight in enumerate(weights):
        point -= weight
        if point < 0:
            return place
    return len(weights) - 1


def draw_state(seed, spec, data):
    """Draw a state of the sampler and the ratings from the prior.

    A side whose topic prior is a `CRF` is seated customer by customer; its room must
    be large enough (an error otherwise). Each side must have a CRF.

    Parameters
    ----------
    seed
        Of numpy.
    spec
        A resolved spec.
    data
        A layout, for its pairs.

    Returns
    -------
    tuple
        The `State`, in numpy, and the ratings in the layout's order, shape (N,), 0 in
        padding. Weights of rows and topics are 0: the franchise does not read them.
    """
    rng = np.random.default_rng(seed)
    dtype = np.asarray(data.rating).dtype
    number = int(data.num_ratings)
    sides = {
        "user": (np.asarray(data.user), data.user_rows, int(data.num_users)),
        "item": (np.asarray(data.item), data.item_rows, int(data.num_items)),
    }
    other = {"user": "item", "item": "user"}
    mean = np.full(number, float(spec.global_bias))
    state, factors = {}, {}
    for side, (row, rows, count) in sides.items():
        prior = _factor_prior(rng, spec)
        root = np.linalg.inv(np.linalg.cholesky(prior.precision))
        values = np.zeros((rows, spec.latent_dim))
        noise = rng.normal(size=(count, spec.latent_dim))
        values[:count] = prior.mean + noise @ root
        state |= {f"{side}_factors": values, f"{side}_factor_prior": prior}
        factors[side] = values[row[:number]]
    mean += np.sum(factors["user"] * factors["item"], axis=1)
    for side, (row, rows, _) in sides.items():
        # This side's topics, and the other side's biases, which they index.
        prior = getattr(spec, f"{side}_topic_prior")
        shape = rows, prior.max_tables
        beta = _positive(rng, prior.dish_concentration)
        gamma = _positive(rng, prior.table_concentration)
        # Customers come in any order: the layout's.
        table, dish = draw_seating(rng, row[:number], beta, gamma)
        if max(table, default=0) >= shape[1] or max(dish, default=0) >= (
            prior.num_topics - 1
        ):
            raise ValueError("more room is needed for tables or dishes")
        seats = np.full(shape, -1, np.int32)
        seats[row[:number], table] = dish
        seating = Seating(_padded(table, row), seats, np.zeros((), np.int32))
        state[f"{side}_topic_of_rating"] = _padded(dish, row)
        state[f"{side}_topic_weights"] = TopicWeights(
            np.zeros((rows, prior.num_topics)),
            np.zeros(prior.num_topics),
            np.asarray(beta),
            np.asarray(gamma),
            seating,
        )
        other_row, other_rows, _ = sides[other[side]]
        bias_prior = getattr(spec, f"{other[side]}_bias_prior")
        variance = _positive(rng, bias_prior.variance)
        spread = _positive(rng, bias_prior.topic_mean_variance)
        topic_mean = rng.normal(
            float(bias_prior.topic_mean), np.sqrt(spread), prior.num_topics
        )
        bias = rng.normal(topic_mean, np.sqrt(variance), (other_rows, prior.num_topics))
        drawn = BiasPriorState(topic_mean, np.asarray(variance), np.asarray(spread))
        if isinstance(bias_prior, SharedNormal):
            common = _positive(rng, bias_prior.shared_variance)
            shared = rng.normal(0, np.sqrt(common), other_rows)
            bias = bias + shared[:, None]
            drawn = drawn._replace(shared=shared, shared_variance=np.asarray(common))
        state[f"{other[side]}_bias"] = bias
        state[f"{other[side]}_bias_prior"] = drawn
        mean += bias[other_row[:number], dish]
    rating_variance, cut_points = _above_floor(rng, spec.likelihood), np.zeros(0)
    rating = np.zeros(len(sides["user"][0]), dtype)
    drawn = rng.normal(mean, np.sqrt(rating_variance))
    if isinstance(spec.likelihood, Ordinal):
        levels = np.asarray(spec.likelihood.levels)
        scale = float(spec.likelihood.cut_scale)
        cut_points = np.sort(rng.normal(0, scale, len(levels) - 1))
        drawn = levels[np.searchsorted(cut_points, drawn)]
    rating[:number] = drawn
    state |= {
        "rating_variance": np.asarray(rating_variance),
        "global_bias": np.asarray(float(spec.global_bias)),
        "cut_points": cut_points,
    }
    state = jax.tree.map(
        lambda x: x if x.dtype == np.int32 else np.asarray(x, dtype), State(**state)
    )
    return state, rating


def _padded(values, row):
    result = np.zeros(len(row), np.int32)
    result[: len(values)] = values
    return result


def _positive(rng, prior):
    match prior:
        case InverseGamma(shape, scale):
            return float(scale) / rng.gamma(float(shape))
        case Gamma(shape, rate):
            return rng.gamma(float(shape)) / float(rate)
        case _:
            return float(prior)


def _above_floor(rng, likelihood):
    while True:
        value = _positive(rng, likelihood.variance)
        fixed = not isinstance(likelihood.variance, InverseGamma)
        if fixed or value >= float(likelihood.variance_floor):
            return value


def _factor_prior(rng, spec):
    dim, prior = spec.latent_dim, spec.factor_prior
    if not isinstance(prior, NormalWishart):
        return FactorPriorState(np.zeros(dim), float(prior.precision) * np.eye(dim))
    # A Wishart of any degrees of freedom nu >= D, by Bartlett's triangle.
    freedom = float(prior.degrees_of_freedom) - np.arange(dim)
    triangle = np.tril(rng.normal(size=(dim, dim)), -1)
    triangle += np.diag(np.sqrt(rng.chisquare(freedom)))
    precision = float(prior.scale) * triangle @ triangle.T
    root = np.linalg.inv(np.linalg.cholesky(precision))
    noise = rng.normal(size=dim) / np.sqrt(float(prior.mean_precision))
    return FactorPriorState(float(prior.mean) + noise @ root, precision)
