"""Read titles, years and genres of films from the files of MovieLens."""

import csv
import io
import logging
import re
import zipfile
from collections.abc import Iterator
from itertools import compress
from os import PathLike
from pathlib import Path

import pandas as pd

from im3f_jax.data.columns import PANDAS_2
from im3f_jax.data.movielens import (
    RATING_FILES,
    UNREADABLE,
    header_word,
    ids_of_texts,
    item_column,
)
from im3f_jax.data.sources import find, members, opened, refuse_zero_characters
from im3f_jax.errors import InputError

__all__ = ["load_titles"]

_log = logging.getLogger(__name__)

_TITLE_FILES = ("u.item", "movies.dat", "movies.csv")
_GENRE_FILE = "u.genre"
_YEAR = re.compile(r"\((\d{4})(?:[-\u2013]\d{0,4})?\)")  # of a series the first
_NO_GENRES = "(no genres listed)"
_FIRST_FLAG = 5  # fields of u.item before those of the genres


def load_titles(
    path: str | PathLike,
    *,
    data_dir: str | PathLike | None = None,
    download: bool = True,
    progress: bool = True,
) -> pd.DataFrame:
    """Read the titles that belong to a data set of ratings.

    Parameters
    ----------
    path : str or path
        What was given to `load_ratings`: the name of a data set, a folder, an archive,
        or a file of ratings, beside which the titles are looked for. They are u.item
        (with u.genre), movies.dat or movies.csv. Or a file of titles itself: one of
        those, or one's own CSV whose header names a column of items (as for ratings),
        ``title`` and perhaps ``genres``.
    data_dir, download, progress
        As in `load_ratings`.

    Returns
    -------
    pandas.DataFrame, shape (num_titles, 3)
        In the order of the file. The index, named "item", holds the item ids: int64
        where all are plain integers, else text, as `load_ratings` reads them. Columns:
        ``title``, as it stands in the file, the year included; two films may have one
        title, so ids are the keys. ``year``, Int64: the last four digits in
        parentheses (of a span the first), missing where the title has none.
        ``genres``, joined by ``|``: "" where the file says that there are none,
        missing where it does not tell.

    Raises
    ------
    InputError
        Where there are no titles, for a line that cannot be read, and for an item that
        is there twice.

    Notes
    -----
    Films without a rating have a title too, and the other way round an item may have
    none: ``titles.reindex(ratings.items.ids)`` gives one row an item, in the order of
    the codes. Text is UTF-8 (movies.csv, and movies.dat of ml-10m) or, where it cannot
    be that, latin-1 (u.item, and movies.dat of ml-1m).
    """
    place = find(path, data_dir=data_dir, download=download, progress=progress)
    try:
        files = _contents(place)
        name = next((name for name in _TITLE_FILES if name in files), None)
        if name is None:
            raise InputError(f"there is none of {', '.join(_TITLE_FILES)}")
        genres = files.get(_GENRE_FILE)
        rows = _read(_text(files[name]), None if genres is None else _text(genres))
        return _frame(*rows)
    except UNREADABLE as error:
        raise InputError(f"{place}: {error}") from error


def _contents(place: Path) -> dict[str, bytes]:
    """Read the files of titles and genres that belong to a place, by name."""
    names = {*_TITLE_FILES, _GENRE_FILE}
    if place.name in RATING_FILES:
        place = place.parent
    if place.is_dir():
        paths = [place / name for name in names]
        return {path.name: path.read_bytes() for path in paths if path.is_file()}
    with opened(place) as file:
        if not isinstance(file, zipfile.ZipFile):
            beside = place.with_name(_GENRE_FILE)
            genres = {_GENRE_FILE: beside.read_bytes()} if beside.is_file() else {}
            return {_TITLE_FILES[0]: file.read(), **genres}  # told by its content
        paths = [path for path in members(file) if path.name in names]
        if len({path.name for path in paths}) < len(paths):
            raise InputError(
                f"the archive has a file of titles twice: {', '.join(map(str, paths))}"
            )
        return {path.name: file.read(str(path)) for path in paths}


def _text(content: bytes) -> str:
    """Decode as UTF-8, which latin-1 text with an accent hardly ever is."""
    if PANDAS_2:  # it would end a field there
        refuse_zero_characters(io.BytesIO(content))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


_Rows = tuple[list, list[str], list[str | None]]  # ids, titles, genres


def _read(text: str, genres: str | None) -> _Rows:
    """Tell by its first line which kind of file it is, and read it."""
    # Not str.splitlines, for which some letters of a title end a line.
    lines = text.replace("\r\n", "\n").split("\n")
    first = next(filter(str.strip, lines), "")
    if len(first.split("|")) > _FIRST_FLAG:
        return _read_items(lines, genres)
    if len(first.split("::")) >= 3:
        return _read_movies(lines)
    return _read_csv(text, first)


def _read_items(lines: list[str], genres: str | None) -> _Rows:
    """Read u.item: id|title|released|on video|address|flag of each genre."""
    names = None
    if genres is None:
        _log.info("The genres are left out: there is no %s", _GENRE_FILE)
    else:
        names = [line.split("|")[0] for line in genres.split("\n") if line.strip()]
    ids, titles, joined = [], [], []
    for number, line in _filled(lines):
        fields = line.split("|")
        flags = [flag.strip() for flag in fields[_FIRST_FLAG:]]
        if names is not None and len(flags) != len(names):
            raise InputError(
                f"line {number} has {len(flags)} genres; {_GENRE_FILE} has {len(names)}"
            )
        if not set(flags) <= {"0", "1"}:
            raise InputError(f"line {number} has a genre that is neither 0 nor 1")
        ids.append(_integer(fields[0], number))
        titles.append(fields[1])
        joined.append(names and "|".join(compress(names, map(int, flags))))
    return ids, titles, joined


def _read_movies(lines: list[str]) -> _Rows:
    """Read movies.dat: id::title::genres."""
    ids, titles, genres = [], [], []
    for number, line in _filled(lines):
        item, _, rest = line.partition("::")
        title, parting, listed = rest.rpartition("::")
        if not parting:
            raise InputError(
                f"line {number} has no three fields parted by '::': {line[:80]!r}"
            )
        ids.append(_integer(item, number))
        titles.append(title)
        genres.append(listed)
    return ids, titles, genres


def _read_csv(text: str, first: str) -> _Rows:
    """Read movies.csv, or a table whose header names items and titles."""
    header = next(csv.reader([first]), [])
    words = [*map(header_word, header)]
    item, title = item_column(header), _column(words, "title")
    genres = _column(words, "genres")
    has_header = item is not None and title is not None
    if not has_header:  # movies.csv without its first line
        item, title, genres = 0, 1, 2
        if len(header) != 3 or isinstance(ids_of_texts(header[:1])[0], str):
            raise InputError(
                f"its first line neither names columns item and title nor is that of "
                f"u.item, movies.dat or movies.csv: {first[:80]!r}"
            )
    # The header is read as a row: a line longer than it is then an error.
    frame = pd.read_csv(
        io.StringIO(text),
        header=None,
        dtype=str,
        keep_default_na=False,
        na_values=[],
        engine="c",
    ).iloc[int(has_header) :]
    columns = [frame.iloc[:, place].tolist() for place in (item, title)]
    ids = ids_of_texts(columns[0])
    if "" in ids or not all(isinstance(text, str) for text in columns[0]):
        raise InputError("a row has no item id")
    listed = [None] * len(ids) if genres is None else frame.iloc[:, genres].tolist()
    return ids, columns[1], listed


def _column(words: list[str], name: str) -> int | None:
    return words.index(name) if name in words else None


def _filled(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty with their numbers, from 1."""
    return ((n, line) for n, line in enumerate(lines, 1) if line.strip())


def _integer(text: str, line: int) -> int:
    item = ids_of_texts([text])[0]
    if isinstance(item, str):
        raise InputError(f"line {line}: {text[:80]!r} is not an integer")
    return item


def _frame(ids: list, titles: list[str], genres: list[str | None]) -> pd.DataFrame:
    index = pd.Index(ids, name="item")
    if not index.is_unique:
        item = index[index.duplicated()].tolist()[0]
        raise InputError(f"the item {item!r} has two titles")
    years = [_YEAR.findall(title)[-1:] for title in titles]
    genres = ["" if text == _NO_GENRES else text for text in genres]
    return pd.DataFrame(
        {
            "title": pd.Series(titles, index, dtype="str"),
            "year": pd.Series(
                [int(year[0]) if year else None for year in years], index, "Int64"
            ),
            "genres": pd.Series(genres, index, dtype="str"),
        }
    )
