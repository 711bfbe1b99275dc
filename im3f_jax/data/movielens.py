"""Read ratings from the files of MovieLens and from one's own tables."""

import csv
import gzip
import logging
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from im3f_jax.data.ratings import Ratings, timestamp_array
from im3f_jax.errors import InputError

__all__ = ["load_ratings", "time_column"]

_log = logging.getLogger(__name__)

_RATING_FILES = ("u.data", "ratings.dat", "ratings.csv", "ratings.npz")
_HEADERS = (
    {"user", "userid"},
    {"item", "itemid", "movie", "movieid"},
    {"rating"},
)
_TIME_HEADERS = ("timestamp", "time")  # the first of them that is there
_HEAD_BYTES = 1 << 16  # enough to hold the first line of a table
_UNREADABLE = (
    InputError,
    pd.errors.ParserError,
    EOFError,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    zlib.error,
)
_PLAIN_INTEGER = re.compile(r"\s*(0|-?[1-9][0-9]{0,17})\s*")  # fits 64 bits


def load_ratings(path: str | PathLike, *, duplicates: str = "error") -> Ratings:
    """Read ratings from a file, told by its content rather than by its name.

    Parameters
    ----------
    path : str or path
        A file, plain or as .gz or .zip (which holds one file of ratings, among
        others): u.data (tab, no header), ratings.dat (``::``), ratings.csv (header, or
        none and numbers only), one's own CSV with the header user,item,rating, what
        `Ratings.save_npz` wrote, or an .npz of arrays user, item and rating. Or a
        folder with one of these files, or the name of such a folder ("ml-100k") inside
        the folder that the environment variable IM3F_DATA_DIR names.
    duplicates : {"error", "last", "mean", "keep"}
        What to do about repeated (user, item) pairs; see `Ratings.from_arrays`.

    Returns
    -------
    Ratings
        In the order of the file. Ids are int64 where the whole column is plain
        integers, else the text of the file as it stands ("007" is not 7). Timestamps
        are those of the column "timestamp", else "time" (without a header the fourth),
        where every row has a number there; else there are none, and the log says why.

    Raises
    ------
    InputError
        Where there is no such file, where it holds no table of ratings, and for a
        line that cannot be read: file, line (from 1) and column are named.
    """
    path = _find(Path(path).expanduser())
    try:
        with _opened(path) as file:
            head = file.read(_HEAD_BYTES)
            file.seek(0)
            if head.startswith(b"PK"):
                return _read_npz(file, duplicates)
            *columns, timestamps = _read_table(file, _layout(head))
            return Ratings.from_arrays(*columns, duplicates, timestamps=timestamps)
    except _UNREADABLE as error:
        raise InputError(f"{path}: {error}") from error


def _find(path: Path) -> Path:
    """Find the file that a path or the name of a data set stands for."""
    data_dir = os.environ.get("IM3F_DATA_DIR")
    places = [path]
    if data_dir:
        places += [Path(data_dir, path), Path(data_dir, f"{path}.zip")]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        where = f"is {data_dir}" if data_dir else "is not set"
        raise InputError(
            f"{str(path)!r} is no file or folder here, nor in the folder of data sets, "
            f"IM3F_DATA_DIR (which {where}); nothing is downloaded yet, so please get "
            f"the files and give their path"
        )
    if place.is_file():
        return place
    files = [place / name for name in _RATING_FILES if (place / name).is_file()]
    if not files:
        raise InputError(f"the folder {place} has none of {', '.join(_RATING_FILES)}")
    return files[0]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open the file, or the one file of ratings in a .gz or .zip, for reading bytes."""
    with open(path, "rb") as file:
        magic = file.read(2)
        file.seek(0)
        if magic == b"\x1f\x8b":
            with gzip.open(file) as inner:
                yield inner
        elif magic == b"PK":
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                if not all(name.endswith(".npy") for name in names):
                    with archive.open(_member(archive)) as inner:
                        yield inner
                    return
            file.seek(0)
            yield file
        else:
            yield file


def _member(archive: zipfile.ZipFile) -> str:
    """Name the one file of ratings in an archive."""
    paths = [Path(info.filename) for info in archive.infolist() if not info.is_dir()]
    paths = [path for path in paths if not path.name.startswith("._")]  # of macOS
    found = [path for path in paths if path.name in _RATING_FILES]
    found = found or [path for path in paths if _is_table(archive, path)]
    if len(found) != 1:
        names = ", ".join(path.as_posix() for path in found) or "none"
        raise InputError(f"the archive must hold one file of ratings; it has {names}")
    return found[0].as_posix()


def _is_table(archive: zipfile.ZipFile, path: Path) -> bool:
    with archive.open(path.as_posix()) as file:
        head = file.read(_HEAD_BYTES)
    try:
        return head.startswith(b"PK") or _layout(head) is not None
    except InputError:
        return False


def _read_npz(file: BinaryIO, duplicates: str) -> Ratings:
    try:
        arrays = dict(np.load(file, allow_pickle=False))
    except ValueError as error:
        raise InputError(f"not a file of plain arrays ({error})") from None
    if "format_version" in arrays:
        return Ratings.from_npz_arrays(arrays)
    missing = {"user", "item", "rating"} - set(arrays)
    if missing:
        raise InputError(
            f"has no array {', '.join(sorted(missing))}; its arrays are "
            f"{', '.join(arrays)}"
        )
    times = arrays.get("timestamp")
    if times is not None:
        try:
            timestamp_array(times, "timestamp")
        except InputError as error:
            _log.info("The timestamps are left out: %s", error)
            times = None
    return Ratings.from_arrays(
        arrays["user"], arrays["item"], arrays["rating"], duplicates, timestamps=times
    )


@dataclass(frozen=True)
class _Layout:
    """How the lines of a table are read."""

    separator: str
    num_fields: int  # of the first line
    width: int  # fields of the first two lines, whichever has more
    columns: list[int]  # positions of user, item and rating among the fields
    names: list[str]
    has_header: bool
    time: int | None  # position of the timestamps, where there may be some


def _layout(head: bytes) -> _Layout:
    """Tell from the first line how a table is to be read."""
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    line, next_line = [*filter(str.strip, lines), "", ""][:2]
    for separator in ("\t", "::", ","):
        fields = [field.strip(' "') for field in _split(line, separator)]
        if len(fields) >= 3:
            break
    else:
        raise InputError(
            f"its first line has no three fields parted by tabs, '::' or commas: "
            f"{line[:80]!r}"
        )
    words = [*map(_letters, fields)]
    columns = [
        next((i for i, word in enumerate(words) if word in names), None)
        for names in _HEADERS
    ]
    has_header = None not in columns
    if not has_header:
        columns = [0, 1, 2]
        if any(_number(field) is None for field in fields[:3]):
            raise InputError(
                f"its first line neither names columns user, item and rating nor "
                f"begins with three numbers: {line[:80]!r}"
            )
    names = [fields[i] for i in columns] if has_header else ["user", "item", "rating"]
    width = max(len(fields), len(_split(next_line, separator)))
    time = 3 if len(fields) > 3 else None
    if has_header:
        time = time_column(fields)
    return _Layout(separator, len(fields), width, columns, names, has_header, time)


def time_column(names: Sequence) -> int | None:
    """Find the column of the timestamps among those that a header names."""
    words = [*map(_letters, names)]
    found = [words.index(word) for word in _TIME_HEADERS if word in words]
    return found[0] if found else None


def _letters(name) -> str:
    return re.sub("[ _-]", "", str(name).lower())


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line])) if separator == "," else line.split(separator)


def _read_table(file: BinaryIO, layout: _Layout) -> list[np.ndarray | None]:
    """Read user, item, rating and, where there are any, timestamps of a table."""
    separator, width, columns = layout.separator, layout.width, layout.columns
    if layout.time is not None:
        columns = [*columns, layout.time]
    usecols, spare = columns, []  # spare columns must be empty
    if separator == "::":
        # One colon, and an empty field between any two, for pandas' fast engine.
        separator, width = ":", 2 * width - 1
        columns = [2 * column for column in columns]
        spare = [column - 1 for column in columns if column > 0]
        usecols = columns + spare
    elif separator == ",":
        # An unquoted 3,5 is one field too many: seen only where all fields are read.
        spare = list(range(layout.num_fields, width))
        usecols = None
    try:
        with warnings.catch_warnings():
            # of columns that we do not need
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            frame = pd.read_csv(
                file,
                sep=separator,
                header=0 if layout.has_header else None,
                names=range(width),
                usecols=usecols,
                index_col=False,
                # The text of each field as it stands: "007" is not 7.
                dtype=dict.fromkeys(columns + spare, str),
                keep_default_na=False,
                na_values=[""],
                quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
            )
    except UnicodeDecodeError:
        file.seek(0)
        line = next(n for n, text in enumerate(file, 1) if not _is_utf8(text))
        raise InputError(f"line {line} is not UTF-8 text") from None
    is_odd = frame[spare].notna().any(axis=1)
    if is_odd.any():
        line = _line_of_row(file, int(is_odd.argmax()) + layout.has_header)
        raise InputError(f"line {line} is not parted into fields like the first line")

    def read(field: int, convert: Callable[[list[str]], list], kind: str) -> np.ndarray:
        codes, texts = pd.factorize(frame[columns[field]])  # convert each text once
        values = convert(list(texts))
        is_bad = [value is None for value in values] + [True]  # an empty one: code -1
        bad_rows = np.flatnonzero(np.array(is_bad)[codes])
        if len(bad_rows):
            code = codes[bad_rows[0]]
            text = "an empty field" if code < 0 else repr(texts[code])
            line = _line_of_row(file, bad_rows[0] + layout.has_header)
            raise InputError(
                f"line {line}, column {layout.names[field]!r}: {text} is not {kind}"
            )
        return pd.Series(values).to_numpy()[codes]

    # Text may be an id only where a header says that the column holds ids.
    convert, kind = (_ids, "an id") if layout.has_header else (_integers, "an integer")
    return [
        read(0, convert, kind),
        read(1, convert, kind),
        read(2, _numbers, "a number"),
        None if layout.time is None else _times(frame[columns[3]]),
    ]


def _times(column: pd.Series) -> np.ndarray | None:
    """Timestamps of all rows as numbers; None, said in the log, where a row has none.

    Most who load ratings need no times: one that is missing is no error here.
    """
    times = pd.to_numeric(column, errors="coerce").to_numpy()
    bad = np.flatnonzero(~np.isfinite(times))
    if not len(bad):
        return times
    _log.info(
        "The timestamps are left out: %d of %d are no numbers, first %r in row %d "
        "(from 0)",
        *(len(bad), len(times), str(column.iloc[bad[0]]), bad[0]),
    )
    return None


def _integers(texts: list[str]) -> list[int | None]:
    return [int(text) if _PLAIN_INTEGER.fullmatch(text) else None for text in texts]


def _ids(texts: list[str]) -> list[int] | list[str]:
    integers = _integers(texts)
    return texts if None in integers else integers


def _numbers(texts: list[str]) -> list[float | None]:
    return [_number(text) for text in texts]


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _line_of_row(file: BinaryIO, row: int) -> int:
    """Return the number, from 1, of the line of a row; empty lines are no rows."""
    file.seek(0)
    filled = (n for n, line in enumerate(file, 1) if line.strip(b" \r\n"))
    return next(islice(filled, row, None))


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
