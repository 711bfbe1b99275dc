"""A sweep in three shards, all on one device: `jax.vmap` counts them by the same name.

What the sweep tells other shards, and how, is the same as on several devices. A state
is cut into shards before each sweep and put together after it.
"""

import contextlib
import dataclasses
from functools import cache
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from im3f_jax.data import layout, shards
from im3f_jax.data.layout import BlockSizes
from im3f_jax.data.shards import AXIS
from im3f_jax.gibbs import sweep
from im3f_jax.inference.sharding import BY_SHARD, STATE, cut_state, join_state
from im3f_jax.inference.sharding import local_view as view_of_device
from tests.validation import members, room

__all__ = [
    "IN_LITTLE_ROOM",
    "MEMBERS",
    "NUMBER",
    "cut",
    "in_shards",
    "patch",
    "patch_in_little_room",
    "sharded_sweep",
]

IN_LITTLE_ROOM = "iM3F in little room in shards"
MEMBERS = "iM3F in shards", "M3F ordinal shared in shards"
NUMBER = 3


@cache
def cut():
    """Lay the pairs out in shards with little padding; the ratings are put in later."""

    def bucket(size, minimum=0):
        return -(-size // 4) * 4

    sizes = BlockSizes(block=2, group=4, rows=4, chunk=4, lanes=2)
    with (
        mock.patch.object(layout, "bucket", bucket),
        mock.patch.object(shards, "bucket", bucket),
    ):
        found = shards.lay_out_shards(
            members.USER,
            members.ITEM,
            np.zeros(members.NUM_RATINGS),
            members.NUM_USERS,
            members.NUM_ITEMS,
            NUMBER,
            sizes,
        )
    assert np.all(found.order == np.arange(members.NUM_RATINGS))
    return found


def apart(tree):
    """Give every array an axis of shards."""
    return jax.tree.map(lambda x: x.reshape(NUMBER, -1, *x.shape[1:]), tree)


def sharded_sweep(function, key, state, spec, data):
    """Run a sweep in shards; every leaf of what it gives has an axis of shards."""
    found = cut()
    rating = jnp.zeros(found.layout.rating.shape, data.rating.dtype)
    rating = rating.at[found.place_of_rating].set(data.rating[: members.NUM_RATINGS])
    # Without ratings there are none in any shard, and no block.
    some = data.num_ratings > 0

    def blocks(of_side):
        start = jnp.where(some, of_side.batch_start, 0)
        return dataclasses.replace(of_side, batch_start=start)

    given = dataclasses.replace(
        found.layout,
        rating=rating,
        num_ratings=jnp.where(some, found.layout.num_ratings, 0),
        user_blocks=blocks(found.layout.user_blocks),
        item_blocks=blocks(found.layout.item_blocks),
    )
    axes = jax.tree.map(
        lambda spec: 0 if spec == BY_SHARD else None,
        STATE,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    state = cut_state(state, found)
    state = jax.tree.map(
        lambda axis, part: part if axis is None else apart(part),
        axes,
        state,
        is_leaf=lambda x: x is None,
    )

    def one(state, data):
        return function(key, state, spec, view_of_device(data))

    return jax.vmap(one, in_axes=(axes, 0), axis_name=AXIS)(state, apart(given))


def together(state, data):
    """Put what `sharded_sweep` gives together."""
    state = jax.tree.map(
        lambda spec, part: jax.tree.map(
            (lambda x: x.reshape(-1, *x.shape[2:]))
            if spec == BY_SHARD
            else (lambda x: x[0]),
            part,
        ),
        STATE,
        state,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    return join_state(state, cut(), data)


@contextlib.contextmanager
def in_shards():
    """Run sweeps in shards."""
    original = sweep.gibbs_sweep.__wrapped__

    def sharded(key, state, spec, data):
        state, info = sharded_sweep(original, key, state, spec, data)
        return together(state, data), jax.tree.map(lambda x: x[0], info)

    with mock.patch.object(sweep, "gibbs_sweep", SimpleNamespace(__wrapped__=sharded)):
        yield


def patch(active, state):
    """Run sweeps in shards, as `run_chains` wants it said."""
    return in_shards()


@contextlib.contextmanager
def patch_in_little_room(active, state):
    """Run sweeps in shards that store some of the topics."""
    with in_shards(), room.little_room():
        yield
