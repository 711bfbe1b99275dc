"""How much room topics need as a chain goes on, and whether giving it back would pay.

    python -m bench.room --data ml-100k ml-1m --latent-dim 10 --sweeps 1000 200

A fit begins with a few columns of topics and doubles them when a topic beyond them
comes into reach (`gibbs.topic_room`); it never takes columns away. Here a chain runs
with all columns, under the same law, and after each sweep the topics are counted that
hold ratings or are in reach: of the weak limit their number (they could be moved
together), of sticks, whose order matters, the last one's place. From these follow the
columns at each sweep, once doubled only, once halved too where for some sweeps half
would have done. Sweeps of each width are then timed in alternation, and a change
counted as one compilation.
"""

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

import jax
import numpy as np

import im3f_jax as im3f
from bench import machine, throughput
from bench.timing import summary
from im3f_jax.data.layout import lay_out
from im3f_jax.errors import InputError
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.topic_room import LEAST_ROOM, log_reach
from im3f_jax.inference.devices import block_sizes, choose_device, describe_device
from im3f_jax.model.spec import resolve

__all__ = ["main", "measure", "rooms"]

SIDES = "user", "item"


def rooms(needed, most, patience=None):
    """Give the columns at each sweep.

    Parameters
    ----------
    needed : sequence of int
        Columns that each sweep needs.
    most : int
        The truncation.
    patience : int, optional
        Sweeps in a row for which half the columns must have done before they are
        halved; by default they never are.

    Returns
    -------
    list of int
    """
    found, room, idle = [], min(LEAST_ROOM, most), 0
    for number in needed:
        while room < number:
            room, idle = min(2 * room, most), 0
        idle = idle + 1 if number <= room // 2 else 0
        if patience is not None and idle >= patience and room // 2 >= LEAST_ROOM:
            room, idle = room // 2, 0
        found.append(room)
    return found


def _with_room(spec, stored):
    for side in SIDES:
        name = f"{side}_topic_prior"
        prior = replace(getattr(spec, name), stored=stored)
        spec = replace(spec, **{name: prior})
    return spec


def _needed(spec, state, layout):
    """Columns that a state needs, of each side."""
    valid = np.arange(len(layout.rating)) < layout.num_ratings
    found = []
    for side in SIDES:
        weights = getattr(state, f"{side}_topic_weights")
        topic = np.asarray(getattr(state, f"{side}_topic_of_rating"))[valid]
        wanted = np.asarray(weights.log_global_weights) > log_reach(
            weights.log_row_weights.shape[0]
        )
        wanted[topic] = True
        sticks = getattr(spec, f"{side}_topic_prior").construction == "stick_breaking"
        found.append(int(np.flatnonzero(wanted)[-1] + 1 if sticks else wanted.sum()))
    return found


def measure(name, latent_dim, truncation, construction, sweeps, patience, rounds):
    """Run a chain, and time its sweeps at each width.

    Returns
    -------
    dict
        By side "needed" (columns of each sweep), and "grown" and "shrunk" (sweeps at
        each number of columns, and changes); "widths": seconds a sweep and of the
        compilation, where both sides have so many columns; "saved": seconds of sweeps
        that halving would have saved, at most, and what its compilations cost.
    """
    columns = throughput.load(name)
    rating, num_users, num_items = columns.rating, columns.num_users, columns.num_items
    model = im3f.IM3F(
        latent_dim,
        max_user_topics=truncation,
        max_item_topics=truncation,
        topics=construction,
    )
    device = choose_device("auto")
    layout, _ = lay_out(
        columns.user,
        columns.item,
        rating,
        num_users,
        num_items,
        block_sizes(device, model),
    )
    spec = resolve(model, float(rating.mean()), float(rating.var()), 1.0)
    full = _with_room(spec, truncation)
    data, key = jax.device_put(layout, device), jax.random.key(0)
    state = init_state(key, full, data)
    needed = []
    for t in range(sweeps):
        state, _ = gibbs_sweep(jax.random.fold_in(key, t), state, full, data)
        needed.append(_needed(full, state, layout))
    found = {"data": name, "latent_dim": latent_dim, "truncation": truncation}
    found |= {"topics": construction, "device": describe_device(device)}
    histories = {}
    for side, numbers in zip(SIDES, zip(*needed, strict=True), strict=True):
        found[side] = {"needed": list(numbers)}
        for policy, wait in (("grown", None), ("shrunk", patience)):
            room = rooms(numbers, truncation, wait)
            histories[side, policy] = room
            found[side][policy] = {
                "sweeps": {str(k): n for k, n in sorted(Counter(room).items())},
                "changes": int(np.count_nonzero(np.diff(room))),
            }
    widths = sorted({w for room in histories.values() for w in room} | {LEAST_ROOM})
    found["widths"] = widths_timed(spec, widths, data, rounds)
    seconds = {int(w): s["median"] for w, s in found["widths"].items()}
    total = {
        policy: sum(
            (seconds[a] + seconds[b]) / 2
            for a, b in zip(*(histories[side, policy] for side in SIDES), strict=True)
        )
        for policy in ("grown", "shrunk")
    }
    more = sum(
        found[side]["shrunk"]["changes"] - found[side]["grown"]["changes"]
        for side in SIDES
    )
    compile_seconds = max(s["compile"] for s in found["widths"].values())
    found["saved"] = {
        "sweeps_seconds": total["grown"],
        "saved_seconds": total["grown"] - total["shrunk"],
        "more_changes": more,
        "compile_seconds": more * compile_seconds,
    }
    return found


def widths_timed(spec, widths, data, rounds):
    """Time a sweep of each width in alternation: width -> summary, with "compile"."""
    compiled, states, found = {}, {}, {}
    key = jax.random.key(1)
    for width in widths:
        room = _with_room(spec, width)
        state = init_state(key, room, data)
        begin = time.perf_counter()
        compiled[width] = gibbs_sweep.lower(key, state, room, data).compile()
        found[str(width)] = {"compile": time.perf_counter() - begin}
        # The first sweep is not counted.
        states[width] = (compiled[width](key, state, room, data)[0], room)
    seconds = {width: [] for width in widths}
    for t in range(rounds):
        for width, call in compiled.items():
            state, room = states[width]
            begin = time.perf_counter()
            state, _ = jax.block_until_ready(
                call(jax.random.fold_in(key, t), state, room, data)
            )
            seconds[width].append(time.perf_counter() - begin)
            states[width] = state, room
    return {w: found[w] | summary(seconds[int(w)]) for w in found}


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.room",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m"])
    parser.add_argument("--latent-dim", type=int, default=10)
    parser.add_argument("--max-topics", type=int, default=128)
    parser.add_argument("--topics", nargs="+", default=["weak_limit"])
    parser.add_argument(
        "--sweeps", type=int, nargs="+", default=[1000, 200], help="of each --data"
    )
    parser.add_argument("--patience", type=int, default=20, metavar="SWEEPS")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json-name", default="room")
    options = parser.parse_args(argv)
    if len(options.sweeps) != len(options.data):
        parser.error("--sweeps takes a number for each of --data")
    started, runs = machine.describe(), []
    try:
        for name, sweeps in zip(options.data, options.sweeps, strict=True):
            throughput.check_name(name)
            for construction in options.topics:
                runs.append(
                    measure(
                        name,
                        options.latent_dim,
                        options.max_topics,
                        construction,
                        sweeps,
                        options.patience,
                        options.rounds,
                    )
                )
                _print(runs[-1])
    except InputError as error:
        print(f"bench.room: {error}", file=sys.stderr)
        return 2
    payload = {"patience": options.patience, "runs": runs}
    path = machine.write_result(options.json_name, payload, started)
    print(f"written: bench/results/{path.name}")
    return 0


def _print(run):
    print(f"{run['data']}, D={run['latent_dim']}, {run['topics']}")
    for side in SIDES:
        numbers = run[side]["needed"]
        print(
            f"  {side}: needs {numbers[0]} to {max(numbers)} columns, {numbers[-1]} at "
            f"the end; doubled only {run[side]['grown']}, halved too "
            f"{run[side]['shrunk']}"
        )
    for width, seconds in run["widths"].items():
        print(f"  {width} columns: {1e3 * seconds['median']:.1f} ms a sweep")
    saved = run["saved"]
    print(
        f"  halving saves {saved['saved_seconds']:.1f} s of "
        f"{saved['sweeps_seconds']:.1f} s, and costs {saved['more_changes']} "
        f"compilations, {saved['compile_seconds']:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
