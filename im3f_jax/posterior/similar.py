"""Users or items that are alike, by what the draws predict of them."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from im3f_jax.errors import InputError

if TYPE_CHECKING:
    from im3f_jax.posterior.posterior import Posterior

__all__ = ["similar_rows"]


def similar_rows(posterior: "Posterior", side: str, one: Any, n: int) -> pd.DataFrame:
    """Give the ids whose predictions go with those of one id.

    In a draw the prediction of user u for item j is chi_0 + x_u . y_j (see
    `inference.features`). Over the users, with S the covariance of the x_u in this
    draw, the predictions of items j and k have covariance y_j' S y_k, hence correlation

        y_j' S y_k / sqrt(y_j' S y_j  y_k' S y_k).

    Labels that switch and factors that rotate change x and y together, and leave it as
    it is; so it may be averaged over draws. For users the sides change places. Items
    whose predictions are the same for all users have correlation 0.

    Parameters
    ----------
    posterior
        With kept draws.
    side
        "user" or "item".
    one
        An id with a training rating.
    n
        Ids at most.

    Returns
    -------
    DataFrame
        rank, the id, `similarity` and `std` over draws, most similar first.

    Raises
    ------
    InputError
        Without kept draws, for an id that is unknown or cold, and for an n below 1.
    """
    whole = isinstance(n, int | np.integer) and not isinstance(n, bool)
    if not whole or n < 1:
        raise InputError(f"n is {n!r}, but must be a whole number of at least 1.")
    draws = posterior.draws
    if draws is None:
        raise InputError(
            f"This fit kept no draws (store='summary'): fit with store='factors' to "
            f"get similar {side}s."
        )
    index, row_of_id = (
        (posterior.users, posterior.user_row)
        if side == "user"
        else (posterior.items, posterior.item_row)
    )
    codes = index.lookup([one])
    row, new = row_of_id[codes[0]], row_of_id.max(initial=0)
    if row == new:
        raise InputError(
            f"{side} {one!r} has no training rating: nothing tells what it is like."
        )
    own, other = draws.item_features, draws.user_features
    if side == "user":
        own, other = other, own
    mean, squares = np.zeros((2, own.shape[2] - 1))
    number = 0
    for place in np.ndindex(draws.global_bias.shape):
        found = _correlations(own[place][:-1], other[place][:-1], row)
        number += 1
        away = found - mean
        mean += away / number
        squares += away * (found - mean)
    others = np.flatnonzero(row_of_id[: len(index)] < new)
    others = others[others != codes[0]]
    similarity = mean[row_of_id[others]]
    best = np.lexsort((others, -similarity))[:n]
    deviation = np.sqrt(squares / number)[row_of_id[others]]
    return pd.DataFrame(
        {
            "rank": np.arange(1, len(best) + 1),
            side: index.column(others[best]),
            "similarity": similarity[best],
            "std": deviation[best],
        }
    )


def _correlations(own: np.ndarray, other: np.ndarray, row: int) -> np.ndarray:
    """Correlation of each row's predictions with those of one row, in a draw."""
    own, other = own.astype(np.float64), other.astype(np.float64)
    other = other - np.mean(other, axis=0)
    spread = own @ (other.T @ other / len(other))
    variance = np.maximum(np.sum(spread * own, axis=1), 0)
    size = np.sqrt(variance * variance[row])
    found = np.divide(spread @ own[row], size, out=np.zeros_like(size), where=size > 0)
    return np.clip(found, -1, 1)
