"""Seconds from `fit` to its first sweep, cold and with JAX's compilation cache warm.

    python -m bench.first_sweep --data ml-1m --latent-dim 40 --max-topics 128

Each fit runs in a fresh process: without a cache; with an empty one, which it fills;
with the one that is there then. The cache is a temporary folder, given to the process
by JAX_COMPILATION_CACHE_DIR, as a user would.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from bench import machine
from im3f_jax.errors import InputError

__all__ = ["main", "time_fit"]

RUNS = ("no cache", "cold cache", "warm cache")


def time_fit(data, latent_dim, truncation, device):
    """Fit two sweeps in this process.

    Returns
    -------
    dict
        Seconds: "first_sweep" from the call of `fit` to the end of the first sweep,
        of which "compile" is what the sweep's program took and "start" the MAP start
        with its own compilation; "cpu", processor time of the whole fit.
    """
    import im3f_jax as im3f
    from bench import throughput

    columns = throughput.load(data)
    train = im3f.Ratings.from_arrays(*columns[1:4], duplicates="keep")
    model = (
        im3f.IM3F(latent_dim, max_user_topics=truncation, max_item_topics=truncation)
        if truncation
        else im3f.BPMF(latent_dim)
    )
    ends = []
    begin, cpu = time.perf_counter(), time.process_time()
    posterior = model.fit(
        train,
        num_warmup=1,
        num_samples=1,
        device=device,
        store="summary",
        progress=False,
        callback=lambda *said: ends.append(time.perf_counter()),
    )
    return {
        "first_sweep": ends[0] - begin,
        "start": posterior.seconds["start"],
        "compile": posterior.seconds["compile"],
        "cpu": time.process_time() - cpu,
        "device": posterior.device,
    }


def _in_process(arguments, cache):
    environment = dict(os.environ)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = cache
    command = [sys.executable, "-m", "bench.first_sweep", "--worker", *arguments]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.first_sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="ml-1m", help="as of bench.throughput")
    parser.add_argument("--latent-dim", type=int, default=40, metavar="D")
    parser.add_argument("--max-topics", type=int, default=128, metavar="K")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json-name", default="first_sweep", metavar="NAME")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    setting = options.data, options.latent_dim, options.max_topics, options.device
    if options.worker:
        print(json.dumps(time_fit(*setting)))
        return 0
    from bench import throughput

    started = machine.describe()
    try:
        throughput.check_name(options.data)
    except InputError as error:
        print(f"bench.first_sweep: {error}", file=sys.stderr)
        return 2
    names = ("--data", "--latent-dim", "--max-topics", "--device")
    arguments = [x for pair in zip(names, map(str, setting), strict=True) for x in pair]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, cache in zip(RUNS, (None, folder, folder), strict=True):
            found = results[name] = _in_process(arguments, cache)
            print(
                f"{name}: first sweep after {found['first_sweep']:.1f} s (start "
                f"{found['start']:.1f}, compile {found['compile']:.1f}; "
                f"{found['cpu']:.1f} s of processor time)",
                flush=True,
            )
    payload = dict(zip(("data", "latent_dim", "truncation"), setting, strict=False))
    path = machine.write_result(
        options.json_name, {**payload, "runs": results}, started
    )
    print(f"written: bench/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
