"""Ids are keys: the caller's own values, compared exactly, type included."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from json import dumps, loads
from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.data.columns import column_array, distinct, is_pandas, natural
from im3f_jax.errors import InputError

__all__ = ["IdIndex"]

_SHOWN = 5  # ids named in a message
_COMPARED = 20_000  # texts among which one is looked for that was meant: 0.2 s
_COMPARABLE = {"i": "integer", "u": "integer", "f": "floating", "U": "string"}


@dataclass(frozen=True, eq=False, repr=False)
class IdIndex:
    """Distinct ids of one side; the code of an id is its position.

    Ids are compared exactly: 1, 1.0, True and "1" are four different ids.

    Parameters
    ----------
    ids : ndarray, shape (n,)
        Distinct ids in the caller's dtype, or an object array.
    what : str
        What an id names ("user", "item"), for messages.
    dtype : pandas or numpy dtype, optional
        The dtype of the caller's pandas column, which `column` gives back.
    """

    ids: np.ndarray
    what: str = "id"
    dtype: Any = None

    @classmethod
    def from_values(
        cls, values: Iterable, what: str = "id", label: str | None = None
    ) -> tuple["IdIndex", np.ndarray]:
        """Index the distinct ids of a column.

        Parameters
        ----------
        values : array-like, shape (N,)
            One id a row: an array, a list, or a column of a frame. Categories that
            no row uses get no place in the index.
        what : str
            What an id names, for messages.
        label : str, optional
            What messages about bad rows call the column.

        Returns
        -------
        index : IdIndex
            Sorted where the ids can be sorted, else in order of appearance.
        codes : ndarray of int64, shape (N,)
            Position in `index` of each row's id.

        Raises
        ------
        InputError
            Where an id is missing, not finite, not hashable, or a float so large
            that it no longer tells neighbouring integers apart.
        """
        array = _id_array(values, label or f"{what} ids")
        codes, _ = distinct(_keys(array)[1])
        ids = array[~pd.Series(codes).duplicated()]  # where each code comes first
        try:
            order = np.argsort(ids, kind="stable")
        except TypeError:  # ids of types that have no common order
            order = np.arange(len(ids))
        index = cls(ids[order], what, values.dtype if is_pandas(values) else None)
        return index, np.argsort(order)[codes]

    def union(
        self, other: "IdIndex", what: str
    ) -> tuple["IdIndex", np.ndarray, np.ndarray]:
        """Index the ids of both, which must be of one kind.

        Parameters
        ----------
        other : IdIndex
            Of the other side.
        what : str
            What an id of both names, for messages.

        Returns
        -------
        index : IdIndex
            Of the distinct ids.
        codes, other_codes : ndarray of int64
            Position in `index` of each id of this one, and of the other.

        Raises
        ------
        InputError
            Where the ids are of different kinds, such as integers and text.
        """
        kinds = _kind(self.ids), _kind(other.ids)
        if kinds[0] != kinds[1]:
            raise InputError(
                f"{self.what} ids are of kind {kinds[0]} and {other.what} ids of kind "
                f"{kinds[1]}, but must both be {what} ids, of one kind"
            )
        if self.ids.dtype.kind == other.ids.dtype.kind:
            ids = np.concatenate([self.ids, other.ids])
        else:  # int64 and uint64 would make floats
            parts = [x.ids.astype(object) for x in (self, other)]
            ids = natural(np.concatenate(parts))
        index, codes = IdIndex.from_values(ids, what)
        if self.dtype == other.dtype:
            index = IdIndex(index.ids, what, self.dtype)
        return index, *np.split(codes, [len(self.ids)])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"IdIndex({len(self)} {self.what} ids of dtype {self.ids.dtype})"

    def lookup(self, values: Iterable, unknown: str = "raise") -> np.ndarray:
        """Codes of ids.

        Parameters
        ----------
        values : array-like, shape (n,), or one id
            Ids to look up.
        unknown : {"raise", "mark"}
            What to do about ids that are not in the index.

        Returns
        -------
        ndarray of int64, shape (n,)
            Codes; -1 where the id is unknown and `unknown` is "mark".

        Raises
        ------
        InputError
            For an unknown id, unless marked (the message says when the same id is
            known under another type), and for ids that cannot be ids at all.
        """
        if unknown not in ("raise", "mark"):
            raise InputError(f'unknown must be "raise" or "mark", not {unknown!r}')
        array = _id_array(values, f"{self.what} ids")
        kind, keys = _keys(array)
        if kind == self._kind_and_table[0]:
            table = self._kind_and_table[1]
        else:
            table, keys = _table(_typed(self.ids)), _typed(array)
        codes = table.get_indexer(_table(keys)).astype(np.int64)
        if unknown == "raise" and (codes < 0).any():
            raise InputError(self._describe_unknown(array[codes < 0]))
        return codes

    def column(self, codes: np.ndarray) -> pd.Series:
        """Ids of codes as a pandas column of the caller's dtype, shape (n,)."""
        return pd.Series(self.ids[codes], dtype=self.dtype)

    def to_array(self) -> np.ndarray:
        """One array that `numpy.save` stores without pickle.

        Returns
        -------
        ndarray
            The ids, shape (n,); ids of dtype object as JSON text in an array of
            shape (), since JSON keeps 1, 1.0, true and "1" apart.

        Raises
        ------
        InputError
            For ids that are not str, int, float or bool.
        """
        if self.ids.dtype != object:
            return self.ids
        values = _python_values(self.ids)
        for value in values:
            if not isinstance(value, str | int | float):
                raise InputError(
                    f"{self.what} ids of type {type(value).__name__} cannot be saved: "
                    f"use str or int ids"
                )
        return np.array(dumps(values).encode())

    @classmethod
    def from_array(cls, array: np.ndarray, what: str = "id") -> "IdIndex":
        """Restore the index that `to_array` stored.

        Raises
        ------
        InputError
            For an array that holds no distinct ids.
        """
        label = f"stored {what} ids"
        if array.ndim == 0:
            try:
                values = loads(array.item())
                array = np.fromiter(values, dtype=object)
            except (TypeError, ValueError) as error:
                raise InputError(f"{label}: cannot be read ({error})") from None
        _, codes = cls.from_values(array, what, label)
        if len(np.unique(codes)) < len(codes):
            raise InputError(f"{label}: one is there twice")
        return cls(array, what)

    @cached_property
    def _kind_and_table(self) -> tuple[str, pd.Index]:
        kind, keys = _keys(self.ids)
        return kind, _table(keys)

    def _describe_unknown(self, array: np.ndarray) -> str:
        unknown = list(dict.fromkeys(_python_values(array)))
        named = ", ".join(map(repr, unknown[:_SHOWN]))
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        message = f"unknown {self.what}: {named}{more}"
        known = {_reading(value): value for value in _python_values(self.ids)}
        for value in unknown[:_SHOWN]:
            twin = known.get(_reading(value))
            if twin is not None:
                return (
                    f"{message}; {value!r} ({type(value).__name__}) is known as "
                    f"{twin!r} ({type(twin).__name__}): ids are compared exactly"
                )
        texts = [x for x in known.values() if isinstance(x, str)]
        if isinstance(unknown[0], str) and len(texts) <= _COMPARED:
            near = get_close_matches(unknown[0], texts, n=1, cutoff=0.75)
            message += f"; was {near[0]!r} meant?" if near else ""
        return message


def _id_array(values: Any, label: str) -> np.ndarray:
    """Values as a checked array of shape (n,), none of them merged or converted."""
    if pd.api.types.is_scalar(values):
        values = [values]
    array, missing = column_array(values, label)
    if missing.any():
        row = np.flatnonzero(missing)[0]
        raise InputError(f"{label}: the id in row {row} (from 0) is missing")
    if not hasattr(values, "__array__"):
        array = natural(array)
    if array.dtype.kind in "fO" and _kind(array) in ("floating", "mixed"):
        _check_floats(array, label)
        _check_hashable(array, label)
    return array


def _check_floats(array: np.ndarray, label: str) -> None:
    floats = array
    if array.dtype.kind != "f":
        is_float = [isinstance(value, float | np.floating) for value in array]
        floats = np.where(is_float, array, 0.0).astype(np.float64)
    if floats.dtype.itemsize > 8:  # ids are compared as doubles
        raise InputError(
            f"{label}: floats of more than 64 bits cannot be ids; give integers or text"
        )
    digits = np.finfo(floats.dtype).nmant + 1
    bad = ~(np.abs(floats) < 2.0**digits)  # infinite ones included
    if bad.any():
        row = np.flatnonzero(bad)[0]
        raise InputError(
            f"{label}: the id {array[row]} in row {row} (from 0) is a float of "
            f"2**{digits} or more, where neighbouring integers become the same "
            f"number; read the column as integers or as text"
        )


def _check_hashable(array: np.ndarray, label: str) -> None:
    for row, value in enumerate(array):
        try:
            hash(value)
        except TypeError:
            raise InputError(
                f"{label}: the id in row {row} (from 0), {value!r}, cannot be an id: "
                f"its type {type(value).__name__} is not hashable"
            ) from None


def _kind(array: np.ndarray) -> str:
    """Tell "integer", "floating" and "string" ids from "mixed", anything else."""
    if array.dtype == object:
        kind = pd.api.types.infer_dtype(array, skipna=False)
        return kind if kind in _COMPARABLE.values() else "mixed"
    return _COMPARABLE.get(array.dtype.kind, "mixed")


def _keys(array: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the kind of the ids and the form in which ids of one kind are compared.

    Integers of any width, floats and text compare as they are; anything else is
    paired with its type.
    """
    kind = _kind(array)
    if kind == "mixed":
        return kind, _typed(array)
    if kind == "floating":
        return kind, array.astype(np.float64)
    if array.dtype == np.uint64 and array.max(initial=0) <= np.iinfo(np.int64).max:
        return kind, array.astype(np.int64)
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return kind, array.astype(np.int64)
    return kind, natural(array.astype(object))


def _typed(array: np.ndarray) -> np.ndarray:
    """Pairs (type, value) in an object array: equal only where both are."""
    return np.fromiter(map(_typed_value, _python_values(array)), dtype=object)


def _typed_value(value: Any) -> tuple:
    if isinstance(value, tuple):
        return (tuple, *map(_typed_value, value))
    return (type(value), value)


def _table(keys: np.ndarray) -> pd.Index:
    return pd.Index(keys, dtype=keys.dtype, tupleize_cols=False)


def _python_values(array: np.ndarray) -> list:
    """List the values as Python objects, so that numpy.int64(1) and 1 are one id."""
    values = pd.Series(array, dtype=object).tolist()
    numbers_and_text = np.number | np.bool_ | np.character
    return [v.item() if isinstance(v, numbers_and_text) else v for v in values]


def _reading(value: Any) -> str:
    """Return what a person reads: "7" in 7, 7.0, "7", "007" and " 7"."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if isinstance(value, bool):
        text = str(int(value))
    text = text.strip()
    try:
        return str(int(text))
    except ValueError:
        return text.removesuffix(".0")
