"""Posteriors whose draws are all one known world, and new rows simulated in it.

In plain numpy, apart from the library. With one side and what the rows of the other
have in common given, new rows and their ratings can be drawn from the model, many at
once, and so tell whether `fold_in` draws from their posterior.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy import stats

import im3f_jax as im3f
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.spec import resolve
from im3f_jax.posterior.posterior import Posterior

__all__ = ["log_likelihood", "make_world", "parts_of", "posterior_of", "simulate"]

OTHERS = 12  # rows of the side that is known
LEVELS = (1.0, 2.0, 3.0, 4.0)
VARIANCE = 0.5  # of the noise of a Gaussian rating


def make_world(model, side="user", seed=0):
    """Draw the other side's rows, and what rows of `side` have in common.

    Weights of a row are drawn with few topics each, precisions about 1; every number
    that a new row is drawn from differs from that of the other side.
    """
    rng = np.random.default_rng(seed)
    spec = resolve(model, 3.0, 1.0, 1.0, LEVELS)
    ordinal = isinstance(spec.likelihood, Ordinal)
    own, other = spec.num_user_topics, spec.num_item_topics
    if side == "item":
        own, other = other, own
    dim = spec.latent_dim
    root = rng.normal(size=(dim, dim)) / 2
    noisy = hasattr(getattr(spec, f"{side}_noise"), "shape")
    shares = hasattr(getattr(spec, f"{side}_bias_prior"), "shared_variance")
    return SimpleNamespace(
        side=side,
        spec=spec,
        ordinal=ordinal,
        factors=rng.normal(size=(OTHERS, dim)),
        bias=rng.normal(scale=0.8, size=(OTHERS, own)),
        weights=rng.dirichlet(np.full(other, 0.7), OTHERS)
        if other
        else np.zeros((OTHERS, 0)),
        precision=rng.gamma(3.0, 1 / 3, OTHERS),
        factor_mean=rng.normal(scale=0.5, size=dim),
        factor_precision=2.0 * np.eye(dim) + root @ root.T,
        topic_mean=rng.normal(scale=0.8, size=other),
        bias_variance=0.4,
        shared_variance=0.6 if shares else 0.0,
        shares=shares,
        global_weights=rng.dirichlet(np.full(own, 2.0)) if own else np.zeros(0),
        concentration=1.7,
        noise_shape=2.0 if noisy else np.inf,
        differs=noisy
        or hasattr(
            getattr(spec, "item_noise" if side == "user" else "user_noise"), "shape"
        ),
        global_bias=0.0 if ordinal else 3.0,
        variance=1.0 if ordinal else VARIANCE,
        cut_points=np.array([-1.0, 0.2, 1.1]) if ordinal else np.zeros(0),
    )


def _vectors(world, side, factors, bias, weights, precision):
    topics = (bias, weights) if side == "user" else (weights, bias)
    ends = []
    if world.differs:
        ends = [precision[:, None], np.zeros((len(factors), 1))]
        ends = ends if side == "user" else ends[::-1]
    return np.concatenate([factors, *topics, *ends], axis=1).astype(np.float32)


def posterior_of(world, num_draws):
    """Make a posterior of which every draw is this world; its rows have no ratings."""
    w, dim = world, world.spec.latent_dim
    other_side = "item" if w.side == "user" else "user"
    # A row of each side that no test reads, and that of a new one.
    others = (
        np.concatenate([w.factors, np.zeros((1, dim))]),
        np.concatenate([w.bias, np.zeros((1, w.bias.shape[1]))]),
        np.concatenate([w.weights, np.zeros((1, w.weights.shape[1]))]),
        np.append(w.precision, 1.0),
    )
    expected = (
        np.tile(w.factor_mean, (2, 1)),
        np.tile(w.topic_mean, (2, 1)),
        np.tile(w.global_weights, (2, 1)),
        np.ones(2),
    )
    shape = 1, num_draws

    def every(values):
        return np.broadcast_to(values, (*shape, *np.shape(values)))

    features = {
        f"{w.side}_features": every(_vectors(w, w.side, *expected)),
        f"{other_side}_features": every(_vectors(w, other_side, *others)),
        f"{w.side}_factor_precision": every(w.factor_precision.astype(np.float32)),
        f"{other_side}_factor_precision": every(np.eye(dim, dtype=np.float32)),
    }
    trace = {
        "rating_variance": every(w.variance),
        "num_user_topics": every(1),
        "num_item_topics": every(1),
        f"{w.side}_bias_variance": every(w.bias_variance),
        f"{w.side}_shared_bias_variance": every(w.shared_variance),
        f"{w.side}_table_concentration": every(w.concentration),
        f"{w.side}_noise_shape": every(w.noise_shape),
    }
    rows = {w.side: ["old"], other_side: list(range(OTHERS))}
    index = {
        s: im3f.Ratings.from_arrays(*[rows[s]] * 2, np.ones(len(rows[s]))).users
        for s in rows
    }
    return Posterior(
        spec=w.spec,
        users=index["user"],
        items=index["item"],
        user_row=np.arange(len(rows["user"]) + 1),
        item_row=np.arange(len(rows["item"]) + 1),
        draws=Draws(
            **features,
            global_bias=np.full(shape, w.global_bias),
            rating_variance=np.full(shape, w.variance),
            cut_points=every(w.cut_points),
        ),
        trace=trace,
        levels=np.asarray(LEVELS),
        is_discrete=w.ordinal,
        num_warmup=0,
        num_samples=num_draws,
        thinning=1,
        seed=0,
        device="cpu",
        versions={},
        seconds={},
    )


def simulate(world, num_new, most, seed=1):
    """Draw new rows and their ratings, 0 to `most` each, of other rows but the last.

    Returns the rows' own things, and the ratings as a frame; new ids are "n0", ...
    """
    w, rng = world, np.random.default_rng(seed)
    dim, own, other = w.factors.shape[1], w.bias.shape[1], w.weights.shape[1]
    root = np.linalg.cholesky(np.linalg.inv(w.factor_precision))
    rows = SimpleNamespace(
        factors=w.factor_mean + rng.normal(size=(num_new, dim)) @ root.T,
        bias=w.topic_mean
        + np.sqrt(w.bias_variance) * rng.normal(size=(num_new, other))
        + np.sqrt(w.shared_variance) * rng.normal(size=(num_new, 1)),
        weights=rng.dirichlet(w.concentration * w.global_weights, num_new)
        if own
        else np.zeros((num_new, 0)),
        precision=np.ones(num_new)
        if np.isinf(w.noise_shape)
        else rng.gamma(w.noise_shape, 1 / w.noise_shape, num_new),
    )
    count = rng.integers(0, most + 1, num_new)
    new = np.repeat(np.arange(num_new), count)
    j = np.concatenate([rng.permutation(OTHERS - 1)[:n] for n in count])
    mean = w.global_bias + np.sum(rows.factors[new] * w.factors[j], axis=1)
    if other:
        mean += rows.bias[new, _categories(rng, w.weights[j])]
    if own:
        mean += w.bias[j, _categories(rng, rows.weights[new])]
    scale = w.variance / rows.precision[new]
    if w.differs:
        scale = scale / w.precision[j]
    if hasattr(w.spec.rating_noise, "shape"):
        shape = w.spec.rating_noise.shape
        scale = scale / rng.gamma(shape, 1 / shape, len(new))
    rating = mean + np.sqrt(scale) * rng.normal(size=len(new))
    if w.ordinal:
        rating = np.asarray(LEVELS)[np.searchsorted(w.cut_points, rating)]
    ids = np.array([f"n{n}" for n in range(num_new)])
    columns = {w.side: ids[new], "item" if w.side == "user" else "user": j}
    return rows, ids, pd.DataFrame(columns | {"rating": rating})


def _categories(rng, weights):
    return (rng.random((len(weights), 1)) > np.cumsum(weights, axis=1)[:, :-1]).sum(1)


def parts_of(rows, world, j):
    """Give numbers of new rows that no labels change, each of shape (.., new rows).

    Parts of the mean rating with other row j, which the simulated ratings leave out;
    their sum; the largest weight; and the precision.
    """
    w = world
    parts = {"product": rows.factors @ w.factors[j]}
    parts["norm"] = np.sum(rows.factors**2, axis=-1)
    if w.weights.shape[1]:
        parts["own bias"] = rows.bias @ w.weights[j]
        parts["spread"] = np.var(rows.bias, axis=-1)
    if w.bias.shape[1]:
        parts["other bias"] = rows.weights @ w.bias[j]
        parts["most"] = np.max(rows.weights, axis=-1)
    if np.isfinite(w.noise_shape):
        parts["precision"] = rows.precision
    parts["mean"] = sum(parts.get(n, 0) for n in ("product", "own bias", "other bias"))
    return parts


def log_likelihood(rows, world, ids, frame):
    """Log probability (or density) of each new row's ratings, topics summed out.

    Of things shaped (draws, new rows, ..); nats, shape (draws, new rows).
    """
    w = world
    new = pd.Index(ids).get_indexer(frame[w.side])
    j = frame["item" if w.side == "user" else "user"].to_numpy()
    rating = frame["rating"].to_numpy()[:, None, None]
    noise, scale = stats.norm, np.sqrt(w.variance)
    if hasattr(w.spec.rating_noise, "shape"):
        noise = stats.t(2 * w.spec.rating_noise.shape)
    result = np.zeros((len(rows.factors), len(ids)))
    for draw, total in enumerate(result):
        mean = w.global_bias + np.sum(rows.factors[draw, new] * w.factors[j], axis=1)
        mean = mean[:, None, None] + rows.bias[draw, new][:, :, None]
        mean = mean + w.bias[j][:, None]
        weight = w.weights[j][:, :, None] * rows.weights[draw, new][:, None]
        each = np.full(len(new), scale)
        if w.differs:
            each /= np.sqrt(rows.precision[draw, new] * w.precision[j])
        each = each[:, None, None]
        if w.ordinal:
            edges = np.concatenate([[-np.inf], w.cut_points, [np.inf]])
            level = np.searchsorted(LEVELS, rating)
            high, low = ((edges[level + k] - mean) / each for k in (1, 0))
            chance = noise.cdf(high) - noise.cdf(low)
        else:
            chance = noise.pdf((rating - mean) / each) / each
        np.add.at(total, new, np.log(np.sum(weight * chance, axis=(1, 2))))
    return result
