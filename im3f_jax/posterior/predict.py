"""Predictions from kept draws: on the host, those of ordinal models by JAX."""

from functools import partial

import jax
import numpy as np

from im3f_jax.data.times import TimeColumns
from im3f_jax.inference.features import expected_ratings
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.spec import ModelSpec
from im3f_jax.posterior.score import pad_pairs, pad_times, time_of_pairs

__all__ = ["each_draw", "predict_draws", "predict_mean"]

# Numbers that one step gathers: 64 MB of float32 a side.
GATHERED = 1 << 24


def predict_mean(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None = None,
) -> np.ndarray:
    """Mean over kept draws of the mean of each pair's rating, shape (n,).

    Predictions are averaged, never parameters: labels switch and factors rotate.
    Without `times` nothing is added for the time of a pair.
    """
    total = np.zeros(len(user_row))
    count = 0
    for prediction in each_draw(draws, spec, user_row, item_row, times):
        total += prediction
        count += 1
    return total / count


def predict_draws(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None = None,
) -> np.ndarray:
    """Mean of each pair's rating in each kept draw, shape (chain, draw, n)."""
    chains, kept = draws.global_bias.shape
    values = np.stack(list(each_draw(draws, spec, user_row, item_row, times)))
    return values.reshape(chains, kept, len(user_row))


def each_draw(
    draws: Draws,
    spec: ModelSpec,
    user_row: np.ndarray,
    item_row: np.ndarray,
    times: TimeColumns | None,
):
    """Yield the means of pairs' ratings in one kept draw after the other, (n,)."""
    if isinstance(spec.likelihood, Ordinal):
        yield from _each_ordinal_draw(draws, spec, user_row, item_row, times)
        return
    width = draws.user_features.shape[-1]
    step = max(1, GATHERED // max(width, 1))
    parts = [slice(a, a + step) for a in range(0, len(user_row), step)]
    for chain in range(draws.global_bias.shape[0]):
        for s in range(draws.global_bias.shape[1]):
            users, items = draws.user_features[chain, s], draws.item_features[chain, s]
            dots = [
                np.einsum("nf,nf->n", users[user_row[p]], items[item_row[p]])
                for p in parts
            ]
            mean = draws.global_bias[chain, s] + np.concatenate(
                [np.zeros(0, np.float32), *dots]
            ).astype(np.float64)
            part = time_of_pairs(draws, (chain, s), user_row, item_row, times)
            yield mean if part is None else mean + part


def _each_ordinal_draw(draws: Draws, spec: ModelSpec, user_row, item_row, times):
    pairs = pad_pairs(user_row, item_row)
    for place in np.ndindex(draws.global_bias.shape):
        part = time_of_pairs(draws, place, user_row, item_row, times)
        part = pad_times(part, pairs[0].shape)
        rating = _expected(
            (draws.user_features[place], draws.item_features[place]),
            spec,
            np.float32(draws.global_bias[place]),
            draws.cut_points[place].astype(np.float32),
            *(x.reshape(-1) for x in pairs),
            chunk=pairs[0].shape[1],
            time_part=None if part is None else part.reshape(-1),
        )
        yield np.asarray(rating, np.float64)[: len(user_row)]


_expected = partial(jax.jit, static_argnames="chunk")(expected_ratings)
