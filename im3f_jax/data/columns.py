"""A column of a table, whoever made it, as an array that says what is missing."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.errors import InputError

__all__ = ["PANDAS_2", "column_array", "distinct", "is_pandas", "natural"]


# What asks for it may go when the lower bound of pandas has passed 2.
PANDAS_2 = pd.__version__.startswith("2.")


def is_pandas(values: Any) -> bool:
    """Tell whether values are a column, an index or an array of pandas."""
    return isinstance(values, pd.Series | pd.Index | pd.api.extensions.ExtensionArray)


def column_array(values: Iterable, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Give a column as an array, none of its values merged or converted.

    Parameters
    ----------
    values : array-like, shape (n,)
        A column of pandas or polars, an array, masked or not, or any iterable.
    label : str
        What a message calls it.

    Returns
    -------
    array : ndarray, shape (n,)
        Of the column's own dtype where numpy has it, else of dtype object.
    missing : ndarray of bool, shape (n,)
        Where there is None, NaN, NaT or NA, or a mask.

    Raises
    ------
    InputError
        Where it is no column: not of one dimension.
    """
    masked = False
    if is_pandas(values):
        array = values.to_numpy()
        try:
            masked = np.asarray(values.isna())
        except ArithmeticError:  # of objects, which are looked at one by one below
            masked = False
    elif _is_polars(values) or not hasattr(values, "__array__"):
        # Through object: numpy would turn [1, "1"] into two equal strings.
        array = _objects(values, label)
    else:
        array = np.asarray(values)
        if isinstance(values, np.ma.MaskedArray):
            masked = np.ma.getmaskarray(values)
    if array.ndim != 1:
        raise InputError(f"{label}: must have one dimension, not shape {array.shape}")
    if array.dtype.kind == "V":
        raise InputError(f"{label}: records of dtype {array.dtype} are no column")
    return array, masked | _missing(array)


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code each value by its place among the distinct ones, as `pandas.factorize`.

    Parameters
    ----------
    values : ndarray, shape (n,)

    Returns
    -------
    codes : ndarray of int64, shape (n,)
        -1 for a missing value.
    values : ndarray
        The distinct ones, in order of appearance.
    """
    # To pandas 2 a text ends at its first zero character.
    if PANDAS_2 and any(isinstance(v, str) and "\0" in v for v in values):
        there = ~pd.isna(values)
        codes = np.full(len(values), -1)
        typed = np.fromiter(((v,) for v in values[there]), dtype=object)
        codes[there], pairs = pd.factorize(typed)
        return codes, np.fromiter((v for (v,) in pairs), dtype=object)
    return pd.factorize(values)


def natural(array: np.ndarray) -> np.ndarray:
    """Give an object array of ints, floats or bools alone their natural dtype."""
    dtypes = {"integer": np.int64, "floating": np.float64, "boolean": np.bool_}
    dtype = dtypes.get(pd.api.types.infer_dtype(array, skipna=False), object)
    try:
        return array.astype(dtype)
    except OverflowError:  # integers beyond 64 bits
        return array


def _is_polars(values: Any) -> bool:
    """Tell a column of polars that numpy would change from one that it would not.

    Missing numbers would become NaN, text would lose trailing zero characters, and
    times their zone.
    """
    if not type(values).__module__.startswith("polars.") or not hasattr(
        values, "null_count"
    ):
        return False
    plain = {f"{kind}{bits}" for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)}
    plain |= {"Float32", "Float64", "Boolean"}
    return str(values.dtype) not in plain or values.null_count() > 0


def _objects(values: Iterable, label: str) -> np.ndarray:
    try:
        return np.fromiter(values, dtype=object)
    except TypeError:
        raise InputError(
            f"{label}: {type(values).__name__} is no column of values"
        ) from None


def _missing(array: np.ndarray) -> np.ndarray:
    try:
        return pd.isna(array)
    except ArithmeticError:  # a signalling NaN of decimal does not compare
        return np.array([_is_missing(value) for value in array.flat], dtype=bool)


def _is_missing(value: Any) -> bool:
    try:
        return bool(pd.isna(value)) if np.ndim(value) == 0 else False
    except ArithmeticError:
        return True
