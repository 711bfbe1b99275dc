"""The paper's experiments, run again: every table and figure beside the paper's.

    python -m bench.reproduce_paper topics          # the number of topics, ML-100K
    python -m bench.reproduce_paper curves compare  # RMSE by sweep, t-tests, ML-1M
    python -m bench.reproduce_paper dblp systems --size short --resume
    python -m bench.reproduce_paper figures         # draw again from the results

``--size full``, the default, is the paper's; ``short`` ends on two cores, a part within
an hour or so, and its results say what it cuts. A fit is one unit: it is stored when it
ends, and with ``--resume`` a unit that is stored is not fitted again. Results go to
``bench/results/reproduce_<part>.json`` and ``.png``, tables into the README by
``python -m bench.tables``.

As in the paper there is no burn-in: predictions of all sweeps are averaged, and nothing
is clipped. beta is the dish concentration, gamma the table concentration.
"""

import argparse
import json
import os
import re
import sys
import time
import warnings
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np
import pandas as pd

import im3f_jax as im3f
from bench import accuracy, machine, rows
from im3f_jax import InputError

__all__ = ["MODELS", "PARTS", "SIZES", "SYSTEMS", "fit_unit", "main", "paired"]

UNITS = Path(__file__).resolve().parent / "units"
MOST_PROGRAMS = 8  # kept compiled: each takes memory mappings, which Linux limits

# ---- What the paper says (its section of experiments). Its K^U and K^M come from the
# authors' program, whose franchise runs swap the sides: its K^M counts our user topics.
# The numbers of topics on ML-100K stand only in figures there.
PAPER = {
    "iM3F TestBest": {"test": 0.7718, "user_topics": 77.5, "item_topics": 64},
    "iM3F TrainBest": {
        "test": 0.7750, "train": 0.6904, "user_topics": 100, "item_topics": 94.5,
    },
    "M3F(2,1)": {"test": 0.7783, "train": 0.60},
}  # fmt: skip
# DBLP, 2 million pairs with counts 1 to 10 of another extract than ours; by beta, and
# the best of M3F's grid: D = 25, K^U = 2, K^M = 1.
PAPER_DBLP = {
    "M3F": {"train": 0.935, "test": 1.149},
    0.1: {"train": 0.600, "test": 1.075, "user_topics": 5, "item_topics": 6},
    1.0: {"train": 0.544, "test": 1.049, "user_topics": 27, "item_topics": 23},
}

# ---- What the authors' program (github.com/asaluja/im3f) gives in GNU Octave, on the
# rows of test_rows.npz, D = 40.
# ML-100K loo_0 after 100 sweeps; (beta, gamma) -> its (K^M, K^U), which are our user
# and item topics: dishes that were ever created.
PROGRAM_TOPICS = {
    (0.01, 0.01): (4, 1), (0.01, 0.1): (19, 1), (0.01, 1.0): (44, 1),
    (0.1, 0.01): (11, 17), (0.1, 0.1): (42, 33), (0.1, 1.0): (27, 40),
    (1.0, 0.01): (116, 114), (1.0, 0.1): (133, 147), (1.0, 1.0): (130, 122),
}  # fmt: skip
# Test RMSE by data, rows and model; the sweeps it was read at.
PROGRAM = {
    ("ml-100k", "loo_0"): {
        "BPMF": (0.9041, 100), "M3F(2,1)": (0.8941, 100),
        "iM3F TestBest": (0.9072, 100), "iM3F TrainBest": (0.9000, 100),
    },
    ("ml-100k", "loo_1"): {
        "BPMF": (0.8939, 100), "M3F(2,1)": (0.9018, 100),
        "iM3F TestBest": (0.9041, 100), "iM3F TrainBest": (0.8970, 100),
    },
    ("ml-1m", "loo_0"): {
        "BPMF": (0.8620, 500), "M3F(2,1)": (0.8625, 500),
        "iM3F TestBest": (0.8795, 47),
    },
}  # fmt: skip
# The same program scored as its loader since 31 January 2013 does, on rows that are
# also in training: M3F-TIB(2,1), ML-1M, RMSE by sweeps.
PROGRAM_TRAINING_ROWS = {100: 0.777, 500: 0.711}

# ---- The program's settings (in the paper stands none of them but D): sigma^2 = 0.5,
# sigma_0^2 = 0.1, c_0 = d_0 = 0; the others are this library's defaults.
FIXED = {"rating_variance": 0.5}
BIASED = FIXED | {"user_bias_variance": 0.1, "item_bias_variance": 0.1}
# As the program ran its franchises: one scalar a topic, the same for all rows.
AS_RUN = FIXED | {
    "user_bias_variance": 0.0,
    "item_bias_variance": 0.0,
    "user_topic_mean_variance": 0.1,
    "item_topic_mean_variance": 0.1,
}


def _m3f(unit, preset=im3f.M3F):
    sizes = unit["user_topics"], unit["item_topics"], unit["latent_dim"]
    return preset(*sizes, **BIASED)


def _im3f(topics, settings):
    def build(unit):
        sides = [f"{side}_{{}}_concentration" for side in ("user", "item")]
        more = {side.format("dish"): unit["beta"] for side in sides}
        more |= {side.format("table"): unit["gamma"] for side in sides}
        if "truncation" in unit:
            more |= dict.fromkeys(
                ("max_user_topics", "max_item_topics"), unit["truncation"]
            )
        return im3f.IM3F(unit["latent_dim"], topics=topics, **more, **settings)

    return build


def _separate(unit):
    room = dict.fromkeys(("max_user_topics", "max_item_topics"), unit["truncation"])
    room |= dict.fromkeys(
        ("user_table_concentration", "item_table_concentration"), unit["gamma"]
    )
    return im3f.SeparateDP(unit["latent_dim"], **room, **BIASED)


def _reciprocal(unit):
    return im3f.ReciprocalIM3F(
        unit["latent_dim"],
        directed=True,
        max_topics=unit["truncation"],
        dish_concentration=unit["beta"],
        table_concentration=unit["gamma"],
        bias_variance=0.1,
        **FIXED,
    )


MODELS = {
    "PMF": lambda u: im3f.PMF(u["latent_dim"], **FIXED),
    "BPMF": lambda u: im3f.BPMF(u["latent_dim"], **FIXED),
    "M3F-TIB": _m3f,
    "M3F-TIF": lambda u: _m3f(u, im3f.M3F_TIF),
    "iM3F, weak limit": _im3f("weak_limit", BIASED),
    "iM3F, stick-breaking": _im3f("stick_breaking", BIASED),
    "iM3F, CRF conditional": _im3f(im3f.CRF("conditional"), BIASED),
    "iM3F, CRF map": _im3f(im3f.CRF("map"), BIASED),
    "as run, weak limit": _im3f("weak_limit", AS_RUN),
    "as run, stick-breaking": _im3f("stick_breaking", AS_RUN),
    "as run, CRF marginal": _im3f(im3f.CRF("marginal"), AS_RUN),
    "iM3F, variances sampled": _im3f("weak_limit", {}),
    "separate DP": _separate,
    "reciprocal iM3F": _reciprocal,
}
TEST_BEST, TRAIN_BEST = {"beta": 0.1, "gamma": 0.1}, {"beta": 0.1, "gamma": 1.0}
_TIB = {"user_topics": 2, "item_topics": 1}
# A row of the results each: the model, the numbers it takes, its name in PROGRAM.
SYSTEMS = {
    "BPMF": ("BPMF", {}, "BPMF"),  # the first: others are compared with it
    "PMF": ("PMF", {}, None),
    "M3F-TIB(2,1)": ("M3F-TIB", _TIB, "M3F(2,1)"),
    "M3F-TIF(2,2)": ("M3F-TIF", {"user_topics": 2, "item_topics": 2}, None),
    "iM3F, weak limit": ("iM3F, weak limit", TEST_BEST, None),
    "iM3F, stick-breaking": ("iM3F, stick-breaking", TEST_BEST, None),
    "iM3F, CRF conditional": ("iM3F, CRF conditional", TEST_BEST, None),
    "iM3F, CRF map": ("iM3F, CRF map", TEST_BEST, None),
    "iM3F, variances sampled": ("iM3F, variances sampled", TEST_BEST, None),
    "as run, weak limit": ("as run, weak limit", TEST_BEST, "iM3F TestBest"),
    "as run, stick-breaking": ("as run, stick-breaking", TEST_BEST, "iM3F TestBest"),
    "as run, CRF marginal": ("as run, CRF marginal", TEST_BEST, "iM3F TestBest"),
    "separate DP": ("separate DP", TEST_BEST, None),
    # Users and items as persons of one index, whom nobody meets in both roles.
    "reciprocal iM3F, directed": ("reciprocal iM3F", TEST_BEST, None),
}

# ---- Sizes. What the others change is found by comparison with "full".
_RESTAURANTS = "as run, CRF marginal"
# fmt: off
_CURVES = {
    "betas": (0.01, 0.1, 1.0), "gammas": (0.01, 0.1, 1.0), "latent_dim": 40,
    "sweeps": 500, "rows": ("loo_0", "loo_1"), "truncation": 128,
}
_FULL = {
    "topics": {
        "betas": (0.01, 0.1, 1.0), "gammas": (0.01, 0.1, 1.0), "latent_dim": 40,
        "sweeps": {
            "as run, weak limit": 100, "as run, stick-breaking": 100, _RESTAURANTS: 100,
        },
        "truncation": 128,
    },
    "curves": _CURVES,
    "compare": _CURVES,  # and their fits
    "dblp": {
        "data": ("dblp-four-area", "dblp-ml-dm", "dblp-core20"), "sweeps": 200,
        "latent_dims": (5, 10, 15, 20, 25, 30),
        "user_topics": (1, 2, 4, 8, 16, 32), "item_topics": (1, 2, 4, 8, 16, 32),
        "im3f_latent_dim": 25, "betas": (0.1, 1.0), "truncation": 64,
    },
    "systems": {
        "latent_dim": 40, "sweeps": 100, "franchise_sweeps": 100, "truncation": 64,
    },
}
# fmt: on


def _smaller(topics, curves, dblp, systems):
    parts = {"topics": topics, "curves": curves, "compare": curves}
    parts |= {"dblp": dblp, "systems": systems}
    return {part: full | parts[part] for part, full in _FULL.items()}


# fmt: off
SIZES = {
    "full": _FULL,
    "short": _smaller(
        topics={
            "sweeps": _FULL["topics"]["sweeps"] | {_RESTAURANTS: 50}, "truncation": 64,
        },
        curves={"sweeps": 100, "rows": ("loo_0",), "truncation": 64},
        dblp={
            "sweeps": 30, "latent_dims": (10, 25),
            "user_topics": (2, 8), "item_topics": (1, 8),
        },
        systems={},
    ),
    "tiny": _smaller(
        topics={
            "betas": (0.1,), "gammas": (0.1, 1.0), "latent_dim": 2,
            "sweeps": {"as run, weak limit": 3, _RESTAURANTS: 3}, "truncation": 4,
        },
        curves={
            "betas": (0.1,), "gammas": (0.1, 1.0), "latent_dim": 2,
            "sweeps": 3, "truncation": 4,
        },
        dblp={
            "data": ("dblp-ml-dm",), "sweeps": 3, "latent_dims": (2,),
            "user_topics": (1, 2), "item_topics": (1,),
            "im3f_latent_dim": 2, "truncation": 4,
        },
        systems={
            "latent_dim": 2, "sweeps": 3, "franchise_sweeps": 2, "truncation": 4,
        },
    ),
}
# fmt: on


def unit_of(model, data, rows, latent_dim, sweeps, **numbers):
    """Describe one fit: what names its file, and what `MODELS` builds it from."""
    named = {"model": model, "data": data, "rows": rows}
    return named | {"latent_dim": latent_dim, "sweeps": sweeps} | numbers


def name_of(unit):
    """Return the name of a unit's file: all of its settings."""
    named = ("model", "data", "rows")
    parts = [unit[k] for k in named]
    parts += [f"{k}={v}" for k, v in unit.items() if k not in named]
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", " ".join(parts))


_load = lru_cache(maxsize=1)(rows.load_rows)


def fit_unit(unit, seed=0):
    """Fit one unit and score it.

    Returns
    -------
    dict
        RMSE (rating scale) of the mean over all sweeps on the test rows ("rmse", and
        "rmse_clipped" to the scale), on all training rows ("train_rmse"), and on one
        training rating of each user ("training_rows_rmse"); topics in use after the
        last sweep and their effective number; "curve" by sweep; "squared_errors" of the
        test rows; seconds.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C: a part of a fit is no unit.
    """
    split, model = _load(unit["data"], unit["rows"]), MODELS[unit["model"]](unit)
    if unit["model"].startswith("reciprocal"):
        split = _as_persons(split)
    start, begin = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", im3f.Im3fWarning)
        posterior = model.fit(
            split.train,
            split.test,
            num_warmup=0,
            num_samples=unit["sweeps"],
            seed=seed,
            store="summary",
            progress=False,
        )
    if posterior.partial:
        raise KeyboardInterrupt
    squares = (posterior.test_predictions - split.test.rating) ** 2
    clipped = np.clip(posterior.test_predictions, *posterior.levels[[0, -1]])
    trained = (posterior.train_predictions - split.train.rating) ** 2
    order = np.random.default_rng(0).permutation(len(split.train))
    one_each = order[np.unique(split.train.user[order], return_index=True)[1]]
    sides = {
        f"{name}_{side}_topics": float(posterior.trace[f"{name}_{side}_topics"][0, -1])
        for name in ("num", "effective")
        for side in ("user", "item")
    }
    curves = ("test_rmse", "train_rmse", "num_user_topics", "num_item_topics")
    return {
        "unit": unit,
        "rmse": _root(squares),
        "rmse_clipped": _root((clipped - split.test.rating) ** 2),
        "train_rmse": _root(trained),
        "training_rows_rmse": _root(trained[one_each]),
        **sides,
        "rating_variance": float(posterior.trace["rating_variance"][0, -1]),
        "num_train": len(split.train),
        "num_test": len(split.test),
        "num_cold": split.num_cold,
        "curve": {
            name: np.round(posterior.trace[name][0].astype(float), 5).tolist()
            for name in curves
            if name in posterior.trace and model.estimate == "posterior"
        },
        "squared_errors": squares.tolist(),
        "seconds": posterior.seconds,
        "seconds_in_all": time.perf_counter() - start,
        "processor_seconds": time.process_time() - begin,
        "device": posterior.device,
        "warnings": sorted({str(w.message) for w in caught}),
    }


def _as_persons(split):
    """Give users and items ids of one kind, no two of them the same."""
    parts = split.train, split.test
    columns = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("user_ids", "item_ids", "rating")
    ]
    named = [
        [f"{kind} {i}" for i in ids]
        for kind, ids in zip(("user", "item"), columns[:2], strict=True)
    ]
    ratings = im3f.Ratings.from_arrays(*named, columns[2])
    test = np.arange(len(split.train), len(ratings))
    return rows.Split(*im3f.split_by_rows(ratings, test), split.num_cold)


def _root(squares):
    return float(np.sqrt(np.mean(squares)))


def paired(found, other, masks=None):
    """Compare squared errors rating by rating, over all pairs of units given.

    The paper's paired t-test; `found` and `other` are lists of units, one a split;
    `masks`, one a split, choose test ratings.
    """
    masks = masks or [slice(None)] * len(found)
    mine, theirs = (
        np.concatenate(
            [
                np.asarray(unit["squared_errors"])[mask]
                for unit, mask in zip(units, masks, strict=True)
            ]
        )
        for units in (found, other)
    )
    return accuracy.paired(
        {"rmse": mine, "log_score": None}, {"rmse": theirs, "log_score": None}
    )


def of_few_ratings(split):
    """Tell which test ratings are of the quarter of users with fewest in training.

    Returns
    -------
    tuple
        bool, shape (test ratings,), and the most training ratings that such a user has.
    """
    given = np.bincount(split.train.user, minlength=split.train.num_users)
    numbers = given[split.test.user]
    most = int(np.quantile(numbers, 0.25))
    return numbers <= most, most


def _row(found, **more):
    """Give what is published of a unit: not its squared errors, fewer sweeps."""
    row = {k: v for k, v in found.items() if k not in ("squared_errors", "curve")}
    last = found["unit"]["sweeps"]
    sweeps = np.unique(np.r_[1:11, np.linspace(1, last, 50)].astype(int))
    sweeps = sweeps[sweeps <= last]
    curve = {k: [v[s - 1] for s in sweeps] for k, v in found["curve"].items()}
    return more | row | {"curve": {"sweep": sweeps.tolist()} | curve}


# ---- The parts: each takes its sizes and a function that fits a unit, or has it.


def topics(size, run):
    """Find the numbers of topics on ML-100K by beta and gamma."""
    results = []
    for model, sweeps in size["sweeps"].items():
        room = {} if "CRF" in model else {"truncation": size["truncation"]}
        for beta in size["betas"]:
            for gamma in size["gammas"]:
                numbers = {"beta": beta, "gamma": gamma} | room
                unit = unit_of(
                    model, "ml-100k", "loo_0", size["latent_dim"], sweeps, **numbers
                )
                program = PROGRAM_TOPICS.get((beta, gamma))
                results.append(_row(run(unit), program=program))
    return {"results": results}


def _curve_unit(size, rows, numbers):
    dim, sweeps = size["latent_dim"], size["sweeps"]
    more = numbers | {"truncation": size["truncation"]}
    return unit_of("as run, weak limit", "ml-1m", rows, dim, sweeps, **more)


def curves(size, run):
    """Follow train and test RMSE on ML-1M by sweep, for all settings and splits."""
    return {
        "results": [
            _row(run(_curve_unit(size, rows, {"beta": beta, "gamma": gamma})))
            for rows in size["rows"]
            for beta in size["betas"]
            for gamma in size["gammas"]
        ]
    }


def compare(size, run):
    """Hold the paper's two settings of iM3F against M3F(2,1) and BPMF on ML-1M."""
    dim, sweeps = size["latent_dim"], size["sweeps"]
    units = {
        "BPMF": lambda rows: unit_of("BPMF", "ml-1m", rows, dim, sweeps),
        "M3F(2,1)": lambda rows: unit_of("M3F-TIB", "ml-1m", rows, dim, sweeps, **_TIB),
        "iM3F TestBest": lambda rows: _curve_unit(size, rows, TEST_BEST),
        "iM3F TrainBest": lambda rows: _curve_unit(size, rows, TRAIN_BEST),
    }
    found = {
        name: [run(unit(rows)) for rows in size["rows"]] for name, unit in units.items()
    }
    results = [
        _row(
            one,
            name=name,
            paper=PAPER.get(name, {}),
            program=PROGRAM.get(("ml-1m", one["unit"]["rows"]), {}).get(name),
            program_training_rows=PROGRAM_TRAINING_ROWS if name == "M3F(2,1)" else {},
        )
        for name, splits in found.items()
        for one in splits
    ]
    few = {}
    for rows_name in size["rows"]:
        few[rows_name], most = of_few_ratings(_load("ml-1m", rows_name))
    names, tests = list(found), []
    for number, name in enumerate(names):
        for other in names[:number]:
            each = [("both", found[name], found[other])] * (len(size["rows"]) > 1)
            each += [
                (one["unit"]["rows"], [one], [two])
                for one, two in zip(found[name], found[other], strict=True)
            ]
            tests += [
                {
                    "model": name,
                    "against": other,
                    "rows": rows,
                    **paired(mine, theirs),
                    "few": paired(
                        mine, theirs, [few[one["unit"]["rows"]] for one in mine]
                    ),
                }
                for rows, mine, theirs in each
            ]
    return {"results": results, "tests": tests, "few_ratings": most}


def dblp(size, run):
    """Hold M3F after a grid search against iM3F without one, on co-authors."""
    results = []
    for data in size["data"]:
        grid = [
            run(
                unit_of(
                    "M3F-TIB", data, "cover_0", dim, size["sweeps"],
                    user_topics=user, item_topics=item,
                )
            )
            for dim in size["latent_dims"]
            for user in size["user_topics"]
            for item in size["item_topics"]
        ]  # fmt: skip
        best = min(grid, key=lambda one: one["rmse"])
        spent = sum(one["seconds_in_all"] for one in grid)
        paper = PAPER_DBLP["M3F"]
        results.append(
            _row(best, name="M3F, best of the grid", paper=paper, cost_seconds=spent)
            | {"num_fits": len(grid), "grid": [_brief(one) for one in grid]}
        )
        for beta in size["betas"]:
            unit = unit_of(
                "as run, weak limit", data, "cover_0", size["im3f_latent_dim"],
                size["sweeps"], beta=beta, gamma=0.1, truncation=size["truncation"],
            )  # fmt: skip
            one = run(unit)
            more = {"cost_seconds": one["seconds_in_all"], "num_fits": 1}
            more |= {"paper": PAPER_DBLP[beta]} | paired([one], [best])
            results.append(_row(one, name=f"iM3F, beta {beta:g}, gamma 0.1", **more))
    return {"results": results}


def _brief(found):
    numbers = "latent_dim", "user_topics", "item_topics"
    scores = "rmse", "train_rmse", "seconds_in_all", "processor_seconds"
    return {n: found["unit"][n] for n in numbers} | {n: found[n] for n in scores}


def systems(size, run):
    """Fit every system of the library to the same rows of ML-100K."""
    results, first = [], []
    for name, (model, numbers, program) in SYSTEMS.items():
        truncated = "beta" in numbers and "CRF" not in model
        room = {"truncation": size["truncation"]} if truncated else {}
        sweeps = size["franchise_sweeps" if "CRF" in model else "sweeps"]
        dim = size["latent_dim"]
        found = run(unit_of(model, "ml-100k", "loo_0", dim, sweeps, **numbers, **room))
        against = paired([found], first) if first else {}
        first = first or [found]
        known = PROGRAM["ml-100k", "loo_0"].get(program)
        results.append(_row(found, name=name, program=known, **against))
    return {"against": next(iter(SYSTEMS)), "results": results}


PARTS = {
    "topics": topics,
    "curves": curves,
    "compare": compare,
    "dblp": dblp,
    "systems": systems,
}


# ---- Figures, from the results alone.


def _by(results, *keys):
    """Group rows by numbers or names of their unit, in the order of first sight."""
    groups = {}
    for row in results:
        groups.setdefault(tuple(row["unit"][k] for k in keys), []).append(row)
    return groups


def _mean_curve(splits, score):
    sweep = splits[0]["curve"]["sweep"]
    return sweep, np.mean([row["curve"][score] for row in splits], axis=0)


def draw_topics(result, figure):
    """Draw topics in use by gamma: a column a beta, a row a side."""
    rows = [
        {
            "beta": row["unit"]["beta"],
            "gamma": row["unit"]["gamma"],
            "model": f"{row['unit']['model']}, {row['unit']['sweeps']} sweeps",
            "num_user_topics": row["num_user_topics"],
            "num_item_topics": row["num_item_topics"],
        }
        for row in result["results"]
    ]
    rows += [
        {
            "beta": row["unit"]["beta"],
            "gamma": row["unit"]["gamma"],
            "model": "the authors' program",
            "num_user_topics": row["program"][0],
            "num_item_topics": row["program"][1],
        }
        for row in result["results"]
        if row["unit"]["model"] == result["results"][-1]["unit"]["model"]
    ]
    table = pd.DataFrame(rows)
    betas = sorted(table["beta"].unique())
    axes = figure.subplots(2, len(betas), sharex=True, sharey="row", squeeze=False)
    for line, side in zip(axes, ("user", "item"), strict=True):
        for axis, beta in zip(line, betas, strict=True):
            found = table[table["beta"] == beta]
            given = {"x": "gamma", "lines": "model", "title": f"beta = {beta:g}"}
            im3f.plots.plot_topic_grid(found, side, **given, ax=axis)
            if axis is not axes[1, 0]:
                axis.get_legend().remove()
            axis.label_outer()


def draw_curves(result, figure):
    """Draw train and test RMSE by sweep, the mean of the splits, a line a setting."""
    axes, styles, colors = figure.subplots(1, 2), {}, {}
    for (beta, gamma), splits in _by(result["results"], "beta", "gamma").items():
        for axis, score in zip(axes, ("train_rmse", "test_rmse"), strict=True):
            label = f"beta {beta:g}, gamma {gamma:g}"
            style = styles.setdefault(beta, ("-", "--", ":", "-.")[len(styles) % 4])
            color = colors.setdefault(gamma, f"C{len(colors)}")
            curve = _mean_curve(splits, score)
            axis.plot(*curve, style, c=color, label=label)
            axis.set(xlabel="sweep", ylabel=score.replace("_", " "))
    axes[0].legend(fontsize="x-small")


def draw_compare(result, figure):
    """Draw test RMSE by sweep; apart, the paper's ends and ours on training rows."""
    axes = figure.subplots(1, 2, width_ratios=(3, 2))
    splits = {}
    for row in result["results"]:
        splits.setdefault(row["name"], []).append(row)
    for number, (name, found) in enumerate(splits.items()):
        style = ("-", "--", ":", "-.")[number % 4]
        axes[0].plot(*_mean_curve(found, "test_rmse"), style, label=name)
        trained = np.mean([row["training_rows_rmse"] for row in found])
        shown = [(np.mean([row["rmse"] for row in found]), "o", "ours, held-out rows")]
        shown += [(trained, "s", "ours, training rows")]
        if "test" in found[0]["paper"]:
            shown += [(found[0]["paper"]["test"], "x", "the paper's test RMSE")]
        for value, mark, label in shown:
            color = {"o": "tab:blue", "s": "tab:orange", "x": "black"}[mark]
            axes[1].plot(value, number, mark, c=color, label=label)
    axes[0].set(xlabel="sweep", ylabel="test RMSE")
    axes[0].legend(fontsize="x-small")
    axes[1].set_yticks(range(len(splits)), splits)
    axes[1].set_xlabel("RMSE")
    handles, labels = axes[1].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes[1].legend(unique.values(), unique, fontsize="x-small")


FIGURES = {"topics": draw_topics, "curves": draw_curves, "compare": draw_compare}


def draw(part):
    """Draw a part's figure beside its results, where it has one; return the path."""
    source = machine.RESULTS / f"reproduce_{part}.json"
    if part not in FIGURES or not source.exists():
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figures: install matplotlib, pip install 'im3f-jax[plots]'")
        return None
    figure = Figure(figsize=(11, 6 if part == "topics" else 4.5), layout="constrained")
    FIGURES[part](json.loads(source.read_text()), figure)
    figure.savefig(source.with_suffix(".png"), dpi=110)
    return source.with_suffix(".png")


# ---- The command.


class Runner:
    """Fits units, or takes what is stored of them."""

    def __init__(self, folder, resume, seed):
        self.folder, self.resume, self.seed = folder, resume, seed
        self.done, self.programs, self.resumed = {}, set(), 0

    def __call__(self, unit):
        """Return what `fit_unit` gives, with the machine and the commit."""
        name = name_of(unit | {"seed": self.seed})
        path = self.folder / f"{name}.json"
        if name not in self.done and self.resume and path.exists():
            self.done[name] = json.loads(path.read_text())
            self.resumed += 1
        if name not in self.done:
            numbers = ("rows", "sweeps", "beta", "gamma")  # compile nothing
            program = tuple((k, v) for k, v in unit.items() if k not in numbers)
            if len(self.programs | {program}) > MOST_PROGRAMS:
                jax.clear_caches()
                self.programs.clear()
            self.programs.add(program)
            about = machine.describe()
            found = fit_unit(unit, self.seed) | {
                "date": about["date"],
                "commit": about["commit"],
                "load_average": about["machine"]["load_average"],
            }
            # Stored at once or not at all.
            text = json.dumps(found, default=float, allow_nan=False)
            self.folder.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".part").write_text(text)
            os.replace(path.with_suffix(".part"), path)
            self.done[name] = json.loads(text)
            print(
                f"{name}: test {found['rmse']:.4f}, train {found['train_rmse']:.4f}, "
                f"topics {found['num_user_topics']:.0f}/"
                f"{found['num_item_topics']:.0f}, {found['seconds_in_all']:.0f} s "
                f"(processor {found['processor_seconds']:.0f} s)",
                flush=True,
            )
        return self.done[name]


def cut(size, part):
    """Tell which of a part's settings are not the full ones: (here, in full)."""
    full = SIZES["full"][part]
    return {k: (v, full[k]) for k, v in SIZES[size][part].items() if v != full[k]}


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.reproduce_paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "figures"])
    parser.add_argument("--size", default="full", choices=SIZES)
    parser.add_argument("--resume", action="store_true", help="keep units that ended")
    parser.add_argument("--units", type=Path, default=UNITS, help="folder of units")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    for part in arguments.parts:
        if part == "figures":
            print(*filter(None, map(draw, FIGURES)), sep="\n")
            continue
        size, started = SIZES[arguments.size][part], machine.describe()
        run = Runner(arguments.units, arguments.resume, arguments.seed)
        begin = time.perf_counter()
        try:
            payload = PARTS[part](size, run)
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
        head = {
            "part": part,
            "size": arguments.size,
            "cut": cut(arguments.size, part),
            "seed": arguments.seed,
            "units": len(run.done),
            "resumed": run.resumed,  # units that an earlier run had fitted
            "seconds_here": time.perf_counter() - begin,
            "seconds_in_all": sum(u["seconds_in_all"] for u in run.done.values()),
            "processor_seconds": sum(u["processor_seconds"] for u in run.done.values()),
            "commits": sorted({str(u["commit"]) for u in run.done.values()}),
        }
        machine.write_result(f"reproduce_{part}", head | payload, started)
        draw(part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
