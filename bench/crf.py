"""Seconds a sweep of the exact Chinese restaurant franchise, on ML-100K.

    python -m bench.crf --likelihood conditional marginal --latent-dim 10

Both sides are franchises; the chain starts from one table a row and one dish, so the
sweeps of a chain that has left its start are timed. Written to bench/results/crf.json.
"""

import argparse
import statistics
import sys
import time

import jax
import numpy as np

import im3f_jax as im3f
from bench import machine, rows

__all__ = ["main", "measure"]


def measure(likelihood, latent_dim, concentration, num_sweeps, timed):
    """Time a fit: seconds of each sweep, compilation apart.

    Returns
    -------
    dict
        "sweep" (median, least and largest seconds of the last `timed` sweeps),
        "processor" (the median of their processor seconds), "first"
        (seconds of the first), "compile" (all compilations, in seconds), room, topics
        and tables in use at the end.
    """
    split = rows.load_rows("ml-100k", "random90_0")
    fixed = {} if likelihood == "conditional" else {"user_bias_variance": 0.0}
    if fixed:
        fixed["item_bias_variance"] = 0.0
    model = im3f.IM3F(
        latent_dim,
        topics=im3f.CRF(likelihood),
        user_table_concentration=concentration,
        item_table_concentration=concentration,
        **fixed,
    )
    ends, cpu = [], []

    def note(sweep, elapsed, metrics):
        ends.append(elapsed)
        cpu.append(time.process_time())

    posterior = model.fit(
        split.train,
        split.test,
        num_warmup=num_sweeps // 2,
        num_samples=num_sweeps - num_sweeps // 2,
        store="summary",
        progress=False,
        callback=note,
    )
    seconds = np.diff([0.0, *ends])
    last = seconds[-timed:]
    trace = posterior.trace
    return {
        "likelihood": likelihood,
        "latent_dim": latent_dim,
        "table_concentration": concentration,
        "num_ratings": len(split.train),
        "num_sweeps": num_sweeps,
        "sweep": {
            "median": statistics.median(last),
            "least": min(last),
            "largest": max(last),
            "number": len(last),
        },
        # Of the processor: what a sweep takes where nothing else runs.
        "processor": statistics.median(np.diff(cpu)[-timed:]),
        "first": seconds[0],
        "compile": posterior.seconds["compile"],
        "room": {
            side: [prior.num_topics, prior.max_tables]
            for side, prior in (
                ("user", posterior.spec.user_topic_prior),
                ("item", posterior.spec.item_topic_prior),
            )
        },
        "topics": [
            int(trace[f"num_{side}_topics"][0, -1]) for side in ("user", "item")
        ],
        "effective_topics": [
            float(trace[f"effective_{side}_topics"][0, -1]) for side in ("user", "item")
        ],
        "rmse": posterior.evaluate(split.test, clip="train")["rmse"],
        "device": posterior.device,
    }


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.crf",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--likelihood", nargs="+", default=["conditional", "marginal"])
    parser.add_argument("--latent-dim", type=int, default=10)
    parser.add_argument("--table-concentration", nargs="+", type=float, default=[1.0])
    parser.add_argument("--num-sweeps", type=int, default=40)
    parser.add_argument("--timed", type=int, default=20)
    parser.add_argument("--json-name", default="crf")
    arguments = parser.parse_args(argv)
    started = machine.describe()
    found = []
    for likelihood in arguments.likelihood:
        for concentration in arguments.table_concentration:
            begin = time.perf_counter()
            result = measure(
                likelihood,
                arguments.latent_dim,
                concentration,
                arguments.num_sweeps,
                arguments.timed,
            )
            found.append(result)
            print(
                f"{likelihood}, table concentration {concentration:g}: "
                f"{result['sweep']['median']:.2f} s a sweep "
                f"(processor {result['processor']:.2f} s), compile "
                f"{result['compile']:.1f} s, topics {result['topics']}, in all "
                f"{time.perf_counter() - begin:.0f} s",
                flush=True,
            )
            jax.clear_caches()
    path = machine.write_result(arguments.json_name, {"results": found}, started)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
