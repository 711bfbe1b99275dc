"""Read ratings from the files of MovieLens and from one's own tables."""

import csv
import io
import logging
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
import pandas as pd

from im3f_jax.data.columns import PANDAS_2
from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings, merge_duplicates, timestamp_array
from im3f_jax.data.sources import (
    DAMAGED,
    DATA_SETS,
    ZIP_STARTS,
    find,
    members,
    opened,
    plain_arrays,
    refuse_zero_characters,
)
from im3f_jax.errors import InputError

__all__ = [
    "FRINGE",
    "RATING_FILES",
    "UNREADABLE",
    "given_names",
    "header_word",
    "ids_of_texts",
    "item_column",
    "load_ratings",
    "time_column",
]

_log = logging.getLogger(__name__)

RATING_FILES = ("u.data", "ratings.dat", "ratings.csv", "ratings.npz")
UNREADABLE = (InputError, pd.errors.ParserError, csv.Error, *DAMAGED)
_HEADERS = (
    {"user", "userid"},
    {"item", "itemid", "movie", "movieid"},
    {"rating"},
)
_TIME_HEADERS = ("timestamp", "time")  # the first of them that is there
_ROLES = ("user", "item", "rating", "timestamp")
FRINGE = ' "'  # about a field of a header
_Names = tuple[str | None, ...]  # what the caller calls these columns
_HEAD_BYTES = 1 << 16  # enough to hold the first line of a table
# Lines of text in memory at a time. pandas 2 takes a line of too many fields where a
# piece begins, without a word, and loses the last of them: there a table is one piece.
_CHUNK_ROWS = 1 << 62 if PANDAS_2 else 1 << 19
# Fits 64 bits. Of spaces those that `int` strips too.
_PLAIN_INTEGER = re.compile(r"\s*(0|-?[1-9][0-9]{0,17})\s*", re.ASCII)


def load_ratings(
    path: str | PathLike,
    *,
    user: str | None = None,
    item: str | None = None,
    rating: str | None = None,
    timestamp: str | None = None,
    duplicates: str = "error",
    data_dir: str | PathLike | None = None,
    download: bool = True,
    progress: bool = True,
) -> Ratings:
    """Read ratings from a file, told by its content, or from a data set, by its name.

    Parameters
    ----------
    path : str or path
        A file, plain or as .gz or .zip (which holds one file of ratings, among
        others): u.data (tab, no header), ratings.dat (``::``), ratings.csv (header, or
        none and numbers only), one's own CSV with the header user,item,rating, what
        `Ratings.save_npz` wrote, or an .npz of arrays user, item and rating. Or a
        folder with one of these files. Or the name of a file, folder or .zip in a
        folder of data sets, or of a generation of MovieLens: "ml-100k", "ml-1m",
        "ml-10m", "ml-20m", "ml-25m", "ml-32m" or "ml-latest-small" (which changes).
    user, item, rating, timestamp : str, optional
        Names of the columns, as the header spells them, or of the arrays of an .npz. By
        default the column called user or userId is that of the users; item, itemId,
        movie or movieId that of the items; rating; and timestamp, else time: in small
        letters or large (in an .npz user, item, rating and timestamp, as they stand).
        Where one is given, `Ratings.columns` has the names of all.
    duplicates : {"error", "last", "mean", "keep"}
        What to do about repeated (user, item) pairs; see `Ratings.from_arrays`.
    data_dir : str or path, optional
        A folder of data sets to look into first. Then come the path itself, the folder
        that the environment variable IM3F_DATA_DIR names, and the platform's cache
        folder (~/.cache/im3f_jax or $XDG_CACHE_HOME/im3f_jax, on macOS
        ~/Library/Caches/im3f_jax, on Windows %LOCALAPPDATA%/im3f_jax/Cache).
    download : bool
        Whether a generation of MovieLens that is in none of them is downloaded, from
        GroupLens over https, into the first: `data_dir`, else that of IM3F_DATA_DIR,
        else the cache. The archive stays packed, the README with its licence beside
        it. It is compared with the checksum that GroupLens published (that of
        ml-latest-small, which changes, with those inside); a download that broke off
        goes on at the next call.
    progress : bool
        Whether a download shows, on standard error, where the licence is, and a bar.

    Returns
    -------
    Ratings
        In the order of the file. Ids are int64 where the whole column is plain
        integers, else the text of the file as it stands ("007" is not 7). Without a
        header timestamps are the fourth column. They are numbers, or dates by ISO 8601;
        where a row has neither there are none, and the log says why. Titles and genres:
        `load_titles`.

    Raises
    ------
    InputError
        Where there is no such file and none can be downloaded, where it holds no table
        of ratings or has no column of a name that is given, and for a line that cannot
        be read: file, line (from 1) and column are named; and so is a row (from 0)
        without a time, where the column of times is named.

    Notes
    -----
    A table is read in pieces of half a million lines, so that its text is never in
    memory as a whole (with pandas 2 it is). Reading 5 million lines of ratings.csv took
    475 MiB at its peak, some 100 bytes a rating, of which 24 stay.
    """
    place = find(path, data_dir=data_dir, download=download, progress=progress)
    file_path = _file(place)
    try:
        given = given_names(user, item, rating, timestamp)
        with _table(file_path, given) as file:
            head = file.read(_HEAD_BYTES)
            file.seek(0)
            if head.startswith(ZIP_STARTS):
                ratings = _read_npz(file, given, duplicates)
            else:
                ratings = _read_table(file, _layout(head, given), duplicates)
    except UNREADABLE as error:
        raise InputError(f"{file_path}: {_told(error)}") from error
    if str(path) in DATA_SETS:
        _compare_counts(str(path), file_path, ratings)
    return ratings


def _told(error: Exception) -> str:
    """Say an error in one line, without the words of pandas' tokenizer."""
    text = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
    if isinstance(error, pd.errors.ParserError) and ", saw " in text:
        text += "; in a CSV a field that holds a comma stands in quotes"
    return text


def _file(place: Path) -> Path:
    """Return the place, or the file of ratings in it where it is a folder."""
    if place.is_file():
        return place
    files = [place / name for name in RATING_FILES if (place / name).is_file()]
    if not files:
        raise InputError(f"the folder {place} has none of {', '.join(RATING_FILES)}")
    return files[0]


def _compare_counts(name: str, path: Path, ratings: Ratings) -> None:
    """Warn where files of a known name are not what was published under it."""
    found = len(ratings), ratings.num_users, ratings.num_items
    known = DATA_SETS[name].counts
    if any(k not in (None, n) for k, n in zip(known, found, strict=True)):
        counts = ["?" if k is None else f"{k:,}" for k in known]
        _log.warning(
            "%s is not %s as published: %s ratings, %s users and %s rated items "
            "instead of %s, %s and %s",
            *(path, name, *(f"{n:,}" for n in found), *counts),
        )


@contextmanager
def _table(path: Path, given: _Names) -> Iterator[BinaryIO]:
    """Open the file, or the one file of ratings in an archive, for reading bytes."""
    with opened(path) as file:
        if isinstance(file, zipfile.ZipFile):
            with file.open(_member(file, given)) as inner:
                yield inner
        else:
            yield file


def _member(archive: zipfile.ZipFile, given: _Names) -> str:
    """Name the one file of ratings in an archive."""
    paths = members(archive)
    found = [path for path in paths if path.name in RATING_FILES]
    found = found or [path for path in paths if _is_table(archive, path, given)]
    if not found and len(paths) == 1 and any(given):
        found = paths  # whose header is then said
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        raise InputError(f"the archive must hold one file of ratings; it has {names}")
    return str(found[0])


def _is_table(archive: zipfile.ZipFile, path: PurePosixPath, given: _Names) -> bool:
    with archive.open(str(path)) as file:
        head = file.read(_HEAD_BYTES)
    try:
        return head.startswith(ZIP_STARTS) or _layout(head, given) is not None
    except InputError:
        return False


def _read_npz(file: BinaryIO, given: _Names, duplicates: str) -> Ratings:
    arrays = plain_arrays(file)
    if "format_version" in arrays:
        if any(given):
            raise InputError("holds a table of ratings, whose columns need no names")
        return Ratings.from_npz_arrays(arrays)
    names = [name or role for name, role in zip(given, _ROLES, strict=True)]
    for name, role in zip(given[:3], _ROLES, strict=False):
        if name is None and role in given:
            raise InputError(
                f"{role!r} is named as another array: say which is that of {role}s"
            )
    missing = set(names if given[3] else names[:3]) - set(arrays)
    if missing:
        raise InputError(
            f"has no array {', '.join(sorted(missing))}; its arrays are "
            f"{', '.join(arrays)}"
        )
    times = None if names[3] in names[:3] else arrays.get(names[3])
    if times is not None:
        try:
            timestamp_array(times, names[3])
        except InputError as error:
            if given[3]:
                raise
            _log.info("The timestamps are left out: %s", error)
            times = None
    ratings = Ratings.from_arrays(
        *(arrays[name] for name in names[:3]), duplicates, timestamps=times
    )
    return _named(ratings, names) if any(given) else ratings


def _named(ratings: Ratings, names: list[str]) -> Ratings:
    """Let the columns be called what the file calls them."""
    return replace(
        ratings, columns=tuple(names[: 3 if ratings.timestamp is None else 4])
    )


def given_names(*names: str | None) -> _Names:
    """Refuse what is no name, or is there twice; fields of a header are stripped so."""
    for name in names:
        if name is not None and (not isinstance(name, str) or not name.strip(FRINGE)):
            raise InputError(f"a column is named by its header, not by {name!r}")
    given = tuple(name and name.strip(FRINGE) for name in names)
    for name in filter(None, given):
        if given.count(name) > 1:
            raise InputError(f"the column {name!r} is named twice")
    return given


@dataclass(frozen=True)
class _Layout:
    """How the lines of a table are read."""

    separator: str
    num_fields: int  # of the first line
    width: int  # fields of the first two lines, whichever has more
    columns: list[int]  # positions of user, item and rating among the fields
    names: list[str]  # of these, and of the timestamps where they have one
    has_header: bool
    time: int | None  # position of the timestamps, where there may be some
    given: _Names


def _layout(head: bytes, given: _Names) -> _Layout:
    """Tell from the first line how a table is to be read."""
    lines = head.decode("utf-8-sig", errors="replace").splitlines()
    line, next_line = [*filter(str.strip, lines), "", ""][:2]
    for separator in ("\t", "::", ","):
        fields = [field.strip(FRINGE) for field in _split(line, separator)]
        if len(fields) >= 3:
            break
    else:
        raise InputError(
            f"its first line has no three fields parted by tabs, '::' or commas: "
            f"{line[:80]!r}"
        )
    for name in filter(None, given):
        if fields.count(name) != 1:
            raise InputError(
                f"its first line must name one column {name!r}; it names "
                f"{', '.join(map(repr, fields))}"
            )
    others = ["" if field in given else field for field in fields]
    words = [*map(header_word, others)]
    places = [
        [fields.index(name)] if name else [i for i, w in enumerate(words) if w in known]
        for name, known in zip(given[:3], _HEADERS, strict=True)
    ]
    if all(places) and max(map(len, places)) > 1:
        several = next(found for found in places if len(found) > 1)
        raise InputError(
            f"its first line names one column twice: "
            f"{' and '.join(repr(fields[i]) for i in several)}"
        )
    has_header = all(places)
    columns = [found[0] for found in places] if has_header else [0, 1, 2]
    if not has_header and any(given):
        missing = next(
            role for role, found in zip(_ROLES, places, strict=False) if not found
        )
        raise InputError(
            f"its first line names no column {missing}: say which it is; it names "
            f"{', '.join(map(repr, fields))}"
        )
    if not has_header and any(_number(field) is None for field in fields[:3]):
        raise InputError(
            f"its first line neither names columns user, item and rating nor "
            f"begins with three numbers (say which columns they are, where they have "
            f"other names): {line[:80]!r}"
        )
    time, names = 3 if len(fields) > 3 else None, list(_ROLES)
    if has_header:
        time = fields.index(given[3]) if given[3] else time_column(others)
        names = [fields[i] for i in (*columns, time) if i is not None]
    width = max(len(fields), len(_split(next_line, separator)))
    return _Layout(
        separator, len(fields), width, columns, names, has_header, time, given
    )


def time_column(names: Sequence) -> int | None:
    """Find the column of the timestamps among those that a header names."""
    words = [*map(header_word, names)]
    found = [words.index(word) for word in _TIME_HEADERS if word in words]
    return found[0] if found else None


def item_column(names: Sequence) -> int | None:
    """Find the column of the item ids among those that a header names."""
    words = [*map(header_word, names)]
    return next((i for i, word in enumerate(words) if word in _HEADERS[1]), None)


def header_word(name) -> str:
    """Return the letters of a name in a header: "movieId" and "Movie ID" are one."""
    return re.sub("[ _-]", "", str(name).lower())


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line])) if separator == "," else line.split(separator)


def _read_table(file: BinaryIO, layout: _Layout, duplicates: str) -> Ratings:
    """Read user, item, rating and, where there are any, timestamps of a table.

    Ids and ratings are read as text, for "007" is not 7, and each text is converted
    once. Timestamps, of which few are equal, are read as numbers.
    """
    if PANDAS_2:  # it would end a field there
        refuse_zero_characters(file)
    separator, width, columns = layout.separator, layout.width, layout.columns
    time = layout.time
    usecols, spare = columns, []  # spare columns must be empty
    if separator == "::":
        # One colon, and an empty field between any two, for pandas' fast engine.
        separator, width = ":", 2 * width - 1
        columns = [2 * column for column in columns]
        spare = [column - 1 for column in columns if column > 0]
        if time:  # before the first field there is none
            time *= 2
            spare.append(time - 1)
        usecols = columns + spare
    elif separator == ",":
        # An unquoted 3,5 is one field too many: seen only where all fields are read.
        spare = list(range(layout.num_fields, width))
        usecols = None
    if usecols is not None:
        usecols = usecols if time is None else [*usecols, time]
        width = max(usecols) + 1  # what comes after may differ from line to line
    texts = [{}, {}, {}]  # text -> code, of user, item and rating
    codes = [[np.empty(0, np.int32)] for _ in columns]
    times = _Times()
    try:
        pieces = pd.read_csv(
            file,
            sep=separator,
            header=0 if layout.has_header else None,
            names=range(width),
            usecols=usecols,
            index_col=False,
            dtype=dict.fromkeys(columns + spare, object),  # text, as it stands
            keep_default_na=False,
            na_values=[""],
            quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
            engine="c",
            low_memory=False,  # the pieces are small already
            chunksize=_CHUNK_ROWS,
        )
        num_rows = 0
        for frame in pieces:
            is_odd = frame[spare].notna().any(axis=1)
            if is_odd.any():
                row = num_rows + int(is_odd.to_numpy().argmax())
                line = _line_of_row(file, row + layout.has_header)
                raise InputError(
                    f"line {line} is not parted into fields like the first line"
                )
            for column, known, parts in zip(columns, texts, codes, strict=True):
                parts.append(_codes(frame[column], known))
            if time is not None:
                times.add(frame[time])
            num_rows += len(frame)
    except UnicodeDecodeError:
        file.seek(0)
        line = next(n for n, text in enumerate(file, 1) if not _is_utf8(text))
        raise InputError(f"line {line} is not UTF-8 text") from None
    codes = [np.concatenate(parts) for parts in codes]

    def read(field: int, convert: Callable[[list[str]], list], kind: str) -> np.ndarray:
        """Convert each text of a column once."""
        known = list(texts[field])
        values = convert(known)
        is_bad = [value is None for value in values] + [True]  # an empty one: code -1
        bad_rows = np.flatnonzero(np.array(is_bad)[codes[field]])
        if len(bad_rows):
            code = codes[field][bad_rows[0]]
            text = "an empty field" if code < 0 else repr(known[code])
            line = _line_of_row(file, bad_rows[0] + layout.has_header)
            raise InputError(
                f"line {line}, column {layout.names[field]!r}: {text} is not {kind}"
            )
        return pd.Series(values).to_numpy()

    # Text may be an id only where a header says that the column holds ids.
    convert, kind = ids_of_texts, "an id"
    if not layout.has_header:
        convert, kind = _integers, "an integer"
    ids = [read(0, convert, kind), read(1, convert, kind)]
    values = read(2, _numbers, "a number")
    if not num_rows:
        raise InputError("there are no ratings")
    users, user = IdIndex.from_values(ids[0], "user")
    items, item = IdIndex.from_values(ids[1], "item")
    timestamp = None if time is None else times.all(layout.given[3])
    ratings = Ratings(
        user=user.astype(np.int32)[codes[0]],
        item=item.astype(np.int32)[codes[1]],
        rating=values[codes[2]],
        users=users,
        items=items,
        timestamp=timestamp,
    )
    ratings = merge_duplicates(ratings, duplicates)
    return _named(ratings, layout.names) if any(layout.given) else ratings


def _codes(column: pd.Series, known: dict[str, int]) -> np.ndarray:
    """Codes of a column of texts, -1 where it is empty; new texts become known."""
    codes, texts = pd.factorize(column)
    known_codes = [known.setdefault(text, len(known)) for text in texts]
    return np.array([*known_codes, -1], np.int32)[codes]


class _Times:
    """The timestamps of a table, piece by piece.

    Numbers, or dates by ISO 8601, which become seconds since 1970 (of UTC, where they
    have a time zone); the first piece tells which. Most who load ratings need no times:
    one that is missing is no error here.
    """

    def __init__(self) -> None:
        self.parts, self.num_rows, self.num_bad, self.first_bad = [], 0, 0, ""
        self.dates = None

    def add(self, column: pd.Series) -> None:
        """Take the times of the next rows."""
        numbers = column
        if column.dtype.kind not in "iuf":  # words, or True and False
            numbers = pd.to_numeric(column.astype(str), errors="coerce")
        if self.dates is None:
            self.dates = not np.isfinite(numbers).any()
        if self.dates:
            moments = pd.to_datetime(
                column.astype(str), format="ISO8601", utc=True, errors="coerce"
            )
            numbers = (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
        numbers = numbers.to_numpy()
        bad = np.flatnonzero(~np.isfinite(numbers))
        if len(bad) and not self.num_bad:
            row = self.num_rows + bad[0]
            self.first_bad = f"{str(column.iloc[bad[0]])!r} in row {row}"
        self.num_bad += len(bad)
        self.num_rows += len(numbers)
        self.parts.append(numbers)

    def all(self, name: str | None) -> np.ndarray | None:
        """Give them as numbers, or refuse where a row has none.

        Those of a column that nobody named are left out then, which the log says.
        """
        if not self.num_bad:
            return timestamp_array(np.concatenate(self.parts), name or "timestamp")
        what = "neither numbers nor ISO dates" if self.dates else "no numbers"
        bad = f"{self.num_bad} of {self.num_rows} are {what}, first {self.first_bad}"
        if name is not None:
            raise InputError(f"column {name!r}: {bad} (from 0)")
        _log.info("The timestamps are left out: %s (from 0)", bad)
        return None


def _integers(texts: list[str]) -> list[int | None]:
    return [int(text) if _PLAIN_INTEGER.fullmatch(text) else None for text in texts]


def ids_of_texts(texts: list[str]) -> list[int] | list[str]:
    """Read texts as int where all are plain integers, else leave them as they are."""
    integers = _integers(texts)
    return texts if None in integers else integers


def _numbers(texts: list[str]) -> list[float | None]:
    return [_number(text) for text in texts]


def _number(text: str) -> float | None:
    if "_" in text:  # Python reads 1_0 as ten
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _line_of_row(file: BinaryIO, row: int) -> int:
    """Return the number, from 1, of the line of a row; empty lines are no rows."""
    file.seek(0)
    # Lines may end by a lone carriage return, for pandas as well.
    lines = io.TextIOWrapper(file, "latin-1", newline=None)
    filled = (n for n, line in enumerate(lines, 1) if line.strip(" \n"))
    number = next(islice(filled, row, None), row + 1)
    lines.detach()  # else it would close the file
    return number


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
