"""What draws say of moods and contexts: numbers that a switch of labels leaves alone.

Labels of topics switch from draw to draw, so that a mean over draws of what is shown by
topic means nothing. What is here is of one draw, which is named, or does not depend on
labels: a spread over topics, weights in falling order.
"""

from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.errors import InputError
from im3f_jax.inference.features import topics_of_features
from im3f_jax.posterior.posterior import Posterior

__all__ = [
    "bias_spread",
    "named_draw",
    "sorted_weights",
    "topic_side",
    "topic_table",
]

INTERVAL = (0.05, 0.95)


def named_draw(
    posterior: Posterior, draw: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Check a chain and a kept draw; without, give `Posterior.representative_draw`."""
    shape = _drawn(posterior).global_bias.shape
    if draw is None:
        return posterior.representative_draw
    try:
        chain, place = map(int, draw)
        there = 0 <= chain < shape[0] and 0 <= place < shape[1]
    except (TypeError, ValueError):
        there = False
    if not there:
        raise InputError(
            f"draw is {draw!r}, but must be a chain below {shape[0]} and a kept draw "
            f"below {shape[1]}, both from 0."
        )
    return chain, place


def topic_table(
    posterior: Posterior, side: str = "user", *, draw: tuple[int, int] | None = None
) -> pd.DataFrame:
    """Sizes and biases of one draw's topics.

    Parameters
    ----------
    side
        "user" for user topics (moods), "item" for item topics (contexts).
    draw
        Chain and kept draw; by default `Posterior.representative_draw`.

    Returns
    -------
    DataFrame
        A row a topic, the largest first: "weight", the mean of the topic's weight over
        trained rows, each counting once; and over the trained rows of the other side
        "mean", "low" and "high" (5 % and 95 %) of the bias that it selects, on the
        rating scale (ordinal: on the latent scale, where the noise has variance 1).

    Raises
    ------
    InputError
        Without topics on this side, or without kept draws.
    """
    weights, bias = _topics(posterior, side, named_draw(posterior, draw))
    low, high = np.quantile(bias[:-1], INTERVAL, axis=0)
    table = pd.DataFrame(
        {
            "weight": _population(weights),
            "mean": bias[:-1].mean(axis=0, dtype=np.float64),
            "low": low,
            "high": high,
        }
    )
    table.index.name = "topic"
    return table.sort_values("weight", ascending=False, kind="stable")


def sorted_weights(posterior: Posterior, side: str, label: Any) -> np.ndarray:
    """Topic weights of a user or an item in every kept draw, the largest first.

    Parameters
    ----------
    side
        "user" or "item": whose weights.
    label
        The caller's own id.

    Returns
    -------
    ndarray
        Shape (chain, draw, topics); each draw's sum to 1.

    Raises
    ------
    InputError
        For an unknown id, for a side without topics, or without kept draws.
    """
    code = getattr(posterior, f"{side}s").lookup([label])[0]
    row = getattr(posterior, f"{side}_row")[code]
    weights, _ = _topics(posterior, topic_side(posterior, side), ...)
    return np.sort(weights[..., row, :], axis=-1)[..., ::-1]


def topic_side(posterior: Posterior, side: str) -> str:
    """Tell which topics a user or an item has weights of: those of its own side.

    Those of the other where topics are of each row's own (`SeparateDP`).
    """
    if posterior.spec.own_topics:
        return "item" if side == "user" else "user"
    return side


def bias_spread(posterior: Posterior, side: str = "item") -> pd.DataFrame:
    """How much more than others an item depends on the mood (a user on the context).

    In every kept draw the standard deviation over topics of d_j[i] less its mean over
    items, which is what a mood does to every item; under the weights that the topics
    have in a user taken at random, the mean of theta_U over trained users (of items
    with topics of their own, under these). It does not depend on labels.

    Parameters
    ----------
    side
        "item", or "user" for users between item topics (contexts).

    Returns
    -------
    DataFrame
        By the caller's ids, those with a training rating: "mean", "low" and "high" (5 %
        and 95 %) over draws, on the rating scale (ordinal: on the latent scale, where
        the noise has variance 1).

    Raises
    ------
    InputError
        Without topics on the other side, or without kept draws.

    Notes
    -----
    An item of few ratings keeps the spread that the prior expects of it.
    """
    draws = _drawn(posterior)
    topics = "user" if side == "item" else "item"
    spread = []
    for place in np.ndindex(draws.global_bias.shape):
        weights, bias = _topics(posterior, topics, place)
        if posterior.spec.own_topics:
            weights = weights[:-1].astype(np.float64)
        else:
            weights = _population(weights)[None]
        bias = bias[:-1].astype(np.float64)
        bias -= bias.mean(axis=0)
        mean = np.sum(weights * bias, axis=1, keepdims=True)
        spread.append(np.sqrt(np.sum(weights * (bias - mean) ** 2, axis=1)))
    spread = np.stack(spread)  # (draws, rows)
    index = getattr(posterior, f"{side}s")
    row = getattr(posterior, f"{side}_row")[: len(index)]
    known = row < spread.shape[1]
    low, high = np.quantile(spread, INTERVAL, axis=0)
    ids = pd.Index(np.asarray(index.ids)[known], name=side)
    columns = {"mean": spread.mean(axis=0), "low": low, "high": high}
    return pd.DataFrame({k: v[row[known]] for k, v in columns.items()}, index=ids)


def _population(weights: np.ndarray) -> np.ndarray:
    """Weights of topics in a row taken at random, shape (topics,); they sum to 1."""
    mean = weights[:-1].mean(axis=0, dtype=np.float64)
    return mean / mean.sum()


def _topics(posterior: Posterior, side: str, place) -> tuple[np.ndarray, np.ndarray]:
    if side not in ("user", "item"):
        raise InputError(f"side is {side!r}, but must be 'user' or 'item'.")
    draws = _drawn(posterior)
    if not getattr(posterior.spec, f"num_{side}_topics"):
        raise InputError(f"This model has no {side} topics.")
    return topics_of_features(
        draws.user_features[place], draws.item_features[place], posterior.spec, side
    )


def _drawn(posterior: Posterior):
    if posterior.draws is None:
        raise InputError(
            "This fit kept no draws (store='summary'): fit with store='factors' to see "
            "topics."
        )
    if not posterior.draws.global_bias.size:
        raise InputError("No draw was kept: the run ended in its warm-up.")
    return posterior.draws
