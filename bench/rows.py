"""MovieLens ratings, split at the row sets that every figure of ours uses.

The row sets are in ``test_rows.npz`` beside the ratings, in a folder named after the
data set inside ``IM3F_DATA_DIR``: 0-based positions in the order of the ratings' file.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.splits import split_by_rows
from im3f_jax.errors import InputError

__all__ = ["FILES", "Split", "data_folder", "load_rows"]

# data set -> its ratings' file, and (ratings, users, items) as a check of the reader
FILES = {
    "ml-100k": ("u.data", (100_000, 943, 1682)),
    "ml-1m": ("ratings.npz", (1_000_209, 6040, 3706)),
}


class Split(NamedTuple):
    """Training and test ratings of one data set and row set.

    Attributes
    ----------
    train, test : Ratings
        They share the index of ids.
    num_cold : int
        Test ratings whose user or item has no training rating.
    """

    train: Ratings
    test: Ratings
    num_cold: int


def data_folder():
    """Return the folder that ``IM3F_DATA_DIR`` names.

    Raises
    ------
    InputError
        If the variable is not set, or names no folder.
    """
    folder = os.environ.get("IM3F_DATA_DIR")
    if not folder or not Path(folder).is_dir():
        raise InputError(
            "set IM3F_DATA_DIR to the folder that holds ml-100k and ml-1m; "
            f"it is {folder!r} now"
        )
    return Path(folder)


def load_rows(data, rows):
    """Load a data set and split it at one of its row sets.

    Parameters
    ----------
    data : {"ml-100k", "ml-1m"}
        The data set.
    rows : str
        The test rows: ``"random90_0"``, ``"random90_1"``, ``"loo_0"`` or ``"loo_1"``.

    Returns
    -------
    Split
        Training and test ratings.

    Raises
    ------
    InputError
        If the data set or the row set is not there, or the counts are not the known
        ones.
    """
    if data not in FILES:
        raise InputError(f"no data set {data!r}; there are {', '.join(FILES)}")
    file, expected = FILES[data]
    folder = data_folder() / data
    if not (folder / "test_rows.npz").exists():
        raise InputError(f"IM3F_DATA_DIR has no {data}/test_rows.npz")
    with np.load(folder / "test_rows.npz", allow_pickle=False) as row_sets:
        if rows not in row_sets.files:
            known = ", ".join(row_sets.files)
            raise InputError(f"{data} has no row set {rows!r}; there are {known}")
        test_rows = row_sets[rows]
    ratings = load_ratings(folder / file)
    found = (len(ratings), ratings.num_users, ratings.num_items)
    if found != expected:
        raise InputError(
            f"{data} should have (ratings, users, items) = {expected}, not {found}"
        )
    train, test = split_by_rows(ratings, test_rows)
    cold = ~np.isin(test.user, train.user) | ~np.isin(test.item, train.item)
    return Split(train, test, int(cold.sum()))
