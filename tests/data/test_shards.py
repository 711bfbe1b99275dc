"""Ratings in shards: every rating once, users together, shards alike."""

import numpy as np
import pytest

from im3f_jax.data.layout import BlockSizes, lay_out
from im3f_jax.data.shards import lay_out_shards, split_users
from im3f_jax.errors import InputError

SIZES = BlockSizes(block=4, group=8, rows=64, chunk=32)


def draw(num_users=150, num_items=70, num_ratings=2_000, seed=0):
    rng = np.random.default_rng(seed)
    # Some users have most of the ratings, every user and item has one.
    user = np.append(
        (num_users * rng.random(num_ratings) ** 3).astype(int), np.arange(num_users)
    )
    item = np.append(rng.integers(0, num_items, num_ratings), np.zeros(num_users, int))
    item[:num_items] = np.arange(num_items)
    return user, item, rng.normal(size=len(user)), num_users, num_items


@pytest.mark.parametrize("number", [2, 3, 8])
def test_every_rating_once(number):
    user, item, rating, *numbers = draw()
    shards = lay_out_shards(user, item, rating, *numbers, number, SIZES)
    layout = shards.layout
    assert shards.number == number
    place = shards.place_of_rating
    assert len(np.unique(place)) == len(rating)
    np.testing.assert_array_equal(
        layout.rating[place], rating[shards.order].astype(np.float32)
    )
    np.testing.assert_array_equal(layout.item[place], item[shards.order])
    shard = place // (len(layout.rating) // number)
    row = shard * layout.user_rows + layout.user[place]
    np.testing.assert_array_equal(row, shards.place_of_user[user[shards.order]])
    np.testing.assert_array_equal(layout.num_ratings, np.bincount(shard))
    assert layout.num_users.sum() == shards.num_users == numbers[0]
    # Canonical places are those of one device.
    whole, order = lay_out(user, item, rating, *numbers, SIZES)
    np.testing.assert_array_equal(order, shards.order)
    # What is left is padding.
    assert np.count_nonzero(layout.rating) == np.count_nonzero(rating)


@pytest.mark.parametrize("side", ["user", "item"])
def test_blocks_of_a_shard_hold_its_ratings(side):
    user, item, rating, *numbers = draw()
    shards = lay_out_shards(user, item, rating, *numbers, 3, SIZES)
    for shard in range(3):
        one = shards.one(shard)
        blocks = getattr(one, f"{side}_blocks")
        rows = blocks.rows // (len(blocks.batch_start) - 1)
        found = []
        for batch in range(len(blocks.batch_start) - 1):
            for group in range(
                blocks.batch_start[batch], blocks.batch_start[batch + 1]
            ):
                real = blocks.row[group] < rows
                row = np.repeat(
                    batch * rows + blocks.row[group][real], SIZES.block
                ).reshape(-1, SIZES.block)
                position = blocks.position[group][real]
                taken = position < one.num_ratings
                found += zip(
                    row[taken],
                    blocks.other[group][real][taken],
                    position[taken],
                    strict=True,
                )
        found = np.array(sorted(found, key=lambda given: given[2]))
        own, other = (one.user, one.item) if side == "user" else (one.item, one.user)
        count = one.num_ratings
        np.testing.assert_array_equal(found[:, 0], own[:count])
        np.testing.assert_array_equal(found[:, 1], other[:count])
        np.testing.assert_array_equal(found[:, 2], np.arange(count))


def test_one_shard_has_the_shapes_of_each():
    user, item, rating, *numbers = draw()
    shards = lay_out_shards(user, item, rating, *numbers, 4, SIZES)
    one = shards.one(2)
    assert one.num_users == shards.layout.num_users[2]
    assert len(one.rating) * 4 == len(shards.layout.rating)
    assert one.user_blocks.rows == one.user_rows
    assert one.axis == shards.layout.axis is not None


def test_work_is_cut_evenly():
    counts = np.random.default_rng(1).integers(1, 200, 10_000)
    first = split_users(counts, 8)
    work = np.add.reduceat(counts, first[:-1])
    assert first[0] == 0 and first[-1] == len(counts)
    assert work.max() < 1.02 * work.mean()


@pytest.mark.parametrize("counts", [[1_000_000, 1, 1, 1], [1, 1, 1, 1_000_000]])
def test_every_shard_has_a_user(counts):
    assert np.all(np.diff(split_users(np.array(counts), 4)) == 1)
    assert np.all(np.diff(split_users(np.array(counts), 3)) >= 1)


def test_pairs_go_to_the_shard_of_their_user():
    user, item, rating, *numbers = draw()
    shards = lay_out_shards(user, item, rating, *numbers, 4, SIZES)
    asked = np.array([149, 0, 150, 75, 0, 20])  # 150 is a new user
    place, counts = shards.spread(asked, 32)
    assert counts.sum() == 6 and len(np.unique(place)) == 6
    shard = place // 32
    row = shards.row_of_user(asked)
    known = asked < 150
    np.testing.assert_array_equal(
        (shard * shards.layout.user_rows + row)[known],
        shards.place_of_user[asked[known]],
    )
    assert shard[2] == 0 and row[2] == shards.place_of_new_user


def test_more_shards_than_users():
    with pytest.raises(InputError, match="5 devices but 4 users"):
        lay_out_shards(np.arange(4), np.zeros(4, int), np.ones(4), 4, 1, 5, SIZES)
