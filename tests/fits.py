"""Whole fits that many tests read: one tiny data set, each model fitted once.

Compiling a sweep takes ten seconds, running it a millisecond. So the tests of whole
fits share these sizes and these structures of a spec; what they change are numbers,
ids and lengths, which compile nothing.

A fit may start by optax, which promotes types freely: such tests carry the marker
``relaxed``. (Under other rules of promotion JAX would also compile all anew.)
"""

import dataclasses
import warnings
from functools import cache

import jax
import numpy as np

import im3f_jax as im3f

__all__ = [
    "COLD_ITEM",
    "COLD_USER",
    "LENGTHS",
    "MODELS",
    "data",
    "fit",
    "grid",
    "held",
    "kept_sweeps",
    "posterior",
    "residual_rmse",
    "same",
]

# All of whose ratings are held out. Neither is the last of its index.
COLD_USER, COLD_ITEM = 17, 5

# No two sizes are equal, so that a mix-up of sides cannot pass.
MODELS = {
    "BPMF": im3f.BPMF(2),
    "M3F": im3f.M3F(2, 3, 2),
    "IM3F": im3f.IM3F(2, max_user_topics=4, max_item_topics=5),
}

# Sweeps 9, 13 and 17 are kept (counted from 0), and one more sweep follows.
LENGTHS = {"num_warmup": 6, "num_samples": 13, "thinning": 4, "seed": 3}


def kept_sweeps():
    """Return the sweeps, from 0, of which LENGTHS keeps the draws."""
    return np.array([9, 13, 17])


@cache
def data(num_train=1010):
    """Return train and test ratings, on the levels 1 to 5; 1300 in all."""
    ratings = im3f.planted_ratings(
        num_users=60,
        num_items=40,
        num_ratings=1300,
        latent_dim=2,
        levels=[1, 2, 3, 4, 5],
    ).ratings
    cold = (ratings.user == COLD_USER) | (ratings.item == COLD_ITEM)
    others = np.flatnonzero(~cold)
    more = len(ratings) - num_train - int(cold.sum())
    test_rows = np.append(np.flatnonzero(cold), others[:more])
    return im3f.split_by_rows(ratings, test_rows)


def fit(model, train=None, test=None, **settings):
    """Fit without a bar and without our own warnings, which tiny data call for."""
    if train is None:
        train, test = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", im3f.Im3fWarning)
        return model.fit(train, test, **{"progress": False, **LENGTHS, **settings})


@cache
def posterior(name):
    """Fit a model of MODELS once; what is returned must not be changed."""
    return fit(MODELS[name])


def held(posterior):
    """Count the bytes of the kept draws' arrays, but for numbers and cut points."""
    arrays = (x for x in posterior.draws if x is not None)
    return sum(x.nbytes for x in arrays if x.dtype == np.float32)


def grid(train):
    """Pairs of all users with all items, as two arrays of ids."""
    users, items = train.users.ids, train.items.ids
    return np.repeat(users, len(items)), np.tile(items, len(users))


def same(first, second):
    """Assert that two posteriors hold the same draws and traces, bit for bit."""
    assert first.trace.keys() == second.trace.keys()
    for name, values in first.trace.items():
        np.testing.assert_array_equal(values, second.trace[name], err_msg=name)
    for name in ("test_predictions", "train_predictions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    if first.draws is not None and second.draws is not None:
        jax.tree.map(np.testing.assert_array_equal, first.draws, second.draws)


def residual_rmse(posterior, train):
    """Return the RMSE about each rating's mean given its topics, (chain, draw).

    From what a fit with store="all" kept: only with every topic at its own rating is it
    what the sweeps themselves reported.
    """
    draws, spec = posterior.draws, posterior.spec
    user, item = posterior.user_row[train.user], posterior.item_row[train.item]
    row, dim = np.arange(len(train)), spec.latent_dim
    found = np.empty(draws.global_bias.shape)
    for place in np.ndindex(found.shape):
        users, items = (
            draws.user_features[place][user],
            draws.item_features[place][item],
        )
        mean = draws.global_bias[place] + np.sum(
            users[:, :dim] * items[:, :dim], axis=1
        )
        mean = mean + users[row, dim + draws.item_topic[place]]
        mean = mean + items[row, dim + spec.num_item_topics + draws.user_topic[place]]
        found[place] = np.sqrt(np.mean((train.rating - mean) ** 2))
    return found


def with_ratings(ratings, values):
    """Put other numbers in the place of the ratings."""
    return dataclasses.replace(ratings, rating=np.asarray(values, np.float64))
