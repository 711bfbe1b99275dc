"""Training and test rows of one table; both keep the id index of the whole."""

import logging
from collections.abc import Iterable, Iterator

import numpy as np

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError

__all__ = ["k_fold", "leave_one_out", "random_split", "split_by_rows"]

_log = logging.getLogger(__name__)


def leave_one_out(ratings: Ratings, *, seed: int = 0) -> tuple[Ratings, Ratings]:
    """Hold out one random rating of each user who has two or more.

    A user's only rating stays in training; how many users that concerns is logged at
    level INFO.

    Parameters
    ----------
    ratings : Ratings
        N ratings.
    seed : int
        Of a generator of its own: numpy's global seed has no effect.

    Returns
    -------
    train, test : Ratings
        In the order of `ratings`, with its id index.

    Notes
    -----
    The paper's protocol.
    """
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(ratings)), ratings.user))
    users, first, count = np.unique(
        ratings.user[order], return_index=True, return_counts=True
    )
    num_single = int((count == 1).sum())
    if num_single:
        _log.info(
            "%d of %d users have one rating; it stays in training",
            num_single,
            len(users),
        )
    return split_by_rows(ratings, order[first[count > 1]])


def random_split(
    ratings: Ratings, *, test_fraction: float = 0.1, seed: int = 0
) -> tuple[Ratings, Ratings]:
    """Hold out a random share of the rows.

    Users and items may end up without a training rating: they are cold in the test.

    Parameters
    ----------
    ratings : Ratings
        N ratings.
    test_fraction : float
        Share of the rows to hold out, in (0, 1); the number is rounded.
    seed : int
        Of a generator of its own.

    Returns
    -------
    train, test : Ratings
        In the order of `ratings`, with its id index.

    Raises
    ------
    InputError
        Where the fraction leaves no test row or no training row.
    """
    num_test = round(len(ratings) * test_fraction) if 0 < test_fraction < 1 else 0
    if not 0 < num_test < len(ratings):
        raise InputError(
            f"test_fraction = {test_fraction} of {len(ratings)} ratings must leave at "
            f"least one rating on each side"
        )
    rng = np.random.default_rng(seed)
    return split_by_rows(ratings, rng.permutation(len(ratings))[:num_test])


def k_fold(
    ratings: Ratings, num_folds: int = 5, *, seed: int = 0
) -> Iterator[tuple[Ratings, Ratings]]:
    """Hold out each of several random parts of the rows in turn.

    Parameters
    ----------
    ratings : Ratings
        N ratings.
    num_folds : int
        Number of parts, from 2 to N; their sizes differ by one at most.
    seed : int
        Of a generator of its own.

    Yields
    ------
    train, test : Ratings
        In the order of `ratings`, with its id index. Every row is in one test.

    Raises
    ------
    InputError
        For a number of parts out of range.
    """
    whole = isinstance(num_folds, int | np.integer) and not isinstance(num_folds, bool)
    if not whole or not 2 <= num_folds <= len(ratings):
        raise InputError(
            f"num_folds is {num_folds!r}, but {len(ratings)} ratings make 2 to "
            f"{len(ratings)} parts"
        )
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(ratings)), num_folds)
    return (split_by_rows(ratings, rows) for rows in parts)


def split_by_rows(
    ratings: Ratings, test_rows: Iterable[int]
) -> tuple[Ratings, Ratings]:
    """Hold out given rows.

    Parameters
    ----------
    ratings : Ratings
        N ratings.
    test_rows : array-like of int, shape (n,)
        Positions, from 0, of the test rows; all other rows train.

    Returns
    -------
    train, test : Ratings
        In the order of `ratings`, with its id index.

    Raises
    ------
    InputError
        For positions that are no integers, out of range or repeated, and where no
        training row is left.
    """
    rows = np.asarray(test_rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InputError(
            f"test_rows must be row positions, integers in one dimension, not "
            f"{rows.dtype} of shape {rows.shape}"
        )
    outside = rows[(rows < 0) | (rows >= len(ratings))]
    if outside.size:
        raise InputError(
            f"test row {outside[0]} is out of range: the ratings have rows 0 to "
            f"{len(ratings) - 1}"
        )
    times = np.bincount(rows.astype(np.int64), minlength=len(ratings))
    if times.max(initial=0) > 1:
        raise InputError(f"test row {times.argmax()} is given {times.max()} times")
    if times.all():
        raise InputError("every row is a test row: none is left to train on")
    return ratings.select(times == 0), ratings.select(times == 1)
