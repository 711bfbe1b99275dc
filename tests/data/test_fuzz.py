"""Any input whatever: read right, or refused by an error of ours, and left as it was.

Inputs are drawn by hypothesis, the same ones at every run (see tests/conftest.py): few
in quick runs, many with the slow tests. A property says what must hold of all of them.
"""

import csv
import gzip
import io
import zipfile
from collections import Counter
from datetime import date
from decimal import Decimal
from itertools import combinations
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from im3f_jax.data.dblp import load_dblp
from im3f_jax.data.ids import IdIndex
from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.titles import load_titles
from im3f_jax.errors import InputError

# --- what is drawn ----------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**53), 2**53)
NAMES = st.text(max_size=6)  # of any letters, zero characters and halves of pairs too
WORDS = st.text(
    # What a file of text can hold: no half of a pair, no end of a line, no BOM.
    st.characters(codec="utf-8", exclude_characters="\r\n\ufeff\0"),
    min_size=1,
    max_size=6,
)
PIECES = st.sampled_from(
    [b"", b"\0", b'"', b",", b"::", b":", b"\t", b"|", b"\n", b"\r", b"\r\n", b" "]
    + [b"\xff", b"\xef\xbb\xbf", b"0", b"-1", b"1e999", b"nan", b"9" * 30, b"3,5"]
    + [b"user,item,rating\n", b"<", b">", b"&amp;", b"&x;", b"<!--", b"PK", b"</"]
)


@st.composite
def damaged(draw, content):
    """Content of which some pieces are lost, doubled, or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(start + 20, len(content))))
        new = draw(PIECES | st.binary(max_size=4) | st.just(content[start:end] * 2))
        content = content[:start] + new + content[end:]
    return content


@st.composite
def tables(draw, ids=NAMES | INTEGERS, max_rows=8):
    """Rows (user, item, rating) of which no two are of one pair."""
    pairs = st.tuples(draw(st.just(ids)), ids)
    rows = st.lists(pairs, min_size=1, max_size=max_rows, unique_by=repr)
    return [(*pair, draw(NUMBERS)) for pair in draw(rows)]


@st.composite
def files(draw):
    """A table, and how it is written: (rows, bytes, name of the form)."""
    form = draw(st.sampled_from(["csv", "bare csv", "u.data", "ratings.dat"]))
    whole = st.integers(-(10**18) + 1, 10**18 - 1)
    kinds = [whole, WORDS.filter(lambda text: text.strip())]
    ids = draw(st.sampled_from(kinds)) if form == "csv" else whole
    rows = draw(tables(ids))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = io.StringIO()
    if form in ("csv", "bare csv"):
        quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        writer = csv.writer(text, lineterminator=end, quoting=quoting)
        if form == "csv":
            writer.writerow(["userId", "movieId", "rating"])
        writer.writerows(rows)
    else:
        separator = "\t" if form == "u.data" else "::"
        for row in rows:
            text.write(separator.join(map(repr, row)) + end)
    content = text.getvalue()
    if draw(st.booleans()):
        content = content.removesuffix(end)
    elif draw(st.booleans()):
        content += end
    return rows, content.encode(), form


def packed(content, how):
    """Put bytes into an archive, or leave them as they are."""
    if how == "gz":
        return gzip.compress(content, mtime=0)
    if how == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo("README"), "hello")
            archive.writestr(zipfile.ZipInfo("any/ratings.csv"), content)
        return buffer.getvalue()
    return content


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Name a file that every example writes anew."""
    return tmp_path_factory.mktemp("fuzz") / "some file"


def read(path, content, reader=load_ratings, **kwargs):
    """Read bytes; None where they are refused by an error of ours."""
    path.write_bytes(content)
    try:
        return reader(path, **kwargs)
    except InputError as error:
        assert str(error)
        return None
    finally:
        assert path.read_bytes() == content


def rows_of(ratings):
    columns = ratings.user_ids, ratings.item_ids, ratings.rating
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check_whole(ratings):
    """A table that fits together."""
    for codes, index in ((ratings.user, ratings.users), (ratings.item, ratings.items)):
        assert codes.dtype == np.int32 and codes.shape == ratings.rating.shape
        assert set(codes.tolist()) <= set(range(len(index)))
        assert index.lookup(index.ids).tolist() == list(range(len(index)))
    assert ratings.rating.dtype == np.float64
    assert np.isfinite(ratings.rating).all()
    if ratings.timestamp is not None:
        assert ratings.timestamp.shape == ratings.rating.shape
        assert np.isfinite(ratings.timestamp).all()
    assert len(ratings.to_dataframe()) == len(ratings)


# --- files ------------------------------------------------------------------------


@given(files(), st.sampled_from(["", "gz", "zip"]))
def test_a_file_of_ratings_is_read_to_the_last_digit(path, file, how):
    rows, content, form = file
    # Ids are integers only where the whole column is.
    expected = [
        (*(_as_read([row[side] for row in rows])[n] for side in (0, 1)), row[2])
        for n, row in enumerate(rows)
    ]
    ratings = read(path, packed(content, how), duplicates="keep")
    assert ratings is not None, (form, content)
    assert rows_of(ratings) == expected
    check_whole(ratings)


def _as_read(column):
    texts = [str(value) for value in column]
    if all(_is_plain(text) for text in texts):
        return [int(text) for text in texts]
    return texts


def _is_plain(text):
    """Whether a text is how an integer of up to 18 digits is written."""
    text = text.strip(" \t\n\r\f\v")
    digits = text.removeprefix("-")
    ascii_digits = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return ascii_digits and str(int(text)) == text


@given(st.data(), files())
def test_a_damaged_file_is_refused_or_read_line_by_line(path, data, file):
    content = data.draw(damaged(file[1]))
    ratings = read(path, content, duplicates="keep")
    if ratings is None:
        return
    check_whole(ratings)
    if b'"' in content or b"\0" in content:  # rows are no lines, or end within
        return
    # A reader of one line at a time, with nothing clever in it.
    # Bytes that are no text may stand in columns that are not read, and only there.
    text = content.decode("utf-8-sig", "surrogateescape")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [line for line in text.split("\n") if line.strip()]
    separator = next(s for s in ("\t", "::", ",") if len(lines[0].split(s)) >= 3)
    if separator == "\t":  # of which a line of nothing else is a row, an empty one
        lines = [line for line in text.split("\n") if line.strip(" ")]
    parts = [line.split(separator) for line in lines]
    # Names of columns are what is left without spaces, _ and -.
    columns = [0, 1, 2]
    words = [
        part.strip('"').lower().translate(dict.fromkeys(b" _-")) for part in parts[0]
    ]
    if "rating" in words:
        names = ("userid", "user"), ("movieid", "item"), ("rating",)
        columns = [next(words.index(n) for n in some if n in words) for some in names]
        del parts[0]
    assert len(ratings) == len(parts)
    for row, part in zip(rows_of(ratings), parts, strict=True):
        user, item, rating = (part[column] for column in columns)
        assert str(row[0]) in (user, user.strip())
        assert str(row[1]) in (item, item.strip())
        assert row[2] == float(rating)


@given(st.data(), files(), st.sampled_from(["gz", "zip"]))
def test_a_damaged_archive_is_refused_or_read(path, data, file, how):
    ratings = read(path, data.draw(damaged(packed(file[1], how))), duplicates="keep")
    if ratings is not None:
        check_whole(ratings)


@given(tables(NAMES) | tables(INTEGERS), st.data())
def test_a_damaged_npz_is_refused_or_read(path, rows, data):
    ratings = Ratings.from_arrays(*zip(*rows, strict=True), duplicates="keep")
    ratings.save_npz(path)
    content = path.read_bytes()
    assert rows_of(read(path, content)) == rows
    ratings = read(path, data.draw(damaged(content)))
    if ratings is not None:
        check_whole(ratings)


ANY_ARRAY = st_numpy.arrays(
    st_numpy.scalar_dtypes() | st.just(np.dtype([("a", "u1"), ("b", "f4")])),
    st_numpy.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
)
ARRAYS = ["format_version", "user", "item", "rating", "user_ids", "item_ids"]
ARRAYS += ["columns", "timestamp"]


@given(st.dictionaries(st.sampled_from(ARRAYS), ANY_ARRAY), st.booleans())
def test_any_arrays_are_refused_or_read(path, arrays, is_stored_table):
    if is_stored_table:
        Ratings.from_arrays([1, 2], [3, 4], [5, 6], timestamps=[7, 8]).save_npz(path)
        with np.load(path, allow_pickle=False) as stored:
            arrays = {**stored, **dict(list(arrays.items())[:1])}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    ratings = read(path, buffer.getvalue(), duplicates="keep")
    if ratings is not None:
        check_whole(ratings)
        assert len(ratings) == len(arrays["rating"])


TITLES = {
    "u.item": b"1|Toy Story (1995)|01-Jan-1995||http://a|0|0|1\n"
    b"7|unknown||||1|0|0\n30|Mis\xe9rables, Les (1995)|01||http://b|0|1|1\n",
    "movies.dat": b"1::Toy Story (1995)::Children's\n7::a::b::c\n",
    "movies.csv": b'movieId,title,genres\n1,Toy Story (1995),A|B\n30,"B, (1999-)",\n',
}


@given(st.data(), st.sampled_from(sorted(TITLES)))
def test_damaged_titles_are_refused_or_read(path, data, name):
    content = data.draw(damaged(TITLES[name]))
    titles = read(path, content, load_titles)
    if titles is not None:
        assert titles.index.is_unique and titles["title"].notna().all()
        assert list(titles) == ["title", "year", "genres"]
        if b'"' not in content:
            assert len(titles) <= content.count(b"\n") + content.count(b"\r") + 1


AUTHORS = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1
)


@given(st.lists(st.lists(AUTHORS, max_size=4), max_size=5), st.data())
def test_any_bibliography_is_counted_or_refused(path, papers, data):
    records = "".join(
        '<article key="a/b/c">'
        + "".join(f"<author>{escape(name)}</author>" for name in names)
        + "<title>T &amp; <i>T</i></title><year>2001</year></article>\n"
        for names in papers
    )
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE dblp SYSTEM "dblp.dtd">\n'
    content = f"{head}<dblp>\n{records}</dblp>\n".encode()
    expected = Counter()
    for names in papers:
        expected.update(combinations(sorted(set(names)), 2))
    ratings = read(path, content, load_dblp, progress=False)
    if expected:
        counted = {(user, item): count for user, item, count in rows_of(ratings)}
        assert counted == expected
    else:
        assert ratings is None
    ratings = read(path, data.draw(damaged(content)), load_dblp, progress=False)
    if ratings is not None:
        check_whole(ratings)
        assert ratings.rating.sum() <= sum(expected.values()) + len(papers)


# --- columns and frames -----------------------------------------------------------

# Values of one kind, and the dtypes of pandas and numpy that can hold them.
KINDS = {
    "small": (st.integers(-100, 100), ["int8", "int64", "float32", "Int16", "object"]),
    "natural": (st.integers(0, 200), ["uint8", "uint64", "UInt32", "Float64"]),
    "large": (st.integers(-(2**63), 2**63 - 1), ["int64", "Int64", "category"]),
    "float": (st.floats(-1e15, 1e15), ["float64", "Float64", "object"]),
    "bool": (st.booleans(), ["bool", "boolean", "object", "category"]),
    "text": (NAMES, ["object", "category"]),
    "word": (WORDS, ["str", "string", "object", "category"]),
    "bytes": (st.binary(max_size=4), ["object", "category"]),
    "day": (st.dates(date(1700, 1, 1), date(2200, 1, 1)), ["object"]),
    "time": (
        st.datetimes(pd.Timestamp(1700, 1, 1), pd.Timestamp(2200, 1, 1)),
        ["datetime64[us]", "datetime64[ns]", "category"],
    ),
    "decimal": (st.decimals(allow_nan=False, allow_infinity=False), ["object"]),
    "tuple": (st.tuples(st.booleans() | st.integers(0, 1), NAMES), ["object"]),
    "mixed": (
        st.booleans() | st.integers(0, 2) | st.sampled_from(["0", "1", 0.0, 1.0, b"1"]),
        ["object"],
    ),
}
MISSING = st.sampled_from([None, np.nan, pd.NA, pd.NaT, Decimal("NaN"), float("nan")])


@st.composite
def columns(draw, num_rows, kinds=tuple(KINDS)):
    """One column of a frame: a Series with an index of its own."""
    values, dtypes = KINDS[draw(st.sampled_from(kinds))]
    rows = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
    column = pd.Series(np.fromiter(rows, object, len(rows)), dtype=object)
    dtype = draw(st.sampled_from(dtypes))
    if dtype == "category":
        # Categories in an order of their own.
        spare = pd.Index(column.drop_duplicates()[::-1].to_numpy(), dtype=object)
        return pd.Series(pd.Categorical(column, spare.infer_objects()))
    return column.astype(dtype)


def exact(values):
    """What tells values apart: their types as well."""
    return [
        (type(v).__name__, *exact(v)) if isinstance(v, tuple) else (type(v), repr(v))
        for v in values
    ]


def plain(column):
    """Python values of a column."""
    values = column.astype(object).tolist()
    return [v.item() if isinstance(v, np.generic) else v for v in values]


@given(st.data(), st.integers(1, 8))
def test_any_frame_comes_back_as_it_was(data, num_rows):
    rating = columns(num_rows, ["small", "natural", "float", "bool"])
    frame = pd.DataFrame({"when": range(num_rows)})
    for name, column in (
        ("who", columns(num_rows)),
        ("what", columns(num_rows)),
        ("stars", rating),
    ):
        frame[name] = data.draw(column)
    frame.index = data.draw(st.permutations(range(num_rows)))
    before = frame.copy(deep=True)
    ratings = Ratings.from_dataframe(frame, "who", "what", "stars", "keep")
    again = ratings.to_dataframe()
    pd.testing.assert_frame_equal(frame, before)
    check_whole(ratings)
    for name in ("who", "what"):
        given_column = frame[name].reset_index(drop=True)
        assert exact(plain(again[name])) == exact(plain(given_column))
        if given_column.dtype == object:
            continue
        assert again[name].dtype == given_column.dtype
        pd.testing.assert_series_equal(again[name], given_column)
    assert again["stars"].tolist() == [float(x) for x in frame["stars"]]
    assert ratings.num_users == len(set(exact(plain(frame["who"]))))


@given(st.data(), st.integers(1, 6), st.sampled_from(["who", "what", "stars"]))
def test_a_hole_in_any_column_is_refused_with_its_row(data, num_rows, name):
    kinds = ["small", "float", "bool"] if name == "stars" else tuple(KINDS)
    frame = pd.DataFrame({n: range(num_rows) for n in ("who", "what", "stars")})
    column = data.draw(columns(num_rows, kinds))
    row = data.draw(st.integers(0, num_rows - 1))
    if column.dtype == "category" or column.dtype.kind == "M":
        column[row] = None
    else:
        column = column.astype(object)
        column[row] = data.draw(MISSING)
    frame[name] = column
    with pytest.raises(InputError, match=f"'{name}'.* row {row} .*missing"):
        Ratings.from_dataframe(frame, "who", "what", "stars")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    # decimals of any kind, signalling NaN among them
    | st.decimals() | st.fractions() | st.complex_numbers() | st.dates()
    | st.datetimes(timezones=st.none() | st.timezones()) | st.timedeltas()
    | st.sampled_from([pd.NA, pd.NaT, np.float32(1), np.int8(2), np.str_("a"), object]),
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner) | st.sets(st.text()),
    max_leaves=4,
)  # fmt: skip


@given(
    st.lists(ANYTHING, min_size=1, max_size=5),
    st.sampled_from(["ids", "ratings", "timestamps"]),
    st.sampled_from([list, "object", pd.Series]),
)
def test_any_values_are_taken_as_they_are_or_refused(values, where, make):
    column = make(values) if callable(make) else np.fromiter(values, object)
    before = exact(values)
    numbers = list(range(len(values)))
    given_columns = {"ids": numbers, "ratings": numbers, "timestamps": numbers}
    given_columns[where] = column
    try:
        ratings = Ratings.from_arrays(
            given_columns["ids"],
            numbers,
            given_columns["ratings"],
            timestamps=given_columns["timestamps"],
        )
    except InputError as error:
        assert str(error)
        return
    finally:
        assert exact(values) == before
    check_whole(ratings)
    assert len(ratings) == len(values)
    if where == "ratings":
        assert ratings.rating.tolist() == [float(value) for value in values]
    if where == "ids" and make is not pd.Series:
        found = [v.item() if isinstance(v, np.generic) else v for v in values]
        assert exact(plain(pd.Series(ratings.user_ids, dtype=object))) == exact(found)


@given(ANY_ARRAY, ANY_ARRAY)
def test_any_arrays_of_numpy_are_taken_as_they_are_or_refused(ids, ratings):
    before = ids.copy(), ratings.copy()
    try:
        table = Ratings.from_arrays(ids, ids, ratings, "keep")
    except InputError:
        return
    finally:
        assert ids.tobytes() == before[0].tobytes()
        assert ratings.tobytes() == before[1].tobytes()
    check_whole(table)
    assert table.user_ids.dtype == ids.dtype
    assert (table.user_ids == ids).all()
    assert (table.rating == ratings.astype(np.float64)).all()


@given(st.lists(ANYTHING, max_size=4), st.lists(ANYTHING, min_size=1, max_size=4))
def test_a_look_up_finds_what_is_the_same_and_nothing_else(known, asked):
    try:
        index, _ = IdIndex.from_values(known)
        codes = index.lookup(asked, unknown="mark")
    except InputError:
        return
    names = exact(plain(pd.Series(index.ids, dtype=object)))
    asked = [v.item() if isinstance(v, np.generic) else v for v in asked]
    for name, code in zip(exact(asked), codes, strict=True):
        assert code == (names.index(name) if name in names else -1)
    assume(-1 in codes)
    with pytest.raises(InputError, match="unknown id"):
        index.lookup(asked)
