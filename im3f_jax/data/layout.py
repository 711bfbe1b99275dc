"""How ratings lie on a device: sorted, padded to a bucket, cut into blocks.

The sampler reads ratings in two orders. Rating-wise steps (topics, residuals) read
them in one canonical order, sorted by user, then item. The factor steps read each
side row by row: a row's ratings are cut into blocks of fixed length, blocks are taken
in groups, groups in batches of rows, so that sums of outer products become batched
matrix products of one shape whatever the data. Everything is padded to buckets, so
that data sets of nearly equal size share one compilation.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from im3f_jax.data.times import TimeColumns

__all__ = [
    "CPU_BLOCKS",
    "GPU_BLOCKS",
    "BlockSizes",
    "PairBlocks",
    "RatingLayout",
    "RowBlocks",
    "bucket",
    "colour_rows",
    "cut_rows",
    "lay_out",
    "row_padding",
    "rows_by_themselves",
]

Array = Any  # numpy on the host, jax on a device


@dataclass(frozen=True)
class BlockSizes:
    """Sizes that shape the work: ratings a block, blocks a group, rows a batch.

    `chunk` is the number of ratings in one step of the rating-wise loops. `lanes` rows
    are taken together, and divide the blocks of a group; 1: each row by itself.
    """

    block: int
    group: int
    rows: int
    chunk: int
    lanes: int = 1


# Two cores: a group's ratings, products and sums stay in cache, and eight rows fill a
# vector (products of 16 or 32 rows, or in blocks of 8, take 1.6 to 2 times as long at
# D = 40). One GPU: few, large launches; a batch holds rows x D x D floats (420 MB at
# D = 40).
CPU_BLOCKS = BlockSizes(block=16, group=128, rows=128, chunk=1024, lanes=8)
GPU_BLOCKS = BlockSizes(block=64, group=4096, rows=65536, chunk=262144)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RowBlocks:
    """One side's ratings, row by row, in blocks.

    Padding points at the other side's empty row and at an empty rating, which hold 0.
    With `lanes` rows are sorted by falling number of ratings, so that those taken
    together are of about one length: `lanes` blocks in succession belong to as many
    rows in succession, the first of which has most ratings.
    """

    other: Array  # row of the other side, int32, shape (groups, group, block)
    position: Array  # place in the canonical order, int32, same shape
    row: Array  # row within its batch (padding: rows a batch), (groups, group)
    batch_start: Array  # first group of each batch, int32, shape (batches + 1,)
    rows: int = field(metadata={"static": True})  # of all batches, with padding
    place: Array | None = None  # of each row in the batches, (rows,); None: as they are
    lanes: int = field(default=1, metadata={"static": True})

    def by_row(self, values: Array) -> Array:
        """Sort what all batches give, shape (rows, ..), by row."""
        return values if self.place is None else values[self.place]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PairBlocks:
    """Unordered pairs, person by person, in batches of which no two are a pair.

    Every pair stands here twice, with each of its persons. `blocks` knows a person by
    the place in the batches, and the other of a pair by the row.
    """

    blocks: RowBlocks
    person: Array  # row at each place (padding: all rows), int32, shape (batches, B)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RatingLayout:
    """Training ratings as the compiled sweep reads them.

    Rows beyond `num_users` and `num_items` and ratings beyond `num_ratings` are
    padding; at least one of each exists. The numbers are traced: they do not
    recompile.

    Where devices share the ratings (`data.shards`), this is what one of them sees: the
    ratings of some users, all rows of items, and the numbers of its own.
    """

    user: Array  # int32, shape (N,), ascending
    item: Array  # int32, shape (N,)
    rating: Array  # rating scale, float, shape (N,)
    num_ratings: Array  # int32 scalar
    num_users: Array  # int32 scalar
    num_items: Array  # int32 scalar
    user_blocks: RowBlocks
    item_blocks: RowBlocks
    user_rows: int = field(metadata={"static": True})  # num_users and padding
    item_rows: int = field(metadata={"static": True})
    chunk: int = field(metadata={"static": True})
    # Of each rating, for models of time only, which read them:
    times: TimeColumns | None = None
    pairs: PairBlocks | None = None  # where pairs are unordered; users are items then
    # Name of the axis that counts the shards, where devices share the ratings.
    axis: str | None = field(default=None, metadata={"static": True})


def bucket(size: int, minimum: int = 64) -> int:
    """Round up, by at most 1/32 of the size or `minimum`, to one of few sizes."""
    step = max(minimum, 1 << max(0, size.bit_length() - 6))
    return -(-size // step) * step


def lay_out(
    user: np.ndarray,
    item: np.ndarray,
    rating: np.ndarray,
    num_users: int,
    num_items: int,
    sizes: BlockSizes = CPU_BLOCKS,
    dtype: Any = np.float32,
    times: TimeColumns | None = None,
    unordered: bool = False,
) -> tuple[RatingLayout, np.ndarray]:
    """Sort, pad and cut ratings.

    Parameters
    ----------
    user, item
        Rows of the trained users and items, integers, shape (N,).
    rating
        Rating scale, shape (N,).
    num_users, num_items
        Numbers of rows.
    sizes
        Block sizes, by device.
    dtype
        Precision of the ratings on the device.
    times
        Of the ratings, as a `TimeScale` gives them; None where the model reads none.
    unordered
        Users and items are the same rows, persons, and a pair has no order: make
        `pairs` too.

    Returns
    -------
    tuple
        The layout in numpy arrays, and the order: position n of the layout is rating
        `order[n]` of the input, shape (N,).
    """
    num_ratings = len(rating)
    order = np.lexsort((item, user))
    padded = bucket(num_ratings + 1)
    user_rows, user_batch = row_padding(num_users, sizes.rows)
    item_rows, item_batch = row_padding(num_items, sizes.rows)

    def pad(values: np.ndarray, fill: int, dtype: Any) -> np.ndarray:
        result = np.full(padded, fill, dtype)
        result[:num_ratings] = values[order]
        return result

    by_user = pad(user, user_rows - 1, np.int32)
    by_item = pad(item, item_rows - 1, np.int32)
    position = np.arange(num_ratings)
    item_order = np.lexsort((by_user[:num_ratings], by_item[:num_ratings]))
    layout = RatingLayout(
        user=by_user,
        item=by_item,
        rating=pad(rating, 0, dtype),
        num_ratings=np.int32(num_ratings),
        num_users=np.int32(num_users),
        num_items=np.int32(num_items),
        user_blocks=cut_rows(
            by_user[:num_ratings],
            by_item[:num_ratings],
            position,
            user_rows,
            user_batch,
            item_rows - 1,
            padded - 1,
            sizes,
        ),
        item_blocks=cut_rows(
            by_item[item_order],
            by_user[item_order],
            item_order,
            item_rows,
            item_batch,
            user_rows - 1,
            padded - 1,
            sizes,
        ),
        user_rows=user_rows,
        item_rows=item_rows,
        chunk=math.gcd(padded, sizes.chunk),
        times=None
        if times is None
        else TimeColumns(pad(times.bin, 0, np.int32), pad(times.drift, 0, dtype)),
        pairs=_pair_blocks(
            by_user[:num_ratings],
            by_item[:num_ratings],
            num_users,
            user_rows,
            padded - 1,
            sizes,
        )
        if unordered
        else None,
    )
    return layout, order


def colour_rows(first: np.ndarray, second: np.ndarray, rows: int) -> np.ndarray:
    """Colour the persons so that no pair has one colour, greedily.

    Persons are taken by falling number of pairs, and get the first colour that none of
    their neighbours has (Welsh and Powell 1967): at most one colour more than the most
    pairs of a person, and about as many as the largest group in which all are paired.

    Parameters
    ----------
    first, second
        Rows of each pair, integers, shape (N,); never the same row.
    rows
        Number of persons.

    Returns
    -------
    ndarray
        Colours from 0, int64, shape (rows,).
    """
    row, other = np.append(first, second), np.append(second, first)
    degree = np.bincount(row, minlength=rows)
    neighbours = other[np.argsort(row, kind="stable")].tolist()
    start = np.append(0, np.cumsum(degree)).tolist()
    colour = [-1] * rows
    for person in np.argsort(-degree, kind="stable").tolist():
        near = neighbours[start[person] : start[person + 1]]
        taken = {colour[other] for other in near}
        free = 0
        while free in taken:
            free += 1
        colour[person] = free
    return np.array(colour, dtype=np.int64)


def _pair_blocks(
    first: np.ndarray,
    second: np.ndarray,
    num_persons: int,
    rows: int,
    empty_position: int,
    sizes: BlockSizes,
) -> PairBlocks:
    """Cut unordered pairs, of both their persons, into batches of one colour.

    The sizes are halved while that saves work: most colours are rare, most persons have
    few pairs. A batch costs as much as some rows more, a block as some pairs more.
    """
    sizes = rows_by_themselves(sizes)
    colour = colour_rows(first, second, num_persons)
    degree = np.bincount(np.append(first, second), minlength=num_persons)
    of_colour = np.bincount(colour)
    batch_rows = _least_work(of_colour, sizes.rows, sizes.rows // 16, 6)
    block = _least_work(degree, sizes.block, sizes.block // 8, 4)
    batches_of_colour = -(-of_colour // batch_rows)
    first_place = (np.cumsum(batches_of_colour) - batches_of_colour) * batch_rows
    persons = np.argsort(colour, kind="stable")
    within = (
        np.arange(num_persons) - (np.cumsum(of_colour) - of_colour)[colour[persons]]
    )
    place = np.empty(num_persons, np.int64)
    place[persons] = first_place[colour[persons]] + within
    num_batches = bucket(int(batches_of_colour.sum()), 4)
    person = np.full(num_batches * batch_rows, rows, np.int32)
    person[place] = np.arange(num_persons)

    position = np.arange(len(first))
    row, other = np.append(first, second), np.append(second, first)
    order = np.lexsort((other, place[row]))
    blocks = cut_rows(
        place[row][order],
        other[order],
        np.append(position, position)[order],
        num_batches * batch_rows,
        batch_rows,
        rows - 1,
        empty_position,
        replace(sizes, block=block),
    )
    return PairBlocks(blocks, person.reshape(num_batches, batch_rows))


def rows_by_themselves(sizes: BlockSizes) -> BlockSizes:
    """Take each row by itself, where sets were taken: longer blocks, fewer batches."""
    if sizes.lanes == 1:
        return sizes
    block, rows, group = 4 * sizes.block, 4 * sizes.rows, sizes.group // 2
    return replace(sizes, block=block, group=group, rows=rows, lanes=1)


def _least_work(counts: np.ndarray, largest: int, overhead: int, sizes: int) -> int:
    """Find the size, a half of a half .. of the largest, that cuts counts cheapest."""
    choices = [max(1, largest >> k) for k in range(sizes)]
    return min(
        choices, key=lambda n: int(np.sum(-(-counts // n))) * (n + max(overhead, 1))
    )


def row_padding(rows: int, batch_rows: int, parts: int = 1) -> tuple[int, int]:
    """Rows with padding (at least one), and rows a batch, which divides them.

    `parts` divides the rows a batch.
    """
    batches = -(-(rows + 1) // batch_rows)
    per_batch = bucket(-(-(rows + 1) // batches))
    per_batch += -per_batch % parts
    return batches * per_batch, per_batch


def cut_rows(
    row: np.ndarray,
    other: np.ndarray,
    position: np.ndarray,
    rows: int,
    batch_rows: int,
    empty_other: int,
    empty_position: int,
    sizes: BlockSizes,
    group: int | None = None,
    length: np.ndarray | None = None,
) -> RowBlocks:
    """Cut ratings that are sorted by row into blocks, groups and batches.

    Parameters
    ----------
    row, other, position
        Row, row of the other side, and canonical place of each rating, shape (n,).
    rows, batch_rows
        Rows with padding, and rows a batch.
    empty_other, empty_position
        What padding points at.
    sizes
        Block sizes.
    group
        Blocks a group; None: as many as `sizes` says, or fewer where no batch has so
        many.
    length
        What rows are sorted by, where some are taken together, shape (rows,); None:
        their numbers of ratings here.
    """
    block, lanes = sizes.block, sizes.lanes
    counts, row_place = np.bincount(row, minlength=rows), None
    if lanes > 1:
        longest_first = np.argsort(
            -(counts if length is None else length), kind="stable"
        )
        row_place = np.empty(rows, np.int32)
        row_place[longest_first] = np.arange(rows)
        counts, row = counts[longest_first], row_place[row]
        order = np.argsort(row, kind="stable")
        row, other, position = row[order], other[order], position[order]
    row_start = np.cumsum(counts) - counts
    # As many blocks as the longest row of its set has, lane beside lane.
    steps_of_set = -(-counts.reshape(-1, lanes).max(axis=1) // block)
    blocks_of_set = steps_of_set * lanes
    sets = np.arange(rows // lanes)
    set_of_block = np.repeat(sets, blocks_of_set)
    first_of_set = np.cumsum(blocks_of_set) - blocks_of_set
    step, lane = np.divmod(
        np.arange(len(set_of_block)) - first_of_set[set_of_block], lanes
    )
    row_of_block = set_of_block * lanes + lane
    is_empty = step * block >= counts[row_of_block]
    batch_of_block = row_of_block // batch_rows
    blocks_of_batch = np.bincount(batch_of_block, minlength=rows // batch_rows)
    if group is None:
        most = max(1, int(blocks_of_batch.max()))
        group = min(sizes.group, bucket(most, 8 * max(2, lanes)))
    groups_of_batch = -(-blocks_of_batch // group)
    batch_start = np.concatenate([[0], np.cumsum(groups_of_batch)])
    # A batch's blocks begin at a group of its own.
    first_block = np.cumsum(blocks_of_batch) - blocks_of_batch
    slot_of_block = (
        batch_start[batch_of_block] * group
        + np.arange(len(row_of_block))
        - first_block[batch_of_block]
    )
    within = np.arange(len(row)) - row_start[row]
    block_of_rating = first_of_set[row // lanes] + within // block * lanes + row % lanes
    slot = slot_of_block[block_of_rating] * block + within % block
    groups = bucket(max(1, int(batch_start[-1])), 4)

    def place(values: np.ndarray, where: np.ndarray, size: int, fill: int):
        result = np.full(size, fill, np.int32)
        result[where] = values
        return result

    shape = (groups, group, block)
    return RowBlocks(
        other=place(other, slot, groups * group * block, empty_other).reshape(shape),
        position=place(position, slot, groups * group * block, empty_position).reshape(
            shape
        ),
        row=place(
            np.where(is_empty, batch_rows, row_of_block % batch_rows),
            slot_of_block,
            groups * group,
            batch_rows,
        ).reshape(groups, group),
        batch_start=batch_start.astype(np.int32),
        rows=rows,
        place=row_place,
        lanes=lanes,
    )
