"""How well chains mix: effective draws a sweep and a second, R-hat over starts.

    python -m bench.mixing --data ml-100k --rows random90_0

Each model runs several chains from scattered starts: ratings in 1, 2, 4, 8 topics a
side, factors from the MAP fit and from their prior in turn. R-hat is the split form
(Gelman et al. 2013) and the effective sample size that of numpyro, over all chains;
where the chains disagree the latter means little, and R-hat says so.
"""

import argparse
import sys
import time

import numpy as np

import im3f_jax as im3f
from bench import machine, rows
from im3f_jax import InputError

__all__ = ["MODELS", "main", "measure"]

SCALARS = (
    "rating_variance",
    "log_joint",
    "num_user_topics",
    "num_item_topics",
    "effective_user_topics",
    "effective_item_topics",
)
PREDICTIONS = 200


def _im3f(**more):
    return im3f.IM3F(10, **({"max_user_topics": 16, "max_item_topics": 16} | more))


MODELS = {
    "BPMF": lambda: im3f.BPMF(10),
    "M3F(2,2)": lambda: im3f.M3F(2, 2, 10),
    "IM3F": _im3f,
    "IM3F, stick-breaking": lambda: _im3f(topics="stick_breaking"),
    "IM3F, table concentrations 10": lambda: _im3f(
        user_table_concentration=10.0, item_table_concentration=10.0
    ),
    "IM3F, rating variance 0.7": lambda: _im3f(rating_variance=0.7),
    "BPMF, ordinal": lambda: im3f.BPMF(10, likelihood="ordinal"),
    "IM3F, ordinal": lambda: _im3f(likelihood="ordinal"),
}


def _summary(draws, seconds, sweeps):
    """Effective draws and R-hat of one scalar; `draws` is (chain, sweep)."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    draws = np.asarray(draws, np.float64)
    if np.ptp(draws) == 0:
        return {"mean": float(draws.mean()), "constant": True}
    with np.errstate(divide="ignore", invalid="ignore"):
        size = float(effective_sample_size(draws))
        hat = float(split_gelman_rubin(draws))
    return {
        "mean": float(draws.mean()),
        "mean_by_chain": draws.mean(axis=1).tolist(),
        "effective": size,
        "effective_a_sweep": size / sweeps,
        "effective_a_second": size / seconds,
        # Constant chains that differ have no spread within: R-hat is infinite.
        "r_hat": hat if np.isfinite(hat) else None,
    }


def measure(model, split, starts, warmup, samples):
    """Run a chain from each start.

    Returns
    -------
    dict
        "scalars" (name -> summary; under the ordinal likelihood the cut points, too),
        "predictions" (median and worst over held-out pairs), "rmse_by_chain", "seconds"
        (of sampling, all chains).
    """
    traces, predictions, cuts, errors, seconds = [], [], [], [], 0.0
    chosen = np.linspace(0, len(split.test) - 1, PREDICTIONS).astype(int)
    users, items = split.test.user_ids[chosen], split.test.item_ids[chosen]
    for chain, start in enumerate(starts):
        posterior = model.fit(
            split.train,
            split.test,
            num_warmup=warmup,
            num_samples=samples,
            seed=chain,
            start_topics=start,
            init=("map", "prior")[chain % 2],
            progress=False,
            track_train=False,
        )
        traces.append({n: v[0, warmup:] for n, v in posterior.trace.items()})
        predictions.append(posterior.predict(users, items, per_draw=True)[0])
        cuts.append(posterior.draws.cut_points[0])
        errors.append(posterior.evaluate(split.test, clip="train", log_score=False))
        seconds += posterior.seconds["run"] * samples / (warmup + samples)
    sweeps = samples * len(starts)
    scalars = {
        name: _summary([t[name] for t in traces], seconds, sweeps) for name in SCALARS
    }
    scalars |= {
        f"cut_point_{n + 1}": _summary(values, seconds, sweeps)
        for n, values in enumerate(np.moveaxis(np.array(cuts), -1, 0))
    }
    each = [
        _summary(np.array(predictions)[:, :, n], seconds, sweeps)
        for n in range(PREDICTIONS)
    ]
    size = np.array([e["effective"] for e in each])
    hat = np.array([e["r_hat"] or np.inf for e in each])
    return {
        "scalars": scalars,
        "predictions": {
            "effective_median": float(np.median(size)),
            "effective_least": float(size.min()),
            "effective_a_sweep": float(np.median(size)) / sweeps,
            "effective_a_second": float(np.median(size)) / seconds,
            "r_hat_median": float(np.median(hat)),
            "r_hat_95_percent": float(np.quantile(hat, 0.95)),
        },
        "rmse_by_chain": [e["rmse"] for e in errors],
        "starts": list(starts),
        "warmup": warmup,
        "samples": samples,
        "seconds": seconds,
    }


def _print(name, found):
    print(f"{name}: {found['seconds']:.0f} s, RMSE by chain", end=" ")
    print(" ".join(f"{e:.4f}" for e in found["rmse_by_chain"]))
    for scalar, value in found["scalars"].items():
        if "constant" in value:
            continue
        hat = "infinite" if value["r_hat"] is None else f"{value['r_hat']:.3f}"
        by_chain = " ".join(f"{m:.4g}" for m in value["mean_by_chain"])
        print(
            f"    {scalar:24s} effective {value['effective']:8.1f}, a sweep "
            f"{value['effective_a_sweep']:.4f}, R-hat {hat}; by chain {by_chain}"
        )
    value = found["predictions"]
    print(
        f"    {'held-out predictions':24s} effective {value['effective_median']:8.1f} "
        f"(least {value['effective_least']:.1f}), a sweep "
        f"{value['effective_a_sweep']:.4f}, R-hat {value['r_hat_median']:.3f}",
        flush=True,
    )


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mixing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="ml-100k", choices=sorted(rows.FILES))
    parser.add_argument("--rows", default="random90_0")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--starts", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--samples", type=int, default=700)
    parser.add_argument("--json-name", default="mixing")
    arguments = parser.parse_args(argv)
    started = machine.describe()
    try:
        split = rows.load_rows(arguments.data, arguments.rows)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    results = {}
    for name in arguments.models:
        begin = time.perf_counter()
        results[name] = measure(
            MODELS[name](), split, arguments.starts, arguments.warmup, arguments.samples
        )
        results[name]["seconds_in_all"] = time.perf_counter() - begin
        _print(name, results[name])
        machine.write_result(
            arguments.json_name,
            {"data": arguments.data, "rows": arguments.rows, "results": results},
            started,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
