"""Write the tables of the README and of docs/ from the results that they report.

    python -m bench.tables           # rewrite the tables in README.md and docs/*.md
    python -m bench.tables --check   # exit 1 where a table is not what its file says

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import argparse
import json
import re
import sys
from pathlib import Path

__all__ = ["TABLES", "main", "pages", "render"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
_OURS = "IM3F, ordinal, shared biases, noise by user and item"
CHOSEN = f"{_OURS}, time, table concentration 10"
NAMES = {
    CHOSEN: f"{_OURS}, time (chosen on random90_1)",
    f"{_OURS}, table concentration 10": f"{_OURS} (the same without time)",
    "IM3F": "IM3F, defaults (truncation 64)",
}


def _read(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def _grid(header, lines):
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *lines])


def _source(result, name):
    machine, versions = result["machine"], result["versions"]
    return (
        f"\n\n<sub>bench/results/{name}.json, {result['date'][:10]}, "
        f"{machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['cpu']}, "
        f"{', '.join(machine['gpus']) or 'no GPU'}, jax {versions['jax']}.</sub>"
    )


def accuracy(*names):
    """Error and log probability by model, a block for each results file."""
    lines = []
    for name in names:
        result = _read(name)
        where = f"{result['data']} {result['rows']}, D={result['latent_dim']}"
        for model, found in result["results"].items():
            topics = "-"
            if found["num_user_topics"] or found["num_item_topics"]:
                topics = " / ".join(
                    f"{found[f'num_{side}_topics']:.1f} "
                    f"({found[f'effective_{side}_topics']:.1f})"
                    for side in ("user", "item")
                )
            lines.append(
                [
                    where,
                    NAMES.get(model, model),
                    f"{found['rmse_clipped']:.4f}",
                    f"{found['rmse']:.4f}",
                    f"{found['log_probability']:.4f}",
                    topics,
                    # PMF is one point.
                    "-"
                    if model == "PMF"
                    else f"{found['warmup']} + {found['samples']}",
                ]
            )
    header = [
        "rows",
        "model",
        "RMSE, clipped",
        "unclipped",
        "log probability, nats",
        "user / item topics (effective)",
        "sweeps",
    ]
    return _grid(header, lines) + _source(result, name)


def compared(*names):
    """Ours and the peers' on the same rows, with paired differences."""
    lines = []
    for name in names:
        result = _read(name)
        where = f"{result['data']} {result['rows']}, D={result['latent_dim']}"
        for model, found in result["results"].items():
            line = [where, NAMES.get(model, model)]
            for score, key in (
                ("rmse", "rmse_clipped"),
                ("log_score", "log_probability"),
            ):
                value = found.get(key)
                gap = found.get(f"{score}_difference")
                error = found.get(f"{score}_se")
                line += [
                    "-" if value is None else f"{value:.4f}",
                    "-" if gap is None else f"{gap:+.4f} ± {error:.4f}",
                ]
            calibration, chains = found.get("calibration_error"), found.get("chains", 1)
            sweeps = f"{found['warmup']} + {found['samples']}"
            line += [
                f"{found['mae_clipped']:.4f}",
                "-" if calibration is None else f"{calibration:.4f}",
                sweeps if chains == 1 else f"{chains} x ({sweeps})",
                f"{found['seconds']['run']:.0f}",
            ]
            lines.append(line)
    header = [
        "rows",
        "model",
        "RMSE, clipped",
        "less the first's",
        "log probability, nats",
        "less the first's",
        "MAE",
        "calibration error",
        "sweeps",
        "seconds, sampling",
    ]
    return _grid(header, lines) + "".join(_source(_read(name), name) for name in names)


def headline(name):
    """Ours and the peers', a few columns of a run of `compared`."""
    result = _read(name)
    lines, sweeps = [], set()
    for model, found in result["results"].items():
        probability = found.get("log_probability")
        lines.append(
            [
                model,
                f"{found['rmse_clipped']:.4f}",
                "-" if probability is None else f"{probability:.4f}",
                f"{found['mae_clipped']:.4f}",
                f"{found['seconds']['run']:.0f}",
            ]
        )
        sweeps.add(f"{found['warmup']} + {found['samples']} sweeps")
    where = [result["data"], result["rows"], f"D={result['latent_dim']}", *sweeps]
    header = [
        ", ".join(where),
        "RMSE, clipped",
        "log probability, nats",
        "MAE",
        "seconds, sampling",
    ]
    return _grid(header, lines) + _source(result, name)


def peers(*names):
    """Milliseconds a sweep and error, ours and the peers' in one run.

    A row comes from the first file that has it.
    """
    cells, sources = {}, []
    for name in names:
        result = _read(name)
        rows = {}
        for found in result["results"]:
            key = (found["data"], found["latent_dim"])
            rows.setdefault(key, {})[found["system"]] = found
        new = {key: row for key, row in rows.items() if key not in cells}
        if new:
            sweeps = result["arguments"]["sweeps"]
            sources.append(_source(result, name))
        cells |= {key: (row, sweeps) for key, row in new.items()}
    systems = list(dict.fromkeys(s for row, _ in cells.values() for s in row))
    lines = []
    for (data, dim), (row, sweeps) in cells.items():
        line = [f"{data}, D={dim}, {sweeps} sweeps"]
        for system in systems:
            found = row.get(system)
            seconds = found and found.get("seconds_a_sweep")
            line.append(
                "-"
                if not seconds
                else f"{1e3 * seconds:.{int(seconds < 0.1)}f} ms, "
                f"{found['rmse_clipped']:.4f}"
            )
        lines.append(line)
    return _grid(["", *systems], lines) + "".join(sources)


def demo(name):
    """Show what the demo printed."""
    result = _read(name)
    lines = [
        [
            row["name"],
            f"{row['rmse']:.4f}",
            f"{row['log_density']:.4f}",
            f"{row['rating_variance']:.3f}",
            "-" if not row["user_topics"] else f"{row['effective_user_topics']:.1f}",
            "-" if not row["item_topics"] else f"{row['effective_item_topics']:.1f}",
        ]
        for row in result["rows"]
    ]
    header = [
        "",
        "test RMSE",
        "log density",
        "rating variance",
        "moods, effective",
        "contexts, effective",
    ]
    return _grid(header, lines) + _source(result, name)


def throughput(*names):
    """Milliseconds a sweep by block."""
    read = [_read(name) for name in names]
    results = [found for result in read for found in result["results"]]
    blocks = list(
        dict.fromkeys(b for found in results for b in found.get("blocks", {}))
    )
    header = ["ms", *blocks, "whole sweep"]
    lines = []
    for found in results:
        stored = ""
        if "stored" in found and found["truncation"]:
            stored = f", stored {' / '.join(map(str, found['stored']))}"
        times = [
            f"{1e3 * found['blocks'][b]['median']:.1f}" if b in found["blocks"] else "-"
            for b in blocks
        ]
        lines.append(
            [
                f"{found['data']}, D={found['latent_dim']}, "
                + (
                    f"truncation {found['truncation']}{stored}"
                    if found["truncation"]
                    else "BPMF"
                ),
                *times,
                f"{1e3 * found['sweep']['median']:.1f}",
            ]
        )
    return _grid(header, lines) + "".join(map(_source, read, names))


def sizes(name):
    """Milliseconds a sweep by size, D and K, on each device."""
    result = _read(name)
    rows = {}
    for found in result["results"]:
        where = (
            f"{found['data']}, D={found['latent_dim']}",
            f"truncation {found['truncation']}" if found["truncation"] else "BPMF",
        )
        rows.setdefault(", ".join(where), {})[found["device"]] = (
            f"{1e3 * found['sweep']['median']:.0f}",
            f"{found['ratings_per_second'] / 1e6:.2f}",
            f"{found['compile']:.0f}",
        )
    devices = list(dict.fromkeys(d for row in rows.values() for d in row))
    units = "ms a sweep", "M ratings/s", "s to compile"
    header = ["", *(f"{device}, {unit}" for device in devices for unit in units)]
    lines = [
        [where, *(x for d in devices for x in row.get(d, ("-",) * 3))]
        for where, row in rows.items()
    ]
    return _grid(header, lines) + _source(result, name)


def kernels(name):
    """Milliseconds a block, its rates, and its ratio to the floor."""
    result = _read(name)
    lines = []
    for found in result["results"]:
        sizes = found["sizes"]
        where = (
            f"{found['data']}, D={sizes['latent_dim']}, "
            f"K={max(sizes['user_topics'], sizes['item_topics'])}"
        )
        for block, one in found["blocks"].items():
            if "ratio" not in one:
                continue
            lines.append(
                [
                    f"{where}: {block}",
                    f"{1e3 * one['median']:.1f}",
                    f"{one['ratings_per_second'] / 1e6:.1f}",
                    f"{one['bytes_per_second'] / 1e9:.2f}",
                    f"{one['operations_per_second'] / 1e9:.2f}",
                    one["bound"],
                    f"{one['ratio']:.1f}",
                ]
            )
    header = ["", "ms", "M ratings/s", "GB/s", "GFLOP/s", "bound by", "times the floor"]
    ceilings = result["results"][0]["ceilings"]
    told = (
        f"\n\nCeilings: {ceilings['bytes'] / 1e9:.1f} GB/s, "
        f"{ceilings['operations'] / 1e9:.0f} GFLOP/s, "
        f"{ceilings['exponentials'] / 1e9:.2f} G exponentials/s."
    )
    return _grid(header, lines) + told + _source(result, name)


def growth(name):
    """Nanoseconds a rating by the number of ratings, and the line through them."""
    result = _read(name)
    lines, header = [], [""]
    for found in result["growth"]:
        header = ["", *(f"N = {s['num_ratings']:,}" for s in found["sizes"])]
        lines.append(
            [
                f"{found['device']}, D={found['latent_dim']}, K={found['truncation']}",
                *(f"{size['ns_a_rating']:.0f}" for size in found["sizes"]),
                f"{found['ratio']:.2f}",
                f"{found['intercept_ms']:.0f} ms + {found['slope_ns']:.0f} ns N",
            ]
        )
    header = [*header, "largest / middle", "least squares"]
    return _grid(header, lines) + _source(result, name)


def chains_throughput(name):
    """Sweeps x chains a second by number of chains and method."""
    result = _read(name)
    found = {}
    for one in result["chains"]:
        where = f"{one['data']}, D={one['latent_dim']}, K={one['truncation']}"
        row = found.setdefault((where, one["chain_method"]), {})
        row[one["num_chains"]] = f"{one['sweeps_a_second']:.1f}"
    numbers = sorted({n for row in found.values() for n in row})
    lines = [
        [f"{where}, {method}", *(row.get(n, "-") for n in numbers)]
        for (where, method), row in found.items()
    ]
    header = [
        "sweeps x chains a second",
        *(f"{n} chains" if n > 1 else "1 chain" for n in numbers),
    ]
    return _grid(header, lines) + _source(result, name)


def scaling(name):
    """Milliseconds a sweep by number of devices, and megabytes sent."""
    result = _read(name)
    lines = []
    for kind in ("strong", "weak"):
        for row in result[kind]:
            seconds = row["seconds_a_sweep"]
            lines.append(
                [
                    kind,
                    str(row["devices"]),
                    f"{row['num_ratings']:,}",
                    f"{1e3 * seconds:.0f}",
                    f"{row['num_ratings'] / seconds / 1e6:.2f}",
                    f"{row.get('sent_by_a_device', 0) / 1e6:.1f}",
                ]
            )
    header = ["", "devices", "ratings", "ms a sweep", "M ratings/s", "MB sent by each"]
    return _grid(header, lines) + _source(result, name)


def on_paper(name):
    """Tell the estimate of what was not run."""
    paper = _read(name)["paper"]
    seconds, supposed = paper["seconds"], paper["supposed_of_a_gpu"]
    return (
        f"{paper['num_ratings']:,} ratings of {paper['num_users']:,} users and "
        f"{paper['num_items']:,} items, D={paper['latent_dim']}, truncation "
        f"{paper['truncation']}, on {paper['devices']} GPUs: "
        f"{paper['memory']['total'] / 1e9:.0f} GB on each; in a sweep each sends "
        f"{paper['sent_by_a_device'] / 1e9:.1f} GB, {1e3 * seconds['link']:.0f} ms at "
        f"{supposed['link_bytes_per_second'] / 1e9:.0f} GB/s; the floor of its memory "
        f"({supposed['memory_bytes_per_second'] / 1e12:.2f} TB/s) and arithmetic is "
        f"{1e3 * seconds['floor']:.0f} ms. A sweep then takes "
        f"{seconds['sweep_at_floor']:.2f} s at the floor, and "
        f"{seconds['sweep_at_ten_times_the_floor']:.2f} s at ten times the floor, "
        "which is what we aim at. No GPU has run it."
    )


def napoleon(name):
    """Tell what the README's picture is of."""
    result = _read(name)
    sweeps, first = result["sweeps"], result["items"][0]
    draws = sweeps["num_samples"] // sweeps["thinning"] * sweeps["num_chains"]
    return (
        f"{result['model']}, fitted to all {result['num_ratings']:,} ratings of "
        f"{result['data']}; {draws} draws of {sweeps['num_chains']} chains of "
        f"{sweeps['num_warmup']} + {sweeps['num_samples']} sweeps, largest R-hat "
        f"{result['largest_r_hat']:.2f}. Of {result['num_items']:,} films with 20 "
        f"ratings or more {first['title']} depends most on the mood: "
        f"{first['mean']:.2f} ({first['low']:.2f} to {first['high']:.2f}) against a "
        f"median of {result['median']:.2f}, beside noise of 1." + _source(result, name)
    )


def validation(*names):
    """Show every sampler's least p-values, and how many mutants were caught."""
    read = [_read(name) for name in names]
    result = {"rows": [row for part in read for row in part["rows"]]}
    tests = ["geweke", "own start", "no data", "calibration"]
    rows, mutants = {}, {}
    for row in result["rows"]:
        sampler, _, mutant = row["sampler"].partition(" - ")
        if mutant and mutant != "unmutated":
            mutants.setdefault(sampler, []).append(row["verdict"] == "caught")
        elif row["test"] in tests and not mutant:
            rows.setdefault(sampler, {})[row["test"]] = row
    lines = []
    for sampler, found in rows.items():
        line = [sampler]
        for test in tests:
            row = found.get(test)
            line.append(
                f"{row['least_p']:.2g} of {row['count']} ({row['draws']})"
                if row
                else "-"
            )
        caught = mutants.get(sampler)
        line.append(f"{sum(caught)} of {len(caught)}" if caught else "-")
        lines.append(line)
    header = ["sampler", "Geweke", *tests[1:], "mutants caught"]
    nuts = [
        f"{row['sampler']} {row['value']} of {row['count']} numbers"
        for row in result["rows"]
        if row["test"] == "NUTS"
    ]
    against = f"\n\nGibbs against NUTS, the largest difference: {'; '.join(nuts)}."
    return _grid(header, lines) + against + "".join(map(_source, read, names))


def truncation(name):
    """Compare the truncated samplers with the exact franchise."""
    result = _read(name)
    shown = {
        "user topics occupied": "user topics",
        "item topics occupied": "item topics",
        "user topic, ratings 0 and 5 together": "two ratings in one user topic",
        "rating variance": "rating variance",
        "prediction of (3, 2)": "a prediction",
    }
    lines = []
    for row in result["truncation"]:
        found = row["differences"]
        line = [row["sampler"].replace("_", " ")]
        for quantity in shown:
            exact, ours, error = found[quantity]
            line.append(f"{ours - exact:+.4f} ± {error:.4f}")
        line.append(f"{row['largest']:.1f} of {len(found)}")
        lines.append(line)
    exact = ["franchise itself"]
    found = result["truncation"][0]["differences"]
    exact += [f"{found[quantity][0]:.3f}" for quantity in shown] + ["-"]
    header = ["truncation", *shown.values(), "largest, in errors"]
    return _grid(header, [exact, *lines]) + _source(result, name)


def mixing(name):
    """Show effective draws and R-hat of chains from scattered starts."""
    result = _read(name)
    shown = {
        "rating_variance": "rating variance",
        "log_joint": "log joint",
        "effective_user_topics": "effective user topics",
        "effective_item_topics": "effective item topics",
    }

    def cell(found, hat):
        size = f"{1e3 * found['effective_a_sweep']:.0f}"
        return f"{size}, {'infinite' if hat is None else f'{hat:.2f}'}"

    lines = []
    for model, found in result["results"].items():
        lengths = f"{found['warmup']} + {found['samples']}"
        predictions = found["predictions"]
        line = [
            model,
            f"{len(found['starts'])} x ({lengths})",
            cell(predictions, predictions["r_hat_median"]),
            f"{predictions['effective_a_second']:.1f}",
        ]
        for scalar in shown:
            summary = found["scalars"][scalar]
            line.append(
                "-" if "constant" in summary else cell(summary, summary["r_hat"])
            )
        cuts = [v for n, v in found["scalars"].items() if n.startswith("cut_point")]
        least = min(cuts, key=lambda v: v["effective"]) if cuts else None
        line.append(cell(least, least["r_hat"]) if least else "-")
        lines.append(line)
    header = [
        "model",
        "chains",
        "held-out predictions",
        "the same, a second",
        *shown.values(),
        "slowest cut point",
    ]
    return _grid(header, lines) + _source(result, name)


def memory(data, drawn):
    """Megabytes of a fit on a CPU: estimated, and of its process.

    Of a data set, whose sizes stand in the file's name and whose draws were kept; and
    of ratings that were drawn, none of whose draws were.
    """
    first, second = _read(data), _read(drawn)
    name, dim, truncation = re.fullmatch(r"memory_(.+)_d(\d+)_k(\d+)", data).groups()
    users, items, ratings = (f"{int(size):,}" for size in second["data"].split("x"))
    lines = [
        [
            f"{name}, D={dim}, K={truncation}",
            first["device_estimate_mb"]["total"],
            first["kept_draws_mb"],
            first["process_peak_mb"],
        ],
        [
            f"{ratings} ratings of {users} users and {items} items, "
            f"D={second['latent_dim']}, K={second['truncation']}",
            second["estimate_mb"]["total"],
            0,
            second["peak_mb"],
        ],
    ]
    lines = [[where, *(f"{value:,.0f}" for value in row)] for where, *row in lines]
    header = [
        "MB",
        "the sampler, estimated",
        f"{first['num_draws']} kept draws",
        "the process at its peak, compiling",
    ]
    return _grid(header, lines) + _source(first, data) + _source(second, drawn)


def reproduced(part, table):
    """Make a table of a part of the paper's experiments, or say how to measure it."""
    name = f"reproduce_{part}"
    if not (RESULTS / f"{name}.json").exists():
        return f"Not measured yet: `python -m bench.reproduce_paper {part}`."
    result = _read(name)
    cuts = []
    for setting, (here, full) in result["cut"].items():
        if isinstance(here, dict):
            here = {k: v for k, v in here.items() if v != full[k]}
            full = {k: full[k] for k in here}
        cuts.append(
            f"{setting.replace('_', ' ')} {_setting(here)} for {_setting(full)}"
        )
    said = f"\n\nCut: {'; '.join(cuts)}." if cuts else ""
    return _grid(*table(result)) + said + _source(result, name)


def _setting(value):
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{v} of {k}" for k, v in value.items())
    return str(value)


def _topics(row):
    sides = "user", "item"
    if not any(row[f"num_{side}_topics"] for side in sides):
        return "-"
    number = " / ".join(f"{row[f'num_{side}_topics']:.0f}" for side in sides)
    effective = " / ".join(f"{row[f'effective_{side}_topics']:.1f}" for side in sides)
    return f"{number} ({effective})"


def _paper_topics(row):
    sides = [row["paper"].get(f"{side}_topics") for side in ("user", "item")]
    return "-" if None in sides else " / ".join(f"{number:g}" for number in sides)


def _score(value, form="{:.4f}"):
    return "-" if value is None else form.format(value)


def _cost(row):
    a_sweep = row["seconds"]["run"] / row["unit"]["sweeps"]
    return [f"{row['seconds_in_all']:.0f}", f"{1e3 * a_sweep:.0f}"]


def _paired(row):
    if "rmse_difference" not in row:
        return ["-", "-"]
    gap = f"{row['rmse_difference']:+.4f} ± {row['rmse_se']:.4f}"
    return [gap, f"{row['rmse_p']:.2g}"]


def reproduced_topics(result):
    """Topics in use on ML-100K by beta and gamma, a column a sampler."""
    lines, models = {}, {}
    for row in result["results"]:
        unit = row["unit"]
        key = unit["beta"], unit["gamma"]
        model = f"{unit['model']}, {unit['sweeps']} sweeps"
        models.setdefault(model, 0)
        models[model] += row["seconds_in_all"]
        line = [f"{key[0]:g}", f"{key[1]:g}", " / ".join(map(str, row["program"]))]
        lines.setdefault(key, line).append(_topics(row))
    header = ["beta", "gamma", "the authors' program, 100 sweeps", *models]
    cost = ["seconds", "", "", *(f"{seconds:.0f}" for seconds in models.values())]
    return header, [*lines.values(), cost]


def reproduced_curves(result):
    """Errors on ML-1M at the last sweep by beta and gamma, a line a split."""
    lines = [
        [
            f"{row['unit']['beta']:g}",
            f"{row['unit']['gamma']:g}",
            row["unit"]["rows"],
            _score(row["train_rmse"]),
            _score(row["rmse"]),
            _score(row["training_rows_rmse"]),
            _topics(row),
            *_cost(row),
        ]
        for row in result["results"]
    ]
    header = ["beta", "gamma", "rows", "train RMSE", "test RMSE", "on training rows"]
    return [*header, TOPICS, "seconds", "ms a sweep"], lines


def reproduced_errors(result):
    """Test RMSE on ML-1M: the paper's, the program's, ours; and on training rows."""
    lines = []
    for row in result["results"]:
        unit, program = row["unit"], row["program"]
        where = f"{unit['data']} {unit['rows']}, {row['name']}"
        lines.append(
            [
                where,
                _score(row["paper"].get("test")),
                f"{program[0]:.4f} ({program[1]})" if program else "-",
                f"{row['rmse']:.4f} ({unit['sweeps']})",
                _score(row["training_rows_rmse"]),
                ", ".join(
                    f"{score:.3f} ({sweeps})"
                    for sweeps, score in row["program_training_rows"].items()
                )
                or "-",
                f"{_score(row['paper'].get('train'))} / {row['train_rmse']:.4f}",
                _paper_topics(row),
                _topics(row),
                *_cost(row),
            ]
        )
    header = [
        "rows, model (sweeps in brackets)",
        "the paper",
        "the authors' program, true hold-out rows",
        "ours, same rows",
        "ours, training rows",
        "the authors' program, training rows",
        "train RMSE, the paper / ours",
        "user / item topics, the paper",
        TOPICS,
        "seconds",
        "ms a sweep",
    ]
    return header, lines


def reproduced_tests(result):
    """Paired t-tests on ML-1M, of squared errors."""
    lines = [
        [
            test["model"],
            test["against"],
            test["rows"],
            *_paired(test),
            *_paired(test["few"]),
        ]
        for test in result["tests"]
    ]
    few = f"users with at most {result['few_ratings']} ratings"
    return ["model", "less", "splits", "test RMSE", "p", few, "p"], lines


def reproduced_dblp(result):
    """M3F after a grid search against iM3F without one, on co-authors."""
    lines = []
    for row in result["results"]:
        unit, paper = row["unit"], row["paper"]
        sizes = f", D={unit['latent_dim']}" + (
            f", {unit['user_topics']} / {unit['item_topics']} topics"
            if "user_topics" in unit
            else ""
        )
        lines.append(
            [
                unit["data"],
                row["name"] + sizes,
                f"{paper['train']:.3f} / {paper['test']:.3f}",
                f"{row['train_rmse']:.4f} / {row['rmse']:.4f}",
                *_paired(row),
                _paper_topics(row),
                _topics(row),
                str(row["num_fits"]),
                f"{row['cost_seconds']:.0f}",
            ]
        )
    header = [
        "data",
        "model",
        "the paper (other data), train / test",
        "ours, train / test",
        "test, less the grid's best",
        "p",
        "user / item topics, the paper",
        TOPICS,
        "fits",
        "seconds",
    ]
    return header, lines


def reproduced_systems(result):
    """Every system on the same rows of ML-100K."""
    lines = []
    for row in result["results"]:
        program = row["program"]
        is_point = row["unit"]["model"] == "PMF"
        lines.append(
            [
                row["name"],
                f"{program[0]:.4f} ({program[1]})" if program else "-",
                f"{row['rmse']:.4f} ({'-' if is_point else row['unit']['sweeps']})",
                *_paired(row),
                _score(row["train_rmse"]),
                _topics(row),
                _cost(row)[0],
                "-" if is_point else _cost(row)[1],
            ]
        )
    header = [
        "system (sweeps in brackets)",
        "the authors' program",
        "ours, same rows",
        f"less {result['against']}'s",
        "p",
        "train RMSE",
        TOPICS,
        "seconds",
        "ms a sweep",
    ]
    return header, lines


TOPICS = "user / item topics (effective)"
TABLES = {
    "accuracy": lambda: accuracy(
        "accuracy_ml-100k_d10",
    ),
    "compared": lambda: compared(
        "compared_ml-100k_d10", "chains_ml-100k_d10", "biases_ml-100k_d10",
        "compared_ml-1m_d40", "compared_ml-1m_random90_1_d10",
        "compared_ml-1m_loo_0_d10", "compared_ml-1m_loo_1_d10",
        "compared_ml-1m_published_d10", "compared_ml-100k_loo_0_d40",
        "compared_ml-100k_loo_1_d40", "compared_ml-latest-small_d10",
        "biases_ml-latest-small_d10", "compared_dblp-ml-dm_d10",
        "biases_dblp-ml-dm_d10",
    ),
    "headline": lambda: headline("compared_ml-1m_d40"),
    "shrinkage": lambda: compared("shrinkage_ml-100k_d40"),
    "measures": lambda: compared(
        "measures_ml-100k_loo_0_d40", "measures_ml-1m_loo_0_d10"
    ),
    "peers": lambda: peers("peers"),
    "demo": lambda: demo("demo"),
    "napoleon": lambda: napoleon("napoleon_dynamite"),
    "throughput": lambda: throughput("throughput_quick"),
    "sizes": lambda: sizes("throughput_sizes"),
    "room": lambda: throughput("throughput_room", "throughput_all"),
    "kernels": lambda: kernels("kernels"),
    "growth": lambda: growth("growth"),
    "chains": lambda: chains_throughput("chains"),
    "scaling": lambda: scaling("scaling"),
    "memory": lambda: memory("memory_ml-1m_d40_k128", "memory_20m"),
    "paper": lambda: on_paper("scaling"),
    "validation": lambda: validation(
        "validation", "validation_members", "validation_franchise"
    ),
    "truncation": lambda: truncation("validation"),
    "mixing": lambda: mixing("mixing"),
    "reproduced_topics": lambda: reproduced("topics", reproduced_topics),
    "reproduced_curves": lambda: reproduced("curves", reproduced_curves),
    "reproduced_errors": lambda: reproduced("compare", reproduced_errors),
    "reproduced_tests": lambda: reproduced("compare", reproduced_tests),
    "reproduced_dblp": lambda: reproduced("dblp", reproduced_dblp),
    "reproduced_systems": lambda: reproduced("systems", reproduced_systems),
}  # fmt: skip


def render(text):
    """Return a page with every table written anew."""

    def table(match):
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    pattern = r"<!-- table: (\w+) -->\n.*?<!-- end -->"
    return re.sub(pattern, table, text, flags=re.DOTALL)


def pages():
    """List the pages whose tables are written here: the README, and docs/*.md."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.tables")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(argv)
    stale = 0
    for page in pages():
        old = page.read_text(encoding="utf-8")
        new = render(old)
        if old != new and arguments.check:
            print(f"{page.relative_to(ROOT)} is not what its results say")
            stale = 1
        elif old != new:
            page.write_text(new, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
