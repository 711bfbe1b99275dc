"""Ours beside myFM and SMURFF: seconds a sweep, error on held-out ratings, memory.

Usage, from the root of the project::

    IM3F_DATA_DIR=... python -m bench.peers --data ml-100k ml-1m --latent-dim 10 40 \
        --rows random90_0 --sweeps 100 --burn-in 20 --models bpmf im3f --json-name peers

Every system gets the same rows and lives in a process of its own. They work one after
another, in rounds: the first round makes all sweeps, from which come the errors, total
time and memory; the following ones are short and repeat the speed, so that a noisy
minute does not hit one system only. How each figure is made:

- seconds a sweep: median over sweeps after the first five, then over rounds. For myFM
  the averaging of test predictions is left out (it is not part of its sweep); SMURFF
  makes them inside its sweep, and so do we. Ours are timed in chunks of sweeps, after
  the first one; compilation and warm start are apart.
- RMSE: of the mean over all draws after the burn-in, clipped to the training scale, and
  not clipped.
- total seconds: from ratings to that mean, for ours with compilation and warm start.
- memory: peak resident memory at the end of sampling over what was resident before it,
  the ratings and the imported library; for ours with the compiler's.

The peers are extras: ``pip install -e '.[peers]'``. One that is missing is said so, and
the others run.
"""

import argparse
import contextlib
import io
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from importlib.util import find_spec
from statistics import median

import numpy as np

from bench.machine import describe, num_cores, peak_memory, write_result
from bench.rows import FILES, load_rows
from im3f_jax.errors import InputError

__all__ = ["main", "paired_difference", "rmse", "seconds_a_sweep"]

SKIPPED_SWEEPS = 5  # of the peers: caches fill, thread pools start
MODELS = ("bpmf", "pmf", "m3f", "im3f", "im3f-128", "bpmf-devices", "im3f-128-devices")
# Of "128": as many topics as a test of speed asks for, in use from the start. Of
# "devices": every core is a JAX device, and they share the chain.
MANY = {"max_user_topics": 128, "max_item_topics": 128}
START_TOPICS = 30
OURS = "defaults; store='summary', track_train=False, as the peers do"
# system -> the package it needs, and what should be known of its settings
PEERS = {
    "smurff": ("smurff", "BPMF, noise precision sampled, all cores"),
    "smurff-fixed": ("smurff", "BPMF, noise precision fixed at 2, all cores"),
    "myfm": ("myfm", "one-hot user and item, regression, 1 thread"),
    "myfm-probit": ("myfm", "one-hot user and item, ordered probit, 1 thread"),
}


# --- figures ----------------------------------------------------------------------


def seconds_a_sweep(marks, skipped=SKIPPED_SWEEPS):
    """Return the median seconds of a sweep.

    Parameters
    ----------
    marks : list of (int, float, float)
        Intervals of work: number of sweeps done at its end, its start and its end in
        seconds. Ours are chunks of sweeps, the peers' single sweeps.
    skipped : int
        Intervals that begin before so many sweeps are done do not count.

    Returns
    -------
    float or None
        The median over sweeps, those of an interval taken as equal; None if no
        interval counts.
    """
    rates, done = [], 0
    for sweep, start, end in marks:
        if done >= skipped:
            rates += [(end - start) / (sweep - done)] * (sweep - done)
        done = sweep
    return median(rates) if rates else None


def rmse(prediction, rating):
    """Return the root of the mean squared error of predictions, shape (n,)."""
    return float(np.sqrt(np.mean((prediction - rating) ** 2)))


def paired_difference(ours, theirs, rating):
    """Compare two predictions of the same ratings, rating by rating.

    Parameters
    ----------
    ours, theirs, rating : ndarray of shape (n,)
        Two predictions and the truth.

    Returns
    -------
    difference, standard_error : float
        Of RMSE, negative where ours is smaller: the error of the mean difference of
        squared errors, taken to the scale of RMSE by d sqrt(x) = dx / (2 sqrt(x)).
    """
    gap = (ours - rating) ** 2 - (theirs - rating) ** 2
    total = rmse(ours, rating) + rmse(theirs, rating)
    return gap.mean() / total, gap.std(ddof=1) / np.sqrt(len(gap)) / total


# --- the systems: each returns (mean prediction, seconds a sweep, more to be told) --


def run_ours(name, split, latent_dim, sweeps, burn_in, seed):
    """Fit one of our models with its defaults, averaging what the peers average."""
    import im3f_jax as im3f

    name, *how = name.split("-")
    many = "128" in how
    given = MANY if many else {}
    if "devices" in how:  # as JAX_NUM_CPU_DEVICES does it for a process of one's own
        import jax

        jax.config.update("jax_num_cpu_devices", num_cores())
    model = getattr(im3f, name.upper())(latent_dim=latent_dim, **given)
    marks, last = [], [time.perf_counter()]

    def note(sweep, elapsed, metrics):
        now = time.perf_counter()
        marks.append((sweep, last[0], now))
        last[0] = now

    posterior = model.fit(
        split.train,
        test=split.test,
        num_warmup=burn_in,
        num_samples=sweeps - burn_in,
        start_topics=START_TOPICS if many else 1,
        devices="all" if "devices" in how else None,
        seed=seed,
        progress=False,
        store="summary",
        track_train=False,
        callback=note,
    )
    more = {
        "device": str(posterior.device),
        "seconds": {key: round(value, 3) for key, value in posterior.seconds.items()},
    }
    if name == "im3f":
        for key in ("num_user_topics", "num_item_topics"):
            for kind in (key, key.replace("num", "effective")):
                more[kind] = round(float(np.mean(getattr(posterior, kind))), 2)
    # The first chunk is one sweep and tells our loop how long the others may be.
    return posterior.test_predictions, seconds_a_sweep(marks, skipped=1), more


def run_smurff(name, split, latent_dim, sweeps, burn_in, seed):
    """Run SMURFF's BPMF: normal priors on both sides, all cores."""
    import smurff
    from scipy import sparse

    mean = split.train.mean  # SMURFF has no global bias
    shape = (split.train.num_users, split.train.num_items)

    def matrix(ratings):
        cells = (ratings.user, ratings.item)
        return sparse.csr_matrix((ratings.rating - mean, cells), shape=shape)

    session = smurff.TrainSession(
        priors=["normal", "normal"],
        num_latent=latent_dim,
        num_threads=num_cores(),
        burnin=burn_in,
        nsamples=sweeps - burn_in,
        seed=seed,
        verbose=0,
    )
    fixed = name == "smurff-fixed"
    noise = smurff.FixedNoise(2.0) if fixed else smurff.SampledNoise(1.5)
    session.addTrainAndTest(matrix(split.train), matrix(split.test), noise)
    session.init()
    marks = []
    for sweep in range(1, sweeps + 1):
        start = time.perf_counter()
        session.step()
        marks.append((sweep, start, time.perf_counter()))
    memory = peak_memory()  # before a Python object is made of each prediction

    cells = session.getTestPredictions()
    found = {cell.coords: cell.pred_avg + mean for cell in cells}
    pairs = zip(split.test.user.tolist(), split.test.item.tolist(), strict=True)
    prediction = np.array([found[pair] for pair in pairs])
    return prediction, seconds_a_sweep(marks), {"memory": memory}


def level_probabilities(mean, precision, levels):
    """Give a Gaussian's probability between the midpoints of levels, (n, L)."""
    from scipy.special import ndtr

    between = 0.5 * (levels[1:] + levels[:-1])
    upto = ndtr((between - mean[:, None]) * np.sqrt(precision))
    return np.diff(upto, axis=1, prepend=0, append=1)


def run_myfm(name, split, latent_dim, sweeps, burn_in, seed):
    """Run myFM on one-hot users and items, each a group with its own prior."""
    import myfm
    from scipy import sparse

    num_users, num_items = split.train.num_users, split.train.num_items

    def one_hot(ratings):
        columns = np.stack([ratings.user, num_users + ratings.item], axis=1)
        starts = np.arange(0, columns.size + 1, 2)
        data = (np.ones(columns.size), columns.ravel(), starts)
        return sparse.csr_matrix(data, shape=(len(ratings), num_users + num_items))

    target, test = split.train.rating, one_hot(split.test)
    levels = np.unique(target)
    probit = name == "myfm-probit"
    if probit:
        target = np.searchsorted(levels, target)
    kind = myfm.MyFMOrderedProbit if probit else myfm.MyFMGibbsRegressor
    total, marks, last = np.zeros(len(split.test)), [], [time.perf_counter()]
    proba = np.zeros((len(split.test), len(levels)))

    def note(sweep, machine, hyper, history):
        # sweep counts from 0. What a callback does is not part of the next sweep.
        marks.append((sweep + 1, last[0], time.perf_counter()))
        if sweep >= burn_in:
            if probit:
                each = machine.oprobit_predict_proba(test, [], 0)
                total[:] += each @ levels
            else:
                mean = machine.predict_score(test, [])
                total[:] += mean
                each = level_probabilities(mean, hyper.alpha, levels)
            proba[:] += each
        last[0] = time.perf_counter()
        return False, None

    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        kind(rank=latent_dim, random_seed=seed).fit(
            one_hot(split.train),
            target,
            n_iter=sweeps,
            n_kept_samples=1,  # the callback averages; draws would only fill memory
            group_shapes=[num_users, num_items],
            callback=note,
        )
    kept = sweeps - burn_in
    return total / kept, seconds_a_sweep(marks), {"proba": proba / kept}


# --- one measurement, in a process of its own --------------------------------------


load_rows_once = cache(load_rows)  # a process serves several rounds


def measure(system, data, rows, latent_dim, sweeps, burn_in, seed):
    """Load the ratings, run one system, and return its figures and predictions.

    Returns
    -------
    dict
        ``prediction`` (num_test,), ``rating`` (num_test,), ``scale`` (lowest and
        highest training rating), and the figures of this run.
    """
    # On a GPU the processes of several of our models stand beside each other.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    split = load_rows_once(data, rows)
    run = run_ours
    if system in PEERS:
        package = PEERS[system][0]
        run = {"smurff": run_smurff, "myfm": run_myfm}[package]
        __import__(package)
    else:
        import im3f_jax.api  # noqa: F401
    before = peak_memory(reset=True)
    start = time.perf_counter()
    prediction, speed, more = run(system, split, latent_dim, sweeps, burn_in, seed)
    total = time.perf_counter() - start
    memory = more.pop("memory", None) or peak_memory()
    more.pop("proba", None)
    rating = split.train.rating
    return {
        "prediction": prediction,
        "rating": split.test.rating,
        "scale": (rating.min(), rating.max()),
        "num_cold": split.num_cold,
        "seconds_a_sweep": speed,
        "total_seconds": round(total, 2),
        "memory_over_data_mb": round(memory - before),
        **more,
    }


def in_process(pool, *arguments):
    """Call :func:`measure` in the process of a pool."""
    return pool.submit(measure, *arguments).result()


def summarise(system, runs):
    """Make one record of a system's rounds; the first is the long one."""
    first = runs[0]
    speeds = [run["seconds_a_sweep"] for run in runs if run["seconds_a_sweep"]]
    more = {
        key: first[key] for key in first if key not in ("prediction", "rating", "scale")
    }
    clipped = np.clip(first["prediction"], *first["scale"])
    return {
        **more,
        "system": system,
        "settings": PEERS[system][1] if system in PEERS else OURS,
        "seconds_a_sweep": median(speeds) if speeds else None,
        "seconds_a_sweep_rounds": [round(speed, 6) for speed in speeds],
        "rmse_clipped": rmse(clipped, first["rating"]),
        "rmse_unclipped": rmse(first["prediction"], first["rating"]),
        "num_test": len(first["rating"]),
    }


def compare(ours, theirs, runs):
    """Compare one of our systems with a peer: ratio of speeds, difference of errors."""
    a, b = runs[ours["system"]][0], runs[theirs["system"]][0]
    clipped = [np.clip(run["prediction"], *run["scale"]) for run in (a, b)]
    difference, error = paired_difference(*clipped, a["rating"])
    speeds = ours["seconds_a_sweep"], theirs["seconds_a_sweep"]
    return {
        "ours": ours["system"],
        "peer": theirs["system"],
        "seconds_a_sweep_ratio": speeds[0] / speeds[1] if all(speeds) else None,
        "total_seconds_ratio": ours["total_seconds"] / theirs["total_seconds"],
        "rmse_difference": difference,
        "rmse_difference_error": error,
    }


# --- the whole comparison ----------------------------------------------------------


def benchmark(systems, data, rows, latent_dim, options):
    """Run all systems in rounds on one data set and dimension.

    Returns
    -------
    results, comparisons, failed : list of dict
        A record for each system, for each pair of ours and a peer, and for each system
        that raised an error.
    """
    where = {"data": data, "rows": rows, "latent_dim": latent_dim}
    with contextlib.ExitStack() as stack:
        # A fresh process each, so that peak memory is its own; it stays for the later
        # rounds, so that ours compile once.
        context = multiprocessing.get_context("spawn")
        pools = {
            system: stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            for system in systems
        }
        runs, failed = work_in_rounds(pools, where, options)
    records = {system: summarise(system, runs[system]) for system in runs}
    comparisons = [
        {**where, **compare(records[ours], records[peer], runs)}
        for ours in records
        for peer in records
        if ours not in PEERS and peer in PEERS
    ]
    results = [{**where, **record} for record in records.values()]
    # The message is printed only: it may name files of this machine.
    lost = [{**where, "system": s, "error": e.split(":")[0]} for s, e in failed.items()]
    return results, comparisons, lost


def work_in_rounds(pools, where, options):
    """Let the systems work one after another, round by round.

    Returns
    -------
    runs : dict of list
        System -> what :func:`measure` gave in each round; those that failed left out.
    failed : dict of str
        System -> what went wrong.
    """
    data, latent_dim = where["data"], where["latent_dim"]
    runs, failed = {system: [] for system in pools}, {}
    for number in range(options.rounds):
        sweeps, burn_in = options.sweeps, options.burn_in
        if number:
            sweeps, burn_in = options.round_sweeps, options.round_sweeps // 2
        for system in pools:
            if system in failed:
                continue
            task = (system, *where.values(), sweeps, burn_in, options.seed)
            try:
                run = in_process(pools[system], *task)
            except BrokenProcessPool:
                failed[system] = "BrokenProcessPool: was killed (out of memory?)"
            except Exception as error:  # the other systems still run
                failed[system] = f"{type(error).__name__}: {error}"
            if system in failed:
                print(f"{system} failed: {failed[system]}", flush=True)
                del runs[system]
                continue
            runs[system].append(run)
            speed = run["seconds_a_sweep"] or float("nan")
            print(
                f"  {data} D={latent_dim} round {number + 1}, {system}: {speed:.4f} s "
                f"a sweep, {run['total_seconds']:.1f} s in all",
                flush=True,
            )
    return runs, failed


def report(results, comparisons):
    """Print the tables of results and of ratios."""
    print(
        f"\n{'data':8} {'D':>3} {'system':13} {'s a sweep':>9} {'(rounds)':>17} "
        f"{'RMSE':>7} {'unclipped':>9} {'total s':>8} {'compile':>7} {'MB':>6}"
    )
    for row in results:
        rounds = row["seconds_a_sweep_rounds"] or [float("nan")]
        speed = row["seconds_a_sweep"] or float("nan")
        compiling = row.get("seconds", {}).get("compile", 0.0)
        spread = f"({min(rounds):.4f}-{max(rounds):.4f})"
        print(
            f"{row['data']:8} {row['latent_dim']:3} {row['system']:13} {speed:9.4f} "
            f"{spread:>17} {row['rmse_clipped']:7.4f} {row['rmse_unclipped']:9.4f} "
            f"{row['total_seconds']:8.1f} {compiling:7.1f} "
            f"{row['memory_over_data_mb']:6.0f}"
        )
    if comparisons:
        print("\nours / peer: below 1 ours is faster; RMSE below 0 ours is better")
    for row in comparisons:
        ratio = row["seconds_a_sweep_ratio"] or float("nan")
        print(
            f"{row['data']:8} {row['latent_dim']:3} {row['ours']:>5} / "
            f"{row['peer']:13} sweep {ratio:6.2f}   total "
            f"{row['total_seconds_ratio']:6.2f}   RMSE {row['rmse_difference']:+.4f} "
            f"+- {row['rmse_difference_error']:.4f}"
        )


def parse(arguments=None):
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description="Ours beside myFM and SMURFF: speed, error and memory.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", nargs="+", default=["ml-100k"], choices=list(FILES))
    add("--latent-dim", nargs="+", type=int, default=[10], metavar="D")
    add("--rows", default="random90_0", help="row set of test_rows.npz")
    add("--models", nargs="*", default=["bpmf", "im3f"], choices=MODELS)
    add(
        "--peers",
        nargs="*",
        default=["smurff", "smurff-fixed", "myfm"],
        choices=list(PEERS),
    )
    add("--sweeps", type=int, default=100, help="in the first round, burn-in included")
    add("--burn-in", type=int, default=20)
    add("--rounds", type=int, default=3, help="the first, and short ones for speed")
    add("--round-sweeps", type=int, default=30, help="sweeps of a short round")
    add("--seed", type=int, default=0)
    add("--json-name", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args(arguments)
    if not 0 <= options.burn_in < options.sweeps:
        parser.error("--burn-in must be at least 0 and less than --sweeps")
    if options.rounds < 1 or options.round_sweeps <= SKIPPED_SWEEPS:
        parser.error(f"--rounds from 1, --round-sweeps above {SKIPPED_SWEEPS}")
    return options


def main(arguments=None):
    """Run the comparison from the command line; return its exit status."""
    options = parse(arguments)
    systems = list(options.models)
    for peer in options.peers:
        package = PEERS[peer][0]
        if find_spec(package) is None:
            print(f"{peer} is left out: install it with  pip install {package}")
        else:
            systems.append(peer)
    for data in options.data:
        load_rows(data, options.rows)  # what is not there is said before hours of work
    started = describe()
    results, comparisons, failed = [], [], []
    for data in options.data:
        for latent_dim in options.latent_dim:
            more = benchmark(systems, data, options.rows, latent_dim, options)
            results += more[0]
            comparisons += more[1]
            failed += more[2]
    report(results, comparisons)
    if options.json_name:
        payload = {
            "arguments": vars(options),
            "results": results,
            "comparisons": comparisons,
            "failed": failed,
        }
        path = write_result(options.json_name, payload, started)
        print(f"\nwritten: bench/results/{path.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except InputError as error:
        raise SystemExit(f"bench.peers: {error}") from None
