"""The table of ratings: what goes in comes back, or is refused by row and column."""

from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError


@pytest.fixture
def frame():
    """Twelve ratings on a 0..1 scale, a zero among them, with an index of its own."""
    return pd.DataFrame(
        {
            "when": np.arange(12),
            "stars": np.arange(12)[::-1] / 11,
            "title": [7, 3952, 11] * 4,
            "who": ["ann", "ann", "bob", "bob", "cy", "cy", *"dddeee"],
        },
        index=[3] * 12,
    )


def from_frame(frame, **kwargs):
    return Ratings.from_dataframe(frame, "who", "title", "stars", **kwargs)


def test_a_frame_comes_back_as_it_was_and_stays_as_it_is(frame):
    before = frame.copy(deep=True)
    ratings = from_frame(frame)
    result = ratings.to_dataframe()
    pd.testing.assert_frame_equal(frame, before)
    pd.testing.assert_frame_equal(
        result, frame[["who", "title", "stars"]].reset_index(drop=True)
    )
    assert ratings.rating.dtype == np.float64
    assert ratings.user.dtype == ratings.item.dtype == np.int32
    assert not np.shares_memory(ratings.rating, frame["stars"].to_numpy())


def test_ids_with_gaps_make_as_many_rows_as_there_are_ids():
    ratings = Ratings.from_arrays(
        [1, 5, 10_000_000, 5], [3952, 7, 7, 3952], [1, 2, 3, 4]
    )
    assert (ratings.num_users, ratings.num_items, len(ratings)) == (3, 2, 4)
    assert ratings.user_ids.tolist() == [1, 5, 10_000_000, 5]
    assert ratings.item_ids.tolist() == [3952, 7, 7, 3952]
    assert ratings.user.tolist() == [0, 1, 2, 1]
    assert ratings.item.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_id_is_refused_with_row_and_column(frame, missing):
    frame["who"] = frame["who"].astype(object)
    frame.iloc[4, frame.columns.get_loc("who")] = missing
    with pytest.raises(InputError, match="column 'who'.* row 4 .*missing"):
        from_frame(frame)


@pytest.mark.parametrize("name", ["user", "item", "rating"])
def test_a_missing_column_is_named_with_those_there_are(frame, name):
    frame = frame.rename(columns={"who": "user", "title": "item", "stars": "rating"})
    with pytest.raises(InputError, match=f"{name!r}.*'when'"):
        Ratings.from_dataframe(frame.drop(columns=name))


def test_a_column_that_is_there_twice_or_used_twice_is_refused(frame):
    with pytest.raises(InputError, match="'who'"):
        Ratings.from_dataframe(frame, "who", "who", "stars")
    frame.columns = ["stars", "stars", "title", "who"]
    with pytest.raises(InputError, match="'stars'"):
        from_frame(frame)


@pytest.mark.parametrize(
    "values",
    [
        [Decimal("3.5"), Decimal("1"), Decimal("0")],
        [3.5, True, 0],
        [Fraction(7, 2), np.float32(1), np.int8(0)],
        np.array([3.5, 1, 0], dtype=np.float32),
        pd.Series([3.5, 1, 0], dtype="Float64"),
        pd.Series([3.5, 1, 0], dtype=object, index=[2, 0, 1]),
    ],
)
def test_numbers_are_converted_once_to_float(values):
    assert Ratings.from_arrays([1, 2, 3], [1, 2, 3], values).rating.tolist() == [
        3.5,
        1.0,
        0.0,
    ]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "bool", "Int64", "UInt8"])
def test_integers_of_any_kind_are_ratings(dtype):
    values = pd.Series([1, 0, 1]).astype(dtype)
    assert Ratings.from_arrays([1, 2, 3], [1, 2, 3], values).rating.tolist() == [
        1.0,
        0.0,
        1.0,
    ]


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([1, "3,5", 2], 1),
        (["3.5", "4", "5"], 0),
        (pd.Series(["3.5", "4", "5"]), 0),
        (np.array(["1", "2", "3"]), 0),
        (np.array([1, 2j, 3]), 0),
        ([1, 2, pd.Timestamp("2026-01-01")], 2),
        (np.array([1, 2, 3], dtype="timedelta64[s]"), 0),
        ([1, None, 3], 1),
        ([1, 2, np.nan], 2),
        (pd.Series([1, pd.NA, 3], dtype="Int64"), 1),
        ([1, np.inf, 3], 1),
        ([Decimal("NaN"), 1, 2], 0),
        ([1, Decimal("1e400"), 2], 1),
    ],
)
def test_what_is_no_finite_number_is_refused_with_row_and_column(values, row):
    frame = pd.DataFrame({"user": [1, 2, 3], "item": [1, 2, 3]})
    frame["stars"] = np.array(values, object) if isinstance(values, list) else values
    with pytest.raises(InputError, match=f"column 'stars'.* row {row} "):
        Ratings.from_dataframe(frame, rating="stars")


@pytest.mark.parametrize("place", range(4))
def test_what_is_masked_is_missing(place):
    given = [[1, 2, 3] for _ in range(4)]
    given[place] = np.ma.masked_array([1, 2, 3], [0, 1, 0])
    with pytest.raises(InputError, match="row 1 .*missing"):
        Ratings.from_arrays(*given[:3], timestamps=given[3])


def test_records_and_other_things_are_no_columns():
    records = np.zeros(2, [("a", "i4"), ("b", "f4")])
    with pytest.raises(InputError, match="user ids: records .* are no column"):
        Ratings.from_arrays(records, [1, 2], [1, 2])
    with pytest.raises(InputError, match="ratings: int is no column"):
        Ratings.from_arrays([1], [1], 5)
    with pytest.raises(InputError, match="a frame of pandas or polars .* not dict"):
        Ratings.from_dataframe({"user": [1], "item": [1], "rating": [1]})


def test_an_integer_beyond_all_floats_is_refused():
    with pytest.raises(InputError, match="ratings: .*too large"):
        Ratings.from_arrays([1, 2], [1, 2], [1, 10**400])


def test_columns_of_unequal_length_or_none_are_refused():
    with pytest.raises(InputError, match="3 user ids, 3 item ids, 2 ratings"):
        Ratings.from_arrays([1, 2, 3], [1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="no ratings"):
        Ratings.from_arrays([], [], [])


PAIRS = ["a", "b", "a", "a", "b"], [1, 1, 1, 2, 1], [4.0, 1.0, 5.0, 2.0, 4.0]


def test_repeated_pairs_are_refused_with_their_rows():
    with pytest.raises(
        InputError, match="'a' and item 1 .* row 0 .* row 2 .*; 2 in all"
    ):
        Ratings.from_arrays(*PAIRS)
    with pytest.raises(InputError, match="row 0 .* row 2"):
        Ratings.from_dataframe(
            pd.DataFrame(dict(zip(["user", "item", "rating"], PAIRS, strict=True)))
        )
    with pytest.raises(InputError, match="duplicates must be"):
        Ratings.from_arrays(*PAIRS, duplicates="sum")


@pytest.mark.parametrize(
    ("duplicates", "rows"),
    [
        ("last", [("a", 1, 5.0), ("a", 2, 2.0), ("b", 1, 4.0)]),
        ("mean", [("a", 1, 4.5), ("b", 1, 2.5), ("a", 2, 2.0)]),
        ("keep", list(zip(*PAIRS, strict=True))),
    ],
)
def test_repeated_pairs_are_merged_as_asked_and_never_summed(duplicates, rows):
    result = Ratings.from_arrays(*PAIRS, duplicates=duplicates).to_dataframe()
    assert list(result.itertuples(index=False, name=None)) == rows


def test_the_same_user_and_item_ids_are_not_confused():
    # codes (0, 1) and (1, 0): a wrong pair index would call them repeated
    ratings = Ratings.from_arrays([1, 2, 1, 2], [1, 2, 2, 1], [1, 2, 3, 4])
    assert len(ratings) == 4


def test_select_shares_the_index(frame):
    ratings = from_frame(frame)
    for rows in (np.array([9, 2]), np.isin(np.arange(12), [2, 9])):
        part = ratings.select(rows)
        assert part.users is ratings.users and part.items is ratings.items
        assert set(part.to_dataframe()["stars"]) == set(frame["stars"].iloc[[2, 9]])
        assert part.num_users == ratings.num_users
    assert ratings.select(np.array([9, 2])).user_ids.tolist() == ["e", "bob"]
    none = ratings.select(np.array([], dtype=int))
    assert len(none) == 0 and np.isnan(none.mean) and none.step == 0.0


def rated(values):
    count = len(values)
    return Ratings.from_arrays(range(count), range(count), values)


@pytest.mark.parametrize(
    ("values", "step", "is_discrete"),
    [
        ([1, 2, 3, 4, 5] * 2, 1.0, True),
        ([1, 2, 4, 5] * 2, 1.0, True),  # an unused level
        ([0.5, 1.5, 2.0] * 2, 0.5, True),
        (np.repeat(np.arange(101), 2), 1.0, True),
        (np.repeat(np.arange(102), 2), 1.0, False),
        ([1, 2, 3, 4, 5], 1.0, False),  # each value once
        ([0, 1, 2.5] * 2, 1.0, False),  # off the grid of the smallest gap
        ([0, 1, 100_000.5] * 2, 1.0, False),
        ([0.3, 0.1 + 0.2, 1.0] * 9, 0.1 + 0.2 - 0.3, False),  # a gap of rounding
        ([3.0] * 4, 0.0, True),
    ],
)
def test_scale(values, step, is_discrete):
    ratings = rated(values)
    assert ratings.levels.tolist() == sorted(set(values))
    assert ratings.step == step
    assert ratings.is_discrete is is_discrete
    assert ratings.mean == pytest.approx(np.mean(values))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_scale_of_tenths_is_discrete_in_spite_of_rounding(dtype):
    ratings = rated(np.tile(np.arange(0, 101, dtype=dtype) / dtype(10), 3))
    assert ratings.is_discrete
    assert ratings.step == pytest.approx(0.1, rel=1e-5)


@pytest.mark.parametrize("items", [[7, 9, 7], ["x", "y", "x"], [1, "1", 1]])
def test_saved_ratings_come_back(items, tmp_path):
    ratings = Ratings.from_arrays(["a", "b", "b"], items, [0.1, 0.0, -5.0])
    path = tmp_path / "saved"  # no suffix: written exactly there
    ratings.save_npz(path)
    with np.load(path, allow_pickle=False) as arrays:
        assert arrays["format_version"] == 1
        assert {array.dtype.hasobject for array in arrays.values()} == {False}
    again = load_ratings(path)
    pd.testing.assert_frame_equal(again.to_dataframe(), ratings.to_dataframe())
    assert again.items.lookup(items).tolist() == ratings.item.tolist()
    assert (again.users.what, again.items.what) == ("user", "item")


def test_a_saved_part_keeps_the_whole_index_and_the_names(frame, tmp_path):
    part = from_frame(frame).select(np.array([0, 1]))
    part.save_npz(tmp_path / "part.npz")
    again = load_ratings(tmp_path / "part.npz")
    assert (len(again), again.num_users, again.num_items) == (2, 5, 3)
    assert list(again.to_dataframe()) == ["who", "title", "stars"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "ratings.npz"
    ratings = Ratings.from_arrays(["a"], [1], [2.0])
    ratings.save_npz(path)
    before = path.read_bytes()

    def fill_the_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        ratings.save_npz(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_saved_leaves_the_file_that_is_there(tmp_path):
    path = tmp_path / "ratings.npz"
    Ratings.from_arrays(["a"], [1], [2.0]).save_npz(path)
    days = Ratings.from_arrays([date(2026, 1, 1)], [1], [3.0])
    with pytest.raises(InputError, match="user ids of type date cannot be saved"):
        days.save_npz(path)
    assert load_ratings(path).rating.tolist() == [2.0]


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("user", np.int32([0, 2]), "the array user is no column of codes"),
        ("item", np.float64([0, 0]), "the array item is no column of codes"),
        ("rating", np.array([1.0, np.nan]), "the array rating: .* row 1 .*missing"),
        ("user_ids", np.array(["a", "a"]), "stored user ids: one is there twice"),
        ("item_ids", np.array(b"{"), "stored item ids: cannot be read"),
        ("columns", np.array(["a"]), "columns does not hold"),
        ("timestamp", np.array([1]), "timestamp has another length"),
        ("format_version", np.array([1, 1]), r"format version \[1, 1\]"),
    ],
)
def test_a_stored_table_that_does_not_fit_together_is_refused(
    name, array, words, tmp_path
):
    path = tmp_path / "ratings.npz"
    Ratings.from_arrays(["a", "b"], [1, 1], [2.0, 3.0]).save_npz(path)
    with np.load(path) as stored:
        arrays = {**stored, name: array}
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=words):
        load_ratings(path)
