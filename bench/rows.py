"""Real ratings, split at the row sets that every figure of ours uses.

The row sets of ML-100K and ML-1M are in ``test_rows.npz`` beside the ratings, in a
folder named after the data set inside ``IM3F_DATA_DIR``: 0-based positions in the order
of the ratings' file. ML-1M has a published split too, and the other data sets are split
here by a seed.
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.splits import leave_one_out, random_split, split_by_rows
from im3f_jax.errors import InputError

__all__ = ["FILES", "Split", "data_folder", "load_rows"]

# data set -> its ratings' file, and (ratings, users, items) as a check of the reader
FILES = {
    "ml-100k": ("ml-100k/u.data", (100_000, 943, 1682)),
    "ml-1m": ("ml-1m/ratings.npz", (1_000_209, 6040, 3706)),
    "ml-latest-small": ("ml-latest-small/ratings.csv", (100_836, 610, 9724)),
    "dblp-ml-dm": ("dblp/coauthor_ml_dm.npz", (165_548, None, None)),
    "dblp-four-area": ("dblp/coauthor_four_area.npz", (194_416, None, None)),
    "dblp-core20": ("dblp/coauthor_core20.npz", (574_897, None, None)),
}
MOST_PAPERS = 10  # of a pair of authors: the scale of the paper's experiment


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
    data : str
        The data set, of `FILES`. Co-authors with more than `MOST_PAPERS` joint papers
        are left out.
    rows : str
        The test rows: ``"random90_0"``, ``"random90_1"``, ``"loo_0"`` or ``"loo_1"``;
        ``"published"`` for the 100,209 probe ratings of ML-1M. Data sets without
        ``test_rows.npz`` are split here, the number being the seed; those of DBLP also
        as ``"cover_SEED"``, where every author is in the test set at least once.

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
    path = data_folder() / file
    if not path.exists():
        raise InputError(f"IM3F_DATA_DIR has no {file}")
    ratings = load_ratings(path)
    found = (len(ratings), ratings.num_users, ratings.num_items)
    if any(a not in (None, b) for a, b in zip(expected, found, strict=True)):
        raise InputError(
            f"{data} should have (ratings, users, items) = {expected}, not {found}"
        )
    train, test = _split(ratings, data, path, rows)
    cold = ~np.isin(test.user, train.user) | ~np.isin(test.item, train.item)
    return Split(train, test, int(cold.sum()))


def _split(ratings, data, path, rows):
    if rows == "published" and data == "ml-1m":
        with np.load(path, allow_pickle=False) as arrays:
            return split_by_rows(ratings, np.flatnonzero(arrays["split"] == 1))
    sets = path.parent / "test_rows.npz"
    if sets.exists():
        with np.load(sets, allow_pickle=False) as row_sets:
            if rows not in row_sets.files:
                known = ", ".join(row_sets.files)
                raise InputError(f"{data} has no row set {rows!r}; there are {known}")
            return split_by_rows(ratings, row_sets[rows])
    if data.startswith("dblp"):
        ratings = ratings.select(ratings.rating <= MOST_PAPERS)
    kind, _, seed = rows.partition("_")
    if kind == "cover" and seed.isdecimal() and data.startswith("dblp"):
        return split_by_rows(ratings, _cover(ratings, int(seed)))
    if kind not in ("random90", "loo") or not seed.isdecimal():
        raise InputError(
            f"{data} has no row set {rows!r}; there are random90_SEED and loo_SEED"
        )
    if kind == "loo":
        return leave_one_out(ratings, seed=int(seed))
    return random_split(ratings, test_fraction=0.1, seed=int(seed))


def _cover(ratings, seed):
    """Take pairs in random order while one of their two authors was not taken yet."""
    authors = np.union1d(ratings.user_ids, ratings.item_ids)
    pairs = np.stack([ratings.user_ids, ratings.item_ids], axis=1)
    pairs = np.searchsorted(authors, pairs)
    taken, chosen = np.zeros(len(authors), bool), []
    for row in np.random.default_rng(seed).permutation(len(ratings)):
        if not taken[pairs[row]].all():
            taken[pairs[row]] = True
            chosen.append(row)
    return np.sort(chosen)
