"""The layout loses nothing, invents nothing, and its shapes are few."""

import jax
import numpy as np
import pytest

from im3f_jax.data.layout import (
    CPU_BLOCKS,
    GPU_BLOCKS,
    BlockSizes,
    bucket,
    colour_rows,
    lay_out,
)

SMALL = BlockSizes(block=3, group=2, rows=4, chunk=16)
SIZES = {"small": SMALL, "cpu": CPU_BLOCKS, "gpu": GPU_BLOCKS}


def table(num_ratings, num_users, num_items, seed=0):
    """Make ratings of skewed activity, with repeated pairs and rows without any."""
    rng = np.random.default_rng(seed)
    user = (num_users * rng.random(num_ratings) ** 3).astype(np.int64)
    item = (num_items * rng.random(num_ratings) ** 2).astype(np.int64)
    return user, item, rng.integers(1, 6, num_ratings).astype(float)


def read_side(blocks):
    """List (row, other row, position) of all ratings in the order of the blocks.

    Batches are walked as the factor step walks them: groups batch_start[b] up to
    batch_start[b + 1], places of the batch counted from b x rows a batch.
    """
    row_at = np.arange(blocks.rows)
    if blocks.place is not None:
        row_at = np.argsort(blocks.place)
        np.testing.assert_array_equal(blocks.by_row(row_at), np.arange(blocks.rows))
    num_batches = len(blocks.batch_start) - 1
    per_batch = blocks.rows // num_batches
    assert per_batch * num_batches == blocks.rows
    found, spare = [], []
    for batch in range(num_batches):
        for group in range(blocks.batch_start[batch], blocks.batch_start[batch + 1]):
            for block, row in enumerate(blocks.row[group]):
                pairs = zip(
                    blocks.other[group, block].tolist(),
                    blocks.position[group, block].tolist(),
                    strict=True,
                )
                assert 0 <= row <= per_batch
                if row == per_batch:  # a block of padding, dropped
                    spare += pairs
                else:
                    own = int(row_at[batch * per_batch + row])
                    found += [(own, *pair) for pair in pairs]
    return found, spare


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "num_ratings, num_users, num_items",
    [(400, 9, 130), (1, 1, 1), (63, 64, 63), (64, 63, 64), (700, 600, 20)],
)
def test_every_rating_lies_once_in_its_own_rows(
    sizes, num_ratings, num_users, num_items
):
    user, item, rating = table(num_ratings, num_users, num_items)
    layout, order = lay_out(user, item, rating, num_users, num_items, SIZES[sizes])
    padded = len(layout.rating)

    # The canonical order: a permutation of the input, sorted, then empty ratings.
    assert sorted(order) == list(range(num_ratings))
    np.testing.assert_array_equal(layout.user[:num_ratings], user[order])
    np.testing.assert_array_equal(layout.item[:num_ratings], item[order])
    np.testing.assert_array_equal(layout.rating[:num_ratings], rating[order])
    keys = list(zip(layout.user[:num_ratings], layout.item[:num_ratings], strict=True))
    assert keys == sorted(keys)
    assert padded > num_ratings and padded % layout.chunk == 0
    assert layout.user_rows > num_users and layout.item_rows > num_items
    assert np.all(np.diff(layout.user) >= 0)
    assert np.all(layout.user[num_ratings:] >= num_users)
    assert np.all(layout.item[num_ratings:] >= num_items)
    assert not np.any(layout.rating[num_ratings:])
    for number, expected in (
        (layout.num_ratings, num_ratings),
        (layout.num_users, num_users),
        (layout.num_items, num_items),
    ):
        assert number.dtype == np.int32 and number == expected

    for blocks, own, other, own_rows, other_size in (
        (layout.user_blocks, layout.user, layout.item, layout.user_rows, num_items),
        (layout.item_blocks, layout.item, layout.user, layout.item_rows, num_users),
    ):
        assert blocks.rows == own_rows
        found, spare = read_side(blocks)
        real = [entry for entry in found if entry[2] < num_ratings]
        assert sorted(position for *_, position in real) == list(range(num_ratings))
        for row, other_row, position in real:
            assert (row, other_row) == (own[position], other[position])
        # Padding, in a row's last block or in a block of its own, holds nothing: an
        # empty row of the other side and an empty rating.
        padding = [entry[1:] for entry in found if entry[2] >= num_ratings] + spare
        assert all(other_size <= row and n >= num_ratings for row, n in padding)
        assert all(n < padded for _, n in padding)
        # Groups beyond the last batch are padding too.
        beyond = blocks.position[blocks.batch_start[-1] :]
        assert np.all(beyond >= num_ratings)
        for array in (blocks.other, blocks.position, blocks.row, blocks.batch_start):
            assert array.dtype == np.int32


def test_rows_with_more_ratings_than_a_block_take_several():
    user, item, rating = table(400, 9, 130)
    layout, _ = lay_out(user, item, rating, 9, 130, SMALL)
    counts = np.bincount(user, minlength=9)
    assert counts.max() > 5 * SMALL.block
    row = layout.user_blocks.row
    blocks = np.bincount(row[row < layout.user_blocks.rows].ravel(), minlength=9)
    np.testing.assert_array_equal(blocks[:9], -(-counts // SMALL.block))


@pytest.mark.parametrize("num_rows", [1, 9, 64, 300])
def test_rows_of_a_set_lie_lane_beside_lane(num_rows):
    user, item, rating = table(3_000, num_rows, 50)
    sizes = BlockSizes(block=4, group=32, rows=128, chunk=64, lanes=8)
    blocks = lay_out(user, item, rating, num_rows, 50, sizes)[0].user_blocks
    batches = len(blocks.batch_start) - 1
    counts = np.bincount(user, minlength=blocks.rows)[np.argsort(blocks.place)]
    assert np.all(np.diff(counts) <= 0)  # by place
    row = blocks.row[: blocks.batch_start[-1]].reshape(-1, 8)
    padding = blocks.rows // batches
    first = row[:, 0]
    expected = np.where(
        first[:, None] < padding, first[:, None] + np.arange(8), padding
    )
    assert np.all(first[first < padding] % 8 == 0)
    assert np.all((row == expected) | (row == padding))
    # A block for every four ratings of each row, one after another.
    steps = np.diff(blocks.batch_start) * (blocks.row.shape[1] // 8)
    at = np.repeat(np.arange(batches), steps)
    places = (at[:, None] * padding + row)[row < padding]
    np.testing.assert_array_equal(
        np.bincount(places, minlength=blocks.rows), -(-counts // 4)
    )


def test_many_rows_make_several_batches():
    user, item, rating = table(3_000, 300, 20)
    sizes = BlockSizes(block=4, group=8, rows=64, chunk=64)
    layout, _ = lay_out(user, item, rating, 300, 20, sizes)
    assert len(layout.user_blocks.batch_start) - 1 == 5
    assert layout.user_rows == 320
    found, _ = read_side(layout.user_blocks)
    assert sorted(n for *_, n in found if n < 3_000) == list(range(3_000))


def shapes(layout):
    """What a compilation depends on: shapes, types and static sizes."""
    leaves, structure = jax.tree.flatten(layout)
    return [(leaf.shape, leaf.dtype) for leaf in leaves], structure


@pytest.mark.parametrize("sizes", ["cpu", "gpu"])
def test_data_sets_of_nearly_equal_size_share_their_shapes(sizes):
    layouts = [
        lay_out(*table(n, 100, 80, seed), 100, 80, SIZES[sizes])[0]
        for seed, n in enumerate((1_000, 1_010, 1_020))
    ]
    assert shapes(layouts[0]) == shapes(layouts[1]) == shapes(layouts[2])
    smaller, _ = lay_out(*table(300, 100, 80), 100, 80, SIZES[sizes])
    assert shapes(smaller) != shapes(layouts[0])


def test_no_ratings_at_all():
    # For tests of the sampler against its prior.
    layout, order = lay_out(*table(0, 5, 4), 5, 4)
    assert len(order) == 0 and layout.num_ratings == 0
    assert min(layout.user_blocks.position.shape) > 0
    assert read_side(layout.user_blocks) == ([], [])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ratings_have_the_precision_asked_for(dtype):
    layout, _ = lay_out(*table(50, 5, 4), 5, 4, dtype=dtype)
    assert layout.rating.dtype == dtype
    assert layout.user.dtype == layout.item.dtype == np.int32


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1_000, 4_096, 90_571, 10**6, 10**8])
def test_bucket_rounds_up_by_little(size):
    rounded = bucket(size)
    assert size <= rounded <= size + max(63, size / 32)
    # Few sizes: at most 32 between a number and its double.
    assert len({bucket(s) for s in range(size, 2 * size, max(1, size // 500))}) <= 66
    assert bucket(rounded) == rounded


# --- unordered pairs ---------------------------------------------------------------


def random_pairs(num_pairs, num_persons, seed):
    """Make pairs of persons of skewed activity, some twice."""
    rng = np.random.default_rng(seed)
    first = (num_persons * rng.random(num_pairs) ** 3).astype(np.int64)
    second = rng.integers(num_persons - 1, size=num_pairs)
    return first, second + (second >= first)


SHAPES = [(400, 30), (1, 2), (3, 200), (900, 12), (2000, 700)]


@pytest.mark.parametrize("num_pairs, num_persons", SHAPES)
@pytest.mark.parametrize("seed", range(5))
def test_no_pair_has_one_colour(num_pairs, num_persons, seed):
    first, second = random_pairs(num_pairs, num_persons, seed)
    colour = colour_rows(first, second, num_persons)
    assert colour.shape == (num_persons,) and colour.min() == 0
    assert np.all(colour[first] != colour[second])
    pairs = {frozenset(pair) for pair in zip(first, second, strict=True)}
    degree = np.bincount([p for pair in pairs for p in pair], minlength=num_persons)
    assert np.all(colour <= degree)
    # Each colour below a person's own is that of a neighbour.
    for person, own in enumerate(colour):
        near = {colour[q] for pair in pairs if person in pair for q in pair}
        assert set(range(own)) <= near


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("num_pairs, num_persons", SHAPES)
def test_every_pair_lies_once_with_each_person(sizes, num_pairs, num_persons):
    first, second = random_pairs(num_pairs, num_persons, 9)
    layout, _ = lay_out(
        first,
        second,
        np.ones(num_pairs),
        num_persons,
        num_persons,
        SIZES[sizes],
        unordered=True,
    )
    person, blocks = layout.pairs.person, layout.pairs.blocks
    places = person.ravel()
    assert sorted(places[places < num_persons]) == list(range(num_persons))
    assert np.all(places[places >= num_persons] == layout.user_rows)
    found, spare = read_side(blocks)
    expected = []
    for n in range(num_pairs):
        u, v = int(layout.user[n]), int(layout.item[n])
        expected += [(u, v, n), (v, u, n)]
    padding = (layout.user_rows - 1, len(layout.rating) - 1)
    kept = [
        (int(places[place]), other, position)
        for place, other, position in found
        if (other, position) != padding
    ]
    assert sorted(kept) == sorted(expected)
    assert all(pair == padding for pair in spare)
    # No two persons of a batch are a pair.
    batch_of = np.empty(num_persons, np.int64)
    batch, _ = np.nonzero(person < num_persons)
    batch_of[person[person < num_persons]] = batch
    assert np.all(batch_of[first] != batch_of[second])


def test_the_pairs_of_ordered_ratings_are_not_laid_out():
    assert lay_out(*table(400, 9, 130), 9, 130)[0].pairs is None
