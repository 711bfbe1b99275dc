"""Run the validation, in processes of its own, and print one table.

Each unit of work has a process to itself: compiled programs take memory mappings, of
which Linux allows a process 65,530. With ``--resume FOLDER`` the folder keeps what each
unit found, and a run of the very same sources goes on where the last one ended.
"""

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from bench.machine import describe, num_cores, write_result
from tests.validation.figure import draw_truncation

# The chance that a right sampler fails anywhere in the run, shared by all p-values. A
# mutant is caught where one of its p-values is below its share of the same.
FAILURE = 1e-4
KILLS = 1000  # of processes that write checkpoints, of each kind


def run_unit(unit, folder):
    """Run one unit of work in a process; rows of the table, or what else it found."""
    kind, name, short = unit
    path = folder and folder / f"{kind}, {name}, {short}.json"
    if path and path.exists():
        found, seconds, cpu = json.loads(path.read_text())
        return unit, found, seconds, cpu
    start, begin = time.perf_counter(), time.process_time()
    found = _UNITS[kind](name, short)
    seconds, cpu = time.perf_counter() - start, time.process_time() - begin
    if path:
        path.write_text(json.dumps([found, seconds, cpu]))
    return unit, found, seconds, cpu


def sources():
    """Give a digest of the sampler and its tests."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for folder in ("im3f_jax", "tests/validation"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _checks(name, short):
    from tests.validation import checks

    sizes = checks.SHORT if short else checks.sizes_of(name)
    rows = []
    for test in checks.tests_of(name):
        outcome = checks.run_test(test, name, sizes)
        rows.append(
            {
                "sampler": name,
                "test": test,
                "draws": f"{outcome.draws} x {outcome.sweeps}",
                "p_values": outcome.chances,
                "ranks": {n: list(map(int, r)) for n, r in outcome.ranks.items()},
            }
        )
    return rows


def _mutants(name, short):
    from tests.validation import checks, mutants

    rows = []
    patch = mutants.patch_of(name)
    # As many sweeps as the member needs to forget its start.
    steps = checks.sizes_of(name).own_steps
    # Number 0 is the right sampler, in the same program and at the same sizes.
    for number in [0, *mutants.numbers_of(name)]:
        mutant = mutants.MUTANTS[number - 1] if number else None
        tests = ["own start" if mutant and mutant.left_out else "geweke"]
        if mutant is None and any(
            mutants.MUTANTS[n - 1].left_out for n in mutants.numbers_of(name)
        ):
            tests = ["geweke", "own start"]
        for test in tests:
            sizes = mutants.sizes_of(mutant)._replace(own_steps=steps)
            outcome = checks.run_test(test, name, sizes, patch, number)
            title = f"{mutant.block}: {mutant.name}" if mutant else "unmutated"
            rows.append(
                {
                    "sampler": f"{name} - {title}",
                    "test": test,
                    "mutant": mutant is not None,
                    "draws": f"{outcome.draws} x {outcome.sweeps}",
                    "p_values": outcome.chances,
                }
            )
    return rows


def _nuts(name, short):
    from tests.validation.nuts import nuts_against_gibbs

    settings = {"num_sweeps": 4_000, "num_samples": 1_000} if short else {}
    return [row._asdict() for row in nuts_against_gibbs(name, **settings)]


def _truncation(name, short):
    from tests.validation.truncation import averages

    return {quantity: values.tolist() for quantity, values in averages(name).items()}


def _kills(name, short):
    import tempfile

    from tests.validation import kills

    kill = {"fits": kills.kill_fits, "writers": kills.kill_writers}[name]
    with tempfile.TemporaryDirectory() as work:
        return kill(KILLS, 0, Path(work))


_UNITS = {
    "checks": _checks,
    "mutants": _mutants,
    "nuts": _nuts,
    "truncation": _truncation,
    "kills": _kills,
}


def units(short):
    """List the units of work, the long ones first."""
    from tests.validation import members, mutants, nuts, truncation

    if short:
        return [("checks", "iM3F both", True), ("mutants", "iM3F both", True)]
    mutated = dict.fromkeys(m.member for m in mutants.MUTANTS)
    listed = [("checks", name) for name in members.MEMBERS if name.startswith("CRF")]
    listed += [("kills", name) for name in ("fits", "writers")]
    listed += [("truncation", name) for name in truncation.SAMPLERS]
    listed += [("mutants", name) for name in mutated]
    listed += [("nuts", name) for name in nuts.SPECS]
    listed += [
        ("checks", name) for name in members.MEMBERS if not name.startswith("CRF")
    ]
    return [(*unit, False) for unit in listed]


def judge(done):
    """Turn what the units found into rows of the table, with verdicts."""
    from scipy import stats

    from tests.validation import truncation

    rows = []
    tested = [
        row
        for (kind, _, _), found, *_ in done
        for row in (found if kind in ("checks", "mutants") else [])
    ]
    count = sum(len(row["p_values"]) for row in tested if not row.get("mutant"))
    limit = FAILURE / max(count, 1)
    for row in tested:
        least = min((p, n) for n, p in row["p_values"].items())
        rejected = least[0] < limit
        verdict = (
            ("caught" if rejected else "NOT CAUGHT") if row.get("mutant") else None
        )
        rows.append(
            {
                "sampler": row["sampler"],
                "test": row["test"],
                "count": len(row["p_values"]),
                "value": f"p {least[0]:.2g}",
                "least_p": least[0],
                "where": least[1],
                "draws": row["draws"],
                "verdict": verdict or ("REJECTED" if rejected else "passed"),
            }
        )
    for (kind, name, _), found, *_ in done:
        if kind == "nuts":
            worst = max(found, key=lambda r: abs(r["z"]))
            most = stats.norm.isf(0.5 * FAILURE / len(found))
            rows.append(
                {
                    "sampler": name,
                    "test": "NUTS",
                    "count": len(found),
                    "value": f"{abs(worst['z']):.1f} errors",
                    "where": worst["name"],
                    "draws": "-",
                    "verdict": "passed" if abs(worst["z"]) < most else "REJECTED",
                }
            )
        if kind == "kills":
            rows.append(
                {
                    "sampler": f"checkpoints of {name}",
                    "test": "SIGKILL",
                    "count": found["kills"],
                    "value": f"{len(found['wrong'])} wrong",
                    "where": found["wrong"][0] if found["wrong"] else "-",
                    "draws": "-",
                    "verdict": "REJECTED" if found["wrong"] else "passed",
                }
            )
    compared = {name: f for (kind, name, _), f, *_ in done if kind == "truncation"}
    differences = truncation.compare(compared, FAILURE) if compared else []
    for row in differences:
        far = row["largest"] > row["limit"]
        construction, number = row["sampler"].split(", ")
        last = int(number) == truncation.TRUNCATIONS[construction][-1]
        rows.append(
            {
                "sampler": row["sampler"],
                "test": "against the franchise",
                "count": len(row["differences"]),
                "value": f"{row['largest']:.1f} errors",
                "where": row["where"],
                "draws": f"{truncation.CHAINS} x {truncation.SWEEPS}",
                "verdict": ("REJECTED" if last else "differs") if far else "passed",
            }
        )
    return rows, limit, differences


def table(rows):
    """Lay the rows out as text."""
    names = ["sampler", "test", "count", "value", "where", "draws", "verdict"]
    lines = [names] + [[str(row[n]) for n in names] for row in rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main():
    """Run all units, print the table, write the result, and return an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.validation", description=__doc__
    )
    parser.add_argument("--short", action="store_true", help="one member, small sizes")
    parser.add_argument("--only", default="", help="kinds of units, comma-separated")
    parser.add_argument("--members", default="", help="those only, semicolon-separated")
    parser.add_argument("--workers", type=int, default=min(2, num_cores()))
    parser.add_argument("--json-name", default=None, help="write bench/results/NAME")
    parser.add_argument("--resume", type=Path, help="folder of what was found before")
    options = parser.parse_args()
    started, begin = describe(), time.perf_counter()
    todo = units(options.short)
    if options.only:
        todo = [unit for unit in todo if unit[0] in options.only.split(",")]
    if options.members:
        todo = [unit for unit in todo if unit[1] in options.members.split(";")]
    done, folder, broken = [], None, 0
    if options.resume:
        folder = options.resume / sources()
        folder.mkdir(parents=True, exist_ok=True)
    resumed = len(list(folder.glob("*.json"))) if folder else 0
    with ProcessPoolExecutor(
        options.workers,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=1,
    ) as pool:
        futures = {pool.submit(run_unit, unit, folder): unit for unit in todo}
        for future in as_completed(futures):
            kind, name, _ = futures[future]
            try:
                done.append(future.result())
            except Exception:  # the others still run
                traceback.print_exc()
                print(f"  {kind}: {name} broke", file=sys.stderr)
                broken += 1
                continue
            print(f"  {kind}: {name}, {done[-1][2]:.0f} s", file=sys.stderr)
    done.sort(key=lambda one: todo.index(one[0]))
    rows, limit, differences = judge(done)
    print(table(rows))
    bad = [r for r in rows if r["verdict"] in ("REJECTED", "NOT CAUGHT")]
    bad += broken * [{"verdict": "BROKE"}]
    seconds = time.perf_counter() - begin
    print(
        f"{len(rows)} rows in {seconds:.0f} s; limit of a p-value {limit:.2g}: a right "
        f"sampler fails with probability {FAILURE:g}. {len(bad) or 'No'} failures."
    )
    if options.json_name:
        payload = {
            "seconds": round(seconds),
            "resumed": resumed,  # units that an earlier run had found
            "cpu_seconds": round(sum(cpu for *_, cpu in done)),
            "broken": broken,
            "failure": FAILURE,
            "limit": limit,
            "rows": rows,
            "truncation": differences,
            "unit_seconds": {f"{u[0]}: {u[1]}": round(s) for u, _, s, _ in done},
        }
        path = write_result(options.json_name, payload, started)
        print(f"wrote {path.relative_to(path.parents[2])}")
        if differences:
            draw_truncation(differences, path.with_suffix(".png"))
    return 1 if bad else 0
