"""Every generation of MovieLens: its ratings, and the titles that belong to them."""

import gzip
import io
import zipfile

import numpy as np
import pandas as pd
import pytest

from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.titles import load_titles
from im3f_jax.errors import InputError

FLAGS = {1: "0|0|1", 7: "1|0|0", 30: "0|1|1"}
OLD = {
    "u.data": "5\t7\t3\t881250949\n1\t30\t4\t891717742\n",
    "u.item": "1|Toy Story (1995)|01-Jan-1995||http://a|0|0|1\n"
    "7|unknown||||1|0|0\n"
    "30|Misérables, Les (1995)|01-Jan-1995||http://b?c=(1990)|0|1|1\n",
    "u.genre": "unknown|0\nAction|1\nChildren's|2\n\n",
    "u.user": "1|24|M|technician|85711\n",
}
DOTTED = {
    "ratings.dat": "5::7::3::978300760\n1::30::4::978302109\n",
    "movies.dat": "1::Toy Story (1995)::Children's\n"
    "7::unknown::unknown\n"
    "30::Misérables, Les (1995)::Action|Children's\n",
    "users.dat": "1::F::1::10::48067\n",
}
HALVES = {
    "ratings.dat": "5::7::3::978300760\n1::30::4.5::978302109\n",
    "movies.dat": DOTTED["movies.dat"].replace("::unknown\n", "::(no genres listed)\n"),
    "tags.dat": "15::4973::excellent!::1215184630\n",
}
COMMAS = {
    "ratings.csv": "userId,movieId,rating,timestamp\n5,7,3.0,1\n1,30,4.5,2\n",
    "movies.csv": "movieId,title,genres\n1,Toy Story (1995),Children's\n"
    "7,unknown,(no genres listed)\n"
    '30,"Misérables, Les (1995)",Action|Children\'s\n',
    "links.csv": "movieId,imdbId,tmdbId\n1,0114709,862\n",
    "tags.csv": "userId,movieId,tag,timestamp\n5,7,a,1\n",
}
# name -> (folder in the archive, how its text is encoded, its files)
GENERATIONS = {
    "ml-100k": ("ml-100k", "latin-1", OLD),
    "ml-1m": ("ml-1m", "latin-1", DOTTED),
    "ml-10m": ("ml-10M100K", "utf-8", HALVES),
    "ml-20m": ("ml-20m", "utf-8", COMMAS),
    "ml-25m": ("ml-25m", "utf-8", COMMAS | {"genome-scores.csv": "1,1,0.5\n"}),
    "ml-32m": ("ml-32m", "utf-8", COMMAS | {"checksums.txt": "0 ratings.csv\n"}),
    "ml-latest-small": ("ml-latest-small", "utf-8", COMMAS),
}


def store(folder, name, packed, line_end="\n"):
    """Write a generation as it is published, or unpacked."""
    inner, encoding, files = GENERATIONS[name]
    files = files | {"README": "the licence\n"}
    files = {n: t.replace("\n", line_end).encode(encoding) for n, t in files.items()}
    if packed:
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            archive.writestr(f"{inner}/", b"")
            for file, content in files.items():
                archive.writestr(f"{inner}/{file}", content)
        return folder / f"{name}.zip"
    (folder / inner).mkdir()
    for file, content in files.items():
        (folder / inner / file).write_bytes(content)
    return folder / inner


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("IM3F_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [True, False], ids=["archive", "folder"])
@pytest.mark.parametrize("name", GENERATIONS)
def test_every_generation_is_read_by_its_name(name, packed, line_end, data, caplog):
    place = store(data, name, packed, line_end)
    halves = name in ("ml-100k", "ml-1m")
    for given in (name, place):
        ratings = load_ratings(given, download=False)
        assert ratings.user_ids.tolist() == [5, 1]
        assert ratings.item_ids.tolist() == [7, 30]
        assert ratings.rating.tolist() == [3, 4 if halves else 4.5]
        assert ratings.timestamp is not None
        titles = load_titles(given, download=False)
        assert list(titles.columns) == ["title", "year", "genres"]
        assert titles.index.tolist() == [1, 7, 30] and titles.index.name == "item"
        assert titles.index.dtype == ratings.items.ids.dtype == np.int64
        wanted = ["Toy Story (1995)", "unknown", "Misérables, Les (1995)"]
        assert titles["title"].tolist() == wanted
        assert titles["year"].dtype == "Int64"
        assert titles["year"].tolist() == [1995, pd.NA, 1995]
        unknown = "unknown" if halves else ""
        wanted = ["Children's", unknown, "Action|Children's"]
        assert titles["genres"].tolist() == wanted
    # Two ratings are not what was published: said once, for the name alone.
    said = [text for text in caplog.messages if "as published" in text]
    assert len(said) == (name != "ml-latest-small")
    assert not said or f"is not {name} as published: 2 ratings" in said[0]


def test_titles_are_found_beside_a_file_of_ratings(data):
    folder = store(data, "ml-1m", packed=False)
    beside = load_titles(folder / "ratings.dat")
    pd.testing.assert_frame_equal(beside, load_titles(folder))
    pd.testing.assert_frame_equal(beside, load_titles("ml-1m", download=False))
    pd.testing.assert_frame_equal(beside, load_titles(folder / "movies.dat"))


def test_titles_in_the_order_of_the_codes(data):
    store(data, "ml-20m", packed=True)
    ratings = load_ratings("ml-20m", download=False)
    titles = load_titles("ml-20m", download=False).reindex(ratings.items.ids)
    assert titles["title"].tolist() == ["unknown", "Misérables, Les (1995)"]


@pytest.fixture
def load(tmp_path):
    """Load titles from a file whose name says nothing."""

    def load_bytes(content):
        path = tmp_path / "some file"
        path.write_bytes(content)
        return load_titles(path)

    return load_bytes


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("file", ["movies.dat", "movies.csv"])
def test_letters_survive(file, encoding, pack, load):
    text = {**DOTTED, **COMMAS}[file]
    titles = load(pack(text.encode(encoding)))
    assert titles["title"][30] == "Misérables, Les (1995)"
    assert titles.index.tolist() == [1, 7, 30]


@pytest.mark.parametrize("title", ["x\x85y", "a\u2028b", "a\x0bb", 'the "b" film', "'"])
def test_odd_letters_are_no_ends_of_lines(title, load):
    # NEL is a letter of latin-1, and UTF-8 has more that str.splitlines parts at.
    content = f"1::{title}::A\n2::b::B\n".encode()
    assert load(content)["title"].tolist() == [title, "b"]


def test_a_title_may_hold_what_parts_the_fields(load):
    titles = load(b"1::a::b (1999)::C|D\n")
    assert titles.loc[1].tolist() == ["a::b (1999)", 1999, "C|D"]


@pytest.mark.parametrize(
    ("title", "year"),
    [
        ("Toy Story (1995)", 1995),
        ("Toy Story (1995) ", 1995),
        ("Associate, The (L'Associe)(1982)", 1982),
        ("Land Before Time III (1995) (V)", 1995),
        ("1900 (Novecento) (1976)", 1976),
        ("Death Note (2006\u20132007)", 2006),
        ("Fawlty Towers (1975-1979)", 1975),
        ("Going (2010-)", 2010),
        ("(500) Days of Summer (2009)", 2009),
        ("Movie (1984) (1985)", 1985),
        ("Death Race 2000", None),
        ("2012", None),
        ("Long (12345)", None),
        ("", None),
    ],
)
def test_the_year_is_the_last_one_in_parentheses(title, year, load):
    titles = load(f"1::{title}::A\n".encode())
    assert titles["title"].tolist() == [title]
    assert titles["year"].isna().tolist() == [year is None]
    assert year is None or titles["year"][1] == year


def test_films_of_one_title_stay_apart(load):
    titles = load(b"movieId,title,genres\n1,Emma (1996),A\n2,Emma (1996),B\n")
    assert titles["title"].tolist() == ["Emma (1996)"] * 2
    assert titles["genres"].tolist() == ["A", "B"]


def test_ones_own_table(load):
    titles = load(b"title,item\nfirst,007\nNA,b\n")
    assert titles.index.tolist() == ["007", "b"]
    assert titles["title"].tolist() == ["first", "NA"]
    assert titles["genres"].isna().all()


def test_movies_csv_without_its_header(load):
    titles = load(b'3,"a, b (1999)",C\n\n2,d,E\n')
    assert titles["title"].to_dict() == {3: "a, b (1999)", 2: "d"}
    assert titles["genres"].tolist() == ["C", "E"]


def test_genres_of_the_old_set_need_their_names(data, caplog):
    folder = store(data, "ml-100k", packed=False)
    (folder / "u.genre").unlink()
    with caplog.at_level("INFO", "im3f_jax"):
        assert load_titles(folder)["genres"].isna().all()
    assert "there is no u.genre" in caplog.text
    (folder / "u.genre").write_text("unknown|0\nAction|1\n")
    with pytest.raises(InputError, match="line 1 has 3 genres; u.genre has 2"):
        load_titles(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1::a::B\n\n1::c::D\n", "the item 1 has two titles"),
        (b"1::a::B\n\nx::c::D\n", "line 3: 'x' is not an integer"),
        (b"1::a::B\n2::c\n", "line 2 has no three fields"),
        (b"1|a||||0|1\nx|a||||0|1\n", "line 2: 'x' is not an integer"),
        (b"1|a||||0|1\n2|a||||0|2\n", "line 2 has a genre that is neither"),
        (b"movieId,title,genres\n1,a,B\n2,c,D,E,F\n", "saw 5"),
        (b"movieId,title,genres\n1,a,B,C\n", "line 2, saw 4"),  # nothing is lost
        (b"movieId,title,genres\n,a,B\n", "no item id"),
        (b"userId,movieId,rating,timestamp\n1,2,3,4\n", "first line"),
        (b"5\t7\t3\t881250949\n", "first line"),
        (b"a,b,c\n", "first line"),
        (b"", "first line"),
        (b"PK\x03\x04 no archive", "zip"),
        (b"PK no archive", "first line"),
    ],
)
def test_what_cannot_be_read_is_named(content, words, load):
    with pytest.raises(InputError, match=f"some file: .*{words}"):
        load(content)


def test_where_there_are_no_titles(tmp_path):
    (tmp_path / "u.data").write_text("1\t2\t3\n")
    for path in (tmp_path, tmp_path / "u.data"):
        with pytest.raises(InputError, match="none of u.item, movies.dat, movies.csv"):
            load_titles(path)


def test_an_archive_with_titles_twice_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("a/movies.dat", "b/movies.dat", "__MACOSX/a/._movies.dat"):
            archive.writestr(name, b"1::a::B\n")
    (tmp_path / "two.zip").write_bytes(buffer.getvalue())
    with pytest.raises(InputError, match="twice: a/movies.dat, b/movies.dat$"):
        load_titles(tmp_path / "two.zip")


# The real files.


@pytest.mark.parametrize(
    ("name", "num_titles", "item", "row"),
    [
        (
            "ml-100k",
            1682,
            543,
            ["Misérables, Les (1995)", 1995, "Drama|Musical"],
        ),
        ("ml-1m", 3883, 73, ["Misérables, Les (1995)", 1995, "Drama|Musical"]),
        ("ml-latest-small", 9742, 73, ["Misérables, Les (1995)", 1995, "Drama|War"]),
    ],
)
def test_real_titles(data_dir, name, num_titles, item, row, caplog):
    if not (data_dir / name).is_dir():
        pytest.skip(f"IM3F_DATA_DIR has no {name}")
    titles = load_titles(name)
    assert len(titles) == num_titles
    assert titles.loc[item].tolist() == row
    ratings = load_ratings(name)
    assert caplog.messages == []  # the counts are those that were published
    of_items = titles.reindex(ratings.items.ids)
    assert titles.index.dtype == np.int64
    assert of_items["title"].notna().all()
    assert of_items["year"].isna().mean() < 0.005
    # No letter of another encoding, and none that could not be read.
    text = "".join(titles["title"])
    assert not any(letter in text for letter in "Ã�") and min(text) >= " "
    assert not any("\x7f" <= letter < "\xa0" for letter in text)


def test_real_genres(data_dir):
    titles = load_titles("ml-100k")
    genres = titles["genres"].str.get_dummies("|")
    # The flags of u.item, column by column.
    assert genres.shape == (1682, 19)
    assert genres.sum()[["Drama", "Film-Noir", "unknown"]].tolist() == [725, 24, 2]
    assert (load_titles("ml-latest-small")["genres"] == "").sum() == 34
