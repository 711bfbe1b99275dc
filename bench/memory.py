"""Memory of a fit: its estimate, and what it then takes.

    python -m bench.memory                              # ML-1M, against the estimate
    python -m bench.memory --estimate 480000x17770x100000000 --latent-dim 32 \
        --max-topics 64 --device gpu                    # draws nothing
    python -m bench.memory --run 20m                    # by stage, on the CPU

The first fits ML-1M (from IM3F_DATA_DIR) at D = 40, truncation 128, twice: the second
fit compiles nothing, so that the formulas answer for what it adds. `--estimate` prints
the bytes by array of a fit of so many users, items and ratings, in the room that topics
start with, and whether they fit in `--memory-gb`. `--run` draws ratings, fits them for
a few sweeps and tells the largest resident memory of the process stage by stage.
"""

import argparse
import contextlib
import logging
import sys
import time

import numpy as np

import im3f_jax as im3f
from bench import machine, rows
from bench.synthetic import draw_rows, parse_size
from im3f_jax.data.layout import CPU_BLOCKS, GPU_BLOCKS, lay_out
from im3f_jax.errors import InputError
from im3f_jax.gibbs.topic_room import start_room
from im3f_jax.inference.memory import (
    estimate_draw_bytes,
    estimate_memory,
    expected_sizes,
    format_bytes,
)

__all__ = ["estimate", "fit_by_stage", "main"]

RUNS = {"20m": "140000x27000x20000000"}


def make_model(latent_dim, max_topics):
    """Return iM3F, or BPMF for 0 topics."""
    if not max_topics:
        return im3f.BPMF(latent_dim)
    return im3f.IM3F(latent_dim, max_user_topics=max_topics, max_item_topics=max_topics)


def estimate(size, latent_dim, max_topics, device, num_chains=1):
    """Estimate the bytes of a fit by array, from numbers alone.

    Returns
    -------
    dict
        "start" and "all_topics": bytes by name with their "total", in the room that
        topics start with and with room for all of them; "draw": bytes of one kept draw
        on the host.
    """
    users, items, ratings = parse_size(size)
    blocks = CPU_BLOCKS if device == "cpu" else GPU_BLOCKS
    sizes = expected_sizes(users, items, ratings, blocks)
    model = make_model(latent_dim, max_topics)
    start = start_room(model, 1)
    return {
        "start": estimate_memory(start, sizes, 0, num_chains),
        "all_topics": estimate_memory(model, sizes, 0, num_chains),
        "draw": estimate_draw_bytes(start, users, items),
    }


def print_estimate(found, memory):
    """Print the table of an estimate, and what it comes to."""
    print(f"{'':20}{'at the start':>14}{'all topics':>14}")
    for name in sorted(found["start"], key=found["start"].get, reverse=True):
        if name != "total" and found["all_topics"][name]:
            columns = (found[room][name] for room in ("start", "all_topics"))
            print(f"{name:20}" + "".join(f"{format_bytes(x):>14}" for x in columns))
    for room, said in (("start", "at the start"), ("all_topics", "with all topics")):
        total = found[room]["total"]
        verdict = "fits in" if total <= memory else "does NOT fit in"
        print(f"{said}: {format_bytes(total)}, {verdict} {format_bytes(memory)}")
    print(f"a kept draw on the host: {format_bytes(found['draw'])}")


class Stages(logging.Handler):
    """Largest resident memory between marks, in MB; `fit` marks its start by a line."""

    def __init__(self):
        super().__init__()
        self.peaks, self.seconds, self.last = {}, {}, time.perf_counter()
        machine.peak_memory(reset=True)

    def mark(self, stage):
        """End a stage here."""
        now = time.perf_counter()
        self.peaks[stage] = max(self.peaks.get(stage, 0), machine.peak_memory())
        self.seconds[stage] = self.seconds.get(stage, 0) + now - self.last
        print(f"{stage:22} {self.peaks[stage]:8.0f} MB {now - self.last:8.1f} s")
        sys.stdout.flush()
        machine.peak_memory(reset=True)
        self.last = now

    def emit(self, record):
        """Take the estimate's line as the end of the layout."""
        if record.msg.startswith("device memory, estimated"):
            self.mark("layout")


@contextlib.contextmanager
def listening(handler):
    """Let a handler hear what the library notes."""
    logger = logging.getLogger("im3f_jax")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def fit_by_stage(size, latent_dim, max_topics, sweeps):
    """Draw ratings and fit them on the CPU.

    Returns
    -------
    dict
        "peaks_mb": the largest resident memory in each stage; "seconds" of each;
        "peak_mb" of all; "estimate_mb" by array.
    """
    users, items, ratings = parse_size(size)
    stages = Stages()
    stages.mark("imports")
    columns = draw_rows(users, items, ratings)
    stages.mark("columns drawn")
    train = im3f.Ratings.from_arrays(*columns, duplicates="keep")
    del columns
    stages.mark("Ratings.from_arrays")
    said = []

    def after_chunk(sweep, elapsed, metrics):
        stages.mark("sweeps" if said else "start, first sweep")
        said.append(sweep)

    with listening(stages):
        make_model(latent_dim, max_topics).fit(
            train,
            num_warmup=1,
            num_samples=sweeps - 1,
            store="summary",
            device="cpu",
            progress=False,
            callback=after_chunk,
        )
    stages.mark("result")
    parts = estimate(size, latent_dim, max_topics, "cpu")["start"]
    return {
        "data": size,
        "latent_dim": latent_dim,
        "truncation": max_topics,
        "sweeps": sweeps,
        "peaks_mb": stages.peaks,
        "seconds": stages.seconds,
        "peak_mb": max(stages.peaks.values()),
        "estimate_mb": {name: count / 1e6 for name, count in parts.items()},
    }


def against_estimate():
    """Fit ML-1M twice, and hold the process's peak against the formulas."""
    split = rows.load_rows("ml-1m", "random90_0")
    model = make_model(40, 128)
    user, item = (
        np.unique(x, return_inverse=True)[1]
        for x in (split.train.user, split.train.item)
    )
    num_users, num_items = int(user.max()) + 1, int(item.max()) + 1
    layout, _ = lay_out(user, item, split.train.rating, num_users, num_items)
    draws = 10
    parts = estimate_memory(model, layout, len(split.test))
    kept = draws * estimate_draw_bytes(model, num_users, num_items)
    found = {}
    for name in ("process", "second_fit"):
        found[f"{name}_before_mb"] = machine.peak_memory(reset=True)
        model.fit(
            split.train, split.test, num_warmup=2, num_samples=draws, progress=False
        )
        found[f"{name}_peak_mb"] = machine.peak_memory()
    return {
        "device_estimate_mb": {k: v / 1e6 for k, v in parts.items()},
        "kept_draws_mb": kept / 1e6,
        "num_draws": draws,
        **found,
    }


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = "20m (with --run), 100k, 1m, 10m, 32m or USERSxITEMSxRATINGS"
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--estimate", metavar="SIZE", help=size)
    what.add_argument("--run", metavar="SIZE", help=size)
    parser.add_argument("--latent-dim", type=int, default=32)
    parser.add_argument("--max-topics", type=int, default=64, help="0: BPMF")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="gpu")
    parser.add_argument("--num-chains", type=int, default=1, help="at once")
    parser.add_argument("--memory-gb", type=float, default=80)
    parser.add_argument("--sweeps", type=int, default=5)
    parser.add_argument("--json-name", help="of the results of a run")
    options = parser.parse_args(argv)
    if options.sweeps < 2:
        parser.error("--sweeps must be at least 2")
    started = machine.describe()
    setting = options.latent_dim, options.max_topics
    try:
        if options.estimate:
            found = estimate(
                options.estimate, *setting, options.device, options.num_chains
            )
            print_estimate(found, options.memory_gb * 1e9)
            return 0
        if options.run:
            size = RUNS.get(options.run, options.run)
            name = options.json_name or f"memory_{options.run}"
            result = fit_by_stage(size, *setting, options.sweeps)
        else:
            name = options.json_name or "memory_ml-1m_d40_k128"
            result = against_estimate()
            print(result)
    except InputError as error:
        print(f"bench.memory: {error}", file=sys.stderr)
        return 2
    path = machine.write_result(name, result, started)
    print(f"written: bench/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
