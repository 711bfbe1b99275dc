"""Whether predicted probabilities come true: by level, and by interval."""

import numpy as np
import pandas as pd

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.model.time_effects import reads_times
from im3f_jax.posterior.compare import BINS
from im3f_jax.posterior.posterior import Posterior
from im3f_jax.posterior.score import log_below

__all__ = ["coverage", "place_in_prediction", "reliability"]


def reliability(posterior: Posterior, test: Ratings) -> pd.DataFrame:
    """Predicted probabilities of levels beside how often the levels came.

    Of all pairs of a held-out rating and a level of the scale, in ten bins by predicted
    probability, as in `compare`.

    Returns
    -------
    DataFrame
        A row a bin that is not empty: "predicted" (mean probability), "observed" (how
        often the rating was of the level), "pairs".

    Raises
    ------
    InputError
        As `Posterior.predict_proba`; and without ratings.
    """
    proba = _probabilities(posterior, test)
    hit = test.rating[:, None] == posterior.levels
    place = np.minimum((proba * BINS).astype(int), BINS - 1).ravel()
    count = np.bincount(place, minlength=BINS)
    kept = count > 0
    sums = (np.bincount(place, x.ravel(), BINS)[kept] for x in (proba, hit))
    predicted, observed = (total / count[kept] for total in sums)
    return pd.DataFrame(
        {"predicted": predicted, "observed": observed, "pairs": count[kept]}
    )


def place_in_prediction(
    posterior: Posterior, test: Ratings
) -> tuple[np.ndarray, np.ndarray]:
    """Give where held-out ratings lie in their predictive distributions.

    Returns
    -------
    tuple of ndarray
        Predictive probabilities of less than the rating, and of no more than it, shape
        (n,) each: equal on a continuous scale.
    """
    if posterior.is_discrete:
        upto = np.cumsum(_probabilities(posterior, test), axis=1)
        upto = np.pad(upto, ((0, 0), (1, 0)))
        places = (np.searchsorted(posterior.levels, test.rating, x) for x in _SIDES)
        return tuple(upto[np.arange(len(test)), place] for place in places)
    if posterior.draws is None:
        raise InputError(
            "This fit kept no draws (store='summary'): fit with store='factors' to get "
            "probabilities."
        )
    user, item = posterior._codes(test)
    rows = posterior._rows(user, posterior.user_row)
    times = test.timestamp if reads_times(posterior.spec) else None
    below = log_below(
        posterior.draws,
        posterior.spec,
        rows,
        posterior._rows(item, posterior.item_row),
        test.rating,
        posterior._time_columns(times, rows),
    )
    below = np.exp(below.log_score)
    return below, below


_SIDES = ("left", "right")


def coverage(low: np.ndarray, high: np.ndarray, nominal: np.ndarray) -> np.ndarray:
    """Share of ratings inside the central intervals of their predictions.

    Parameters
    ----------
    low, high
        As `place_in_prediction` gives them, shape (n,). On a discrete scale a rating
        counts with the share of (low, high) that lies inside, as if it had been drawn
        from there: the non-randomised transform of Czado, Gneiting and Held (2009).
    nominal
        Probabilities that the intervals claim to hold, shape (m,).

    Returns
    -------
    ndarray
        Shape (m,). Of a right model, `nominal` itself.
    """
    start, stop = (1 - nominal) / 2, (1 + nominal) / 2
    width = np.maximum(high - low, np.finfo(float).tiny)[:, None]
    inside = np.minimum(high[:, None], stop) - np.maximum(low[:, None], start)
    share = np.clip(inside / width, 0, 1)
    point = (high == low)[:, None]
    hit = (low[:, None] >= start) & (low[:, None] <= stop)
    return np.where(point, hit, share).mean(axis=0)


def _probabilities(posterior: Posterior, test: Ratings) -> np.ndarray:
    if len(test) == 0:
        raise InputError("There are no ratings to judge the predictions by.")
    return posterior.predict_proba(
        test.user_ids,
        test.item_ids,
        times=test.timestamp if reads_times(posterior.spec) else None,
    )
