"""Training and test rows of one table; both keep the id index of the whole."""

import logging
from collections.abc import Iterable, Iterator

import numpy as np

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError

__all__ = ["k_fold", "leave_one_out", "random_split", "split_by_rows", "time_split"]

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
    num_test = _num_test(ratings, test_fraction)
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
    if not _is_whole(num_folds) or not 2 <= num_folds <= len(ratings):
        raise InputError(
            f"num_folds is {num_folds!r}, but {len(ratings)} ratings make 2 to "
            f"{len(ratings)} parts"
        )
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(ratings)), num_folds)
    return (split_by_rows(ratings, rows) for rows in parts)


def time_split(
    ratings: Ratings,
    *,
    test_fraction: float | None = None,
    last_of_user: int | None = None,
) -> tuple[Ratings, Ratings]:
    """Hold out what came last: of all ratings, or of each user's.

    Parameters
    ----------
    ratings : Ratings
        N ratings with timestamps.
    test_fraction : float, optional
        Share of the rows to hold out, in (0, 1); by default, and where `last_of_user`
        is not given, 0.1. Ratings of one time are not parted: those of the time at
        which the test would begin train, and the test is smaller.
    last_of_user : int, optional
        Hold out so many of each user's ratings instead, at least 1. Of two at one time
        the later row counts as the later. A user who has no more than that keeps all
        of them in training; how many users that concerns is logged at level INFO.

    Returns
    -------
    train, test : Ratings
        In the order of `ratings`, with its id index. By share, every test rating is
        later than every training rating; by user, none is earlier than one of the same
        user's. By share, users may have no training rating: they stay in the test,
        cold, and their number is logged at level INFO.

    Raises
    ------
    InputError
        Where there are no timestamps, for both ways or a number out of range, and
        where no training or no test row would be left.
    """
    times = ratings.timestamp
    if times is None:
        raise InputError(
            "these ratings have no timestamps to split by: name their column, "
            "from_dataframe(..., timestamp=...), or give from_arrays(..., "
            "timestamps=...)"
        )
    if last_of_user is not None:
        if test_fraction is not None:
            raise InputError("give test_fraction or last_of_user, not both")
        return _split_last_of_user(ratings, last_of_user)
    fraction = 0.1 if test_fraction is None else test_fraction
    num_test = _num_test(ratings, fraction)
    last_time = np.sort(times)[len(ratings) - num_test - 1]  # of training
    rows = np.flatnonzero(times > last_time)
    if not len(rows):
        raise InputError(
            f"no rating is later than the first {len(ratings) - num_test}: their last "
            f"time is that of all the others, and ratings of one time are not parted"
        )
    train, test = split_by_rows(ratings, rows)
    if len(rows) < num_test:
        _log.info(
            "%d ratings are held out instead of %d: those of one time are not parted",
            *(len(rows), num_test),
        )
    num_cold = len(np.setdiff1d(test.user, train.user))
    if num_cold:
        _log.info(
            "%d of %d users of the test have no training rating",
            *(num_cold, len(np.unique(test.user))),
        )
    return train, test


def _split_last_of_user(ratings: Ratings, number: int) -> tuple[Ratings, Ratings]:
    if not _is_whole(number) or number < 1:
        raise InputError(f"last_of_user is {number!r}, but must be 1 or more")
    rows = np.arange(len(ratings))
    order = np.lexsort((rows, ratings.timestamp, ratings.user))
    users, first, count = np.unique(
        ratings.user[order], return_index=True, return_counts=True
    )
    ends = np.repeat(first + count, count)  # of each ordered row's user
    is_last = (ends - rows <= number) & np.repeat(count > number, count)
    num_few = int((count <= number).sum())
    if num_few == len(users):
        raise InputError(f"no user has more than {number} ratings: no test row is left")
    if num_few:
        _log.info(
            "%d of %d users have no more than %d ratings; they stay in training",
            *(num_few, len(users), number),
        )
    return split_by_rows(ratings, order[is_last])


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


def _num_test(ratings: Ratings, fraction: float) -> int:
    """Give the number of test rows that a share of the rows makes."""
    number = round(len(ratings) * fraction) if 0 < fraction < 1 else 0
    if not 0 < number < len(ratings):
        raise InputError(
            f"test_fraction = {fraction} of {len(ratings)} ratings must leave at "
            f"least one rating on each side"
        )
    return number


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)
