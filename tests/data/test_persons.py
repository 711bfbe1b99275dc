"""Persons on both sides: one index, pairs in either order, and what is refused."""

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.data.persons import check_pairs, in_order, of_persons
from im3f_jax.errors import InputError


def ratings(users, items):
    return im3f.Ratings.from_arrays(users, items, np.arange(len(users)) % 3)


@pytest.mark.parametrize(
    "users, items",
    [
        (["b", "a", "d"], ["a", "cc", "b"]),
        ([7, 1, 4], [4, 9, 300]),
        (np.array([7, 1], np.uint64), np.array([4, 9], np.int64)),
        ([1, "1", 2.5], ["1", 2.5, 1]),  # three different ids
    ],
)
@pytest.mark.parametrize("unordered", [True, False])
def test_both_sides_get_one_index(users, items, unordered):
    given = ratings(users, items)
    train, test = im3f.split_by_rows(given, [0])
    made = of_persons(unordered, train, test)
    for table, old in zip(made, (train, test), strict=True):
        assert table.users is table.items and table.users is made[0].users
        assert len(table.users) == len({*given.users.ids} | {*given.items.ids})
        pairs = [list(zip(t.user_ids, t.item_ids, strict=True)) for t in (table, old)]
        if unordered:
            assert np.all(table.user <= table.item)
            pairs = [[set(pair) for pair in each] for each in pairs]
        assert pairs[0] == pairs[1]
        np.testing.assert_array_equal(table.rating, old.rating)
    # Once more changes nothing.
    again = of_persons(unordered, *made)
    assert again[0].users is made[0].users
    np.testing.assert_array_equal(again[0].user, made[0].user)


def test_the_order_of_a_pair():
    user, item = in_order(np.array([3, 1]), np.array([2, 5]))
    assert user.tolist() == [2, 1] and item.tolist() == [3, 5]


def test_ids_of_two_kinds_are_refused():
    with pytest.raises(InputError, match="kind integer and item ids of kind string"):
        of_persons(False, ratings([1, 2], ["1", "2"]))


@pytest.mark.parametrize(
    "unordered, test_rows, users, items, message",
    [
        (False, [0], "abc", "bcc", "'c' is paired with themselves in row 1 .* train"),
        (True, [2], "abc", "bcc", "'c' is paired with themselves in row 0 .* test"),
        (True, [2], "abb", "bac", "one pair of train in rows 0 and 1"),
        (True, [2], "abb", "bca", "'a' and 'b' are a pair of test, in row 0"),
        (True, [0], "abb", "bca", "'a' and 'b' are a pair of test"),
    ],
)
def test_pairs_that_tell_of_held_out_ones_are_refused(
    unordered, test_rows, users, items, message
):
    parts = im3f.split_by_rows(ratings(list(users), list(items)), test_rows)
    with pytest.raises(InputError, match=message) as refused:
        check_pairs(*of_persons(unordered, *parts), unordered)
    assert "\n" not in str(refused.value)


def test_both_orders_are_two_ratings_where_one_rates_the_other():
    parts = im3f.split_by_rows(ratings(list("abb"), list("bac")), [1])
    check_pairs(*of_persons(False, *parts), False)
    check_pairs(*of_persons(True, *im3f.split_by_rows(
        ratings(list("abc"), list("bca")), [1])), True)  # fmt: skip
