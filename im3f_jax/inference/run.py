"""The run: a loop on the host over compiled chunks of sweeps."""

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from im3f_jax.data.layout import RatingLayout
from im3f_jax.data.times import TimeColumns
from im3f_jax.errors import SamplingError
from im3f_jax.gibbs.crf import NO_DISH_FREE, NO_TABLE_FREE
from im3f_jax.gibbs.init import START_VARIANCE, init_state, start_response
from im3f_jax.gibbs.state import State, SweepInfo
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.topic_room import (
    can_grow,
    double_room,
    enlarge,
    finds_room,
    kept_topic_dtypes,
    overflow_of,
    start_room,
)
from im3f_jax.inference.checkpoint import Checkpoints
from im3f_jax.inference.devices import num_threads, settings_of_thread
from im3f_jax.inference.features import (
    expected_ratings,
    feature_width,
    prediction_features,
)
from im3f_jax.inference.sharding import (
    ALL_THE_SAME,
    BY_SHARD,
    STATE,
    Placement,
    agree,
    differing,
    fetch,
    local_view,
    on_mesh,
    put,
    settle,
)
from im3f_jax.inference.warm_start import fit_map, order_columns
from im3f_jax.model.factor_prior import MultiplicativeGamma
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.reciprocal import is_unordered
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.model.spec import ModelSpec, has_franchise, with_room_of
from im3f_jax.model.time_effects import TimeBins, TimeDrift, time_of_ratings
from im3f_jax.model.topic_prior import CRF
from im3f_jax.numerics.collectives import sum_across
from im3f_jax.numerics.linalg import dots_of_pairs

__all__ = ["Draws", "Pairs", "Plan", "RunResult", "run", "run_chunk"]

logger = logging.getLogger(__name__)

# The longest chunk, and the length of the trace buffer on the device.
CHUNK = 64
# A chunk is about this long, in seconds, so that the bar moves.
CHUNK_SECONDS = 1.0
MAP_STEPS = 60


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """Test pairs on the device; rows beyond `count` are padding."""

    user: Array  # row of the user's vector, int32, shape (T,)
    item: Array
    rating: Array  # rating scale, shape (T,)
    count: Array  # int32 scalar
    chunk: int = field(metadata={"static": True})
    times: TimeColumns | None = None  # where the model reads times


class Plan(NamedTuple):
    """Lengths of a run, all traced: they compile nothing."""

    num_warmup: Array
    thinning: Array


class Record(NamedTuple):
    """What the trace keeps of a sweep."""

    info: SweepInfo
    test_rmse_draw: Array  # of this draw's predictions, rating scale
    test_rmse: Array  # of the mean over kept draws so far; NaN before the first
    train_rmse_draw: Array  # kept draws only, else NaN
    train_rmse: Array


class Carry(NamedTuple):
    """What goes from chunk to chunk: everything that a resumed run would need."""

    state: State
    features: tuple[Array, Array]  # of the last sweep
    kept: Array  # kept draws so far, int32
    test_sum: Array  # sum of kept predictions, shape (T,)
    train_sum: Array  # the same for the training ratings, shape (N,) or (0,)
    records: Record  # of this chunk, each of shape (CHUNK,)
    sweep: Array  # the next one, int32
    overflow: Array  # whether it ran out of room for user, item topics: bool, (2,)


# What of a carry is cut into shards, where devices share the ratings.
CARRY = Carry(
    state=STATE,
    features=(BY_SHARD, ALL_THE_SAME),
    kept=ALL_THE_SAME,
    test_sum=BY_SHARD,
    train_sum=BY_SHARD,
    records=ALL_THE_SAME,
    sweep=ALL_THE_SAME,
    overflow=ALL_THE_SAME,
)


class Draws(NamedTuple):
    """Kept draws on the host, float32: the last row of each is that of a new row."""

    user_features: np.ndarray  # shape (chain, draw, num_users + 1, F)
    item_features: np.ndarray  # shape (chain, draw, num_items + 1, F)
    global_bias: np.ndarray  # shape (chain, draw)
    rating_variance: np.ndarray  # shape (chain, draw)
    cut_points: np.ndarray  # shape (chain, draw, L - 1); Gaussian: (chain, draw, 0)
    # Where the model reads times, else None; 0 in the row of a new one:
    item_time: np.ndarray | None = None  # (chain, draw, num_items + 1, bins)
    user_drift: np.ndarray | None = None  # (chain, draw, num_users + 1)
    # Lambda of a side's factors, (chain, draw, D, D); None in files of older versions:
    user_factor_precision: np.ndarray | None = None
    item_factor_precision: np.ndarray | None = None
    # Topics of the training ratings in the caller's order, where they were asked for
    # and a side has topics, else None; integers, (chain, draw, N):
    user_topic: np.ndarray | None = None
    item_topic: np.ndarray | None = None


@dataclass
class RunResult:
    """What a run gives back to the posterior."""

    trace: dict[str, np.ndarray]  # each of shape (chain, sweep)
    draws: Draws | None
    test_predictions: np.ndarray  # mean over kept draws of all chains, (T,)
    train_predictions: np.ndarray | None  # in the order of the layout, (N,)
    seconds: dict[str, float]
    num_kept: int  # draws a chain
    partial: bool
    spec: ModelSpec | None = None  # with the room that a franchise came to need


def start_chain(
    key: Array,
    spec: ModelSpec,
    data: RatingLayout,
    test: Pairs,
    init: str,
    start_topics: Array | int,
    track_train: bool,
) -> Carry:
    """Start a chain: what `run_chunk` carries on from; parameters as in `run`."""
    start_key, map_key = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
    factors = ()
    dtype = data.rating.dtype
    if init == "map":
        variance, precision = map_settings(spec, data)
        response, _ = start_response(spec.likelihood, data)
        factors = fit_map(
            map_key,
            replace(data, rating=response),
            spec.latent_dim,
            spec.global_bias,
            variance,
            precision,
            num_steps=MAP_STEPS,
            one_table=is_unordered(spec),
        )[:2]
        if isinstance(spec.factor_prior, MultiplicativeGamma):
            factors = order_columns(*factors, data.num_users, data.num_items)
    factors = factors or (None, None)
    state = init_state(start_key, spec, data, *factors, start_topics)
    scalar, width = jnp.zeros(CHUNK, dtype), feature_width(spec)
    counts = jnp.zeros(CHUNK, jnp.int32)
    info = SweepInfo(*[scalar] * len(SweepInfo._fields))._replace(
        num_user_topics=counts, num_item_topics=counts
    )
    carry = Carry(
        state=state,
        features=(
            jnp.zeros((data.user_rows, width), dtype),
            jnp.zeros((data.item_rows, width), dtype),
        ),
        kept=jnp.zeros((), jnp.int32),
        test_sum=jnp.zeros(test.rating.shape, dtype),
        train_sum=jnp.zeros(data.rating.shape if track_train else (0,), dtype),
        records=Record(info, *[scalar] * 4),
        sweep=jnp.zeros((), jnp.int32),
        overflow=overflow_of(state),
    )
    # Buffers that are donated must not be shared between leaves.
    return jax.tree.map(jnp.copy, carry)


def _chunk(
    carry: Carry,
    chain_key: Array,
    start: Array,
    stop: Array,
    plan: Plan,
    spec: ModelSpec,
    data: RatingLayout,
    test: Pairs,
) -> Carry:
    """Run sweeps .. stop - 1 of a chain, of a chunk that began with sweep `start`.

    Their number is a traced bound. A sweep in which an HDP runs out of room for topics
    is discarded, and the chunk ends before it.
    """
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    tested = jnp.arange(test.rating.shape[0], dtype=jnp.int32) < test.count
    track_train = carry.train_sum.shape[0] > 0
    grows = can_grow(spec)

    def sweep(t, carry):
        state, info = gibbs_sweep(
            jax.random.fold_in(chain_key, t), carry.state, spec, data
        )
        features = prediction_features(state, data, spec.own_topics)
        since = t + 1 - plan.num_warmup
        is_kept = (since > 0) & (since % plan.thinning == 0)
        kept = carry.kept + is_kept.astype(jnp.int32)
        nan = jnp.full((), jnp.nan, data.rating.dtype)

        def predict(user, item, chunk, times):
            part = time_of_ratings(state.time, user, item, times)
            if isinstance(spec.likelihood, Ordinal):
                numbers = state.global_bias, state.cut_points
                return expected_ratings(
                    features, spec, *numbers, user, item, chunk, part
                )
            mean = state.global_bias + dots_of_pairs(*features, user, item, chunk)
            return mean if part is None else mean + part

        def rmse(prediction, rating, mask, count):
            squares = jnp.sum(jnp.where(mask, (rating - prediction) ** 2, 0))
            count = count.astype(squares.dtype)
            squares, count = sum_across((squares, count), data.axis)
            return jnp.sqrt(squares / count)

        def add_train(total):
            prediction = predict(data.user, data.item, data.chunk, data.times)
            total = total + prediction
            score = partial(
                rmse, rating=data.rating, mask=valid, count=data.num_ratings
            )
            return total, score(prediction), score(total / kept.astype(total.dtype))

        test_sum, train_sum = carry.test_sum, carry.train_sum
        test_draw = test_mean = train_draw = train_mean = nan
        if test.rating.shape[0]:
            prediction = predict(test.user, test.item, test.chunk, test.times)
            test_sum = jnp.where(is_kept, test_sum + prediction, test_sum)
            score = partial(rmse, rating=test.rating, mask=tested, count=test.count)
            test_draw = score(prediction)
            test_mean = score(test_sum / jnp.maximum(kept, 1).astype(test_sum.dtype))
            test_mean = jnp.where(kept > 0, test_mean, nan)
        if track_train:
            train_sum, train_draw, train_mean = lax.cond(
                is_kept, add_train, lambda total: (total, nan, nan), train_sum
            )
        record = Record(info, test_draw, test_mean, train_draw, train_mean)
        records = jax.tree.map(
            lambda buffer, value: buffer.at[t - start].set(value.astype(buffer.dtype)),
            carry.records,
            record,
        )
        overflow = carry.overflow
        after = Carry(
            state, features, kept, test_sum, train_sum, records, t + 1, overflow
        )
        if not grows:
            return after
        overflow = overflow_of(state)
        before = carry._replace(overflow=overflow)
        lacks = jnp.any(overflow)
        return jax.tree.map(partial(jnp.where, lacks), before, after)

    def goes_on(carry):
        return (carry.sweep < stop) & ~jnp.any(carry.overflow)

    if not finds_room(spec):
        return lax.fori_loop(start, stop, sweep, carry)
    return lax.while_loop(goes_on, lambda carry: sweep(carry.sweep, carry), carry)


run_chunk = jax.jit(_chunk, donate_argnums=0)
# Keeps the carry before: a sweep of a restaurant franchise that ran out of room is run
# again.
_run_chunk_again = jax.jit(_chunk)
_run_chunk_of_chains = jax.jit(
    jax.vmap(_chunk, in_axes=(0, 0, None, None, None, None, None, None)),
    donate_argnums=0,
)


@jax.jit
def _apart(carry: Carry) -> list[Carry]:
    """Chains of a carry, each by itself."""
    number = carry.sweep.shape[0]
    return [jax.tree.map(lambda x, c=c: x[c], carry) for c in range(number)]


@jax.jit
def _together(*carries: Carry) -> Carry:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)


def _run_chunk_in_threads(
    carry: Carry, chain_keys: Array, start: np.int32, stop: np.int32, *given
) -> Carry:
    """`run_chunk` of every chain at once, in threads of the host, one a core.

    A CPU runs most of a sweep on one core, and two programs at a time only where two
    threads ask for them. Each chain's draws are those that it has alone.
    """
    parts = _apart(carry)
    for leaf in jax.tree.leaves(carry):  # as where it is donated
        leaf.delete()
    settings = settings_of_thread()

    def advance(part, key):
        with settings():
            return jax.block_until_ready(run_chunk(part, key, start, stop, *given))

    if stop <= start:  # no sweep: once is enough to compile
        return _together(advance(parts[0], chain_keys[0]), *parts[1:])
    with ThreadPoolExecutor(min(len(parts), num_threads())) as pool:
        return _together(*pool.map(advance, parts, chain_keys))


@partial(jax.jit, static_argnames="mesh", donate_argnums=0)
def _run_chunk_on_mesh(
    carry: Carry,
    chain_key: Array,
    start: Array,
    stop: Array,
    plan: Plan,
    spec: ModelSpec,
    data: RatingLayout,
    test: Pairs,
    mesh: Mesh,
) -> Carry:
    """`run_chunk` of one chain on several devices."""

    def body(carry, spec, data, test):
        given = chain_key, start, stop, plan
        return _chunk(carry, *given, spec, local_view(data), local_view(test))

    specs = CARRY, ALL_THE_SAME, BY_SHARD, BY_SHARD
    return on_mesh(body, mesh, specs, CARRY)(carry, spec, data, test)


@partial(jax.jit, static_argnames=("init", "track_train", "mesh"))
def _start_on_mesh(
    key: Array,
    spec: ModelSpec,
    data: RatingLayout,
    test: Pairs,
    init: str,
    start_topics: Array,
    track_train: bool,
    mesh: Mesh,
) -> Carry:
    """`start_chain` on several devices."""

    def body(spec, data, test):
        given = local_view(data), local_view(test), init, start_topics, track_train
        return start_chain(key, spec, *given)

    specs = ALL_THE_SAME, BY_SHARD, BY_SHARD
    return on_mesh(body, mesh, specs, CARRY)(spec, data, test)


@jax.jit
def _finite(carry: Carry) -> dict[str, Array]:
    """Whether each array of the state is finite."""
    leaves = jax.tree_util.tree_leaves_with_path(carry.state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): jnp.all(
            jnp.isfinite(leaf)
        )
        for path, leaf in leaves
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    }


def run(
    spec: ModelSpec,
    data: RatingLayout,
    test: Pairs,
    *,
    num_warmup: int,
    num_samples: int,
    thinning: int,
    num_chains: int,
    seed: int,
    init: str,
    start_topics: int,
    chain_method: str,
    keep_draws: bool,
    track_train: bool,
    progress: Callable[[int], Any] | None = None,
    callback: Callable[[int, float, dict], Any] | None = None,
    placement: Placement | None = None,
    checkpoints: Checkpoints | None = None,
    topics_at: np.ndarray | None = None,
) -> RunResult:
    """Run chains of Gibbs sweeps.

    The key of sweep t of chain c is fold_in(fold_in(key(seed), c), t): draws depend
    neither on how the run is cut into chunks nor, for chains that are not vectorized,
    on how many chains there are, until one of them needs more room for topics. Chains
    at once all get it then, as do those that come after it (and on a GPU, where several
    sweeps make a chunk, at the end of one). Where a Chinese restaurant franchise runs
    out of room, that sweep is discarded and run again, with the same key, in more room:
    its draws do not depend on the room that there is.

    Parameters
    ----------
    spec
        A resolved spec, its numbers as arrays.
    data, test
        On the device; or cut into shards, on those of a placement.
    num_warmup, num_samples, thinning, num_chains, seed
        Lengths; every thinning-th of the num_samples sweeps after the warm-up is kept.
    init
        "map" or "prior".
    start_topics
        Topics a side over which the ratings are scattered at the start.
    chain_method
        "vectorized" (in one program), "parallel" (in threads) or "sequential", as those
        of a franchise must be, whose loops would else copy their arrays at every step.
    keep_draws
        Copy kept draws to the host.
    track_train
        Average the predictions of the training ratings.
    progress
        Called with the number of sweeps done since the last call, and given the latest
        metrics by its `set_postfix`, as a tqdm bar.
    callback
        Called as callback(sweep, elapsed, metrics) after each chunk.
    placement
        Devices that share every chain, and where users are in their shards.
    checkpoints
        Entered: the run goes on from what they hold, and adds to them.
    topics_at
        Keep the topics of the ratings too: the place of each on the device, in the
        order in which they are to be kept, shape (N,).

    Raises
    ------
    SamplingError
        If a draw is not finite: names the array and the sweeps.
    OSError
        If a checkpoint cannot be written.
    """
    spec = _start_room(spec, start_topics)
    if checkpoints is not None and checkpoints.groups:
        spec = with_room_of(spec, checkpoints.spec)
    key = jax.random.key(seed)
    chain_keys = [jax.random.fold_in(key, c) for c in range(num_chains)]
    at_once = chain_method != "sequential" and num_chains > 1
    groups = [chain_keys] if at_once else [[k] for k in chain_keys]
    results, seconds = [], {"start": 0.0, "compile": 0.0, "run": 0.0}
    if checkpoints is not None:
        seconds |= checkpoints.seconds
    num_kept = num_samples // thinning
    draws = None
    if keep_draws:
        sizes = _sizes(data, placement)
        draws = _empty_draws(spec, *sizes, num_chains, num_kept, topics_at)
    interrupted = False
    for number, group in enumerate(groups):
        loop = _Loop(
            spec,
            data,
            test,
            num_warmup,
            num_samples,
            thinning,
            draws,
            progress,
            callback,
            start_topics,
            first_chain=len(results),
            placement=placement,
            checkpoints=checkpoints,
            number=number,
            topics_at=topics_at,
            in_threads=chain_method == "parallel",
        )
        results += loop.run(group, init, track_train, seconds)
        spec, draws = loop.spec, loop.draws
        if loop.interrupted:
            interrupted = True
            break
    if interrupted:
        # Chains of one length: those that were finished, else what there is of the
        # first (of all of them, where they ran at once).
        finished = [chain for chain in results if chain.kept == num_kept]
        results = finished or [chain for chain in results if chain.kept]
        if results:
            logger.warning(
                "interrupted: returned are %d of %d chains, with %d of %d draws each",
                len(results),
                num_chains,
                results[0].kept,
                num_kept,
            )
        if checkpoints is not None and checkpoints.groups:
            logger.warning(
                "the same fit with checkpoint_dir=%r goes on from there",
                str(checkpoints.folder.path),
            )
        if not results:
            raise KeyboardInterrupt
    return _gather(results, draws, seconds, interrupted, spec)


def _start_room(spec: ModelSpec, start_topics: int) -> ModelSpec:
    """Make room for the topics that a chain starts with, and for more."""
    spec = start_room(spec, start_topics)
    for side in ("user", "item"):
        prior = getattr(spec, f"{side}_topic_prior")
        if isinstance(prior, CRF):
            prior = replace(
                prior,
                num_topics=max(prior.num_topics, start_topics + 1),
                max_tables=max(prior.max_tables, start_topics),
            )
            spec = replace(spec, **{f"{side}_topic_prior": prior})
    return spec


def _more_room(spec: ModelSpec, state: State) -> ModelSpec:
    """Double what a sweep ran out of; the spec itself where there was room enough."""
    for side in ("user", "item"):
        seating = getattr(state, f"{side}_topic_weights").seating
        overflow = 0 if seating is None else int(seating.overflow)
        if not overflow:
            continue
        prior = getattr(spec, f"{side}_topic_prior")
        if overflow & NO_TABLE_FREE:
            prior = replace(prior, max_tables=2 * prior.max_tables)
        if overflow & NO_DISH_FREE:
            prior = replace(prior, num_topics=2 * prior.num_topics)
        logger.info(
            "more room for the %s topics: %d, and %d tables a row",
            side,
            prior.num_topics,
            prior.max_tables,
        )
        spec = replace(spec, **{f"{side}_topic_prior": prior})
    return spec


def _widen(
    draws: Draws | None,
    before: ModelSpec,
    after: ModelSpec,
    first_chain: int,
    filled: tuple[int, int],
) -> Draws | None:
    """Give topics without weight to draws that were kept with less room.

    Copied are the chains before `first_chain` and `filled`, chains and draws of each,
    from there on; memory that nothing fills stays free.
    """
    if draws is None:
        return None
    chains, number = filled

    def wider(values):
        shape = *values.shape[:-1], feature_width(after)
        result = np.empty(shape, values.dtype)
        ours = np.s_[first_chain : first_chain + chains, :number]
        for place in (np.s_[:first_chain], ours):
            result[place] = _wider(values[place], before, after, np)
        return result

    return draws._replace(
        user_features=wider(draws.user_features),
        item_features=wider(draws.item_features),
    )


def _wider(vectors, before: ModelSpec, after: ModelSpec, xp):
    """Give topics without weight to vectors of either side, last axis first.

    They are factors, item topics, user topics, and what follows; `xp` is numpy or
    jax.numpy.
    """

    def nothing(number):
        return xp.zeros((*vectors.shape[:-1], number), vectors.dtype)

    item_end = before.latent_dim + before.num_item_topics
    user_end = item_end + before.num_user_topics
    parts = (
        vectors[..., :item_end],
        nothing(after.num_item_topics - before.num_item_topics),
        vectors[..., item_end:user_end],
        nothing(after.num_user_topics - before.num_user_topics),
        vectors[..., user_end:],
    )
    return xp.concatenate(parts, axis=-1)


def _sizes(data: RatingLayout, placement: Placement | None) -> tuple[int, int]:
    """Numbers of users and items."""
    if placement is None:
        return int(data.num_users), int(data.num_items)
    return len(placement.place_of_user) - 1, placement.num_items


def _empty_draws(
    spec: ModelSpec,
    num_users: int,
    num_items: int,
    num_chains: int,
    num_kept: int,
    topics_at: np.ndarray | None,
) -> Draws:
    """Room on the host for all kept draws, once; memory that nothing fills is free."""
    width = feature_width(spec)
    shape, square = (num_chains, num_kept), (spec.latent_dim, spec.latent_dim)
    users, items = num_users + 1, num_items + 1
    item_time = user_drift = None
    if isinstance(spec.item_time, TimeBins):
        bins = spec.item_time.num_bins
        item_time = np.empty((*shape, items, bins), np.float32)
    if isinstance(spec.user_time, TimeDrift):
        user_drift = np.empty((*shape, users), np.float32)
    topics = {
        f"{side}_topic": np.empty((*shape, len(topics_at)), dtype)
        for side, dtype in kept_topic_dtypes(spec).items()
        if topics_at is not None
    }
    return Draws(
        user_features=np.empty((*shape, users, width), np.float32),
        item_features=np.empty((*shape, items, width), np.float32),
        global_bias=np.empty(shape),
        rating_variance=np.empty(shape),
        cut_points=np.empty((*shape, _num_cut_points(spec))),
        item_time=item_time,
        user_drift=user_drift,
        user_factor_precision=np.empty((*shape, *square), np.float32),
        item_factor_precision=np.empty((*shape, *square), np.float32),
        **topics,
    )


def _num_cut_points(spec: ModelSpec) -> int:
    ordinal = isinstance(spec.likelihood, Ordinal)
    return len(spec.likelihood.levels) - 1 if ordinal else 0


@dataclass
class _Chain:
    """What the host has of one chain."""

    records: list[Record]
    test_sum: np.ndarray
    train_sum: np.ndarray
    kept: int


@dataclass
class _Loop:
    """The host's side of one group of chains that run at once."""

    spec: ModelSpec
    data: RatingLayout
    test: Pairs
    num_warmup: int
    num_samples: int
    thinning: int
    draws: Draws | None  # of all chains, filled as they come
    progress: Any
    callback: Any
    start_topics: int
    first_chain: int
    placement: Placement | None = None
    checkpoints: Checkpoints | None = None
    number: int = 0  # of this group
    topics_at: np.ndarray | None = None
    in_threads: bool = False  # each of the chains in its own
    interrupted: bool = False
    filled: tuple[int, int] = (0, 0)  # chains of this group, and draws kept of each
    saved: tuple[int, int] = (0, 0)  # records and draws of it in the checkpoint
    begun: list[Carry] | None = None  # of each chain, on the host, to go on from

    @property
    def _on_cpu(self) -> bool:
        devices = self.data.rating.devices()
        return all(device.platform == "cpu" for device in devices)

    @property
    def _spread(self) -> bool:
        """Whether other processes share the chains."""
        return self.placement is not None and self.placement.mesh.is_multi_process

    def _put(self, carry: Carry) -> Carry:
        """Commit a carry to where the data are.

        One that is not would compile once more than one that comes back from there.
        """
        if self.placement is not None:
            return settle(carry, self.placement.mesh, CARRY)
        (device,) = self.data.rating.devices()
        return jax.device_put(carry, device)

    def run(
        self, keys: list[Array], init: str, track_train: bool, seconds: dict
    ) -> list[_Chain]:
        data, test = self.data, self.test
        total = self.num_warmup + self.num_samples
        chains, sweep = self._begun(keys, track_train)
        if sweep == total:
            return chains
        many = len(keys) > 1
        chain_key = jnp.stack(keys) if many else keys[0]
        advance = run_chunk
        if many:
            advance = _run_chunk_in_threads if self.in_threads else _run_chunk_of_chains
        if self.placement is not None:
            assert not many
            advance = partial(_run_chunk_on_mesh, mesh=self.placement.mesh)
        grows = has_franchise(self.spec)
        if grows:
            assert not many
            advance = _run_chunk_again
        plan = Plan(np.int32(self.num_warmup), np.int32(self.thinning))
        begin = time.perf_counter()
        with self._compiled_beside(advance, chain_key, plan, init, track_train):
            carries = [self._start(key, init, track_train) for key in keys]
            while self._grow_topics(jnp.stack([carry.overflow for carry in carries])):
                carries = [self._start(key, init, track_train) for key in keys]
            (carry,) = carries[:1]
            if many:
                carry = self._put(_together(*carries))
            del carries
            jax.block_until_ready(carry)
            seconds["start"] += time.perf_counter() - begin
            begin = time.perf_counter()
        # No sweep at all: this call compiles, and only that.
        carry = advance(
            carry, chain_key, np.int32(0), np.int32(0), plan, self.spec, data, test
        )
        jax.block_until_ready(carry)
        seconds["compile"] += time.perf_counter() - begin
        pace = 1
        # On a CPU one seed gives the same draws again; those of a sweep depend on the
        # room, and that which a chain comes to need is given to all of them at once.
        steady = many and can_grow(self.spec) and self._on_cpu
        start = last = time.perf_counter()
        later = self._spread or self.checkpoints is not None
        with _later_interrupts(later, twice=not self._spread) as interrupts:
            try:
                while sweep < total:
                    before = self.spec
                    stop = min(sweep + pace, total, self._next_kept(sweep))
                    stop = min(stop, self._next_checkpoint(sweep))
                    bounds = chain_key, np.int32(sweep), np.int32(stop), plan
                    after = jax.block_until_ready(
                        advance(carry, *bounds, self.spec, data, test)
                    )
                    lacks = grows and self._grow(after.state)
                    if not grows:
                        carry = after
                        lacks = self._grow_topics(carry.overflow)
                    if lacks:
                        begin = time.perf_counter()
                        carry = self._enlarged(carry, before)
                        # No sweep: this call compiles.
                        bounds = chain_key, np.int32(sweep), np.int32(0), plan
                        carry = jax.block_until_ready(
                            advance(carry, *bounds, self.spec, data, test)
                        )
                        last = time.perf_counter()
                        seconds["compile"] += last - begin
                        start += last - begin
                        continue
                    carry = after
                    self._check(carry, sweep, stop)
                    self._collect(chains, carry, stop - sweep, stop, many)
                    now = time.perf_counter()
                    rate = (now - last) / (stop - sweep)
                    if not grows and not steady:  # what overflows is one sweep
                        pace = int(np.clip(CHUNK_SECONDS / max(rate, 1e-6), 1, CHUNK))
                    if stop == min(self._next_checkpoint(sweep), total):
                        self._save(carry, chains, seconds, now - start)
                    self._report(chains, stop - sweep, stop, now - start)
                    sweep, last = stop, time.perf_counter()
                    if self.placement is not None:
                        given = pace, bool(interrupts), self.placement.mesh
                        pace, stopped = agree(*given)
                        if stopped:
                            raise KeyboardInterrupt
                    elif interrupts:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                self.interrupted = True
                try:
                    self._save(carry, chains, seconds, time.perf_counter() - start)
                except OSError as error:  # what was sampled is returned all the same
                    logger.warning("%s", error)
        if self._spread:
            test_sum, train_sum = fetch((carry.test_sum, carry.train_sum))
            chains[0].test_sum, chains[0].train_sum = test_sum, train_sum
        seconds["run"] += time.perf_counter() - start
        return chains

    @contextmanager
    def _compiled_beside(
        self, advance: Callable, chain_key: Array, plan: Plan, init: str, tracks: bool
    ):
        """Compile the chunk in a thread while the body starts the chains.

        By a call that runs no sweep, on zeros of the shapes that the start will have.
        On a CPU only: elsewhere there may be no memory for them. Another chain of the
        same run has nothing to compile.
        """
        data = self.data
        (device,) = data.rating.devices() if self.placement is None else (None,)
        if device is None or device.platform != "cpu" or self.first_chain:
            yield
            return
        given = self.spec, data, self.test, init, self.start_topics, tracks
        shapes = jax.eval_shape(
            lambda key: start_chain(key, *given), chain_key.ravel()[0]
        )
        settings = settings_of_thread(device)

        def compile_chunk():
            with settings():
                leading = chain_key.shape
                carry = jax.tree.map(
                    lambda x: np.zeros((*leading, *x.shape), x.dtype), shapes
                )
                none = np.int32(0)
                return jax.block_until_ready(
                    advance(self._put(carry), chain_key, none, none, plan, *given[:3])
                )

        with ThreadPoolExecutor(1) as pool:
            compiled = pool.submit(compile_chunk)
            yield
            compiled.result()

    def _grow(self, state: State) -> bool:
        """Make room for what a sweep ran out of; False where nothing was missing."""
        return self._change_room(_more_room(self.spec, state))

    def _grow_topics(self, overflow: Array) -> bool:
        """Make room for topics that an HDP ran out of; False where there was enough."""
        spec = self.spec
        for lacks, side in zip(np.asarray(overflow).T, ("user", "item"), strict=True):
            if np.any(lacks):
                spec = double_room(spec, side)
        return self._change_room(spec)

    def _change_room(self, spec: ModelSpec) -> bool:
        """Take a spec and widen the draws for it; False where it is the present one."""
        if spec is self.spec:
            return False
        draws = _widen(self.draws, self.spec, spec, self.first_chain, self.filled)
        self.spec, self.draws = spec, draws  # at once: Ctrl-C comes before or after it
        return True

    def _enlarged(self, carry: Carry, before: ModelSpec) -> Carry:
        """Carry on from the state before, in more room."""
        state = enlarge(carry.state, self.spec)
        # Of chains that have room, and wait for the others, these are yet to be kept.
        features = tuple(
            _wider(vectors, before, self.spec, jnp) for vectors in carry.features
        )
        overflow = jnp.zeros_like(carry.overflow)
        return self._put(
            carry._replace(state=state, features=features, overflow=overflow)
        )

    def _start(self, key: Array, init: str, track_train: bool) -> Carry:
        if self.begun:
            # Copied, as it is donated: an array of numpy would lend its memory.
            carry = self.begun.pop(0)
            if self.placement is not None:
                return self._put(put(carry, self.placement.mesh, CARRY))
            (device,) = self.data.rating.devices()
            return jax.device_put(carry, device, may_alias=False)
        given = self.spec, self.data, self.test, init, self.start_topics, track_train
        if self.placement is not None:
            return _start_on_mesh(key, *given, mesh=self.placement.mesh)
        return self._put(start_chain(key, *given))

    def _begun(self, keys: list[Array], track_train: bool) -> tuple[list[_Chain], int]:
        """Read from the checkpoint what there is of these chains, and sweeps done."""
        chains = [_Chain([], np.zeros(0), np.zeros(0), 0) for _ in keys]
        saver = self.checkpoints
        if saver is None or self.number >= len(saver.groups):
            return chains, 0
        group = saver.groups[self.number]
        count, draw = len(keys), 0
        for room, trace, draws in saver.parts(self.number):
            for c, chain in enumerate(chains):
                columns = {name: values[c] for name, values in trace.items()}
                chain.records.append(_record(columns))
            if self.draws is not None and draws:
                part = _widen(
                    Draws(**draws), room, self.spec, 0, draws["global_bias"].shape
                )
                number = part.global_bias.shape[1]
                into = (
                    slice(self.first_chain, self.first_chain + count),
                    slice(draw, draw + number),
                )
                for kept, values in zip(self.draws, part, strict=True):
                    if kept is not None:
                        kept[into] = values
                draw += number
        self.filled, self.saved = (count, draw), (len(chains[0].records), draw)
        room, arrays = saver.state(self.number)
        before, room = self.spec, with_room_of(self.spec, room)
        self.spec = room
        shape = jax.eval_shape(
            partial(self._start, init="prior", track_train=track_train), keys[0]
        )
        self.spec = before
        begun = []
        for c, chain in enumerate(chains):
            own = {n: v[c] for n, v in arrays.items()} if count > 1 else arrays
            carry = saver.places.cut(shape, own, room)
            chain.kept = int(carry.kept)
            chain.test_sum, chain.train_sum = carry.test_sum, carry.train_sum
            carry = carry._replace(sweep=np.int32(group.sweep))
            # Of a shorter run, after which a chain before this one has grown.
            if jax.tree.structure(room) != jax.tree.structure(self.spec):
                carry = jax.device_get(self._enlarged(carry, room))
            begun.append(carry)
        self.begun = begun
        if self.progress is not None:
            self.progress(group.sweep * count, self._metrics(chains, group.sweep))
        return chains, group.sweep

    def _next_checkpoint(self, sweep: int) -> int:
        """Return the end of the chunk that ends with the next checkpoint."""
        if self.checkpoints is None:
            return sweep + CHUNK
        every = self.checkpoints.every
        return (sweep // every + 1) * every

    def _save(
        self, carry: Carry, chains: list[_Chain], seconds: dict, elapsed: float
    ) -> None:
        """Write a checkpoint of this sweep, if there is none."""
        records, draws = self.saved
        new = chains[0].records[records:]
        # After Ctrl-C in the midst of a chunk the carry may be gone, or be ahead.
        whole = not any(leaf.is_deleted() for leaf in jax.tree.leaves(carry))
        if self.checkpoints is None or not new or not whole:
            return
        sweep = sum(len(record.test_rmse) for record in chains[0].records)
        if sweep != int(np.max(fetch(carry.sweep))):
            return
        columns = [_trace_of(chain.records[records:]) for chain in chains]
        trace = {name: np.stack([c[name] for c in columns]) for name in columns[0]}
        kept = {}
        if self.draws is not None and chains[0].kept > draws:
            ours = slice(self.first_chain, self.first_chain + len(chains))
            kept = {
                name: values[ours, draws : chains[0].kept]
                for name, values in self.draws._asdict().items()
                if values is not None
            }
        seconds = seconds | {"run": seconds["run"] + elapsed}
        given = self.number, sweep, carry, self.spec, trace, kept, seconds
        self.checkpoints.save(*given)
        self.saved = len(chains[0].records), chains[0].kept

    def _next_kept(self, sweep: int) -> int:
        """Return the end of the chunk that ends with the next kept draw."""
        if self.draws is None:
            return sweep + CHUNK
        since = max(sweep - self.num_warmup, 0)
        return self.num_warmup + (since // self.thinning + 1) * self.thinning

    def _check(self, carry: Carry, start: int, stop: int) -> None:
        if self.placement is not None:
            differ = fetch(differing(carry.state, self.placement.mesh))
            if any(differ.values()):
                named = ", ".join(name for name, one in differ.items() if one)
                raise SamplingError(
                    f"After sweep {stop} the devices do not agree on {named}: are they "
                    "of one kind, with one version of JAX?"
                )
        finite = fetch(_finite(carry))
        bad = [name for name, ok in finite.items() if not np.all(ok)]
        if bad:
            raise SamplingError(
                f"Not finite after sweep {stop} (finite after sweep {start}): "
                f"{', '.join(bad)}. The first of these in the order of the sweep is "
                "the block at fault; look at the spec's numbers."
            )

    def _collect(
        self, chains: list[_Chain], carry: Carry, count: int, stop: int, many: bool
    ) -> None:
        # Sums of which other processes have parts are fetched once, at the end.
        sums = () if self._spread else (carry.test_sum, carry.train_sum)
        records, kept, *sums = fetch((carry.records, carry.kept, *sums))
        test_sum, train_sum = sums or (np.zeros(0), np.zeros(0))

        since = stop - self.num_warmup
        if self.draws is not None and since > 0 and since % self.thinning == 0:
            self._keep(carry, since // self.thinning - 1, len(chains), many)
        updated = []
        for c, chain in enumerate(chains):
            # One chain alone has no axis of chains.
            of = (c,) if many else ()
            new = jax.tree.map(lambda x, of=of: x[of][:count].copy(), records)
            updated.append(
                _Chain(
                    records=[*chain.records, new],
                    test_sum=np.array(test_sum[of]),
                    train_sum=np.array(train_sum[of]),
                    kept=int(kept[of]),
                )
            )
        chains[:] = updated  # at once: Ctrl-C comes before or after it

    def _keep(self, carry: Carry, draw: int, num_chains: int, many: bool) -> None:
        users, items = fetch(carry.features)
        if self.placement is not None:
            users = users[self.placement.place_of_user]
        state, self.filled = carry.state, (num_chains, draw + 1)
        bias, variance, cut_points, time = fetch(
            (state.global_bias, state.rating_variance, state.cut_points, state.time)
        )
        precisions = fetch(
            {
                "user": state.user_factor_prior.precision,
                "item": state.item_factor_prior.precision,
            }
        )
        topics = [
            (kept, np.asarray(fetch(topic))[..., self.topics_at])
            for kept, topic in (
                (self.draws.user_topic, state.user_topic_of_rating),
                (self.draws.item_topic, state.item_topic_of_rating),
            )
            if kept is not None
        ]
        for c in range(num_chains):
            of, place = (c,) if many else (), (self.first_chain + c, draw)
            for kept, values in zip(self.draws[:2], (users, items), strict=True):
                kept[place] = values[of][: kept.shape[2]]
            self.draws.global_bias[place] = bias[of]
            self.draws.rating_variance[place] = variance[of]
            self.draws.cut_points[place] = cut_points[of]
            for side in ("user", "item"):
                kept = getattr(self.draws, f"{side}_factor_precision")
                kept[place] = precisions[side][of]
            for kept, values in (
                (self.draws.item_time, time.item),
                (self.draws.user_drift, time.user),
            ):
                if kept is not None:
                    kept[place] = values[of][: kept.shape[2]]
            for kept, values in topics:
                kept[place] = values[of]

    def _report(
        self, chains: list[_Chain], count: int, sweep: int, elapsed: float
    ) -> None:
        metrics = self._metrics(chains, count)
        if self.progress is not None:
            self.progress(count * len(chains), metrics)
        if self.callback is not None:
            self.callback(sweep, elapsed, metrics)

    def _metrics(self, chains: list[_Chain], count: int) -> dict:
        record = chains[0].records[-1]
        return {
            "chain": self.first_chain,
            "rmse": float(record.test_rmse[-1]),
            "rmse_draw": float(record.test_rmse_draw[-1]),
            "rating_variance": float(record.info.rating_variance[-1]),
            "num_user_topics": int(record.info.num_user_topics[-1]),
            "num_item_topics": int(record.info.num_item_topics[-1]),
            "num_sweeps": count,
        }


@contextmanager
def _later_interrupts(later: bool, twice: bool = False):
    """Note Ctrl-C in a list instead of raising it, where `later`.

    Processes that share a chain must leave it after the same sweep, and a checkpoint is
    of a whole one. With `twice` a second Ctrl-C is raised at once.
    """
    noted: list[bool] = []
    if not later or threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(*_):
        if noted and twice:
            raise KeyboardInterrupt
        noted.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def map_settings(spec: ModelSpec, data: RatingLayout) -> tuple[Array, Array]:
    """Rating variance and factor precision of the MAP start."""
    valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
    response = jnp.where(valid, data.rating - spec.global_bias, 0)
    count = data.num_ratings.astype(response.dtype)
    squares, count = sum_across((jnp.sum(response**2), count), data.axis)
    variance = squares / count
    if isinstance(spec.likelihood, Ordinal):
        variance = jnp.full_like(variance, START_VARIANCE)
    variance = jnp.where(variance > 0, variance, 1e-2)
    precision = getattr(spec.factor_prior, "precision", None)
    if precision is None:
        precision = jnp.sqrt(spec.latent_dim / (0.1 * variance))
    fixed = spec.likelihood.variance
    if isinstance(fixed, InverseGamma):
        fixed = 0.7 * variance
    return fixed, precision


def _trace_of(records: list[Record]) -> dict[str, np.ndarray]:
    """Join records of one chain to columns, by name."""
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *records)
    return joined.info._asdict() | {
        name: getattr(joined, name) for name in Record._fields[1:]
    }


def _record(columns: dict[str, np.ndarray]) -> Record:
    """Turn what `_trace_of` gave back into a record."""
    info = SweepInfo(*[columns[name] for name in SweepInfo._fields])
    return Record(info, *[columns[name] for name in Record._fields[1:]])


def _gather(
    chains: list[_Chain],
    draws: Draws | None,
    seconds: dict,
    interrupted: bool,
    spec: ModelSpec,
) -> RunResult:
    flat = [_trace_of(chain.records) for chain in chains]
    # An interrupted run ends where its shortest chain does.
    length = min(len(values["test_rmse"]) for values in flat)
    kept = chains[0].kept
    trace = {
        name: np.stack([values[name][:length] for values in flat]) for name in flat[0]
    }
    if draws is not None:
        draws = jax.tree.map(lambda values: values[: len(chains), :kept], draws)
    total = sum(chain.kept for chain in chains)
    train = sum(chain.train_sum.astype(np.float64) for chain in chains)
    return RunResult(
        trace=trace,
        draws=draws,
        test_predictions=sum(c.test_sum.astype(np.float64) for c in chains)
        / max(total, 1),
        train_predictions=train / max(total, 1) if np.size(train) else None,
        seconds=seconds,
        num_kept=kept,
        partial=interrupted,
        spec=spec,
    )
