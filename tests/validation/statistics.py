"""What draws are compared by: label-invariant numbers of a state and its ratings."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from scipy import stats

from im3f_jax.gibbs.sweep_info import effective_dimension
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.log_joint import log_joint, mean_of_ratings
from im3f_jax.model.noise import precision_of_ratings
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.model.time_effects import time_of_ratings
from im3f_jax.model.topic_factors import topic_factors_of_ratings
from im3f_jax.model.topic_prior import CRF, FiniteDirichlet
from tests.validation.members import NUM_ITEMS, NUM_RATINGS, NUM_USERS, rows_of

__all__ = ["summarise", "two_sample"]

# Pairs of ratings: of one cell, of one user, of one item, of neither.
PAIRS = ((0, 1), (0, 5), (0, 6), (5, 8))


def summarise(state, ratings, spec, data):
    """Reduce a state and the ratings that it was drawn with to named scalars.

    Returns
    -------
    dict of str to Array
        Scalars; those that are whole numbers are int32. Only rows and ratings that are
        no padding enter.
    """
    found = {"rating variance": state.rating_variance}
    real = slice(NUM_RATINGS)
    residual = (ratings - mean_of_ratings(state, data))[real]
    dots = jnp.sum(
        state.user_factors[data.user[real]] * state.item_factors[data.item[real]],
        axis=1,
    )
    squares = residual**2
    precision = precision_of_ratings(state.noise, data.user, data.item)
    if precision is not None:
        found |= _noise(state, squares, data)
        squares = precision[real] * squares
    scaled = jnp.sum(squares) / state.rating_variance
    found |= {
        "squared error / variance": scaled,
        "mean residual": jnp.mean(residual) / jnp.sqrt(state.rating_variance),
        "mean of ratings": jnp.mean(ratings[real]),
        "variance of ratings": jnp.log(jnp.var(ratings[real])),
        "residual x inner product": jnp.sum(residual * dots) / state.rating_variance,
        "log likelihood": -0.5
        * (scaled + NUM_RATINGS * jnp.log(state.rating_variance)),
        "log joint": log_joint(state, spec, data, jnp.sum(squares)),
        "spread of inner products": jnp.log(jnp.var(dots)),
    }
    if isinstance(spec.likelihood, Ordinal):
        found |= _ordinal(state, ratings, spec, data)
    if state.column_increments is not None:
        found |= _columns(state)
    found |= _time(state, residual, data)
    if state.topic_factors is not None:
        found |= _topic_factors(state, residual, data)
    if is_reciprocal(spec):
        found |= _both_roles(state, dots, data)
    users, items = rows_of(spec)[2:]
    for side, rows, other in (("user", users, "item"), ("item", items, "user")):
        found |= _factors(state, side, rows)
        if getattr(spec, f"num_{other}_topics"):
            prior = getattr(spec, f"{side}_bias_prior")
            found |= _biases(state, residual, data, side, rows, other)
            if not isinstance(prior.variance, InverseGamma):
                # Fixed at 0 here: what is left are errors of rounding.
                del found[f"{side} biases, deviation"]
                del found[f"{side} biases, deviation / variance"]
                found.pop(f"{side} shared biases x others", None)
        if getattr(spec, f"num_{side}_topics") > 1:
            found |= _topics(state, data, side)
            if isinstance(getattr(spec, f"{side}_topic_prior"), CRF):
                found |= _seating(state, side)
            else:
                if spec.own_topics:  # their rows are the other side's
                    whose, number = other, {"user": NUM_ITEMS, "item": NUM_USERS}[side]
                else:
                    whose, number = side, rows
                found |= _weights(state, getattr(data, whose), side, number)
            if isinstance(getattr(spec, f"{side}_topic_prior"), FiniteDirichlet):
                # 1 / K but for rounding.
                del found[f"{side} rows and global weights"]
    return found


def _both_roles(state, dots, data):
    """Topics and biases of persons who are named first in some ratings, or second."""
    real = slice(NUM_RATINGS)
    first, second = state.user_topic_of_rating, state.item_topic_of_rating
    number = state.user_topic_weights.log_global_weights.shape[0]
    topics = jnp.concatenate([first[real], second[real]])
    used = jnp.zeros(number, jnp.int32).at[topics].set(1)
    biases = (
        state.user_bias[data.user, second][real],
        state.item_bias[data.item, first][real],
    )
    return {
        # Ratings 0 and 6 are of the persons 0 and 1, in both orders.
        "topic, persons of ratings 0 and 6": jnp.sum(
            jnp.array([first[0] == second[6], first[6] == second[0]]), dtype=jnp.int32
        ),
        "topic, alike in both roles": jnp.sum(
            first[real] == second[real], dtype=jnp.int32
        ),
        "topics occupied, both roles": jnp.sum(used, dtype=jnp.int32),
        "selected biases, first x second": jnp.mean(biases[0] * biases[1]),
        "selected biases x inner product": jnp.mean((biases[0] + biases[1]) * dots),
        "factors of persons, both roles": jnp.mean(
            state.user_factors[:NUM_USERS] * state.item_factors[:NUM_USERS]
        ),
    }


def _ordinal(state, ratings, spec, data):
    """Cut points, and in the place of Gaussian statistics those of levels."""
    real = slice(NUM_RATINGS)
    cuts, mean = state.cut_points, mean_of_ratings(state, data)[real]
    level = spec.likelihood.level_of(ratings)[real]
    given = dataclasses.replace(data, rating=ratings)
    joint = log_joint(state, spec, given)
    precision = precision_of_ratings(state.noise, data.user, data.item)
    root = None if precision is None else jnp.sqrt(precision[real])
    scores = level.astype(mean.dtype) - jnp.sum(
        (mean[:, None] > cuts[None]).astype(mean.dtype), axis=1
    )
    return {
        "variance of ratings": jnp.var(ratings[real]),
        "log joint": joint,
        "log likelihood": spec.likelihood.log_density(
            ratings[real], mean, jnp.ones(NUM_RATINGS, bool), cuts, root
        )
        - spec.likelihood.log_prior(cuts),
        "cut points, first": cuts[0],
        "cut points, middle": cuts[1],
        "cut points, last": cuts[2],
        "cut points, squares": jnp.sum(cuts**2),
        "cut points, least gap": jnp.log(jnp.min(jnp.diff(cuts))),
        "cut points, last gap": cuts[2] - cuts[1],
        "cut points less mean of ratings": cuts[1] - jnp.mean(mean),
        "ratings, residual levels": jnp.mean(scores),
        "ratings, levels used": jnp.sum(
            jnp.zeros(4, jnp.int32).at[level].set(1), dtype=jnp.int32
        ),
        "ratings x mean": jnp.sum(level.astype(mean.dtype) * mean),
    }


def _noise(state, squares, data):
    """Relative precisions by their logarithms, whose moments are finite."""
    noise, real = state.noise, slice(NUM_RATINGS)
    found = {}
    for kind, number, row in (
        ("user", NUM_USERS, data.user[real]),
        ("item", NUM_ITEMS, data.item[real]),
        ("rating", NUM_RATINGS, jnp.arange(NUM_RATINGS)),
    ):
        precision = getattr(noise, kind)
        if precision is None:
            continue
        precision = precision[:number]
        log = jnp.log(precision)
        found |= {
            f"{kind} noise, mean": jnp.mean(log),
            f"{kind} noise, spread": jnp.log(jnp.std(log)),
            f"{kind} noise, least": jnp.min(log),
            f"{kind} noise, largest": jnp.max(log),
            f"{kind} noise, first": log[0],
            f"{kind} noise and variance": jnp.mean(log)
            - jnp.log(state.rating_variance),
            f"{kind} noise x squared error": jnp.log(
                jnp.sum(precision[row] * squares) / state.rating_variance
            ),
            f"{kind} noise against squared error": jnp.mean(
                log[row] * jnp.log(squares)
            ),
        }
        shape = getattr(noise, f"{kind}_shape", None)
        if shape is not None:
            excess = jnp.sum(precision - 1 - log)
            found[f"{kind} noise, shape"] = jnp.log(shape)
            found[f"{kind} noise, excess x shape"] = jnp.log(shape * excess)
    if noise.user is not None and noise.item is not None:
        product = jnp.log(noise.user[data.user[real]] * noise.item[data.item[real]])
        found["noise of users and items"] = jnp.log(jnp.std(product))
    return found


def _time(state, residual, data):
    """Effects of time, the parts that they add, and what ties them to the rest."""
    real, time, found, parts = slice(NUM_RATINGS), state.time, {}, {}
    for kind, number in (("user", NUM_USERS), ("item", NUM_ITEMS)):
        effect = getattr(time, kind)
        if effect is None:
            continue
        variance = getattr(time, f"{kind}_variance")
        alone = time._replace(**{"item" if kind == "user" else "user": None})
        part = time_of_ratings(alone, data.user, data.item, data.times)[real]
        parts[kind] = part
        effect = effect[:number]
        # User 3 has no rating, item 2 none in the first bin.
        bare = effect[3] if kind == "user" else effect[2, 0]
        found |= {
            f"{kind} time, variance": jnp.log(variance),
            f"{kind} time, mean": jnp.mean(effect),
            f"{kind} time, spread": jnp.log(jnp.std(effect)),
            f"{kind} time, squares / variance": jnp.sum(effect**2) / variance,
            f"{kind} time, of no rating": bare,
            f"{kind} time, of no rating / variance": bare**2 / variance,
            f"{kind} time x residual": jnp.sum(part * residual),
            f"{kind} time against residual squares": jnp.log(
                jnp.sum(part**2) / jnp.sum(residual**2)
            ),
        }
    if len(parts) == 2:
        found["time of users x items"] = jnp.sum(parts["user"] * parts["item"])
    return found


def _factors(state, side, rows):
    factors = getattr(state, f"{side}_factors")[:rows]
    mean, precision = getattr(state, f"{side}_factor_prior")
    offset = factors - mean[None]
    return {
        f"{side} factors, log norm": jnp.log(jnp.sum(factors**2)),
        f"{side} factors, mean": jnp.mean(factors),
        f"{side} factors, quadratic form": jnp.sum((offset @ precision) * offset),
        f"{side} factor mean": jnp.mean(mean),
        f"{side} factor precision, log det": jnp.linalg.slogdet(precision)[1],
        f"{side} factor mean, quadratic form": jnp.log(
            (mean - 0.5) @ precision @ (mean - 0.5)
        ),
    }


def _topic_factors(state, residual, data):
    """Vectors of a side under all topics together: topics change places."""
    extra, real = state.topic_factors, slice(NUM_RATINGS)
    topics = state.user_topic_of_rating, state.item_topic_of_rating
    product = topic_factors_of_ratings(extra, data.user, data.item, topics)[real]
    dots = jnp.sum(
        state.user_factors[data.user[real]] * state.item_factors[data.item[real]],
        axis=1,
    )
    found = {
        "topic factors, mean product": jnp.mean(product),
        "topic factors, spread of products": jnp.log(jnp.var(product)),
        "topic factors x residual": jnp.sum(residual * product) / state.rating_variance,
        "topic factors x inner product": jnp.mean(product * dots),
    }
    for side, rows in (("user", NUM_USERS), ("item", NUM_ITEMS)):
        vectors = getattr(extra, side)[:rows]
        mean, precision = getattr(extra, f"{side}_prior")
        offset = (vectors - mean).reshape(-1, len(mean))
        found |= {
            f"{side} topic factors, log norm": jnp.log(jnp.sum(vectors**2)),
            f"{side} topic factors, mean": jnp.mean(vectors),
            f"{side} topic factors, between topics": jnp.log(
                jnp.sum(jnp.var(vectors, axis=1))
            ),
            f"{side} topic factors, quadratic form": jnp.sum(
                (offset @ precision) * offset
            ),
            f"{side} topic factor mean": jnp.mean(mean),
            f"{side} topic factor precision, log det": jnp.linalg.slogdet(precision)[1],
        }
    return found


def _columns(state):
    """Increments, columns, and what ties them. Each column has its place."""
    delta = state.column_increments
    tau = jnp.cumprod(delta)
    users = jnp.sum(state.user_factors[:NUM_USERS] ** 2, axis=0)
    items = jnp.sum(state.item_factors[:NUM_ITEMS] ** 2, axis=0)
    found = {"effective dimension": effective_dimension(*state[:2])}
    for h in range(delta.shape[0]):
        found |= {
            f"column {h}, increment": delta[h],
            f"column {h}, log precision": jnp.log(tau[h]),
            f"column {h}, users' squares": jnp.log(users[h]),
            f"column {h}, items' squares": jnp.log(items[h]),
            f"column {h}, squares x precision": (users[h] + items[h]) * tau[h],
        }
        for side in ("user", "item"):
            mean = getattr(state, f"{side}_factor_prior").mean[h]
            total = jnp.sum(getattr(state, f"{side}_factors")[:, h])
            found |= {
                f"column {h}, {side} mean": mean,
                f"column {h}, {side} mean squared x precision": mean**2 * tau[h],
                f"column {h}, {side} mean x factors": mean * total * tau[h],
            }
    return found


def _biases(state, residual, data, side, rows, other):
    bias = getattr(state, f"{side}_bias")[:rows]
    prior = getattr(state, f"{side}_bias_prior")
    mean, variance, spread = prior[:3]
    topic = getattr(state, f"{other}_topic_of_rating")[:NUM_RATINGS]
    selected = bias[getattr(data, side)[:NUM_RATINGS], topic]
    own, found = bias - mean[None], {}
    if prior.shared is not None:
        shared = prior.shared[:rows]
        own = own - shared[:, None]
        found = {
            f"{side} shared biases, variance": prior.shared_variance,
            f"{side} shared biases, mean": jnp.mean(shared),
            f"{side} shared biases, spread": jnp.std(shared),
            f"{side} shared biases, squares / variance": jnp.sum(shared**2)
            / prior.shared_variance,
            f"{side} shared biases x others": jnp.sum(shared[:, None] * own),
            f"{side} shared biases x topic means": jnp.mean(shared) * jnp.mean(mean),
            f"{side} shared biases x residual": jnp.sum(
                residual * shared[getattr(data, side)[:NUM_RATINGS]]
            ),
        }
    deviation = jnp.sum(own**2)
    return found | {
        f"{side} bias variance": variance,
        f"{side} topic-mean variance": spread,
        f"{side} biases, mean": jnp.mean(bias),
        f"{side} biases, spread": jnp.std(bias),
        f"{side} biases, deviation": deviation,
        f"{side} biases, deviation / variance": deviation
        / jnp.where(variance > 0, variance, 1),
        f"{side} topic means, mean": jnp.mean(mean),
        f"{side} topic means, spread": jnp.std(mean),
        f"{side} topic means, largest": jnp.max(mean),
        f"{side} biases selected, mean": jnp.mean(selected),
        f"{side} biases selected, spread": jnp.std(selected),
        f"{side} biases selected x residual": jnp.sum(residual * selected),
    }


def _topics(state, data, side):
    weights = getattr(state, f"{side}_topic_weights")
    topic = getattr(state, f"{side}_topic_of_rating")[:NUM_RATINGS]
    number = weights.log_global_weights.shape[0]
    hot = topic[:, None] == jnp.arange(number, dtype=jnp.int32)[None]
    of_topic = jnp.sum(hot, axis=0, dtype=jnp.int32)
    share = jnp.sort(of_topic)
    found = {
        f"{side} topics occupied": jnp.sum(of_topic > 0, dtype=jnp.int32),
        f"{side} topic, largest count": share[-1],
        f"{side} topic, second count": share[-2],
        f"{side} topics, squares": jnp.sum(of_topic**2, dtype=jnp.int32),
        f"{side} dish concentration": weights.dish_concentration,
        f"{side} table concentration": weights.table_concentration,
    }
    for first, second in PAIRS:
        same = topic[first] == topic[second]
        found[f"{side} topic, ratings {first} and {second} together"] = same.astype(
            jnp.int32
        )
    return found


def _weights(state, row, side, rows):
    weights = getattr(state, f"{side}_topic_weights")
    topic = getattr(state, f"{side}_topic_of_rating")[:NUM_RATINGS]
    log_theta, log_pi = weights.log_row_weights[:rows], weights.log_global_weights
    theta, pi = jnp.exp(log_theta), jnp.exp(log_pi)
    row = row[:NUM_RATINGS]
    return {
        f"{side} row weights, entropy": -jnp.mean(
            jnp.sum(jnp.where(theta > 0, theta * log_theta, 0), axis=1)
        ),
        f"{side} row weights, of the topics": jnp.mean(log_theta[row, topic]),
        f"{side} row weights, largest of a row": jnp.max(log_theta[rows - 2]),
        f"{side} global weights, largest": jnp.max(log_pi),
        f"{side} global weights, entropy": -jnp.sum(jnp.where(pi > 0, pi * log_pi, 0)),
        f"{side} global weights, least": jnp.min(log_pi),
        f"{side} global weights, first": log_pi[0],
        f"{side} rows and global weights": jnp.mean(theta @ pi),
    }


def _seating(state, side):
    seating = getattr(state, f"{side}_topic_weights").seating
    used = seating.dish_of_table >= 0
    return {
        f"{side} topic, tables": jnp.sum(used, dtype=jnp.int32),
        f"{side} topic, tables of a row": jnp.sum(used[0], dtype=jnp.int32),
        f"{side} topic, overflow": seating.overflow,
    }


def two_sample(first, second):
    """Chance of a difference as large between two samples of one distribution.

    Kolmogorov-Smirnov; for whole numbers a chi-squared test of the counts, of which
    those that expect fewer than 20 are pooled with their neighbour. None where nothing
    varies; 0 where a number is not finite.
    """
    first, second = (_wide(x) for x in (first, second))
    if not (np.all(np.isfinite(first)) and np.all(np.isfinite(second))):
        return 0.0
    if np.ptp(first) == 0 and np.ptp(second) == 0:
        return None if np.allclose(first[0], second[0], rtol=1e-5) else 0.0
    if first.dtype.kind != "i":
        return float(stats.ks_2samp(first, second, method="asymp").pvalue)
    values = np.unique(np.concatenate([first, second]))
    table = np.array(
        [[np.sum(sample == v) for v in values] for sample in (first, second)]
    )
    return counts_alike(table)


def counts_alike(table):
    """Chi-squared test that the rows of a table of counts have one distribution."""
    share = table.sum(axis=1, keepdims=True) / table.sum()
    pooled, waiting = [], np.zeros(len(table))
    for column in table.T:
        waiting = waiting + column
        if np.min(share * waiting.sum()) >= 20:
            pooled.append(waiting)
            waiting = np.zeros(len(table))
    if waiting.any():
        if not pooled:
            return 1.0
        pooled[-1] = pooled[-1] + waiting
    if len(pooled) == 1:
        return 1.0
    return float(stats.chi2_contingency(np.array(pooled).T, correction=False).pvalue)


def _wide(values):
    """Take float64, in which small p-values do not underflow."""
    values = np.asarray(values)
    return values if values.dtype.kind == "i" else values.astype(np.float64)
