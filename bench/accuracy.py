"""Error on held-out ratings of named settings, on fixed rows of real data.

Settings are chosen on ``random90_1`` and reported on other rows::

    python -m bench.accuracy --rows random90_1 --settings all --json-name settings
    python -m bench.accuracy --rows random90_0 --json-name accuracy_ml-100k_d10

myFM and SMURFF are settings too, given the same rows, sweeps and burn-in (`PEERS`).
Each setting is compared with the first one rating by rating: difference, standard error
and the p-value of a paired t-test.
"""

import argparse
import sys
import time

import numpy as np

import im3f_jax as im3f
from bench import machine, peers, rows
from im3f_jax import InputError, InverseGamma
from im3f_jax.posterior.compare import calibration_error, paired_test

__all__ = ["SETTINGS", "main", "measure"]


def _m3f(dim, user_topics=2, item_topics=2, **more):
    return im3f.M3F(user_topics, item_topics, dim, **more)


def _im3f(dim, **more):
    settings = {
        "max_user_topics": 16,
        "max_item_topics": 16,
        "user_table_concentration": 10.0,
        "item_table_concentration": 10.0,
    }
    return im3f.IM3F(dim, **(settings | more))


def _tables(concentration):
    sides = "user_table_concentration", "item_table_concentration"
    return dict.fromkeys(sides, concentration)


SHARED = dict.fromkeys(("user_shared_bias_variance", "item_shared_bias_variance"))
NOISE = dict.fromkeys(("user_noise_shape", "item_noise_shape"))


def _time(bins):
    return {"item_time_bins": bins, "user_drift_variance": None}


TIME = _time(20)

# name -> latent dimension -> model. Where the name does not say otherwise, the settings
# of IM3F that were compared have truncation 16 and table concentrations 10.
SETTINGS = {
    "BPMF": im3f.BPMF,
    "M3F(2,1)": lambda d: _m3f(d, 2, 1),
    "IM3F": im3f.IM3F,
    "PMF": im3f.PMF,
    "M3F(2,2)": lambda d: _m3f(d),
    "M3F(2,2), rating variance 0.7, bias variance 0.02": lambda d: _m3f(
        d, rating_variance=0.7, user_bias_variance=0.02, item_bias_variance=0.02
    ),
    "M3F(2,2), rating variance 0.7, bias variances sampled": lambda d: _m3f(
        d, rating_variance=0.7
    ),
    "M3F(2,2), bias variance 0.02": lambda d: _m3f(
        d, user_bias_variance=0.02, item_bias_variance=0.02
    ),
    "M3F(2,2), bias variance 0.1": lambda d: _m3f(
        d, user_bias_variance=0.1, item_bias_variance=0.1
    ),
    "IM3F, truncation 16": _im3f,
    "IM3F, rating variance 0.7, bias variance 0.02": lambda d: _im3f(
        d, rating_variance=0.7, user_bias_variance=0.02, item_bias_variance=0.02
    ),
    "IM3F, bias variance 0.02": lambda d: _im3f(
        d, user_bias_variance=0.02, item_bias_variance=0.02
    ),
    "IM3F, rating variance 0.6": lambda d: _im3f(d, rating_variance=0.6),
    "IM3F, rating variance 0.5": lambda d: _im3f(d, rating_variance=0.5),
    "IM3F, table concentration 1": lambda d: _im3f(d, **_tables(1.0)),
    "IM3F, table concentration 100": lambda d: _im3f(d, **_tables(100.0)),
    "IM3F, bias variances InverseGamma(20, 1)": lambda d: _im3f(
        d,
        user_bias_variance=InverseGamma(20.0, 1.0),
        item_bias_variance=InverseGamma(20.0, 1.0),
    ),
    "IM3F, stick-breaking": lambda d: _im3f(d, topics="stick_breaking"),
    "BPMF, ordinal": lambda d: im3f.BPMF(d, likelihood="ordinal"),
    "M3F(2,2), ordinal": lambda d: _m3f(d, likelihood="ordinal"),
    "M3F(2,2), ordinal, bias variance 0.1": lambda d: _m3f(
        d, likelihood="ordinal", user_bias_variance=0.1, item_bias_variance=0.1
    ),
    "IM3F, ordinal, truncation 6": lambda d: _im3f(
        d, likelihood="ordinal", max_user_topics=6, max_item_topics=6
    ),
    "IM3F, ordinal": lambda d: _im3f(d, likelihood="ordinal", **_tables(1.0)),
    "IM3F, ordinal, shared biases": lambda d: _im3f(
        d, likelihood="ordinal", **SHARED, **_tables(1.0)
    ),
    "BPMF, shrinkage": lambda d: im3f.BPMF(d, factor_prior="shrinkage"),
    "IM3F, ordinal, shrinkage": lambda d: _im3f(
        d, likelihood="ordinal", factor_prior="shrinkage", **_tables(1.0)
    ),
    "M3F(1,1)": lambda d: _m3f(d, 1, 1),
    "M3F(2,2), shared biases": lambda d: _m3f(d, **SHARED),
    "IM3F, shared biases, table concentration 1": lambda d: _im3f(
        d, **SHARED, **_tables(1.0)
    ),
    "IM3F, shared biases": lambda d: _im3f(d, **SHARED),
    "IM3F, shared biases, table concentration 100": lambda d: _im3f(
        d, **SHARED, **_tables(100.0)
    ),
    "BPMF, ordinal, noise by user and item": lambda d: im3f.BPMF(
        d, likelihood="ordinal", **NOISE
    ),
    "M3F(2,2), ordinal, noise by user and item": lambda d: _m3f(
        d, likelihood="ordinal", **NOISE
    ),
    "IM3F, ordinal, noise by user and item": lambda d: _im3f(
        d, likelihood="ordinal", **NOISE, **_tables(1.0)
    ),
    "IM3F, ordinal, shared biases, noise by user and item": lambda d: _im3f(
        d, likelihood="ordinal", **SHARED, **NOISE, **_tables(1.0)
    ),
    "IM3F, ordinal, shared biases, noise by user and item, table concentration 10": (
        lambda d: _im3f(d, likelihood="ordinal", **SHARED, **NOISE)
    ),
    "IM3F, ordinal, shared biases, noise by user and item, table concentration 100": (
        lambda d: _im3f(d, likelihood="ordinal", **SHARED, **NOISE, **_tables(100.0))
    ),
    # One topic a side: biases, and no topics.
    "M3F(1,1), ordinal": lambda d: _m3f(d, 1, 1, likelihood="ordinal"),
    "M3F(1,1), ordinal, noise by user and item": lambda d: _m3f(
        d, 1, 1, likelihood="ordinal", **NOISE
    ),
    "M3F(1,1), ordinal, noise by user and item, time": lambda d: _m3f(
        d, 1, 1, likelihood="ordinal", **NOISE, **TIME
    ),
    "BPMF, ordinal, noise by user and item, time": lambda d: im3f.BPMF(
        d, likelihood="ordinal", **NOISE, **TIME
    ),
    "IM3F, ordinal, shared biases, noise by user and item, time": lambda d: _im3f(
        d, likelihood="ordinal", **SHARED, **NOISE, **TIME, **_tables(1.0)
    ),
    "BPMF, ordinal, noise by user and item, time in 10 bins": lambda d: im3f.BPMF(
        d, likelihood="ordinal", **NOISE, **_time(10)
    ),
    "BPMF, ordinal, noise by user and item, time in 40 bins": lambda d: im3f.BPMF(
        d, likelihood="ordinal", **NOISE, **_time(40)
    ),
    "BPMF, ordinal, noise by user, item and rating, time": lambda d: im3f.BPMF(
        d, likelihood="ordinal", degrees_of_freedom=5.0, **NOISE, **TIME
    ),
    "M3F(2,2), ordinal, noise by user and item, time": lambda d: _m3f(
        d, likelihood="ordinal", **NOISE, **TIME
    ),
    "IM3F, ordinal, noise by user and item, time": lambda d: _im3f(
        d, likelihood="ordinal", **NOISE, **TIME, **_tables(1.0)
    ),
    "IM3F, ordinal, shared biases, noise by user and item, time, table concentration "
    "10": lambda d: _im3f(d, likelihood="ordinal", **SHARED, **NOISE, **TIME),
    "BPMF, noise by user and item": lambda d: im3f.BPMF(d, **NOISE),
    "IM3F, noise by user and item": lambda d: _im3f(d, **NOISE),
    "BPMF, Student's t": lambda d: im3f.BPMF(d, degrees_of_freedom=5.0),
}
REPORTED = ("BPMF", "M3F(2,1)", "IM3F")
# setting -> system of bench.peers
PEERS = {
    "myFM, regression": "myfm",
    "myFM, ordered probit": "myfm-probit",
    "SMURFF, noise sampled": "smurff",
}


def measure_peer(name, split, dim, warmup, samples, seed):
    """Run a peer and score it as ours are scored.

    Returns
    -------
    tuple
        The dict of figures, and what is paired with other settings, rating by rating:
        squared errors of clipped predictions and log probabilities, (n,), or None.
    """
    system = PEERS[name]
    run = {"smurff": peers.run_smurff, "myfm": peers.run_myfm}[peers.PEERS[system][0]]
    start = time.perf_counter()
    prediction, speed, more = run(system, split, dim, warmup + samples, warmup, seed)
    seconds = time.perf_counter() - start
    rating, levels = split.test.rating, split.train.levels
    clipped = np.clip(prediction, levels[0], levels[-1])
    pointwise = {"rmse": (clipped - rating) ** 2, "log_score": None}
    found = {
        "rmse_clipped": peers.rmse(clipped, rating),
        "rmse": peers.rmse(prediction, rating),
        "mae_clipped": float(np.mean(np.abs(clipped - rating))),
        "num_test": len(rating),
        "num_cold": split.num_cold,
        "settings": peers.PEERS[system][1],
        "seconds": {"run": seconds},
        "seconds_a_sweep": speed,
        "warmup": warmup,
        "samples": samples,
        "seed": seed,
    }
    if "proba" in more:
        held = np.searchsorted(levels, rating)
        probability = more["proba"][np.arange(len(held)), held]
        pointwise["log_score"] = np.log(np.maximum(probability, np.finfo(float).tiny))
        found["log_probability"] = float(pointwise["log_score"].mean())
        hit = np.arange(len(levels)) == held[:, None]
        found["calibration_error"] = calibration_error(more["proba"], hit)
    return found, pointwise


def paired(this, other):
    """Compare two settings rating by rating: differences, their errors and p-values."""
    found = {}
    for score, mine in this.items():
        theirs = other[score]
        if mine is None or theirs is None:
            continue
        gap = mine - theirs
        if score == "rmse":  # of the root of a mean, half way between both
            gap = gap / (np.sqrt(mine.mean()) + np.sqrt(theirs.mean()))
        found |= paired_test(score, gap)
    return found


def measure(model, split, warmup, samples, seed=0, thinning=1, chains=1):
    """Fit one model and score it.

    Returns
    -------
    tuple
        A dict of RMSE clipped to the training scale and unclipped, log probability of
        the held-out star (nats a rating), calibration, rating variance, topics and
        seconds; and what is paired with other settings, as in `measure_peer`.
    """
    posterior = model.fit(
        split.train,
        split.test,
        num_warmup=warmup,
        num_samples=samples,
        num_chains=chains,
        thinning=thinning,
        seed=seed,
        progress=False,
        track_train=False,
    )
    clipped = posterior.evaluate(split.test, clip="train", pointwise=True)
    plain = posterior.evaluate(split.test, log_score=False)
    found = {
        "rmse_clipped": clipped["rmse"],
        "rmse": plain["rmse"],
        "mae_clipped": clipped["mae"],
        "log_probability": clipped["log_score"],
        "calibration_error": _calibration(posterior, split.test),
        "dropped_weight": clipped["dropped_weight"],
        "num_test": clipped["num_ratings"],
        "num_cold": clipped["num_cold"],
        "rating_variance": float(posterior.rating_variance.mean()),
        "num_user_topics": float(posterior.num_user_topics.mean()),
        "num_item_topics": float(posterior.num_item_topics.mean()),
        "effective_user_topics": float(posterior.effective_user_topics.mean()),
        "effective_item_topics": float(posterior.effective_item_topics.mean()),
        "effective_dimension": float(posterior.effective_dimension.mean()),
        "user_bias_variance": float(
            posterior.trace.get("user_bias_variance", posterior.rating_variance)[
                :, -1
            ].mean()
        ),
        **{
            f"{side}_shared_bias_variance": float(
                posterior.trace.get(f"{side}_shared_bias_variance", np.zeros((1, 1)))[
                    :, -1
                ].mean()
            )
            for side in ("user", "item")
        },
        "seconds": posterior.seconds,
        "device": posterior.device,
        "warmup": warmup,
        "samples": samples,
        "thinning": thinning,
        "chains": chains,
        "seed": seed,
    }
    return found, {
        "rmse": clipped["squared_errors"],
        "log_score": clipped.get("log_scores"),
    }


def _calibration(posterior, test):
    timed = posterior.time_scale is not None
    proba = posterior.predict_proba(
        test.user_ids, test.item_ids, times=test.timestamp if timed else None
    )
    return calibration_error(proba, test.rating[:, None] == posterior.levels)


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="ml-100k", choices=sorted(rows.FILES))
    parser.add_argument("--rows", default="random90_0")
    parser.add_argument("--latent-dim", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--thinning", type=int, default=1)
    parser.add_argument("--chains", type=int, default=1, help="of ours")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", nargs="+", default=list(REPORTED))
    parser.add_argument("--json-name", required=True)
    arguments = parser.parse_args(argv)
    names = list(SETTINGS) if arguments.settings == ["all"] else arguments.settings
    started = machine.describe()
    try:
        split = rows.load_rows(arguments.data, arguments.rows)
        known = [*SETTINGS, *PEERS]
        missing = [name for name in names if name not in known]
        if missing:
            raise InputError(f"no settings {missing}; there are {known}")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    results, first = {}, None
    for name in names:
        lengths = arguments.warmup, arguments.samples, arguments.seed
        dim = arguments.latent_dim
        if name in PEERS:
            found, pointwise = measure_peer(name, split, dim, *lengths)
        else:
            model = SETTINGS[name](dim)
            found, pointwise = measure(
                model, split, *lengths, arguments.thinning, arguments.chains
            )
        first = first or (name, pointwise)
        if name != first[0]:
            found |= {"against": first[0]} | paired(pointwise, first[1])
        results[name] = found
        shown = f"{name:50s} RMSE {found['rmse_clipped']:.4f} clipped"
        if "log_probability" in found:
            shown += f"; log probability {found['log_probability']:.4f}"
        if found.get("num_user_topics") or found.get("num_item_topics"):
            shown += "; topics " + "/".join(
                f"{found[f'num_{side}_topics']:.1f} "
                f"({found[f'effective_{side}_topics']:.2f})"
                for side in ("user", "item")
            )
        print(f"{shown}; {found['seconds']['run']:.0f} s", flush=True)
        machine.write_result(
            arguments.json_name,
            {
                "data": arguments.data,
                "rows": arguments.rows,
                "latent_dim": arguments.latent_dim,
                "results": results,
            },
            started,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
