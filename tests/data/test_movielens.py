"""Files of ratings: exact row counts and ids, or the line that cannot be read."""

import gzip
import hashlib
import io
import time
import zipfile

import numpy as np
import pytest

from im3f_jax.data import movielens
from im3f_jax.data.columns import PANDAS_2
from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError


def rows_of(ratings, columns=("user", "item", "rating")):
    return list(
        ratings.to_dataframe()[list(columns)].itertuples(index=False, name=None)
    )


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            # Without the time of day, which would enter the names of tests.
            if "/" not in name:
                name = name.replace("__", "/").replace("_", ".")
            entry = zipfile.ZipInfo(name)
            archive.writestr(entry, content)
    return buffer.getvalue()


# With pandas 2 a table is read as a whole only.
PIECES = {"whole": None, "line by line": 1}
if PANDAS_2:
    del PIECES["line by line"]


@pytest.fixture(params=PIECES.values(), ids=PIECES)
def load(tmp_path, request, monkeypatch):
    """Load bytes from a file whose name says nothing, as one piece or as many."""
    if request.param:
        monkeypatch.setattr(movielens, "_CHUNK_ROWS", request.param)

    def load_bytes(content, **kwargs):
        path = tmp_path / "some file"
        path.write_bytes(content)
        return load_ratings(path, **kwargs)

    return load_bytes


TABLES = {
    "u.data": b"5\t7\t3\t881250949\n1\t3952\t4\t891717742\n",
    "u.data, CRLF, empty lines": b"5\t7\t3\t0\r\n\r\n1\t3952\t4\t0\r\n\r\n",
    "u.data, more columns": b"5\t7\t3\t0\ta\n1\t3952\t4\t0\tb\tc\td\n",
    "u.data, quotes": b'5\t7\t3\t"a\n1\t3952\t4\tb\n',
    "u.data with a header": b"user id\titem id\trating\tts\n5\t7\t3\t0\n1\t3952\t4\t0",
    "no end of line": b"5\t7\t3\n1\t3952\t4",
    "ratings.dat": b"5::7::3::0\n1::3952::4::0\n",
    "ratings.dat, CRLF": b"\r\n5::7::3::0\r\n1::3952::4::0\r\n",
    "ratings.dat with a header": b"UserID::MovieID::Rating\n5::7::3\n1::3952::4\n",
    "ratings.csv": b"userId,movieId,rating,timestamp\r\n5,7,3.0,0\r\n1,3952,4.0,0\r\n",
    "ratings.csv without header": b"5,7,3.0,0\n1,3952,4.0,0\n",
    "byte order mark": b"\xef\xbb\xbfuser,item,rating\n5,7,3\n1,3952,4\n",
    "byte order mark, no header": b"\xef\xbb\xbf5,7,3\n1,3952,4\n",
    "quotes": b'"user_id","movie id","Rating"\n"5","7","3"\n"1","3952","4"\n',
    "titles": b'user,item,rating,title\n5,7,3,"a,b"\n1,3952,4,"c,""d"" \xc3\xa9"\n',
    "a comma at the end": b"user,item,rating\n5,7,3,\n1,3952,4,\n",
    "columns in another order": b",rating,item,user\n0,3,7,5\n1,4,3952,1\n",
}


@pytest.mark.parametrize("content", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        lambda table: zipped(ratings_dat=table),
        lambda table: zipped(
            ml__movies_dat=b"1::Toy Story (1995)::Comedy\n",
            ml__ratings_csv=table,
            ml__README=b"1\t2\t3\n",
            ml__u1_base=b"1\t2\t3\n",
            **{"__MACOSX/ml/._ratings.csv": b"\0"},
        ),
        lambda table: zipped(
            mine_txt=table,
            movies_csv=b"movieId,title,genres\n1,A,B\n",
            README=b"\xff",
            **{"__MACOSX/._mine.txt": b"1,2,3\n"},
        ),
    ],
    ids=["plain", "gz", "zip", "zip with others", "zip with another name"],
)
def test_every_form_of_a_table_gives_the_same_rows(content, pack, load):
    ratings = load(pack(content))
    assert rows_of(ratings) == [(5, 7, 3.0), (1, 3952, 4.0)]
    assert ratings.users.ids.dtype == ratings.items.ids.dtype == np.int64
    assert (ratings.num_users, ratings.num_items) == (2, 2)


TIMES = {
    "u.data": (b"5\t7\t3\t881250949\n1\t3952\t4\t891717742\n", [881250949, 891717742]),
    "ratings.dat": (b"5::7::3::0\n1::3952::4::12\n", [0, 12]),
    "ratings.dat with a header": (
        b"UserID::MovieID::Rating::Timestamp\n5::7::3::4\n1::3952::4::8\n",
        [4, 8],
    ),
    "ratings.csv": (
        b"userId,movieId,rating,timestamp\r\n5,7,3.0,1.5\r\n1,3952,4.0,0\r\n",
        [1.5, 0],
    ),
    "another order": (b",time,rating,item,user\n0,9,3,7,5\n1,8,4,3952,1\n", [9, 8]),
    "both names": (
        b"user,item,time,rating,timestamp\n5,7,1,3,6\n1,3952,2,4,5\n",
        [6, 5],
    ),
    "no header": (b"5,7,3.0,-7,x\n1,3952,4.0,0,y\n", [-7, 0]),
    "dates": (
        b"user,item,rating,timestamp\n5,7,3,2023-11-04 18:05:38.5\n"
        b"1,3952,4,2023-11-04T19:05:38+01:00\n",
        [1699121138.5, 1699121138.0],
    ),
    # No timestamps: a date and a word, none, words, one missing, another column.
    "a date and a word": (
        b"user,item,rating,time\n5,7,3,2023-11-04\n1,3952,4,x\n",
        None,
    ),
    "three columns": (b"5\t7\t3\n1\t3952\t4", None),
    "words": (b"5\t7\t3\ta\n1\t3952\t4\tb\n", None),
    "one is missing": (b"5::7::3::0\n1::3952::4\n", None),
    "one is no number": (b"user,item,rating,time\n5,7,3,0\n1,3952,4,nan\n", None),
    "yes and no": (b"user,item,rating,time\n5,7,3,True\n1,3952,4,False\n", None),
    "a header of another name": (b"user,item,rating,ts\n5,7,3,0\n1,3952,4,0\n", None),
}


@pytest.mark.parametrize(("content", "times"), TIMES.values(), ids=TIMES)
def test_timestamps_are_read_where_every_row_has_one(content, times, load, caplog):
    with caplog.at_level("INFO", "im3f_jax"):
        ratings = load(content)
    assert rows_of(ratings) == [(5, 7, 3.0), (1, 3952, 4.0)]
    if times is None:
        assert ratings.timestamp is None
    else:
        assert ratings.timestamp.tolist() == times
        whole = all(isinstance(time, int) for time in times)
        assert ratings.timestamp.dtype == (np.int64 if whole else np.float64)
        assert not caplog.text


def test_timestamps_that_are_left_out_are_said_so(load, caplog):
    with caplog.at_level("INFO", "im3f_jax"):
        assert load(TIMES["words"][0]).timestamp is None
        assert load(TIMES["one is no number"][0]).timestamp is None
    assert "2 of 2 are neither numbers nor ISO dates, first 'a' in row 0" in caplog.text
    assert "1 of 2 are no numbers, first 'nan' in row 1" in caplog.text


def test_timestamps_of_arrays(tmp_path, caplog):
    arrays = {"user": [1, 2], "item": [3, 3], "rating": [4.0, 5.0]}
    np.savez(tmp_path / "ratings.npz", **arrays, timestamp=[7, 6])
    assert load_ratings(tmp_path / "ratings.npz").timestamp.tolist() == [7, 6]
    np.savez(tmp_path / "ratings.npz", **arrays)
    assert load_ratings(tmp_path / "ratings.npz").timestamp is None
    np.savez(tmp_path / "ratings.npz", **arrays, timestamp=[7, np.nan])
    with caplog.at_level("INFO", "im3f_jax"):
        assert load_ratings(tmp_path / "ratings.npz").timestamp is None
    assert "timestamps are left out" in caplog.text and "row 1" in caplog.text


def test_ids_of_text_stand_as_in_the_file(load):
    ratings = load(
        b"user,item,rating\nalice,007,0.5\nbob,7,1\n NA,7,2\nnan,1.0,3\nNone,1,4\n"
        b'"a,b",1,5\n'
    )
    assert ratings.user_ids.tolist() == ["alice", "bob", " NA", "nan", "None", "a,b"]
    assert ratings.item_ids.tolist() == ["007", "7", "7", "1.0", "1", "1"]


def test_one_column_of_text_leaves_the_other_as_integers(load):
    ratings = load(b"user,item,rating\n1,a,2\n-3,b,2\n")
    assert ratings.user_ids.tolist() == [1, -3]


@pytest.mark.parametrize(
    "number",
    ["+7", "07", "7.0", "1e3", "1_0", "9" * 19, "-0", "7\x1d", "\xa07"]
    + ([] if PANDAS_2 else ["7\0"]),  # which is refused there
)
def test_what_is_no_plain_integer_stays_text(number, load):
    ratings = load(f"user,item,rating\n{number},1,2\n7,1,2\n".encode())
    assert ratings.user_ids.tolist() == [number, "7"]


def test_ratings_are_read_to_the_last_digit(load):
    values = np.random.default_rng(0).normal(size=200).tolist()
    text = "".join(f"{i},1,{value!r}\n" for i, value in enumerate(values))
    assert load(b"user,item,rating\n" + text.encode()).rating.tolist() == values


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1\t2\t3\n\n1\t3\tx\n", ["line 3", "'rating'", "'x' is not a number"]),
        (b"\n1\t2\t3\r\n1\tb\t4\n", ["line 3", "'item'", "'b' is not an integer"]),
        (b"1\t2\t3\n1\t3\n", ["line 2", "'rating'", "empty"]),
        (b"1\t2\t3\n1\n", ["line 2", "'item'", "empty"]),
        (b"1\t2\t3\n\t3\t4\n", ["line 2", "'user'", "empty"]),
        (b"1\t2\t3\n1\t3\tinf\n", ["line 2", "'rating'", "'inf'"]),
        (b"1\t2\t3\n1\t3\tnan\n", ["line 2", "'rating'", "'nan'"]),
        (b"1::2::3\n1::3::\n", ["line 2", "'rating'", "empty"]),
        (b"1::2::3\n1:3:4:5:6\n", ["line 2", "fields"]),
        (b"user,item,rating\n1,2,3\n\n1,3,3,5\n", ["line 4", "saw 4"]),
        (b"user,item,rating\n1,2,3,5\n1,3,3,5\n", ["line 2", "fields"]),
        (b"1,2,3\n1,3,3,5\n", ["line 2", "fields"]),
        (b"1,2,3\n1,3,3\n1,4,3,5\n", ["line 3", "saw 4"]),
        (b"1::2::3\n1::b::6\n", ["line 2", "'item'", "'b'"]),
        (b"1::2::3\r\r1::b::6\r", ["line 3", "'item'", "'b'"]),
        (b'user,item,rating\n1,2,3\n1,3,"3,5"\n', ["line 3", "'rating'", "'3,5'"]),
        (b"1,2,3\n1,3,1_0\n", ["line 2", "'rating'", "'1_0'"]),
        (b"user,item,Rating,rating\n1,2,3,4\n", ["'Rating' and 'rating'"]),
        (b"user,movie,item,rating\n1,2,3,4\n", ["'movie' and 'item'"]),
        (b"user,item,rating\n1,2,True\n", ["line 2", "'rating'", "'True'"]),
        (b"userId,movieId,rating\n1,2,3\n,2,3\n", ["line 3", "'userId'", "empty"]),
        (b"user,item,rating\n1,2,3\n1,\xff,3\n", ["line 3", "UTF-8"]),
        (b'user,item,rating\n1,2,3\n1,"3,3\n', ["row 2"]),
        (b"1,2,3\n1,2,3\n", ["row 0", "row 1", "duplicates"]),
        (b"alice,m1,3.5\n", ["first line", "user, item and rating"]),
        (b"userId,movieId,tag,timestamp\n1,2,a,0\n", ["first line"]),
        (b"1 2 3\n", ["first line", "tabs"]),
        (b"user,item,rating\n", ["no ratings"]),
        (b"", ["first line"]),
        (b"\x80\x81,\xff,3\n", ["first line"]),
        (gzip.compress(b"1,2,3\n" * 9, mtime=0)[:-9], ["end-of-stream"]),
        (b"\x1f\x8b no archive", [""]),
        (b"PK\x03\x04 no archive", ["zip"]),
        (b"PK no archive", ["first line"]),
        (zipped(a_csv=b"1,2,3", b_csv=b"1,2,3"), ["one file", "a.csv, b.csv"]),
        (zipped(README=b"hello"), ["one file", "none"]),
    ],
)
def test_what_cannot_be_read_is_named(content, words, load):
    with pytest.raises(InputError, match="some file: ") as caught:
        load(content)
    for word in words:
        assert word in str(caught.value)


OWN = {"user": "who", "item": "SKU no", "rating": "stars"}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda b: zipped(own_csv=b)])
def test_columns_of_other_names(pack, load):
    table = b'when,stars,user,"SKU no", who\n7,4,x,a 1,ann\n9,2.5,y,a 2,bob\n'
    ratings = load(pack(table), **OWN, timestamp="when")
    assert rows_of(ratings, ["who", "SKU no", "stars", "when"]) == [
        ("ann", "a 1", 4.0, 7),
        ("bob", "a 2", 2.5, 9),
    ]
    # What is not named is found by its name, and nothing serves twice.
    table = b"user,item,movieId,time,rating\n7,1,10,5,3\n8,2,20,6,4\n"
    ratings = load(table, item="user", user="item")
    assert rows_of(ratings, ["item", "user", "rating", "time"]) == [
        (1, 7, 3.0, 5),
        (2, 8, 4.0, 6),
    ]
    table = b"item,movieId,time,rating,when\n7,1,10,5,3\n"
    other = load(table, user="item", rating="time", timestamp="rating")
    assert rows_of(other, other.columns) == [(7, 1, 10.0, 5)]
    bare = load(b"who,item,rating\nann,1,2\n", user="who")
    assert bare.columns == ("who", "item", "rating")
    # Spaces and quotes about a field are none of its name.
    table = b'PK, who ,"the ""what""",rating\n0,ann,1,2\n'
    assert len(load(table, user=" who", item='the "what"')) == 1
    table = b"when::who::what::stars\n5::ann::b::4\n"
    given = {"user": "who", "item": "what", "rating": "stars", "timestamp": "when"}
    assert rows_of(load(table, **given), list(given.values())) == [("ann", "b", 4.0, 5)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (OWN | {"user": "Who"}, "must name one column 'Who'; it names 'who', 'SKU no'"),
        (OWN | {"user": "twice"}, "must name one column 'twice'"),
        (OWN | {"item": "who"}, "the column 'who' is named twice"),
        (OWN | {"item": 1}, "not by 1"),
        (OWN | {"rating": ""}, "not by ''"),
        ({"user": "who"}, "no column item: say which it is; it names 'who'"),
        (OWN | {"timestamp": "when"}, "column 'when': 1 of 2 are .*'soon' in row 1"),
        (OWN | {"rating": "when"}, "line 3, column 'when': 'soon' is not a number"),
        ({}, "nor begins with three numbers .say which columns they are"),
    ],
)
def test_columns_that_are_not_there_are_named(given, words, load):
    table = b"who,SKU no,stars,when,twice,twice\nann,1,4,7,0,0\nbob,2,5,soon,0,0\n"
    for content in (table, zipped(own_csv=table)) if given else (table,):
        with pytest.raises(InputError, match=f"some file: .*{words}"):
            load(content, **given)


def test_arrays_of_other_names(load, tmp_path):
    arrays = {"who": [5, 1], "film": [7, 3952], "rating": [2.0, 4.0], "when": [1, 2]}
    given = {"user": "who", "item": "film", "timestamp": "when"}
    ratings = load(npz(**arrays), **given)
    expected = [(5, 7, 2.0, 1), (1, 3952, 4.0, 2)]
    assert rows_of(ratings, ["who", "film", "rating", "when"]) == expected
    for changed, words in (
        ({"item": "movie"}, "has no array movie; its arrays are who, film"),
        ({"timestamp": "then"}, "has no array then"),
        ({"item": "who"}, "named twice"),
    ):
        with pytest.raises(InputError, match=words):
            load(npz(**arrays), **given | changed)
    # Nothing serves twice.
    with pytest.raises(InputError, match="say which is that of users"):
        load(npz(user=[1], film=[2], rating=[3.0]), item="user")
    times = load(npz(user=[1], item=[2], timestamp=[3.0]), rating="timestamp")
    assert times.timestamp is None and times.rating.tolist() == [3.0]
    arrays["when"] = [1, np.nan]
    with pytest.raises(InputError, match="when: .*row 1"):
        load(npz(**arrays), **given)
    ratings.save_npz(tmp_path / "own.npz")
    with pytest.raises(InputError, match="need no names"):
        load_ratings(tmp_path / "own.npz", user="who")


def test_repeated_pairs_are_merged_as_asked(load):
    assert rows_of(load(b"1,2,4\n1,2,5\n", duplicates="mean")) == [(1, 2, 4.5)]


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ratings.csv"])
def test_a_folder_and_a_name_stand_for_the_file_within(name, tmp_path, monkeypatch):
    folder = tmp_path / "ml-small"
    folder.mkdir()
    (folder / name).write_bytes(TABLES[name])
    monkeypatch.setenv("IM3F_DATA_DIR", str(tmp_path))
    assert len(load_ratings(folder)) == len(load_ratings("ml-small")) == 2


def test_a_name_may_stand_for_an_archive(tmp_path, monkeypatch):
    (tmp_path / "ml-small.zip").write_bytes(zipped(ml__u_data=TABLES["u.data"]))
    monkeypatch.setenv("IM3F_DATA_DIR", str(tmp_path))
    assert len(load_ratings("ml-small")) == 2


def test_a_folder_without_ratings_is_told_in_words(tmp_path):
    with pytest.raises(InputError, match="has none of u.data"):
        load_ratings(tmp_path)


ARRAYS = {
    "user": np.array([5, 1], np.int32),
    "item": np.array([7, 3952]),
    "rating": np.array([0.1, 4], np.float32),
    "split": np.array([0, 1], np.int8),
}


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, lambda data: zipped(ml__ratings_npz=data)],
    ids=["plain", "gz", "zip"],
)
def test_arrays_are_read_exactly(pack, load):
    ratings = load(pack(npz(**ARRAYS)))
    assert rows_of(ratings) == [(5, 7, float(np.float32(0.1))), (1, 3952, 4.0)]
    assert ratings.users.ids.dtype == np.int32


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"user": [1], "rating": [1]},
            "has no array item; its arrays are user, rating",
        ),
        ({"user": np.array([None])}, "plain arrays"),
        ({**ARRAYS, "format_version": 7}, "version 7.*reads version 1"),
        ({**ARRAYS, "format_version": 1}, "lacks the array 'user_ids'"),
        ({**ARRAYS, "rating": [1.0, np.nan]}, "ratings: .*row 1"),
    ],
)
def test_arrays_that_are_no_ratings_are_named(arrays, words, load):
    with pytest.raises(InputError, match=f"some file: .*{words}"):
        load(npz(**arrays))


def test_a_comma_without_quotes_is_told_in_one_line(load):
    text = b"user,item,rating\nanna,Up,3\nbob,The Film, Part 2,4\n"
    words = "some file: Expected 3 fields in line 3, saw 4; in a CSV .* in quotes$"
    with pytest.raises(InputError, match=words):
        load(text)


def test_a_part_written_by_save_npz_is_read_from_an_archive(load, tmp_path):
    Ratings.from_arrays(["a"], ["b"], [3]).save_npz(tmp_path / "own.npz")
    content = zipped(own_npz=(tmp_path / "own.npz").read_bytes())
    assert rows_of(load(content)) == [("a", "b", 3.0)]


# The real files: facts of the data sets, as their publishers and README files state.


def assert_facts(ratings, num_ratings, num_users, num_items, mean):
    assert len(ratings) == num_ratings
    assert (ratings.num_users, ratings.num_items) == (num_users, num_items)
    assert ratings.mean == pytest.approx(mean, abs=1e-6)
    assert ratings.is_discrete
    pairs = np.unique(ratings.user.astype(np.int64) * num_items + ratings.item)
    assert len(pairs) == num_ratings


def histogram(ratings):
    levels, counts = np.unique(ratings.rating, return_counts=True)
    return dict(zip(levels.tolist(), counts.tolist(), strict=True))


def test_movielens_100k(data_dir):
    content = (data_dir / "ml-100k" / "u.data").read_bytes()
    assert hashlib.md5(content).hexdigest() == "6e47046882bad158b0efbb84cd5cb987"
    ratings = load_ratings("ml-100k")
    assert_facts(ratings, 100_000, 943, 1682, 3.52986)
    assert histogram(ratings) == {1: 6110, 2: 11370, 3: 27145, 4: 34174, 5: 21201}
    assert rows_of(ratings.select(np.array([0, -1]))) == [(196, 242, 3), (12, 203, 3)]


ML_1M_HISTOGRAM = {1: 56174, 2: 107557, 3: 261197, 4: 348971, 5: 226310}


def test_movielens_1m(data_dir):
    ratings = load_ratings("ml-1m")
    assert_facts(ratings, 1_000_209, 6040, 3706, 3.581564)
    assert histogram(ratings) == ML_1M_HISTOGRAM
    assert ratings.item_ids.max() == 3952


def test_movielens_1m_from_ratings_dat(data_dir, tmp_path):
    arrays = np.load(data_dir / "ml-1m" / "ratings.npz")
    columns = [arrays[name].astype(int).tolist() for name in ("user", "item", "rating")]
    path = tmp_path / "ratings.dat"
    lines = map("{}::{}::{}::0\n".format, *columns)
    path.write_text("".join(lines), newline="")
    start = time.perf_counter()
    ratings = load_ratings(path)
    seconds = time.perf_counter() - start  # stated, not asserted: some 1.3 s
    print(f"1,000,209 lines of ratings.dat read in {seconds:.2f} s")
    assert_facts(ratings, 1_000_209, 6040, 3706, 3.581564)
    assert histogram(ratings) == ML_1M_HISTOGRAM
    np.testing.assert_array_equal(ratings.user_ids, arrays["user"])
    np.testing.assert_array_equal(ratings.item_ids, arrays["item"])
    np.testing.assert_array_equal(ratings.rating, arrays["rating"])


def test_movielens_latest_small(data_dir):
    ratings = load_ratings(data_dir / "ml-latest-small" / "ratings.csv")
    assert_facts(ratings, 100_836, 610, 9724, 3.501557)
    assert ratings.levels.tolist() == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5]
    assert ratings.step == 0.5


@pytest.mark.parametrize(
    "name", ["ml-100k/u.item", "ml-1m/movies.dat", "ml-latest-small/movies.csv"]
)
def test_files_of_titles_are_no_ratings(data_dir, name):
    with pytest.raises(InputError, match="first line"):
        load_ratings(data_dir / name)
