"""Seconds a sweep on the CPU and on a GPU, whichever of them are there.

    python -m bench.throughput                      # 100k 1m 10m 32m; D 10 40; K 0 64
    python -m bench.throughput --quick              # 1m, D 40, K 0 128: minutes
    python -m bench.throughput --data ml-1m 2000x500x50000 --device cpu --blocks
    python -m bench.throughput --growth             # time a rating, 1e5 to 1e7 ratings
    python -m bench.throughput --chains             # 1 2 4 8 chains, at once or not

A data set is 100k, 1m, 10m or 32m (users, items and ratings of MovieLens, with planted
topics), USERSxITEMSxRATINGS, or a name of real rows (ml-100k, ml-1m, ..: the training
rows of random90_0, found in IM3F_DATA_DIR). K is the truncation, 0 is BPMF. Compile
time is told apart from run time; medians are printed. What a device cannot hold is said
and left out. The comparison ends with the size from which the GPU is the faster, and
writes bench/results/NAME.json and NAME.png.
"""

import argparse
import math
import sys
import time
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import im3f_jax as im3f
from bench import machine, rows
from bench.synthetic import SIZES, draw_rows, parse_size, plant
from bench.timing import race, summary
from im3f_jax import InputError
from im3f_jax.data.layout import lay_out
from im3f_jax.gibbs import (
    biases,
    factor_prior,
    factors,
    rating_variance,
    table_topics,
    topics,
)
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.topic_room import (
    reachable,
    start_room,
    with_topics_as,
    within_reach,
)
from im3f_jax.gibbs.topic_weights import resample_topic_weights
from im3f_jax.inference.devices import (
    block_sizes,
    choose_device,
    describe_device,
    device_memory,
)
from im3f_jax.inference.memory import check_device_memory, estimate_memory
from im3f_jax.model.spec import resolve
from im3f_jax.numerics.linalg import dots_of_pairs
from im3f_jax.numerics.reductions import count_by_cell

__all__ = [
    "Columns",
    "blocks_of",
    "check_name",
    "crossovers",
    "load",
    "main",
    "measure",
    "there",
]

WARMUP = 3  # sweeps before any is timed: a chain leaves its start
CHAIN_METHODS = "sequential", "parallel", "vectorized"
LEAST_SWEEPS = 3  # that are timed, however long they take
MOST_SECONDS = 60  # after which no further sweep is timed
GROWTH = (100_000, 1_000_000, 10_000_000)  # ratings; 100 a user, 400 an item
CHAINS = (1, 2, 4, 8)


class Columns(NamedTuple):
    """Ratings by row: every user and item has at least one."""

    name: str
    user: np.ndarray  # int32, shape (N,)
    item: np.ndarray
    rating: np.ndarray
    num_users: int
    num_items: int


def blocks_of(spec):
    """Name the blocks of a sweep: name -> function of (key, state, data, extra).

    `extra` holds what a block gets from the one before: residuals and counts.
    """

    def near(prior, weights):
        return within_reach(weights, reachable(prior, weights))

    def priors(key, state, data, extra):
        return [
            factor_prior.resample_factor_prior(spec.factor_prior, key, rows, count)
            for rows, count in (
                (state.user_factors, data.num_users),
                (state.item_factors, data.num_items),
            )
        ]

    def user_factors(key, state, data, extra):
        return factors.resample_factors(
            key,
            state.user_factor_prior,
            extra["residual"],
            state.item_factors,
            state.rating_variance,
            data.user_blocks,
            data.num_users,
        )

    def item_factors(key, state, data, extra):
        return factors.resample_factors(
            key,
            state.item_factor_prior,
            extra["residual"],
            state.user_factors,
            state.rating_variance,
            data.item_blocks,
            data.num_items,
        )

    def inner_products(key, state, data, extra):
        return dots_of_pairs(
            state.user_factors, state.item_factors, data.user, data.item, data.chunk
        )

    def item_topics(key, state, data, extra):
        return topics.resample_topics(
            key,
            extra["residual"],
            data.item,
            data.user,
            near(spec.item_topic_prior, state.item_topic_weights).log_row_weights,
            state.user_bias,
            state.rating_variance,
            data.chunk,
        )

    def user_topics(key, state, data, extra):
        return topics.resample_topics(
            key,
            extra["residual"],
            data.user,
            data.item,
            near(spec.user_topic_prior, state.user_topic_weights).log_row_weights,
            state.item_bias,
            state.rating_variance,
            data.chunk,
        )

    def item_tables(key, state, data, extra):
        return table_topics.resample_table_topics(
            key,
            extra["residual"],
            data.item,
            data.user,
            state.item_topic_of_rating,
            near(spec.item_topic_prior, state.item_topic_weights),
            state.user_bias,
            state.rating_variance,
            data.num_ratings,
            data.chunk,
            table_topics.table_room(data.rating.shape[0]),
        )

    def user_tables(key, state, data, extra):
        return table_topics.resample_table_topics(
            key,
            extra["residual"],
            data.user,
            data.item,
            state.user_topic_of_rating,
            near(spec.user_topic_prior, state.user_topic_weights),
            state.item_bias,
            state.rating_variance,
            data.num_ratings,
            data.chunk,
            table_topics.table_room(data.rating.shape[0]),
        )

    def counts(key, state, data, extra):
        return [
            count_by_cell(
                extra["valid"], data.user, state.user_topic_of_rating,
                state.user_topic_weights.log_row_weights.shape,
            ),
            count_by_cell(
                extra["valid"], data.item, state.item_topic_of_rating,
                state.item_topic_weights.log_row_weights.shape,
            ),
        ]  # fmt: skip

    def weights(key, state, data, extra):
        total = data.rating.shape[0]
        return [
            resample_topic_weights(
                spec.user_topic_prior, key, state.user_topic_weights,
                extra["user_counts"], total,
            ),
            resample_topic_weights(
                spec.item_topic_prior, key, state.item_topic_weights,
                extra["item_counts"], total,
            ),
        ]  # fmt: skip

    def all_biases(key, state, data, extra):
        results = []
        for prior, prior_state, bias, row, topic in (
            (
                spec.user_bias_prior, state.user_bias_prior, state.user_bias,
                data.user, state.item_topic_of_rating,
            ),
            (
                spec.item_bias_prior, state.item_bias_prior, state.item_bias,
                data.item, state.user_topic_of_rating,
            ),
        ):  # fmt: skip
            statistics = biases.bias_statistics(
                extra["residual"], extra["valid"], row, topic, bias.shape
            )
            results.append(
                biases.resample_biases(
                    key, prior, prior_state, bias, statistics, state.rating_variance
                )
            )
        return results

    def variance(key, state, data, extra):
        return rating_variance.resample_rating_variance(
            key,
            spec.likelihood,
            state.rating_variance,
            jnp.sum(extra["residual"] ** 2),
            data.num_ratings,
        )

    named = {
        "factor priors": priors,
        "user factors": user_factors,
        "item factors": item_factors,
        "inner products": inner_products,
    }
    if spec.num_item_topics > 1:
        named |= {"item topics": item_topics, "item tables": item_tables}
    if spec.num_user_topics > 1:
        named |= {"user topics": user_topics, "user tables": user_tables}
    if spec.num_user_topics and spec.num_item_topics:
        named |= {"counts": counts, "weights": weights, "biases": all_biases}
    return named | {"rating variance": variance}


def check_name(name):
    """Raise an InputError for data that nobody knows."""
    if name not in rows.FILES and "x" not in name and name not in SIZES:
        raise InputError(
            f"data is {name!r}, but must be one of {', '.join([*SIZES, *rows.FILES])} "
            "or USERSxITEMSxRATINGS"
        )
    if name not in rows.FILES:
        parse_size(name)


@lru_cache(maxsize=1)
def load(name):
    """Return the columns of a data set, rows numbered without gaps."""
    check_name(name)
    if name in rows.FILES:
        train = rows.load_rows(name, "random90_0").train
        user, item, rating = train.user, train.item, train.rating
    else:
        user, item, rating = plant(name)
    (user, users), (item, items) = _renumber(user), _renumber(item)
    return Columns(name, user, item, rating, users, items)


def _renumber(codes):
    present = np.bincount(codes) > 0
    return (np.cumsum(present, dtype=np.int32) - 1)[codes], int(present.sum())


def there():
    """Name the devices that JAX sees: "cpu", "gpu" or both."""
    found = []
    for name in ("cpu", "gpu"):
        try:
            choose_device(name)
        except InputError:
            continue
        found.append(name)
    return found


def measure(
    columns, latent_dim, truncation, device, sweeps, store_all=False, blocks=False
):
    """Time one setting on one device.

    A sweep stores the topics that a fit stores at its start, or all of them.

    Returns
    -------
    dict
        "sweep" (median seconds, with the least and the largest) and, where asked for,
        the same of its "blocks", "compile" (seconds), "ratings_per_second",
        "memory_estimate" and, where the device tells, "memory_peak" (bytes; of the
        process so far).

    Raises
    ------
    MemoryError
        Where the estimate exceeds the memory of the device.
    """
    chosen = choose_device(device)
    _, user, item, rating, num_users, num_items = columns
    model = (
        im3f.IM3F(latent_dim, max_user_topics=truncation, max_item_topics=truncation)
        if truncation
        else im3f.BPMF(latent_dim)
    )
    blocks_of_work = block_sizes(chosen, model)
    layout, _ = lay_out(user, item, rating, num_users, num_items, blocks_of_work)
    mean, variance = (float(f(rating, dtype=np.float64)) for f in (np.mean, np.var))
    spec = resolve(model, mean, variance, 1.0)
    if not store_all:
        spec = start_room(spec, 1)
    estimate = estimate_memory(spec, layout)
    try:
        where = describe_device(chosen)
        check_device_memory(estimate, device_memory(chosen), where, ["less"])
    except InputError as error:
        raise MemoryError(str(error)) from None
    machine.peak_memory(reset=True)
    with jax.default_device(chosen):
        data = jax.device_put(layout, chosen)
        key = jax.random.key(0)
        state = init_state(key, spec, data)
        begin = time.perf_counter()
        compiled = gibbs_sweep.lower(key, state, spec, data).compile()
        compile_seconds = time.perf_counter() - begin
        seconds = []
        while len(seconds) < WARMUP + sweeps and (
            len(seconds) < WARMUP + LEAST_SWEEPS or sum(seconds[WARMUP:]) < MOST_SECONDS
        ):
            begin = time.perf_counter()
            state, _ = jax.block_until_ready(
                compiled(jax.random.fold_in(key, len(seconds)), state, spec, data)
            )
            seconds.append(time.perf_counter() - begin)
        sweep = summary(seconds[WARMUP:])
        found = {
            "data": columns.name,
            "num_ratings": len(rating),
            "num_users": num_users,
            "num_items": num_items,
            "latent_dim": latent_dim,
            "truncation": truncation,
            "stored": [spec.num_user_topics, spec.num_item_topics],
            "device": where,
            "platform": chosen.platform,
            "compile": compile_seconds,
            "sweep": sweep,
            "ratings_per_second": len(rating) / sweep["median"],
            "memory_estimate": estimate,
            "memory_peak": (chosen.memory_stats() or {}).get("peak_bytes_in_use"),
            "process_peak_mb": machine.peak_memory(),
        }
        if blocks:
            found["blocks"] = _measure_blocks(spec, key, state, data, sweeps)
    return found


def between_blocks(state, data):
    """Give the `extra` that blocks get from those before: residuals and counts."""
    valid = jnp.arange(data.rating.shape[0]) < data.num_ratings
    extra = {
        "valid": valid,
        "residual": jnp.where(valid, data.rating - state.global_bias, 0),
    }
    for side, row in (("user", data.user), ("item", data.item)):
        shape = getattr(state, f"{side}_topic_weights").log_row_weights.shape
        topic = getattr(state, f"{side}_topic_of_rating")
        extra[f"{side}_counts"] = count_by_cell(valid, row, topic, shape)
    return extra


def _measure_blocks(spec, key, state, data, sweeps):
    """Time the blocks of a sweep in alternation: name -> summary."""
    state = with_topics_as(state, jnp.int32)  # as a sweep hands them on
    arguments = key, state, data, between_blocks(state, data)
    return race(blocks_of(spec), arguments, sweeps)


def _print(found):
    print(
        f"{found['data']}, D={found['latent_dim']}, K={found['truncation']}, "
        f"{found['device']}: {1e3 * found['sweep']['median']:.1f} ms a sweep, "
        f"{found['ratings_per_second'] / 1e6:.2f} M ratings/s, compile "
        f"{found['compile']:.1f} s"
    )
    for name, seconds in found.get("blocks", {}).items():
        print(f"    {name:18s} {1e3 * seconds['median']:9.2f} ms")
    sys.stdout.flush()


def _out_of_memory(error):
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _or_out_of_memory(function, *arguments, where, failed):
    """Call a function; where memory does not suffice, say so and return None."""
    try:
        return function(*arguments)
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not _out_of_memory(error):
            raise
        print(
            f"{', '.join(f'{k} {v}' for k, v in where.items())}: left out, out of "
            f"memory: {str(error).splitlines()[0][:300]}",
            flush=True,
        )
        failed.append({**where, "error": "out of memory"})


# --- the comparison ---------------------------------------------------------------


def compare(options):
    """Measure every size, D and K on every device.

    Returns
    -------
    dict
        "results", "failed" (what a device could not hold) and "crossovers".
    """
    for name in options.data:
        check_name(name)
    results, failed = [], []
    for name in options.data:
        columns = _or_out_of_memory(load, name, where={"data": name}, failed=failed)
        if columns is None:
            continue
        for latent_dim in options.latent_dim:
            for truncation in options.max_topics:
                for device in options.device:
                    found = _or_out_of_memory(
                        measure,
                        columns,
                        latent_dim,
                        truncation,
                        device,
                        options.sweeps,
                        options.store_all,
                        options.blocks,
                        where={
                            "data": name,
                            "latent_dim": latent_dim,
                            "truncation": truncation,
                            "device": device,
                        },
                        failed=failed,
                    )
                    if found is not None:
                        _print(found)
                        results.append(found)
    crossed = crossovers(results)
    _print_table(results)
    _print_crossovers(crossed, results)
    return {"results": results, "failed": failed, "crossovers": crossed}


def _by_setting(results):
    """Group results: (D, K) -> [(name, ratings, platform -> seconds)], by ratings."""
    settings = {}
    for found in results:
        setting = settings.setdefault((found["latent_dim"], found["truncation"]), {})
        size = setting.setdefault((found["num_ratings"], found["data"]), {})
        size[found["platform"]] = found["sweep"]["median"]
    return {
        setting: [(name, number, of) for (number, name), of in sorted(sizes.items())]
        for setting, sizes in settings.items()
    }


def crossovers(results):
    """Find, per D and K, the size from which the GPU is the faster.

    Returns
    -------
    list of dict
        "latent_dim", "truncation", "cpu_over_gpu" (name -> ratio of seconds) and
        "from": the name of the smallest size at which, and at all larger ones, the GPU
        takes less time; None where it is the slower at the largest size. A setting
        without a size that was measured on both is left out.
    """
    found = []
    for (latent_dim, truncation), sizes in _by_setting(results).items():
        ratios = {
            name: of["cpu"] / of["gpu"]
            for name, _, of in sizes
            if {"cpu", "gpu"} <= {*of}
        }
        first = None
        for name, ratio in reversed(ratios.items()):
            if ratio <= 1:
                break
            first = name
        if ratios:
            found.append(
                {
                    "latent_dim": latent_dim,
                    "truncation": truncation,
                    "from": first,
                    "cpu_over_gpu": ratios,
                }
            )
    return found


def _print_table(results):
    platforms = list(dict.fromkeys(found["platform"] for found in results))
    both = {"cpu", "gpu"} <= {*platforms}
    columns = "".join(f"{f'{name}, ms':>14}" for name in platforms)
    print(f"\n{'ratings':>12} {'D':>3} {'K':>4}{columns}" + "   cpu / gpu" * both)
    for (latent_dim, truncation), sizes in _by_setting(results).items():
        for name, number, of in sizes:
            times = "".join(
                f"{1e3 * of[p]:14.1f}" if p in of else f"{'-':>14}" for p in platforms
            )
            ratio = f"{of['cpu'] / of['gpu']:12.2f}" if len(of) == 2 else ""
            print(f"{number:>12} {latent_dim:3} {truncation:4}{times}{ratio}  {name}")


def _print_crossovers(crossed, results):
    if not crossed:
        names = sorted({found["platform"] for found in results}) or ["no device"]
        print(f"\nonly {', '.join(names)} measured: no crossover can be told")
        return
    print()
    for found in crossed:
        first, sizes = found["from"], list(found["cpu_over_gpu"])
        if first is None:
            said = f"the CPU is the faster at the largest size measured, {sizes[-1]}"
        elif first == sizes[0]:
            said = f"the GPU is the faster at all sizes measured, from {first} on"
        else:
            said = f"the GPU is the faster from {first} on"
        print(f"D={found['latent_dim']}, K={found['truncation']}: {said}")


def draw(results, path):
    """Draw seconds a sweep by ratings, a line a device; return the path or None."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: install matplotlib, pip install 'im3f-jax[plots]'")
        return None
    settings = _by_setting(results)
    wide = min(4, len(settings))
    high = math.ceil(len(settings) / wide)
    figure = Figure(figsize=(1 + 3 * wide, 0.6 + 3.2 * high), layout="constrained")
    every = figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)
    for axes, ((latent_dim, truncation), sizes) in zip(
        every.flat, settings.items(), strict=False
    ):
        rows = [
            {"device": platform, "num_ratings": number, "seconds": seconds}
            for _, number, of in sizes
            for platform, seconds in of.items()
        ]
        kind = f"K={truncation}" if truncation else "BPMF"
        title = f"D={latent_dim}, {kind}"
        im3f.plots.plot_throughput(pd.DataFrame(rows), title=title, ax=axes)
        axes.label_outer()
    for axes in every.flat[len(settings) :]:
        axes.set_axis_off()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


# --- growth -----------------------------------------------------------------------


def grow(options):
    """Time sweeps of more and more ratings, users and items in proportion.

    Returns
    -------
    dict
        "growth": per device, D and K the "sizes" measured with their nanoseconds a
        rating, "ratio" (of the largest to the middle size, time a rating), and the
        least-squares line of seconds against ratings: "slope_ns", "intercept_ms".
    """
    lines, failed = {}, []
    for number in GROWTH:
        users, items = number // 100, number // 400
        columns = Columns(
            f"{number:.0e}", *draw_rows(users, items, number), users, items
        )
        for latent_dim in options.latent_dim:
            for truncation in options.max_topics:
                for device in options.device:
                    setting = {
                        "device": device,
                        "latent_dim": latent_dim,
                        "truncation": truncation,
                    }
                    found = _or_out_of_memory(
                        measure,
                        columns,
                        latent_dim,
                        truncation,
                        device,
                        options.sweeps,
                        options.store_all,
                        where={"data": columns.name, **setting},
                        failed=failed,
                    )
                    if found is not None:
                        _print(found)
                        line = lines.setdefault(tuple(setting.values()), [])
                        line.append(found)
    growth = [_growth_of(line) for line in lines.values()]
    for found in growth:
        each = ", ".join(f"{size['ns_a_rating']:.0f}" for size in found["sizes"])
        print(
            f"{found['device']}, D={found['latent_dim']}, K={found['truncation']}: "
            f"{each} ns a rating; largest / middle {found['ratio']:.3f}; seconds = "
            f"{1e-3 * found['intercept_ms']:.4f} + {found['slope_ns']:.0f}e-9 N"
        )
    return {"growth": growth, "failed": failed}


def _growth_of(line):
    """Summarise one device, D and K: its results by size, the smallest first."""
    number = np.array([found["num_ratings"] for found in line], float)
    seconds = np.array([found["sweep"]["median"] for found in line])
    slope, intercept = np.polyfit(number, seconds, 1) if len(line) > 1 else (0.0, 0.0)
    each = 1e9 * seconds / number
    return {
        **{k: line[0][k] for k in ("device", "latent_dim", "truncation")},
        "sizes": [
            {
                "num_ratings": found["num_ratings"],
                "num_users": found["num_users"],
                "num_items": found["num_items"],
                "sweep": found["sweep"],
                "ns_a_rating": time_a_rating,
                "compile": found["compile"],
            }
            for found, time_a_rating in zip(line, each, strict=True)
        ],
        "ratio": each[-1] / each[-2] if len(line) > 1 else 1.0,
        "slope_ns": 1e9 * slope,
        "intercept_ms": 1e3 * intercept,
    }


# --- chains -----------------------------------------------------------------------


def measure_chains(options):
    """Sweeps x chains a second of whole fits, chains at once or one after another.

    Returns
    -------
    dict
        "chains": a record for each data set, device, D, K, method and number of chains
        with "sweeps_a_second" (of all chains), "seconds" by part, and "compile" of a
        fit before it, in seconds: about 0 where the program was there already.
    """
    found, failed = [], []
    for name in options.data:
        columns = load(name)
        train = im3f.Ratings.from_arrays(*columns[1:4], duplicates="keep")
        for setting in (
            {"latent_dim": d, "truncation": k, "device": device}
            for d in options.latent_dim
            for k in options.max_topics
            for device in options.device
        ):
            for method in CHAIN_METHODS:
                for number in options.num_chains:
                    where = {"data": name, **setting}
                    where |= {"chain_method": method, "num_chains": number}
                    one = _or_out_of_memory(
                        _fit_chains, train, where, options, where=where, failed=failed
                    )
                    if one is None:
                        continue
                    found.append({**where, **one})
                    print(
                        f"{name}, D={setting['latent_dim']}, K={setting['truncation']},"
                        f" {setting['device']}, {number} {method}: "
                        f"{one['sweeps_a_second']:.2f} sweeps x chains / s, compile "
                        f"{one['compile']:.1f} s",
                        flush=True,
                    )
    return {"chains": found, "failed": failed}


def _fit_chains(train, where, options):
    dim, truncation = where["latent_dim"], where["truncation"]
    model = (
        im3f.IM3F(dim, max_user_topics=truncation, max_item_topics=truncation)
        if truncation
        else im3f.BPMF(dim)
    )

    def fit(num_samples):
        return model.fit(
            train,
            num_warmup=0,
            num_samples=num_samples,
            num_chains=where["num_chains"],
            chain_method=where["chain_method"],
            device=where["device"],
            store="summary",
            track_train=False,
            progress=False,
        )

    first, posterior = fit(1), fit(options.sweeps)  # the first compiles
    sweeps = where["num_chains"] * options.sweeps
    return {
        "device": posterior.device,
        "sweeps": sweeps,
        "sweeps_a_second": sweeps / posterior.seconds["run"],
        "compile": first.seconds["compile"],
        "seconds": posterior.seconds,
    }


# --- the command ------------------------------------------------------------------

# What is measured where the command line does not say: data, D, K, sweeps.
DEFAULTS = {
    "throughput_sizes": (list(SIZES), [10, 40], [0, 64], 10),
    "throughput_quick": (["1m"], [40], [0, 128], 5),
    "growth": (None, [10], [32], 5),
    "chains": (["100k"], [10], [32], 20),
}


def parse(argv=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    for name in ("quick", "growth", "chains"):
        what.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--latent-dim", nargs="+", type=int, metavar="D")
    parser.add_argument("--max-topics", nargs="+", type=int, metavar="K")
    parser.add_argument("--device", nargs="+", help="default: cpu and gpu, if there")
    parser.add_argument("--sweeps", type=int, help="that are timed, of each setting")
    parser.add_argument("--num-chains", nargs="+", type=int, default=CHAINS)
    parser.add_argument("--blocks", action="store_true", help="time the blocks too")
    parser.add_argument(
        "--store-all", action="store_true", help="of the truncation, unlike a fit"
    )
    parser.add_argument("--json-name", metavar="NAME")
    options = parser.parse_args(argv)
    name = "throughput_quick" if options.quick else "throughput_sizes"
    name = "growth" if options.growth else "chains" if options.chains else name
    if options.growth and options.data:
        parser.error("--growth has sizes of its own, and takes no --data")
    data, latent_dim, max_topics, sweeps = DEFAULTS[name]
    options.data = options.data or data
    options.latent_dim = options.latent_dim or latent_dim
    options.max_topics = options.max_topics or max_topics
    options.sweeps = options.sweeps or sweeps
    options.json_name = options.json_name or name
    return options


def main(argv=None):
    """Run the command line; return its exit status."""
    options = parse(argv)
    started = machine.describe()
    try:
        options.device = options.device or there()
        if options.growth:
            payload = grow(options)
        elif options.chains:
            payload = measure_chains(options)
        else:
            payload = compare(options)
    except InputError as error:
        print(f"bench.throughput: {error}", file=sys.stderr)
        return 2
    path = machine.write_result(options.json_name, payload, started)
    print(f"\nwritten: bench/results/{path.name}")
    if payload.get("results"):
        figure = draw(payload["results"], path.with_suffix(".png"))
        if figure is not None:
            print(f"written: bench/results/{figure.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
