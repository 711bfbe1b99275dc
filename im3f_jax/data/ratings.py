"""The table of ratings: three columns, and the ids behind two of them."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from numbers import Real
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.data.archive import write_whole
from im3f_jax.data.columns import column_array, natural
from im3f_jax.data.ids import IdIndex
from im3f_jax.errors import InputError

__all__ = ["Ratings", "merge_duplicates", "timestamp_array"]

_FORMAT_VERSION = 1
_MAX_LEVELS = 101  # a scale of 0, 1, ..., 100 is still a scale of levels


@dataclass(frozen=True, eq=False, repr=False)
class Ratings:
    """Ratings in the order of the caller's rows.

    Every stored row is an observation, a rating of 0 included. Make one by
    `from_dataframe`, `from_arrays`, `from_sparse`, `from_dense` or `load_ratings`.

    Parameters
    ----------
    user, item : ndarray of int32, shape (N,)
        Codes of each row's user and item: positions in `users` and `items`.
    rating : ndarray of float64, shape (N,)
        The caller's ratings, unchanged, on the caller's scale.
    users, items : IdIndex
        The caller's ids. Splits share the index of their parent, so that it may
        name users and items without a rating in this table.
    columns : tuple of three or four column names
        Names of the user, item and rating columns in `to_dataframe`, and of that of the
        timestamps ("timestamp" where it has no name).
    timestamp : ndarray of int64 or float64, shape (N,), or None
        When each rating was given: seconds, or another unit, of one origin.
    """

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    users: IdIndex
    items: IdIndex
    columns: tuple[Hashable, ...] = ("user", "item", "rating")
    timestamp: np.ndarray | None = None

    @classmethod
    def from_arrays(
        cls,
        users: Iterable,
        items: Iterable,
        ratings: Iterable,
        duplicates: str = "error",
        *,
        timestamps: Iterable | None = None,
    ) -> "Ratings":
        """Ratings from three columns of one length, and a fourth one of times.

        Parameters
        ----------
        users, items : array-like, shape (N,)
            The caller's ids, of any hashable kind; see `IdIndex`.
        ratings : array-like, shape (N,)
            Numbers: bool, int, float, Decimal, nullable columns. Never text.
        duplicates : {"error", "last", "mean", "keep"}
            What to do about a (user, item) pair that has several rows: refuse, take
            the last row, take the mean at the place of the first row (and its time),
            or keep all.
        timestamps : array-like, shape (N,), optional
            When each rating was given: numbers of one unit, or datetimes, which become
            seconds since 1970. Only models of time read them.

        Returns
        -------
        Ratings
            In the order of the rows.

        Raises
        ------
        InputError
            For columns of unequal length or none, missing ids, ratings or timestamps
            that are missing, not finite or no numbers, and repeated pairs; row and
            column are named.
        """
        labels = ("user ids", "item ids", "ratings", "timestamps")
        columns = users, items, ratings, timestamps
        return cls._from_columns(columns, labels, duplicates)

    @classmethod
    def from_dataframe(
        cls,
        df: Any,
        user: Hashable = "user",
        item: Hashable = "item",
        rating: Hashable = "rating",
        duplicates: str = "error",
        *,
        timestamp: Hashable | None = None,
    ) -> "Ratings":
        """Ratings from three or four columns of a frame, which is not changed.

        Parameters
        ----------
        df : pandas.DataFrame or polars.DataFrame
            Or another frame whose `columns` are names and whose `df[name]` is a
            column. Rows count by position; index labels play no part. Each column is
            taken for itself, so that none changes for another's sake.
        user, item, rating : column names
            Names of the three columns.
        duplicates : {"error", "last", "mean", "keep"}
            As in `from_arrays`.
        timestamp : column name, optional
            Of the column of times, numbers or datetimes, as in `from_arrays`.

        Returns
        -------
        Ratings
            In the order of the rows, with these column names.

        Raises
        ------
        InputError
            For a column that is not there or is there twice, and as `from_arrays`.
        """
        names = (user, item, rating)
        if timestamp is not None:
            names = (*names, timestamp)
        if not hasattr(df, "__len__") or not hasattr(df, "columns"):
            hint = "; call collect() first" if hasattr(df, "collect") else ""
            raise InputError(
                f"a frame of pandas or polars is needed, not {type(df).__name__}{hint}"
            )
        present = list(df.columns)
        for name in names:
            if present.count(name) != 1 or names.count(name) != 1:
                raise InputError(
                    f"the frame must have one column {name!r}, used once: its columns "
                    f"are {', '.join(map(repr, present))}"
                )
        labels = [f"column {name!r}" for name in names]
        columns = [df[name] for name in names]
        if timestamp is None:
            columns, labels = [*columns, None], [*labels, ""]
        ratings = cls._from_columns(columns, labels, duplicates)
        return replace(ratings, columns=names)

    @classmethod
    def _from_columns(cls, columns, labels, duplicates) -> "Ratings":
        users, user = IdIndex.from_values(columns[0], "user", labels[0])
        items, item = IdIndex.from_values(columns[1], "item", labels[1])
        rating = _rating_array(columns[2], labels[2])
        timestamp = columns[3]
        if timestamp is not None:
            timestamp = timestamp_array(timestamp, labels[3])
        if not len(user) == len(item) == len(rating):
            raise InputError(
                f"columns of unequal length: {len(user)} user ids, {len(item)} item "
                f"ids, {len(rating)} ratings"
            )
        if timestamp is not None and len(timestamp) != len(rating):
            raise InputError(
                f"columns of unequal length: {len(rating)} ratings, {len(timestamp)} "
                "timestamps"
            )
        if len(rating) == 0:
            raise InputError("there are no ratings")
        ratings = cls(
            user.astype(np.int32),
            item.astype(np.int32),
            rating,
            users,
            items,
            timestamp=timestamp,
        )
        return merge_duplicates(ratings, duplicates)

    @classmethod
    def from_sparse(
        cls,
        matrix: Any,
        duplicates: str = "error",
        *,
        user_ids: Iterable | None = None,
        item_ids: Iterable | None = None,
    ) -> "Ratings":
        """Ratings from a sparse matrix of scipy: users in rows, items in columns.

        Every stored entry is an observation, a stored 0 included.

        Parameters
        ----------
        matrix : scipy.sparse matrix or array, shape (num_rows, num_columns)
            In the format COO, CSR or CSC, which is read as it stands: scipy would sum
            what is stored twice at one place.
        duplicates : {"error", "last", "mean", "keep"}
            What to do about a place with several entries, as in `from_arrays`.
        user_ids : array-like, shape (num_rows,), optional
            The caller's id of each row; by default its number, from 0.
        item_ids : array-like, shape (num_columns,), optional
            The same for the columns.

        Returns
        -------
        Ratings
            In the order in which the entries are stored. A row or column without an
            entry is no user or item, as a category that no row of a frame uses.

        Raises
        ------
        InputError
            For another format, ids that do not fit the shape or repeat, and as
            `from_arrays`.
        """
        if getattr(matrix, "format", None) not in ("coo", "csr", "csc"):
            name = getattr(matrix, "format", None) or type(matrix).__name__
            raise InputError(
                f"a sparse matrix of scipy in the format COO, CSR or CSC is needed, "
                f"not {name}"
            )
        _check_shape(matrix.shape, user_ids, item_ids)
        entries = matrix.tocoo(copy=False)  # keeps what is stored twice, and zeros
        places = entries.row, entries.col
        return cls._from_places(places, entries.data, user_ids, item_ids, duplicates)

    @classmethod
    def from_dense(
        cls,
        matrix: Any,
        *,
        user_ids: Iterable | None = None,
        item_ids: Iterable | None = None,
    ) -> "Ratings":
        """Ratings from a full matrix, users in rows, in which NaN means not rated.

        A 0 is a rating.

        Parameters
        ----------
        matrix : array-like, shape (num_rows, num_columns)
            Numbers; NaN, None, NA and what is masked are missing.
        user_ids, item_ids
            As in `from_sparse`; of a frame of pandas by default its index and columns.

        Returns
        -------
        Ratings
            Row by row. A row or column in which all is missing is no user or item.

        Raises
        ------
        InputError
            For ids that do not fit the shape or repeat, and values that are no finite
            numbers; row and column are named.
        """
        if isinstance(matrix, pd.DataFrame):
            user_ids = matrix.index if user_ids is None else user_ids
            item_ids = matrix.columns if item_ids is None else item_ids
        try:
            array = np.ma.asarray(matrix)
        except ValueError as error:  # rows of unequal length
            raise InputError(f"the matrix is none ({error})") from None
        _check_shape(array.shape, user_ids, item_ids)
        values, missing = column_array(array.ravel(), "the matrix")
        array = values.reshape(array.shape)
        places = np.nonzero(~missing.reshape(array.shape))
        return cls._from_places(places, array[places], user_ids, item_ids, "error")

    @classmethod
    def _from_places(cls, places, values, user_ids, item_ids, duplicates) -> "Ratings":
        """Ratings at places (rows, columns) of a matrix, of shape (N,) each."""
        user, item = places

        def place(number: int) -> str:
            return f"row {user[number]}, column {item[number]} (from 0)"

        rating = _rating_array(values, "the matrix", place=place)
        if len(rating) == 0:
            raise InputError("there are no ratings")
        users, user_code = _ids_of_places(user, user_ids, "user")
        items, item_code = _ids_of_places(item, item_ids, "item")
        ratings = cls(user_code, item_code, rating, users, items)
        return merge_duplicates(ratings, duplicates, "entry")

    def __len__(self) -> int:
        return len(self.rating)

    def __repr__(self) -> str:
        return (
            f"Ratings({len(self)} by {self.num_users} users of {self.num_items} items)"
        )

    @property
    def num_users(self) -> int:
        """Users in the index, those without a rating in this table included."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Items in the index, those without a rating in this table included."""
        return len(self.items)

    @property
    def user_ids(self) -> np.ndarray:
        """The caller's user id of each row, shape (N,)."""
        return self.users.ids[self.user]

    @property
    def item_ids(self) -> np.ndarray:
        """The caller's item id of each row, shape (N,)."""
        return self.items.ids[self.item]

    @property
    def mean(self) -> float:
        """Mean rating; NaN where there is none."""
        return float(self.rating.mean()) if len(self) else float("nan")

    @cached_property
    def levels(self) -> np.ndarray:
        """Distinct ratings in ascending order, shape (num_levels,)."""
        return np.unique(self.rating)

    @property
    def step(self) -> float:
        """Smallest gap between distinct ratings; 0.0 where there is one or none."""
        gaps = np.diff(self.levels)
        return float(gaps.min()) if len(gaps) else 0.0

    @property
    def is_discrete(self) -> bool:
        """Whether the ratings look like levels of a scale rather than a continuum.

        At most 101 distinct values, each there twice on average, at multiples of the
        smallest gap (up to rounding, and the gap itself above rounding).
        """
        levels = self.levels
        if not len(levels) <= min(_MAX_LEVELS, len(self) / 2):
            return False
        if len(levels) < 2:
            return len(levels) == 1
        steps = (levels - levels[0]) / self.step
        return bool(steps[-1] < 1e6 and np.abs(steps - steps.round()).max() < 0.01)

    def select(self, rows: np.ndarray) -> "Ratings":
        """Rows of this table, with its index of ids.

        Parameters
        ----------
        rows : ndarray
            Positions, shape (n,), or a mask, bool, shape (N,).

        Returns
        -------
        Ratings
            In the order asked for.
        """
        timestamp = None if self.timestamp is None else self.timestamp[rows]
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            rating=self.rating[rows],
            timestamp=timestamp,
        )

    def to_dataframe(self) -> pd.DataFrame:
        """Return a frame with the caller's own ids, dtypes and column names.

        Timestamps, where there are any, make a fourth column, of numbers.

        Returns
        -------
        DataFrame
            A row a rating, in their order.
        """
        ids = self.users.column(self.user), self.items.column(self.item)
        columns = dict(zip(self.columns[:3], (*ids, self.rating), strict=True))
        if self.timestamp is not None:
            columns[(*self.columns, "timestamp")[3]] = self.timestamp
        return pd.DataFrame(columns)

    def save_npz(self, path: str | PathLike) -> None:
        """Write the ratings to a file that `load_ratings` reads back, without pickle.

        Parameters
        ----------
        path : str or path
            Of the file, .npz.

        Raises
        ------
        InputError
                Where ids are not str, int, float or bool.
        """
        arrays = {
            "format_version": _FORMAT_VERSION,
            "user": self.user,
            "item": self.item,
            "rating": self.rating,
            "user_ids": self.users.to_array(),
            "item_ids": self.items.to_array(),
            "columns": np.array(list(map(str, self.columns))),
        }
        if self.timestamp is not None:
            arrays["timestamp"] = self.timestamp
        write_whole(path, lambda file: np.savez_compressed(file, **arrays))

    @classmethod
    def from_npz_arrays(cls, arrays: dict[str, np.ndarray]) -> "Ratings":
        """Ratings from the arrays that `save_npz` wrote.

        Parameters
        ----------
        arrays : dict of ndarray
            By name, as `numpy.load` gives them.

        Returns
        -------
        Ratings
            As they were saved.

        Raises
        ------
        InputError
            For a format version that this library does not read, and arrays that do
            not make a table of ratings.
        """
        version = arrays["format_version"].tolist()
        if version != _FORMAT_VERSION:
            raise InputError(
                f"the file has format version {version}; this library reads version "
                f"{_FORMAT_VERSION}"
            )
        names = ("user", "item", "rating", "user_ids", "item_ids", "columns")
        for name in names:
            if name not in arrays:
                raise InputError(f"the file lacks the array {name!r}")
        users = IdIndex.from_array(arrays["user_ids"], "user")
        items = IdIndex.from_array(arrays["item_ids"], "item")
        columns = arrays["columns"]
        if columns.ndim != 1 or not 3 <= len(columns) <= 4 or columns.dtype.kind != "U":
            raise InputError("the array columns does not hold three or four names")
        rating = _rating_array(arrays["rating"], "the array rating")
        timestamp = arrays.get("timestamp")
        if timestamp is not None:
            timestamp = timestamp_array(timestamp, "the array timestamp")
        for name, index in (("user", users), ("item", items)):
            codes = arrays[name]
            if (
                codes.dtype != np.int32
                or codes.shape != rating.shape
                or (len(codes) and not 0 <= codes.min() <= codes.max() < len(index))
            ):
                raise InputError(f"the array {name} is no column of codes of {name}s")
        if timestamp is not None and timestamp.shape != rating.shape:
            raise InputError("the array timestamp has another length than the ratings")
        return cls(
            user=arrays["user"],
            item=arrays["item"],
            rating=rating,
            users=users,
            items=items,
            columns=tuple(columns.tolist()),
            timestamp=timestamp,
        )


def timestamp_array(values: Iterable, label: str) -> np.ndarray:
    """Give times as numbers: int64 or float64, shape (N,), every one finite.

    Datetimes become seconds since 1970 (of UTC, where they have a time zone).

    Raises
    ------
    InputError
        Where one is missing or no time; its row is named.
    """
    dtype = getattr(values, "dtype", None)
    if str(dtype).startswith("Date"):  # of polars, whose zones become UTC
        values = np.asarray(values)
    elif getattr(dtype, "kind", "") != "M" or isinstance(values, np.ma.MaskedArray):
        values, missing = column_array(values, label)
        if missing.any():
            row = np.flatnonzero(missing)[0]
            raise InputError(f"{label}: the timestamp in row {row} (from 0) is missing")
        if dtype is None:
            values = natural(values)
    dates = values.dtype.kind == "M" or (
        values.dtype == object
        and any(isinstance(x, datetime | np.datetime64) for x in values.flat)
    )
    if dates:
        try:
            times = pd.DatetimeIndex(pd.to_datetime(values, utc=True))
        except (ValueError, TypeError) as error:
            raise InputError(f"{label}: no datetimes ({error})") from None
        missing = np.flatnonzero(times.isna())
        if len(missing):
            raise InputError(f"{label}: row {missing[0]} (from 0) is missing")
        moments = times.tz_localize(None).to_numpy()
        return (moments - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    if values.ndim == 1 and values.dtype.kind in "iu" and values.dtype != np.uint64:
        return values.astype(np.int64)
    return _rating_array(values, label, "timestamp")


def _rating_array(
    values: Iterable,
    label: str,
    what: str = "rating",
    place: Callable[[int], str] = "row {} (from 0)".format,
) -> np.ndarray:
    """Return a new float64 array, shape (N,), of which every value is finite."""
    array, missing = column_array(values, label)
    if array.dtype == object:
        numeric = [isinstance(value, Real | Decimal | np.bool_) for value in array]
        bad = ~missing & ~np.array(numeric, dtype=bool)
    else:
        bad = np.full(len(array), array.dtype.kind not in "biuf") & ~missing
    if bad.any():
        row = np.flatnonzero(bad)[0]
        raise InputError(
            f"{label}: {array[row]!r} in {place(row)} is of type "
            f"{type(array[row]).__name__}, not a number"
        )
    if missing.any():
        row = np.flatnonzero(missing)[0]
        raise InputError(f"{label}: the {what} in {place(row)} is missing")
    if not len(array):  # of any dtype
        return np.empty(0)
    try:
        rating = array.astype(np.float64)
    except OverflowError:
        raise InputError(f"{label}: holds an integer too large for a float") from None
    if not np.isfinite(rating).all():
        row = np.flatnonzero(~np.isfinite(rating))[0]
        raise InputError(
            f"{label}: the {what} in {place(row)} is not finite ({array[row]})"
        )
    return rating


def _check_shape(shape: tuple, user_ids: Any, item_ids: Any) -> None:
    """Refuse ids that do not fit a matrix of users by items."""
    if len(shape) != 2:
        raise InputError(f"a matrix of users by items is needed, not of shape {shape}")
    for ids in (user_ids, item_ids):
        if ids is not None and not hasattr(ids, "__len__"):
            raise InputError(f"{type(ids).__name__} is no column of ids")
    given = [None if ids is None else len(ids) for ids in (user_ids, item_ids)]
    if all(n in (None, size) for n, size in zip(given, shape, strict=True)):
        return
    names = zip(given, ("user_ids", "item_ids"), strict=True)
    ids = " and ".join(f"{n} {name}" for n, name in names if n is not None)
    turned = all(n in (None, m) for n, m in zip(given, shape[::-1], strict=True))
    raise InputError(
        f"rows are users and columns are items: the matrix has {shape[0]} rows and "
        f"{shape[1]} columns, but there are {ids}"
        + ("; its transpose, matrix.T, would fit" if turned else "")
    )


def _ids_of_places(
    places: np.ndarray, ids: Iterable | None, what: str
) -> tuple[IdIndex, np.ndarray]:
    """Index the ids of those rows (or columns) of a matrix that hold an entry."""
    if ids is None:
        index, codes = IdIndex.from_values(places.astype(np.int64), what)
        return index, codes.astype(np.int32)
    label = f"{what}_ids"
    whole, codes = IdIndex.from_values(ids, what, label)
    if len(whole) < len(codes):
        row = int(pd.Series(codes).duplicated().argmax())
        again = whole.ids[codes[[row]]].tolist()[0]
        raise InputError(f"{label}: {again!r} is there twice, again in row {row}")
    used, code = np.unique(codes[places], return_inverse=True)
    return IdIndex(whole.ids[used], what, whole.dtype), code.astype(np.int32)


def merge_duplicates(ratings: Ratings, duplicates: str, row: str = "row") -> Ratings:
    """Do what `Ratings.from_arrays` says about repeated pairs; `row` is for messages.

    Raises
    ------
    InputError
        For a repeated pair, unless another choice was made, and for an unknown choice.
    """
    if duplicates not in ("error", "last", "mean", "keep"):
        raise InputError(
            f'duplicates must be "error", "last", "mean" or "keep", not {duplicates!r}'
        )
    if duplicates == "keep":
        return ratings
    pair = pd.Series(ratings.user * np.int64(ratings.num_items) + ratings.item)
    repeated = pair.duplicated()
    if not repeated.any():
        return ratings
    if duplicates == "last":
        return ratings.select(~pair.duplicated(keep="last").to_numpy())
    if duplicates == "mean":
        mean = pd.Series(ratings.rating).groupby(pair, sort=False).mean()
        first = ratings.select(~repeated.to_numpy())
        return replace(first, rating=mean.to_numpy())
    again = int(repeated.argmax())
    before = int((pair == pair[again]).argmax())
    user_id = ratings.user_ids[[again]].tolist()[0]
    item_id = ratings.item_ids[[again]].tolist()[0]
    raise InputError(
        f"user {user_id!r} and item {item_id!r} have a rating in {row} {before} and "
        f"another in {row} {again} (from 0); {int(repeated.sum())} in all repeat a "
        f'pair; choose duplicates="last", "mean" or "keep"'
    )
