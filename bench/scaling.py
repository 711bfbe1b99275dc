"""One chain on several devices: how it scales, and what they tell each other.

    python -m bench.scaling                  # 1, 2, 4, 8 devices forced on the host
    python -m bench.scaling --quick          # 1, 2, 4 devices, fewer ratings
    python -m bench.scaling --gpus           # the GPUs that are there

Devices forced on the host share its cores: their figures show what the shards cost, not
what more machines gain. Strong: as many ratings whatever the devices; weak: as many a
device. The bytes of a sweep are counted in its program (its jaxpr), collective by
collective, and what a ring of devices sends of each: an all-reduce 2 (S - 1) / S of its
size, a reduce-scatter and an all-gather (S - 1) / S, a shift all of it. The estimate on
paper is for 10 billion ratings on 64 GPUs: memory by the library's own estimate, bytes
by the same count, the rest as the record says.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from functools import partial

import numpy as np

from bench.machine import describe, num_cores, write_result

__all__ = ["bytes_of_a_sweep", "count_collectives", "main", "paper_estimate"]

# name of the primitive -> share of its size that a device of a ring of S sends
SENT = {
    "psum": lambda number: 2 * (number - 1) / number,
    "reduce_scatter": lambda number: (number - 1) / number,
    "all_gather": lambda number: (number - 1) / number,
    "ppermute": lambda number: 1.0,
}
NAMES = {
    "psum_invariant": "psum",
    "psum2": "psum",
    "all_gather_invariant": "all_gather",
}
# What the estimate on paper supposes of one GPU: stated, not measured.
SUPPOSED = {
    "memory_bytes": 80e9,
    "memory_bytes_per_second": 3.35e12,
    "flops_per_second": 60e12,
    "link_bytes_per_second": 50e9,
}
PAPER = {
    "num_ratings": 10_000_000_000,
    "num_users": 50_000_000,
    "num_items": 1_000_000,
    "latent_dim": 32,
    "truncation": 64,
    "devices": 64,
}


# --- what shards tell each other ----------------------------------------------------


def count_collectives(jaxpr, times=1):
    """List the collectives of a program.

    Parameters
    ----------
    jaxpr
        Of `jax.make_jaxpr`, or any inside of it.
    times
        How often it runs.

    Returns
    -------
    list of (str, int, int)
        Primitive, bytes of its largest side (the sums, or what is gathered), and how
        often it runs.

    Raises
    ------
    ValueError
        If a loop of unknown length has one.
    """
    found = []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        name = NAMES.get(name, name)
        if name in SENT:
            for one, other in zip(equation.invars, equation.outvars, strict=True):
                size = max(_bytes(one.aval), _bytes(other.aval))
                found.append((name, size, times))
            continue
        inside = []
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else [value]:
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    inside.append(part)
        often = times * equation.params["length"] if name == "scan" else times
        counted = [count_collectives(part, often) for part in inside]
        if name == "cond":  # one of its branches runs: that which tells most
            counted = [max(counted, key=lambda one: sum(s * t for _, s, t in one))]
        for more in counted:
            if more and name == "while":
                raise ValueError(
                    "a loop of unknown length tells other shards something"
                )
            found += more
    return found


def _bytes(aval):
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


def bytes_of_a_sweep(spec, user_rows, item_rows, item_batches, devices):
    """Count what one sweep tells: a record by primitive, and bytes sent by a device.

    Parameters
    ----------
    spec
        A resolved spec.
    user_rows, item_rows
        Rows of a shard, with padding.
    item_batches
        Batches that the item rows are taken in.
    devices
        Number of shards; so many devices need not be there.
    """
    import jax
    import jax.numpy as jnp

    from im3f_jax.data.layout import RatingLayout, RowBlocks
    from im3f_jax.data.shards import AXIS
    from im3f_jax.gibbs.init import init_state
    from im3f_jax.gibbs.sweep import gibbs_sweep

    # Nothing that is told depends on the number of ratings.
    slots, block, group = 64, 4, 4
    shape = jax.ShapeDtypeStruct
    whole, real = jnp.int32, jnp.float32

    def blocks(rows, batches):
        return RowBlocks(
            other=shape((4, group, block), whole),
            position=shape((4, group, block), whole),
            row=shape((4, group), whole),
            batch_start=shape((batches + 1,), whole),
            rows=rows,
        )

    data = RatingLayout(
        user=shape((slots,), whole),
        item=shape((slots,), whole),
        rating=shape((slots,), real),
        num_ratings=shape((), whole),
        num_users=shape((), whole),
        num_items=shape((), whole),
        user_blocks=blocks(user_rows, 1),
        item_blocks=blocks(item_rows, item_batches),
        user_rows=user_rows,
        item_rows=item_rows,
        chunk=slots,
        axis=AXIS,
    )
    spec = jax.tree.map(lambda x: jnp.asarray(x, real), spec)
    # The shards are named, not there.
    trace = partial(jax.make_jaxpr, axis_env=[(AXIS, devices)])
    key = jax.random.key(0)
    start = trace(lambda key, data: init_state(key, spec, data), return_shape=True)
    _, state = start(key, data)
    program = trace(lambda *given: gibbs_sweep(*given[:2], spec, given[2])[0])
    program = program(key, state, data)
    found = count_collectives(getattr(program, "jaxpr", program))
    record = {}
    for name, size, times in found:
        one = record.setdefault(name, {"calls": 0, "bytes": 0})
        one["calls"] += times
        one["bytes"] += times * size
    sent = sum(SENT[name](devices) * one["bytes"] for name, one in record.items())
    return {"collectives": record, "sent_by_a_device": sent}


# --- a fit in a process of its own ----------------------------------------------------


def work(options):
    """Time the sweeps of a fit; prints a line of JSON."""
    import jax

    import im3f_jax as im3f
    from bench.peers import seconds_a_sweep
    from im3f_jax.data.shards import lay_out_shards
    from im3f_jax.gibbs.topic_room import start_room
    from im3f_jax.inference.devices import block_sizes
    from im3f_jax.model.spec import resolve

    users, items, number = map(int, options.work.split("x"))
    devices = options.devices[0]
    drawn = im3f.planted_ratings(
        num_users=users, num_items=items, num_ratings=number, seed=0
    ).ratings
    model = im3f.IM3F(
        options.latent_dim,
        max_user_topics=options.max_topics,
        max_item_topics=options.max_topics,
    )
    marks, last = [], [0.0]

    def note(sweep, elapsed, metrics):
        marks.append((sweep, last[0], elapsed))
        last[0] = elapsed

    kind = "gpu" if options.gpus else "cpu"
    posterior = model.fit(
        drawn,
        num_warmup=options.sweeps // 2,
        num_samples=options.sweeps - options.sweeps // 2,
        init="prior",
        device=kind,
        devices=devices if devices > 1 else None,
        progress=False,
        store="summary",
        track_train=False,
        callback=note,
    )
    found = {
        "devices": devices,
        "device": posterior.device,
        "num_users": users,
        "num_items": items,
        "num_ratings": len(drawn),
        "seconds_a_sweep": seconds_a_sweep(marks, skipped=1),
        "seconds": posterior.seconds,
    }
    if devices > 1:
        codes = [np.unique(x, return_inverse=True)[1] for x in (drawn.user, drawn.item)]
        shards = lay_out_shards(
            *codes,
            drawn.rating,
            int(codes[0].max()) + 1,
            int(codes[1].max()) + 1,
            devices,
            block_sizes(jax.devices(kind)[0], model),
        )
        spec = start_room(resolve(model, drawn.mean, 1.0, drawn.step), 1)
        layout = shards.one()
        found |= bytes_of_a_sweep(
            spec,
            layout.user_rows,
            layout.item_rows,
            len(layout.item_blocks.batch_start) - 1,
            devices,
        )
        counts = shards.layout.num_ratings
        found["largest_share"] = float(counts.max() / counts.mean())
    print(json.dumps(found))


def run(size, devices, options):
    """Run `work` in a fresh process that has so many devices."""
    command = [sys.executable, "-m", "bench.scaling", "--work", size]
    command += ["--devices", str(devices), "--sweeps", str(options.sweeps)]
    command += ["--latent-dim", str(options.latent_dim)]
    command += ["--max-topics", str(options.max_topics)]
    environment = dict(os.environ)
    if options.gpus:
        command.append("--gpus")
    else:
        flag = f"--xla_force_host_platform_device_count={devices}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {flag}"
        environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"bench.scaling: {devices} devices, {size}: no result")
    return json.loads(done.stdout.splitlines()[-1])


# --- on paper ---------------------------------------------------------------------


def paper_estimate(paper=None, supposed=None):
    """Estimate memory and time of one sweep that was not run.

    Parameters
    ----------
    paper : dict, optional
        Sizes, as in `PAPER`.
    supposed : dict, optional
        Of one GPU, as in `SUPPOSED`.

    Returns
    -------
    dict
        "sent_by_a_device" and "collectives" (bytes), "memory" (bytes, the ratings and
        rows of a device), and seconds: "link", "floor" (of memory and arithmetic) and
        "sweep_at_floor_times_10", the aim of this library.
    """
    import im3f_jax as im3f
    from im3f_jax.data.layout import GPU_BLOCKS
    from im3f_jax.gibbs.topic_room import start_room
    from im3f_jax.inference.memory import estimate_memory, expected_sizes
    from im3f_jax.model.spec import resolve

    paper, supposed = paper or PAPER, supposed or SUPPOSED
    devices, dim = paper["devices"], paper["latent_dim"]
    number = paper["num_ratings"] // devices
    users, items = paper["num_users"] // devices, paper["num_items"]
    model = im3f.IM3F(
        dim, max_user_topics=paper["truncation"], max_item_topics=paper["truncation"]
    )
    spec = start_room(resolve(model, 3.5, 1.2, 1.0), 1)
    topics = spec.num_user_topics, spec.num_item_topics
    batches = -(-items // GPU_BLOCKS.rows)
    rows = -(-items // (batches * devices)) * batches * devices
    told = bytes_of_a_sweep(spec, users, rows, batches, devices)
    width = dim + sum(topics)
    # What one device holds is a layout like any other.
    memory = estimate_memory(spec, expected_sizes(users, items, number, GPU_BLOCKS))
    # Bytes moved at least: a rating's factors of both sides, twice (moments and inner
    # products), rows of weights and biases of both topics; products, once a side.
    moved = number * (4 * 4 * dim + 2 * 8 * max(topics) + 60)
    moved += 4 * (users + rows) * width * 4
    flops = number * (4 * dim**2 + 8 * sum(topics)) + (users + rows) * dim**3
    floor = max(
        moved / supposed["memory_bytes_per_second"],
        flops / supposed["flops_per_second"],
    )
    link = told["sent_by_a_device"] / supposed["link_bytes_per_second"]
    return {
        **paper,
        "supposed_of_a_gpu": supposed,
        **told,
        "memory": memory,
        "bytes_moved": moved,
        "flops": flops,
        "seconds": {
            "link": link,
            "floor": floor,
            "sweep_at_floor": floor + link,
            "sweep_at_ten_times_the_floor": 10 * floor + link,
        },
    }


# --- the command --------------------------------------------------------------------


def draw(results, path):
    """Draw ratings a second by devices; without matplotlib say so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: install matplotlib, pip install 'im3f-jax[plots]'")
        return
    import pandas as pd

    from im3f_jax.posterior.plots import plot_scaling

    rows = [
        row | {"kind": kind} for kind in ("strong", "weak") for row in results[kind]
    ]
    figure = Figure(layout="constrained")
    plot_scaling(pd.DataFrame(rows), ax=figure)
    figure.savefig(path, dpi=110)


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--devices", nargs="+", type=int, default=[1, 2, 4, 8])
    add("--gpus", action="store_true", help="devices are the GPUs of this machine")
    add("--size", default="6040x3706x900000", help="USERSxITEMSxRATINGS, strong")
    add("--latent-dim", type=int, default=32)
    add("--max-topics", type=int, default=64)
    add("--sweeps", type=int, default=12)
    add("--quick", action="store_true", help="devices 1 2 4, a fifth of the ratings")
    add("--json-name", default="scaling")
    add("--work", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.devices = [n for n in options.devices if n <= 4]
        users, items, number = map(int, options.size.split("x"))
        options.size = f"{users // 5}x{items // 5}x{number // 5}"
        options.sweeps = min(options.sweeps, 8)
    return options


def main(arguments=None):
    """Run the command line."""
    options = parse(arguments)
    if options.work:
        work(options)
        return 0
    started = describe()
    users, items, number = map(int, options.size.split("x"))
    most = max(options.devices)
    results = {"strong": [], "weak": []}
    for devices in options.devices:
        share = devices / most
        weak = f"{round(users * share)}x{items}x{round(number * share)}"
        for kind, size in (("strong", options.size), ("weak", weak)):
            if kind == "weak" and devices == most and results["strong"]:
                found = results["strong"][-1]  # the same
            else:
                found = run(size, devices, options)
            results[kind].append(found)
            rate = found["num_ratings"] / found["seconds_a_sweep"] / 1e6
            told = found.get("sent_by_a_device", 0) / 1e6
            print(
                f"{kind:6} {devices} devices, {found['num_ratings']:,} ratings: "
                f"{1e3 * found['seconds_a_sweep']:.0f} ms a sweep, {rate:.2f} M "
                f"ratings/s, a device sends {told:.1f} MB a sweep",
                flush=True,
            )
    paper = paper_estimate()
    print(
        f"on paper: {paper['num_ratings']:,} ratings on {paper['devices']} GPUs: "
        f"{paper['memory']['total'] / 1e9:.0f} GB each, "
        f"{paper['sent_by_a_device'] / 1e9:.1f} GB sent by each in "
        f"{paper['seconds']['link']:.2f} s, a sweep in "
        f"{paper['seconds']['sweep_at_floor']:.2f} to "
        f"{paper['seconds']['sweep_at_ten_times_the_floor']:.1f} s"
    )
    payload = {
        "arguments": vars(options),
        "cores": num_cores(),
        **results,
        "paper": paper,
    }
    path = write_result(options.json_name, payload, started)
    draw(results, path.with_suffix(".png"))
    print(f"written: bench/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
