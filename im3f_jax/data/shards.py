"""How ratings lie on several devices: shards of users with all their ratings.

Users are cut into contiguous ranges of about as much work each. A shard has the rows of
its users, their ratings, and a row for every item: a `RatingLayout` of its own, with
users counted from 0. All shards are padded to the same sizes.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from im3f_jax.data.layout import (
    CPU_BLOCKS,
    BlockSizes,
    RatingLayout,
    RowBlocks,
    bucket,
    cut_rows,
    row_padding,
)
from im3f_jax.errors import InputError

__all__ = ["AXIS", "Shards", "lay_out_shards", "split_users"]

# Name of the axis that counts the shards.
AXIS = "shards"
# A user costs as much as so many ratings more: factorisation, weights and biases.
WORK_OF_USER = 16


@dataclass(frozen=True)
class Shards:
    """Ratings on several devices, on the host.

    Attributes
    ----------
    layout
        The layouts of all shards, one after another along the first axis of each array;
        scalars have shape (shards,). Sizes that are static are those of one shard.
    order
        Canonical place n holds rating `order[n]` of the input, shape (N,). Places are
        those of `lay_out`.
    place_of_rating
        Where the rating of each canonical place stands in `layout.rating`, (N,).
    place_of_user
        Where each user stands among the rows of all shards, shape (num_users,).
    """

    layout: RatingLayout
    order: np.ndarray
    place_of_rating: np.ndarray
    place_of_user: np.ndarray

    @property
    def number(self) -> int:
        """Number of shards."""
        return len(self.layout.num_users)

    @property
    def num_users(self) -> int:
        """Users of all shards."""
        return len(self.place_of_user)

    @property
    def place_of_new_user(self) -> int:
        """First row of padding of the first shard."""
        return int(self.layout.num_users[0])

    def shard_of_user(self, user: np.ndarray) -> np.ndarray:
        """Shard of each user, integers, in the shape of `user`; new users: the first.

        Users beyond the last are new.
        """
        place = np.append(self.place_of_user, 0)[np.minimum(user, self.num_users)]
        return place // self.layout.user_rows

    def spread(self, user: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """Give pairs of users and items places by the user's shard.

        Parameters
        ----------
        user
            Rows of users, integers, shape (T,); those beyond the last are new.
        chunk
            What divides the number of places of a shard.

        Returns
        -------
        tuple of ndarray
            The place of each pair among those of all shards, shape (T,), and the number
            of pairs of each, shape (shards,). A shard has as many places as the others.
        """
        shard = self.shard_of_user(user)
        counts = np.bincount(shard, minlength=self.number)
        size = -(-counts.max() // chunk) * chunk
        order = np.argsort(shard, kind="stable")
        place = np.empty(len(user), np.int64)
        within = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
        place[order] = shard[order] * size + within
        return place, counts

    def row_of_user(self, user: np.ndarray) -> np.ndarray:
        """Row of each user in its shard, integers; of new users the row of padding."""
        place = np.append(self.place_of_user, self.place_of_new_user)
        return place[np.minimum(user, self.num_users)] % self.layout.user_rows

    def one(self, shard: int = 0) -> RatingLayout:
        """Give the layout of one shard, as its device sees it."""

        def part(values):
            if isinstance(values, RowBlocks):
                changed = {
                    f.name: part(getattr(values, f.name))
                    for f in fields(values)
                    if not f.metadata.get("static")
                    and getattr(values, f.name) is not None
                }
                return replace(values, **changed)
            size = len(values) // self.number
            values = values[shard * size : (shard + 1) * size]
            return values[0] if size == 1 and values.ndim == 1 else values

        changed = {
            f.name: part(getattr(self.layout, f.name))
            for f in fields(self.layout)
            if not f.metadata.get("static") and getattr(self.layout, f.name) is not None
        }
        return replace(self.layout, **changed)


def split_users(counts: np.ndarray, num_shards: int) -> np.ndarray:
    """Cut users into contiguous ranges of about as much work each.

    Parameters
    ----------
    counts
        Ratings of each user, integers, shape (num_users,).
    num_shards
        At most the number of users.

    Returns
    -------
    ndarray
        First user of each shard, and the number of users: shape (num_shards + 1,).
    """
    work = np.cumsum(counts + WORK_OF_USER)
    goals = work[-1] * np.arange(1, num_shards) / num_shards
    first = np.concatenate([[0], np.searchsorted(work, goals), [len(counts)]])
    # Every shard has a user.
    first = np.maximum.accumulate(first - np.arange(num_shards + 1))
    first = np.minimum(first, len(counts) - num_shards)
    return first + np.arange(num_shards + 1)


def lay_out_shards(
    user: np.ndarray,
    item: np.ndarray,
    rating: np.ndarray,
    num_users: int,
    num_items: int,
    num_shards: int,
    sizes: BlockSizes = CPU_BLOCKS,
    dtype: Any = np.float32,
) -> Shards:
    """Sort, pad and cut ratings for several devices; parameters as in `lay_out`.

    Raises
    ------
    InputError
        If there are more shards than users.
    """
    if num_shards > num_users:
        raise InputError(
            f"There are {num_shards} devices but {num_users} users: a device needs a "
            "user at least. Give fewer devices."
        )
    order = np.lexsort((item, user))
    user, item, rating = user[order], item[order], rating[order]
    counts = np.bincount(user, minlength=num_users)
    first = split_users(counts, num_shards)
    bounds = np.append(0, np.cumsum(counts))[first]
    padded = bucket(int(np.diff(bounds).max()) + 1)
    user_rows, user_batch = row_padding(int(np.diff(first).max()), sizes.rows)
    parts = num_shards * sizes.lanes
    item_rows, item_batch = row_padding(num_items, sizes.rows, parts)
    places = np.repeat(np.arange(num_shards), np.diff(bounds)) * padded
    places += np.arange(len(user)) - np.repeat(bounds[:-1], np.diff(bounds))
    place_of_user = np.repeat(np.arange(num_shards), np.diff(first)) * user_rows
    place_of_user += np.arange(num_users) - np.repeat(first[:-1], np.diff(first))

    def spread(values: np.ndarray, fill: int, dtype: Any) -> np.ndarray:
        result = np.full(num_shards * padded, fill, dtype)
        result[places] = values
        return result

    row = user - np.repeat(first[:-1], np.diff(bounds))
    by_user, by_item = [], []
    for shard in range(num_shards):
        mine = slice(bounds[shard], bounds[shard + 1])
        rows, columns = row[mine], item[mine]
        turned = np.lexsort((rows, columns))
        by_user.append((rows, columns, np.arange(len(rows))))
        by_item.append((columns[turned], rows[turned], turned))
    of_users = user_rows, user_batch, item_rows - 1, padded - 1, sizes
    of_items = item_rows, item_batch, user_rows - 1, padded - 1, sizes
    layout = RatingLayout(
        user=spread(row, user_rows - 1, np.int32),
        item=spread(item, item_rows - 1, np.int32),
        rating=spread(rating, 0, dtype),
        num_ratings=np.diff(bounds).astype(np.int32),
        num_users=np.diff(first).astype(np.int32),
        num_items=np.full(num_shards, num_items, np.int32),
        user_blocks=_cut_alike(by_user, of_users),
        # Rows of items are in one order on all shards: that of all their ratings.
        item_blocks=_cut_alike(
            by_item, of_items, np.bincount(item, minlength=item_rows)
        ),
        user_rows=user_rows,
        item_rows=item_rows,
        chunk=int(np.gcd(padded, sizes.chunk)),
        axis=AXIS,
    )
    return Shards(layout, order, places, place_of_user)


def _cut_alike(
    parts: list[tuple], how: tuple, length: np.ndarray | None = None
) -> RowBlocks:
    """Cut the ratings of every shard into groups of one size, and as many."""
    group = max(cut_rows(*part, *how, length=length).row.shape[1] for part in parts)
    cut = [cut_rows(*part, *how, group, length) for part in parts]
    groups = max(len(blocks.row) for blocks in cut)

    def join(name: str) -> np.ndarray:
        values = [getattr(blocks, name) for blocks in cut]
        # No batch comes to the groups that are added.
        return np.concatenate(
            [
                np.concatenate([v, np.repeat(v[-1:], groups - len(v), axis=0)])
                for v in values
            ]
        )

    return RowBlocks(
        other=join("other"),
        position=join("position"),
        row=join("row"),
        batch_start=np.concatenate([blocks.batch_start for blocks in cut]),
        rows=cut[0].rows,
        place=None
        if cut[0].place is None
        else np.concatenate([blocks.place for blocks in cut]),
        lanes=cut[0].lanes,
    )
