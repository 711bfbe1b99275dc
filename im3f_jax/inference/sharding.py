"""One chain on several devices: users and their ratings in shards, one a device.

The same sweep runs on every device (`jax.shard_map`), on its own users; what is said of
items, topics and variances is the same on all. Several processes, on one machine or on
many, see each other's devices after `jax.distributed.initialize`; each then runs the
same program on the same ratings.
"""

import zlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from im3f_jax.data.layout import RatingLayout
from im3f_jax.data.shards import AXIS, Shards
from im3f_jax.errors import InputError
from im3f_jax.gibbs.state import BiasPriorState, State, TopicWeights
from im3f_jax.inference.devices import choose_device
from im3f_jax.model.factor_prior import MultiplicativeGamma
from im3f_jax.model.noise import ConstantNoise
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.spec import ModelSpec, has_franchise
from im3f_jax.model.time_effects import reads_times
from im3f_jax.model.topic_factors import TopicFactors

__all__ = [
    "ALL_THE_SAME",
    "BY_SHARD",
    "STATE",
    "Placement",
    "agree",
    "all_or_none",
    "differing",
    "check_sharded",
    "choose_devices",
    "cut_state",
    "fetch",
    "join_state",
    "local_view",
    "on_mesh",
    "put",
    "settle",
]

BY_SHARD, ALL_THE_SAME = P(AXIS), P()
# What of a state is cut into shards; a None stays one.
STATE = State(*[ALL_THE_SAME] * len(State._fields))._replace(
    user_factors=BY_SHARD,
    user_bias=BY_SHARD,
    user_bias_prior=BiasPriorState(
        ALL_THE_SAME, ALL_THE_SAME, ALL_THE_SAME, BY_SHARD, ALL_THE_SAME
    ),
    user_topic_of_rating=BY_SHARD,
    item_topic_of_rating=BY_SHARD,
    user_topic_weights=TopicWeights(BY_SHARD, *[ALL_THE_SAME] * 5),
)


@dataclass(frozen=True)
class Placement:
    """Where the users are among the rows of all shards, and on which devices."""

    mesh: Mesh
    place_of_user: np.ndarray  # of every user and of a new one, (num_users + 1,)
    num_items: int


def choose_devices(
    devices: "str | int | Sequence[jax.Device] | None", device: Any = "auto"
) -> list[jax.Device]:
    """Find the devices that share a chain; one where `devices` is None.

    Parameters
    ----------
    devices
        "all" (of all processes), how many of them, or a list of devices.
    device
        "auto", "cpu" or "gpu": of which kind; where `devices` is None, as in
        `choose_device`.

    Raises
    ------
    InputError
        If there are not so many, or what is given means none.
    """
    if devices is None:
        return [choose_device(device)]
    whole = isinstance(devices, int | np.integer) and not isinstance(devices, bool)
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        found = list(devices)
        if found and all(isinstance(one, jax.Device) for one in found):
            if device != "auto":
                raise InputError("Give device or a list of devices, not both.")
            if len(set(found)) < len(found):
                raise InputError("A device stands twice in devices.")
            return found
    elif devices == "all" or (whole and devices >= 1):
        if not isinstance(device, str):
            raise InputError(
                "Give one device, or a number of devices of a kind ('cpu', 'gpu')."
            )
        kind = choose_device(device).platform
        found = jax.devices(kind)
        if devices == "all":
            return found
        if devices > len(found):
            raise InputError(
                f"devices is {devices}, but there are {len(found)} of kind {kind!r}."
            )
        return found[:devices]
    raise InputError(
        f"devices is {devices!r}, but must be 'all', a number of them from 1, or a "
        "list of JAX devices."
    )


def check_sharded(spec: ModelSpec) -> None:
    """Refuse a model whose sweep does not run in shards.

    Raises
    ------
    InputError
        One sentence that names the part.
    """
    noises = spec.user_noise, spec.item_noise, spec.rating_noise
    for found, name in (
        (is_reciprocal(spec), "a reciprocal model"),
        (has_franchise(spec), "a CRF, whose ratings are taken one after another"),
        (spec.own_topics, "topics of one's own"),
        (isinstance(spec.topic_factors, TopicFactors), "topic factors"),
        (isinstance(spec.factor_prior, MultiplicativeGamma), "the shrinkage prior"),
        (reads_times(spec), "effects of time"),
        (any(not isinstance(n, ConstantNoise) for n in noises), "noise that differs"),
        (spec.estimate == "map", "PMF's mode"),
    ):
        if found:
            raise InputError(
                f"On several devices there is no sweep with {name}: leave devices out."
            )


def local_view(part: Any) -> Any:
    """Give a layout or test pairs, inside of `on_mesh`, as one device has them.

    Scalars of all shards are arrays of one element there.
    """
    names = (
        ("num_ratings", "num_users", "num_items")
        if isinstance(part, RatingLayout)
        else ("count",)
    )
    return replace(part, **{name: getattr(part, name)[0] for name in names})


def on_mesh(function, mesh: Mesh, in_specs, out_specs):
    """Run a function on every device of a mesh, each with its shards."""
    # Unchecked: draws from keys of one's own make loops carry what differs by shard
    # beside what does not.
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def cut_state(state: State, shards: Shards) -> State:
    """Cut a state of one device into shards, one after another along the first axis.

    Parameters
    ----------
    state
        In the places of `lay_out`.
    shards
        Of the same ratings.
    """
    target, rows = shards.layout, shards.number * shards.layout.user_rows
    return _move(state, shards, target, rows, len(target.rating), cut=True)


def join_state(state: State, shards: Shards, layout: RatingLayout) -> State:
    """Put a state's shards together, for one device or to be cut otherwise.

    Parameters
    ----------
    state
        In shards, all of it on this device or on the host.
    shards
        Its shards.
    layout
        Of the same ratings, by `lay_out`.
    """
    size = len(layout.rating)
    return _move(state, shards, layout, layout.user_rows, size, cut=False)


def _move(state: State, shards: Shards, target, rows: int, size: int, cut: bool):
    """Move users and ratings to (`cut`) or from their places, among 0s."""

    def move(values, place, number):
        if values is None:
            return None
        zeros = jnp.zeros((number, *values.shape[1:]), values.dtype)
        if cut:
            return zeros.at[place].set(values[: len(place)])
        return zeros.at[: len(place)].set(values[place])

    def users(values):
        return move(values, shards.place_of_user, rows)

    def ratings(values):
        return move(values, shards.place_of_rating, size)

    def items(values):  # which differ in padding
        if values is None:
            return None
        values = values[: target.item_rows]
        more = [(0, target.item_rows - len(values)), *[(0, 0)] * (values.ndim - 1)]
        return jnp.pad(values, more)

    changed = {
        "user_topic_of_rating": ratings(state.user_topic_of_rating),
        "item_topic_of_rating": ratings(state.item_topic_of_rating),
    }
    for side, moved in (("user", users), ("item", items)):
        weights = getattr(state, f"{side}_topic_weights")
        prior = getattr(state, f"{side}_bias_prior")
        for name in (f"{side}_factors", f"{side}_bias"):
            changed[name] = moved(getattr(state, name))
        changed[f"{side}_bias_prior"] = prior._replace(shared=moved(prior.shared))
        changed[f"{side}_topic_weights"] = weights._replace(
            log_row_weights=moved(weights.log_row_weights)
        )
    return state._replace(**changed)


def put(tree: Any, mesh: Mesh, specs: Any) -> Any:
    """Put arrays of the host on the devices of a mesh.

    `specs` is a prefix of the tree; of every process the arrays are the whole ones.
    """

    def put_one(spec, part):
        sharding = NamedSharding(mesh, spec)

        def one(values):
            if jax.dtypes.issubdtype(values.dtype, jax.dtypes.prng_key):
                return jax.device_put(values, sharding)
            values = np.asarray(values)
            return jax.make_array_from_callback(
                values.shape, sharding, lambda index: values[index]
            )

        return jax.tree.map(one, part)

    is_spec = lambda x: isinstance(x, P)  # noqa: E731
    return jax.tree.map(put_one, specs, tree, is_leaf=is_spec)


def settle(tree: Any, mesh: Mesh, specs: Any) -> Any:
    """Bring arrays that are on the devices into the shards of `specs`, a prefix."""
    is_spec = lambda x: isinstance(x, P)  # noqa: E731
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=is_spec)
    return jax.jit(lambda x: x, out_shardings=shardings)(tree)


def agree(pace: int, interrupted: bool, mesh: Mesh) -> tuple[int, bool]:
    """Take the slowest process's pace in all, and an interruption of any."""
    if not mesh.is_multi_process:
        return pace, interrupted
    told = np.array([pace, interrupted], np.int32)
    told = multihost_utils.process_allgather(told)
    return int(told[:, 0].min()), bool(told[:, 1].any())


@contextmanager
def all_or_none(mesh: Mesh | None, arrays: Sequence[np.ndarray] = (), settings=""):
    """Let all processes go on after the block, or none of them.

    Parameters
    ----------
    mesh
        Whose processes meet; None or of one process: nobody does.
    arrays, settings
        What must be the same in all processes, the second a string.

    Raises
    ------
    InputError
        In the block, as it was raised there; after it, where another process refused in
        its own block, or has other arrays or settings.
    """
    if mesh is None or not mesh.is_multi_process:
        yield
        return
    try:
        yield
    except InputError:
        _meet(False, 0)
        raise
    digest = zlib.crc32(settings.encode())
    for values in arrays:
        digest = zlib.crc32(np.ascontiguousarray(values), digest)
    told = _meet(True, digest)
    if not told[:, 0].all():
        raise InputError("Another process refused to start; it says why.")
    if len(np.unique(told[:, 1])) > 1:
        raise InputError(
            "The processes do not have the same ratings and settings (or do not see "
            "the same checkpoints): start the same command on the same data in all of "
            "them."
        )


def _meet(ready: bool, digest: int) -> np.ndarray:
    told = np.array([ready, digest], np.uint32)
    return multihost_utils.process_allgather(told)


@partial(jax.jit, static_argnames="mesh")
def differing(state: State, mesh: Mesh) -> dict[str, jax.Array]:
    """Tell of what all shards must have alike whether they have, by name.

    Bits are compared. Rounding that differs, on cards or machines of other kinds, would
    let chains part without a word.
    """

    def differs(x):
        bits = lax.bitcast_convert_type(x, jnp.int32) if x.dtype.itemsize == 4 else x
        total = jnp.sum(bits.astype(jnp.int32), dtype=jnp.int32)
        return lax.pmax(total, AXIS) != lax.pmin(total, AXIS)

    def body(state):
        own = jax.tree.map(
            lambda spec, part: None if spec == BY_SHARD else part,
            STATE,
            state,
            is_leaf=lambda x: isinstance(x, P),
        )
        return {
            jax.tree_util.keystr(path, simple=True, separator="."): differs(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(own)
        }

    return on_mesh(body, mesh, (STATE,), ALL_THE_SAME)(state)


def fetch(tree: Any) -> Any:
    """Copy arrays to the host, whole, also those of which others have a part."""

    def one(values):
        if isinstance(values, jax.Array) and not values.is_fully_addressable:
            if values.is_fully_replicated:
                return np.asarray(values.addressable_data(0))
            return multihost_utils.process_allgather(values, tiled=True)
        return jax.device_get(values)

    return jax.tree.map(one, tree)
