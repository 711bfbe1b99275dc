"""Splits: no row lost, none twice, one index, and numpy's global seed left alone."""

import logging

import numpy as np
import pytest

from im3f_jax.data.movielens import load_ratings
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.splits import (
    k_fold,
    leave_one_out,
    random_split,
    split_by_rows,
    time_split,
)
from im3f_jax.data.synthetic import planted_ratings
from im3f_jax.errors import InputError


@pytest.fixture(scope="module")
def ratings():
    return planted_ratings(num_users=60, num_items=40, num_ratings=900).ratings


def rows(ratings):
    columns = ratings.user_ids, ratings.item_ids, ratings.rating
    return set(zip(*(column.tolist() for column in columns), strict=True))


def split_rows(ratings):
    return split_by_rows(ratings, np.arange(0, 900, 7))


SPLITS = [leave_one_out, random_split, split_rows]


@pytest.mark.parametrize("split", SPLITS)
def test_two_sides_make_up_the_whole(split, ratings):
    train, test = split(ratings)
    assert len(train) + len(test) == len(ratings)
    assert rows(train) | rows(test) == rows(ratings)
    assert not rows(train) & rows(test)
    for side in (train, test):
        assert side.users is ratings.users and side.items is ratings.items
        order = [np.flatnonzero(ratings.rating == value)[0] for value in side.rating]
        assert (np.diff(order) > 0).all()


@pytest.mark.parametrize("split", [leave_one_out, random_split])
def test_the_seed_alone_decides(split, ratings):
    np.random.seed(1)
    first = rows(split(ratings, seed=3)[1])
    np.random.seed(2)
    assert rows(split(ratings, seed=3)[1]) == first
    assert rows(split(ratings, seed=4)[1]) != first
    state = np.random.get_state()[1]
    split(ratings, seed=3)
    assert (np.random.get_state()[1] == state).all()


def test_users_of_1_2_and_20_ratings(caplog):
    users = ["one"] + ["two"] * 2 + ["many"] * 20
    ratings = Ratings.from_arrays(users, range(23), np.arange(23.0))
    with caplog.at_level(logging.INFO, "im3f_jax"):
        train, test = leave_one_out(ratings)
    assert sorted(test.user_ids.tolist()) == ["many", "two"]
    assert "one" in train.user_ids.tolist()
    assert "1 of 3 users" in caplog.text


def test_with_one_rating_each_all_stay_in_training():
    ratings = Ratings.from_arrays([1, 2], [1, 1], [3, 4])
    train, test = leave_one_out(ratings)
    assert (len(train), len(test)) == (2, 0)


def test_each_rating_of_a_user_is_as_likely_to_be_left_out():
    # 3 ratings, 3000 seeds: chi-square with 2 degrees of freedom, 27.6 at 1e-6
    ratings = Ratings.from_arrays([1, 1, 1], [1, 2, 3], [0, 1, 2])
    drawn = [int(leave_one_out(ratings, seed=s)[1].rating[0]) for s in range(3000)]
    counts = np.bincount(drawn, minlength=3)
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.6


@pytest.mark.parametrize(("fraction", "count"), [(0.1, 90), (0.5, 450), (1 / 900, 1)])
def test_random_split_holds_out_the_fraction(ratings, fraction, count):
    assert len(random_split(ratings, test_fraction=fraction)[1]) == count


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, 1e-9, 1 - 1e-9, float("nan")])
def test_a_fraction_that_leaves_a_side_empty_is_refused(ratings, fraction):
    with pytest.raises(InputError, match="test_fraction"):
        random_split(ratings, test_fraction=fraction)


@pytest.mark.parametrize(
    ("test_rows", "words"),
    [
        ([3, 900], "test row 900 is out of range.* 0 to 899"),
        ([3, -1], "test row -1 is out of range"),
        ([3, 5, 3], "test row 3 is given 2 times"),
        ([0.5], "integers"),
        (np.zeros(900, dtype=bool), "integers"),
        ([[1, 2]], "one dimension"),
        (range(900), "none is left to train on"),
        (np.array([2**40]), "out of range"),
    ],
)
def test_rows_that_make_no_split_are_refused(ratings, test_rows, words):
    with pytest.raises(InputError, match=words):
        split_by_rows(ratings, test_rows)


def test_no_test_row_is_a_split():
    ratings = Ratings.from_arrays([1, 2], [1, 1], [3, 4])
    assert [len(side) for side in split_by_rows(ratings, [])] == [2, 0]


@pytest.mark.parametrize(("name", "num_users"), [("ml-100k", 943), ("ml-1m", 6040)])
def test_fixed_rows_of_movielens(data_dir, name, num_users):
    ratings = load_ratings(name)
    fixed = np.load(data_dir / name / "test_rows.npz")
    for key in ("loo_0", "loo_1"):
        _, test = split_by_rows(ratings, fixed[key])
        assert np.bincount(test.user, minlength=num_users).tolist() == [1] * num_users
    train, test = split_by_rows(ratings, fixed["random90_0"])
    cold = ~np.isin(test.item, train.item)
    assert cold.sum() == {"ml-100k": 14, "ml-1m": 10}[name]
    assert np.isin(test.user, train.user).all()
    expected = ratings.rating[np.sort(fixed["random90_0"])]
    np.testing.assert_array_equal(test.rating, expected)


def test_published_split_of_movielens_100k(data_dir):
    ratings = load_ratings("ml-100k")
    folder = data_dir / "ml-100k"
    base, held_out = load_ratings(folder / "u1.base"), load_ratings(folder / "u1.test")
    in_test = np.isin(
        ratings.user_ids * 10_000 + ratings.item_ids,
        held_out.user_ids * 10_000 + held_out.item_ids,
    )
    train, test = split_by_rows(ratings, np.flatnonzero(in_test))
    assert rows(train) == rows(base)
    assert rows(test) == rows(held_out)


@pytest.mark.parametrize("num_folds", [2, 7, 900])
def test_folds_hold_out_every_row_once(num_folds, ratings):
    seen, sizes = [], []
    for train, test in k_fold(ratings, num_folds, seed=4):
        assert rows(train) | rows(test) == rows(ratings)
        assert not rows(train) & rows(test)
        assert train.users is test.users is ratings.users
        seen += sorted(rows(test))
        sizes.append(len(test))
        if len(sizes) == 10:
            break
    else:
        assert sorted(seen) == sorted(rows(ratings))
        assert len(sizes) == num_folds
    assert len(set(seen)) == len(seen)
    assert max(sizes) - min(sizes) <= 1


def test_folds_follow_the_seed_alone(ratings):
    np.random.seed(1)
    first = [rows(test) for _, test in k_fold(ratings, 3, seed=3)]
    np.random.seed(2)
    assert [rows(test) for _, test in k_fold(ratings, 3, seed=3)] == first
    assert [rows(test) for _, test in k_fold(ratings, 3, seed=4)] != first


@pytest.mark.parametrize("num_folds", [0, 1, 901, 2.0, True])
def test_a_number_of_folds_without_meaning_is_refused_at_once(num_folds, ratings):
    with pytest.raises(InputError, match="num_folds"):
        k_fold(ratings, num_folds)


def timed(users, times):
    """One rating of a new item a row, numbered by row."""
    rows = range(len(users))
    return Ratings.from_arrays(users, rows, rows, timestamps=times)


@pytest.fixture(scope="module")
def dated():
    """900 ratings at some 200 times."""
    rng = np.random.default_rng(0)
    return timed(rng.integers(0, 60, 900), rng.integers(0, 200, 900))


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.99])
def test_what_is_tested_is_later_than_all_that_trains(dated, fraction):
    train, test = time_split(dated, test_fraction=fraction)
    assert sorted([*train.rating, *test.rating]) == list(range(900))
    assert train.timestamp.max() < test.timestamp.min()
    assert train.users is test.users is dated.users
    # as many as asked for, less those of the time where the test would begin
    short = round(900 * fraction) - len(test)
    assert 0 <= short < (dated.timestamp == train.timestamp.max()).sum()


def test_without_ties_the_share_is_exact_and_a_tenth_by_default():
    ratings = timed([1, 2] * 50, np.random.default_rng(1).permutation(100) / 7)
    assert len(time_split(ratings)[1]) == 10
    train, test = time_split(ratings, test_fraction=0.25)
    assert sorted(test.rating) == sorted(np.argsort(ratings.timestamp)[75:])
    assert (np.diff(train.rating) > 0).all() and (np.diff(test.rating) > 0).all()


def test_ratings_of_one_time_are_not_parted(caplog):
    ratings = timed(["a"] * 6, [5, 1, 2, 5, 5, 9])
    with caplog.at_level(logging.INFO, "im3f_jax"):
        train, test = time_split(ratings, test_fraction=0.5)
    assert test.rating.tolist() == [5.0]
    assert "1 ratings are held out instead of 3" in caplog.text
    with pytest.raises(InputError, match="ratings of one time are not parted"):
        time_split(timed(["a"] * 4, [3, 7, 7, 7]), test_fraction=0.5)


def test_users_whose_ratings_all_come_late_are_counted(caplog):
    ratings = timed([*"aabbac"], [1, 2, 3, 4, 5, 6])
    with caplog.at_level(logging.INFO, "im3f_jax"):
        train, test = time_split(ratings, test_fraction=0.5)
    assert test.user_ids.tolist() == [*"bac"]
    assert "1 of 3 users of the test have no training rating" in caplog.text


@pytest.mark.parametrize("number", [1, 3])
def test_the_last_ratings_of_each_user(dated, number, caplog):
    users = [*dated.user_ids, "few"]
    times = [*dated.timestamp, 7]
    ratings = timed(users, times)
    with caplog.at_level(logging.INFO, "im3f_jax"):
        train, test = time_split(ratings, last_of_user=number)
    assert f"1 of 61 users have no more than {number} ratings" in caplog.text
    assert sorted([*train.rating, *test.rating]) == list(range(901))
    for user in set(users):
        before = train.timestamp[train.user_ids == user]
        after = test.timestamp[test.user_ids == user]
        assert len(after) == (0 if user == "few" else number)
        assert len(before) and before.max() <= after.min(initial=10**9)


def test_of_two_at_one_time_the_later_row_is_the_later():
    ratings = timed([1, 1, 1, 2, 2], [8, 8, 3, 0, 0])
    assert time_split(ratings, last_of_user=1)[1].rating.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"test_fraction": 0.5, "last_of_user": 1}, "not both"),
        ({"test_fraction": 0}, "test_fraction"),
        ({"test_fraction": float("nan")}, "test_fraction"),
        ({"last_of_user": 0}, "last_of_user is 0"),
        ({"last_of_user": 1.0}, "last_of_user is 1.0"),
        ({"last_of_user": True}, "last_of_user is True"),
        ({"last_of_user": 900}, "no user has more than 900"),
    ],
)
def test_a_time_split_without_meaning_is_refused(dated, how, words):
    with pytest.raises(InputError, match=words):
        time_split(dated, **how)


def test_without_timestamps_no_split_by_time(ratings):
    with pytest.raises(InputError, match="no timestamps.*timestamp="):
        time_split(ratings)


@pytest.mark.parametrize("how", [{"test_fraction": 0.1}, {"last_of_user": 2}])
def test_a_time_split_of_movielens(data_dir, how):
    ratings = load_ratings("ml-100k")
    train, test = time_split(ratings, **how)
    assert len(train) + len(test) == 100_000
    if "last_of_user" in how:
        assert np.bincount(test.user).tolist() == [2] * 943
    else:
        assert 9_900 < len(test) <= 10_000
        assert train.timestamp.max() < test.timestamp.min()
