"""Timestamps of ratings, and the scale on which models read them."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from im3f_jax.data.layout import lay_out
from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.splits import leave_one_out, random_split
from im3f_jax.data.times import TimeColumns, TimeScale
from im3f_jax.errors import InputError

# --- timestamps of ratings ----------------------------------------------------------


def make(times):
    return Ratings.from_arrays([1, 1, 2], [1, 2, 1], [3, 4, 5], timestamps=times)


DAY = 86_400.0


@pytest.mark.parametrize(
    ("times", "expected", "dtype"),
    [
        ([3, 1, 2], [3, 1, 2], np.int64),
        (np.array([3, 1, 2], np.uint8), [3, 1, 2], np.int64),
        ([3.5, 1, 2], [3.5, 1, 2], np.float64),
        (pd.Series([3, 1, 2], dtype="Int64"), [3, 1, 2], None),  # by pandas' version
        (pd.to_datetime([86_400_000, 500, -86_400_000], unit="ms"),)
        + ([DAY, 0.5, -DAY], np.float64),
        (
            pd.Series(pd.to_datetime(["1970-01-02"] * 3)).dt.tz_localize("Asia/Tokyo"),
            [DAY - 9 * 3600] * 3,
            np.float64,
        ),
        (np.array(["1970-01-03"] * 3, "datetime64[D]"), [2 * DAY] * 3, np.float64),
        (list(pd.to_datetime(["1970-01-02"] * 3)), [DAY] * 3, np.float64),
        (np.array([dt.datetime(1970, 1, 2)] * 3), [DAY] * 3, np.float64),
        (pd.Series([dt.datetime(1970, 1, 2)] * 3, dtype=object), [DAY] * 3, np.float64),
        (
            [
                dt.datetime(1970, 1, 2, h, tzinfo=dt.timezone(dt.timedelta(hours=h)))
                for h in (0, 3, 9)
            ],
            [DAY] * 3,
            np.float64,
        ),
    ],
)
def test_times_become_numbers(times, expected, dtype):
    ratings = make(times)
    assert ratings.timestamp.tolist() == expected
    assert ratings.timestamp.dtype in (
        (np.int64, np.float64) if not dtype else (dtype,)
    )


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, None, 3], "row 1"),
        ([1, 2, np.nan], "row 2"),
        (["yesterday", "today", "now"], "row 0"),
        (pd.to_datetime(["2020-01-01", None, "2020-01-02"]), "row 1"),
        ([dt.datetime(1970, 1, 2), None, dt.datetime(1970, 1, 3)], "row 1"),
        ([dt.datetime(1970, 1, 2), 7, "x"], "no datetimes"),
        ([1, 2], "3 ratings, 2 timestamps"),
    ],
)
def test_what_is_no_time_is_refused(times, message):
    with pytest.raises(InputError, match=message):
        make(times)


def test_a_frame_gives_its_times_and_gets_them_back():
    table = pd.DataFrame(
        {
            "who": ["a", "a", "b"],
            "what": [1, 2, 1],
            "stars": [3.0, 4, 5],
            "ts": [9, 7, 8],
        }
    )
    ratings = Ratings.from_dataframe(table, "who", "what", "stars", timestamp="ts")
    pd.testing.assert_frame_equal(ratings.to_dataframe(), table)
    assert Ratings.from_dataframe(table, "who", "what", "stars").timestamp is None
    with pytest.raises(InputError, match="'when'"):
        Ratings.from_dataframe(table, "who", "what", "stars", timestamp="when")
    with pytest.raises(InputError, match="'stars'"):
        Ratings.from_dataframe(table, "who", "what", "stars", timestamp="stars")
    assert list(make([1, 2, 3]).to_dataframe()) == [
        "user",
        "item",
        "rating",
        "timestamp",
    ]


def test_times_stay_with_their_ratings(tmp_path):
    rng = np.random.default_rng(0)
    user, item = np.divmod(rng.permutation(120)[:60], 12)
    # A rating tells its time.
    ratings = Ratings.from_arrays(user, item, np.arange(60), timestamps=np.arange(60))
    for train, test in (leave_one_out(ratings), random_split(ratings, seed=1)):
        for part in (train, test):
            np.testing.assert_array_equal(part.timestamp, part.rating)
        assert len(train) + len(test) == 60
    ratings.save_npz(tmp_path / "ratings.npz")
    again = load_ratings(tmp_path / "ratings.npz")
    np.testing.assert_array_equal(again.timestamp, ratings.timestamp)
    assert again.timestamp.dtype == np.int64
    make(None).save_npz(tmp_path / "none.npz")
    assert load_ratings(tmp_path / "none.npz").timestamp is None


def test_of_repeated_pairs_the_row_kept_keeps_its_time():
    columns = [1, 1, 2], [1, 1, 1], [1.0, 3, 5]
    for duplicates, expected in (
        ("last", [8, 9]),
        ("mean", [7, 9]),
        ("keep", [7, 8, 9]),
    ):
        ratings = Ratings.from_arrays(*columns, duplicates, timestamps=[7, 8, 9])
        assert ratings.timestamp.tolist() == expected


# --- the scale ----------------------------------------------------------------------


def test_bins_hold_equal_numbers_of_training_ratings():
    rng = np.random.default_rng(1)
    times = rng.permutation(10 * np.arange(103))
    scale = TimeScale.of(times, np.zeros(103, int), 1, 7)
    bins = scale.bins(times)
    assert bins.dtype == np.int32
    counts = np.bincount(bins)
    assert len(counts) == 7 and np.ptp(counts) <= 1
    # Later ratings lie in later bins; times outside in the first and the last.
    assert np.all(np.diff(bins[np.argsort(times)]) >= 0)
    assert scale.bins(np.array([-1e9, 1e12])).tolist() == [0, 6]
    assert TimeScale.of(times, np.zeros(103, int), 1, 1).bins(times).max() == 0


def test_ratings_of_one_time_are_not_parted():
    times = np.array([5, 5, 5, 5, 5, 9])
    scale = TimeScale.of(times, np.zeros(6, int), 1, 3)
    assert len(set(scale.bins(times)[:5])) == 1
    assert scale.bins(times).max() <= 2


def test_drift():
    rng = np.random.default_rng(2)
    user = rng.integers(4, size=200)
    times = 1_000_000_000 + rng.integers(10**7, size=200)
    times[user == 3] = 1_000_000_777  # all at one time: no drift
    scale = TimeScale.of(times, user, 4, 5)
    found = scale.drift(times, user)
    away = np.array(
        [float(t - np.mean(times[user == u])) for t, u in zip(times, user, strict=True)]
    )
    away[user == 3] = 0
    expected = np.sign(away) * np.abs(away) ** 0.4
    expected /= np.sqrt(np.mean(expected**2))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
    assert np.mean(found**2) == pytest.approx(1)
    # At another time on the same scale; a new user has none.
    later = scale.drift(np.array([times.max() + 5e8, 0, 0]), np.array([0, 0, 4]))
    assert later[0] > found.max() and later[1] < found.min() and later[2] == 0
    columns = scale.columns(times, user)
    np.testing.assert_array_equal(columns.drift, found)
    np.testing.assert_array_equal(columns.bin, scale.bins(times))


def test_without_any_drift_nothing_is_divided_by_zero():
    scale = TimeScale.of(np.array([3.0, 8.0]), np.array([0, 1]), 2, 2)
    # Nothing was learned of a drift: none at other times either.
    assert not np.any(scale.drift(np.array([3, 9e9]), np.arange(2)))


def test_the_layout_carries_times_in_its_order():
    rng = np.random.default_rng(3)
    user, item = rng.integers(5, size=70), rng.integers(4, size=70)
    number = np.arange(70)
    layout, order = lay_out(
        user, item, number, 5, 4, times=TimeColumns(number, 0.5 * number)
    )
    np.testing.assert_array_equal(layout.times.bin[:70], order)
    np.testing.assert_array_equal(layout.times.drift[:70], 0.5 * order)
    assert layout.times.bin.dtype == np.int32
    assert layout.times.drift.dtype == layout.rating.dtype
    assert not np.any(layout.times.bin[70:]) and not np.any(layout.times.drift[70:])
    assert len(layout.times.bin) == len(layout.times.drift) == len(layout.rating)
    assert lay_out(user, item, number, 5, 4)[0].times is None
