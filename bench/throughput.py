"""Seconds a sweep, block by block, on the CPU, a GPU, or both side by side.

    python -m bench.throughput --data ml-1m --latent-dim 40 --max-topics 0 128
    python -m bench.throughput --data 6040x3706x900188 --device cpu gpu --quick

A data set is a name (ml-100k, ml-1m; the training rows of random90_0, found in
IM3F_DATA_DIR) or USERSxITEMSxRATINGS, which is drawn. Truncation 0 is BPMF. Compile
time is told apart from run time; blocks are timed in alternation, medians are printed.
"""

import argparse
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import im3f_jax as im3f
from bench import machine, rows
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
from im3f_jax.gibbs.topic_room import reachable, start_room, within_reach
from im3f_jax.gibbs.topic_weights import resample_topic_weights
from im3f_jax.inference.devices import block_sizes, choose_device, describe_device
from im3f_jax.inference.memory import estimate_memory
from im3f_jax.model.spec import resolve
from im3f_jax.numerics.linalg import dots_of_pairs
from im3f_jax.numerics.reductions import count_by_cell

__all__ = ["blocks_of", "main", "measure"]


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


def _load(name):
    """Return user rows, item rows, ratings, and their numbers of rows."""
    if name in rows.FILES:
        train = rows.load_rows(name, "random90_0").train
        user, item, rating = train.user, train.item, train.rating
    else:
        try:
            users, items, ratings = map(int, name.split("x"))
        except ValueError:
            raise InputError(
                f"data is {name!r}, but must be one of {', '.join(rows.FILES)} or "
                "USERSxITEMSxRATINGS"
            ) from None
        drawn = im3f.planted_ratings(
            num_users=users, num_items=items, num_ratings=ratings, seed=0
        ).ratings
        user, item, rating = drawn.user, drawn.item, drawn.rating
    user, item = (np.unique(x, return_inverse=True)[1] for x in (user, item))
    return user, item, rating, int(user.max()) + 1, int(item.max()) + 1


def _time(function, arguments, repeats):
    """Median and spread of repeated calls, in seconds."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - begin)
    return seconds


def measure(name, latent_dim, truncation, device, sweeps, store_all=False):
    """Time one setting on one device.

    A sweep stores the topics that a fit stores, or all of them.

    Returns
    -------
    dict
        "sweep" and "blocks" (median seconds, with the least and the largest),
        "compile" (seconds), "ratings_per_second", "memory_estimate" and, where the
        device tells, "memory_peak" (bytes).
    """
    user, item, rating, num_users, num_items = _load(name)
    chosen = choose_device(device)
    layout, _ = lay_out(user, item, rating, num_users, num_items, block_sizes(chosen))
    model = (
        im3f.IM3F(latent_dim, max_user_topics=truncation, max_item_topics=truncation)
        if truncation
        else im3f.BPMF(latent_dim)
    )
    spec = resolve(model, float(rating.mean()), float(rating.var()), 1.0)
    if not store_all:
        spec = start_room(spec, 1)
    machine.peak_memory(reset=True)
    with jax.default_device(chosen):
        data = jax.device_put(layout, chosen)
        key = jax.random.key(0)
        state = init_state(key, spec, data)
        begin = time.perf_counter()
        compiled = gibbs_sweep.lower(key, state, spec, data).compile()
        compile_seconds = time.perf_counter() - begin
        sweep_seconds = []
        # Let the chain leave its start before anything is timed.
        for t in range(3 + sweeps):
            begin = time.perf_counter()
            state, _ = jax.block_until_ready(
                compiled(jax.random.fold_in(key, t), state, spec, data)
            )
            if t >= 3:
                sweep_seconds.append(time.perf_counter() - begin)
        valid = jnp.arange(data.rating.shape[0]) < data.num_ratings
        extra = {
            "valid": valid,
            "residual": jnp.where(valid, data.rating - state.global_bias, 0),
        }
        for side, row in (("user", data.user), ("item", data.item)):
            weights = getattr(state, f"{side}_topic_weights").log_row_weights
            extra[f"{side}_counts"] = count_by_cell(
                valid, row, getattr(state, f"{side}_topic_of_rating"), weights.shape
            )
        arguments = (key, state, data, extra)
        blocks = {n: jax.jit(f) for n, f in blocks_of(spec).items()}
        block_seconds = {n: [] for n in blocks}
        for function in blocks.values():
            jax.block_until_ready(function(*arguments))
        for _ in range(sweeps):  # in alternation
            for n, function in blocks.items():
                block_seconds[n] += _time(function, arguments, 1)
        stats = chosen.memory_stats() or {}
    median = statistics.median(sweep_seconds)
    return {
        "data": name,
        "num_ratings": len(rating),
        "num_users": int(num_users),
        "num_items": int(num_items),
        "latent_dim": latent_dim,
        "truncation": truncation,
        "stored": [spec.num_user_topics, spec.num_item_topics],
        "device": describe_device(chosen),
        "compile": compile_seconds,
        "sweep": _summary(sweep_seconds),
        "ratings_per_second": len(rating) / median,
        "blocks": {n: _summary(s) for n, s in block_seconds.items()},
        "memory_estimate": estimate_memory(spec, layout),
        "memory_peak": stats.get("peak_bytes_in_use"),
        "process_peak_mb": machine.peak_memory(),
    }


def _summary(seconds):
    return {
        "median": statistics.median(seconds),
        "least": min(seconds),
        "largest": max(seconds),
        "number": len(seconds),
    }


def _print(found):
    print(
        f"{found['data']}, D={found['latent_dim']}, truncation {found['truncation']}, "
        f"{found['device']}: {1e3 * found['sweep']['median']:.1f} ms a sweep, "
        f"{found['ratings_per_second'] / 1e6:.2f} M ratings/s, compile "
        f"{found['compile']:.1f} s"
    )
    for name, seconds in found["blocks"].items():
        print(f"    {name:18s} {1e3 * seconds['median']:9.2f} ms")
    sys.stdout.flush()


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", nargs="+", default=["6040x3706x900188"])
    parser.add_argument("--latent-dim", nargs="+", type=int, default=[10, 40])
    parser.add_argument("--max-topics", nargs="+", type=int, default=[0, 64])
    parser.add_argument("--device", nargs="+", default=["auto"])
    parser.add_argument("--sweeps", type=int, default=10)
    parser.add_argument(
        "--quick", action="store_true", help="D = 40, truncation 128, few sweeps"
    )
    parser.add_argument(
        "--store-all",
        action="store_true",
        help="of the truncation, not what a fit does",
    )
    parser.add_argument("--json-name", default="throughput")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.latent_dim, arguments.max_topics = [40], [0, 128]
        arguments.sweeps = min(arguments.sweeps, 5)
    started = machine.describe()
    results = []
    try:
        for name in arguments.data:
            for latent_dim in arguments.latent_dim:
                for truncation in arguments.max_topics:
                    for device in arguments.device:
                        found = measure(
                            name,
                            latent_dim,
                            truncation,
                            device,
                            arguments.sweeps,
                            arguments.store_all,
                        )
                        _print(found)
                        results.append(found)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    path = machine.write_result(arguments.json_name, {"results": results}, started)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
