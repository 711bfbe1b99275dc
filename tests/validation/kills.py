"""Kill processes that write checkpoints, and look whether anything is lost.

`python -m tests.validation.kills --json-name kills` writes bench/results/kills.json.
Two kinds of process die by SIGKILL at random moments, of a seeded generator, and start
again in their folder:

- fits: real ones, of a small model, resumed until they are done; each result is held
  against the unbroken run, bit for bit.
- writers: of the checkpoint files alone, without JAX, so that there can be many; after
  each death the newest checkpoint must be whole, be the one last acknowledged or the
  one after, and hold what belongs to its number.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from im3f_jax.inference.checkpoint import Folder

__all__ = ["compare", "kill_fits", "kill_writers"]

# Every sweep writes a checkpoint: whatever a process dies at is near one.
SETTINGS = {"num_warmup": 20, "num_samples": 60, "thinning": 3, "num_chains": 2}
SETTINGS |= {"chain_method": "sequential"}


# --- fits --------------------------------------------------------------------------


def _fit(folder, cache, sender):
    """Run the fit in a process of its own; a line to the pipe for every chunk."""
    import jax

    import im3f_jax as im3f

    # The processes differ in nothing: what one has compiled, the next ones read.
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: compiled.append(event)
    )
    drawn = im3f.planted_ratings(
        num_users=30, num_items=20, num_ratings=300, latent_dim=2, seed=0
    )
    train, test = im3f.random_split(drawn.ratings, seed=0)
    with warnings.catch_warnings():
        # Of our own only that of a damaged checkpoint: there must be none.
        warnings.simplefilter("error", im3f.Im3fWarning)
        posterior = im3f.BPMF(2, rating_variance=0.5).fit(
            train,
            test,
            init="prior",
            seed=1,
            progress=False,
            checkpoint_dir=folder,
            checkpoint_every=1,
            callback=lambda sweep, elapsed, metrics: sender.send(
                (metrics["chain"], sweep)
            ),
            **SETTINGS,
        )
    arrays = {f"trace.{name}": values for name, values in posterior.trace.items()}
    arrays |= {
        f"draws.{name}": values
        for name, values in posterior.draws._asdict().items()
        if values is not None
    }
    arrays |= {
        "test": posterior.test_predictions,
        "train": posterior.train_predictions,
    }
    names = "/jax/core/compile/backend_compile_duration"
    sender.send(("done", arrays, compiled.count(names)))


def _started(context, folder, cache):
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_fit, args=(folder, cache, sender))
    process.start()
    sender.close()
    return process, receiver


def _received(receiver):
    """Return what the process tells next; None once it is dead."""
    try:
        return receiver.recv()
    except EOFError:
        return None


def compare(expected, found):
    """Name the arrays that differ, by a bit or more."""
    names = expected.keys() | found.keys()
    return sorted(
        name
        for name in names
        if name not in found
        or name not in expected
        or not np.array_equal(expected[name], found[name], equal_nan=True)
    )


def kill_fits(kills, seed, work, seconds=np.inf):
    """Kill fits until there were so many kills, and the last fit is done.

    Parameters
    ----------
    kills
        So many.
    seed
        Of the moments.
    work
        An empty folder.
    seconds
        After these no fit is killed any more.

    Returns
    -------
    dict
        Counts, and what went wrong: a list that must be empty.
    """
    context = multiprocessing.get_context("forkserver")
    # Imported once; no backend of JAX runs in the process that is forked.
    context.set_forkserver_preload(["im3f_jax.api"])
    rng, cache = np.random.default_rng(seed), work / "cache"
    process, receiver = _started(context, work / "unbroken", cache)
    told = []
    begin = time.perf_counter()
    while (one := _received(receiver)) is not None:
        told.append(one)
        begin = begin if len(told) > 1 else time.perf_counter()
    span = time.perf_counter() - begin  # of the sampling alone
    process.join()
    _, expected, compiled = told[-1]
    total = SETTINGS["num_warmup"] + SETTINGS["num_samples"]
    total *= SETTINGS["num_chains"]
    killed = early = fits = most = lost = 0
    wrong, starts = [], time.perf_counter()
    done_before, folder = 0, None

    def go_on():
        return killed < kills and time.perf_counter() - starts < seconds

    while go_on() or folder is not None:
        if folder is None:
            folder, done_before = work / f"fit {fits}", 0
        process, receiver = _started(context, folder, cache)
        if rng.random() < 0.1:  # anywhere, mostly before the first sweep
            deadline = time.perf_counter() + rng.uniform(0, 4)
        else:
            deadline = None
        wait, done, result = rng.uniform(0, 0.3 * span), done_before, None
        dies = go_on()
        first = True
        while True:
            left = None if deadline is None else deadline - time.perf_counter()
            if dies and left is not None and (left <= 0 or not receiver.poll(left)):
                os.kill(process.pid, signal.SIGKILL)
                deadline, dies = None, False
            one = _received(receiver)
            if one is None:
                break
            if one[0] == "done":
                result = one
                continue
            at = one[0] * total // SETTINGS["num_chains"] + one[1]
            # The first sweep that is told follows the checkpoint that was found.
            if first:
                repeated = done_before - (at - 1)
                lost = max(lost, repeated)
                if repeated > 1:
                    wrong.append(f"fit {fits}: {repeated} sweeps were lost")
                if deadline is None:
                    deadline = time.perf_counter() + wait
            first, done = False, at
        process.join()
        if process.exitcode == -signal.SIGKILL:
            killed += 1
            early += first
            most = max(most, done - done_before)
            done_before = done
        elif result is None:
            wrong.append(f"fit {fits}: it ended by itself, {process.exitcode}")
            break
        if result is not None:
            differ = compare(expected, result[1])
            wrong += [f"fit {fits}: {name} is another" for name in differ]
            if result[2] > compiled:
                wrong.append(f"fit {fits}: it compiled {result[2]}, not {compiled}")
            fits, folder = fits + 1, None
        if wrong:
            break
    return {
        "kills": killed,
        "before_the_first_sweep": early,
        "fits_compared": fits,
        "most_sweeps_repeated": lost,
        "sweeps_a_fit": total,
        "checkpoint_every": 1,
        "seconds": round(time.perf_counter() - starts, 1),
        "wrong": wrong,
    }


# --- writers -----------------------------------------------------------------------


def _arrays(number):
    rng = np.random.default_rng(number)
    return {"values": rng.random(rng.integers(1, 20_000)), "number": np.array(number)}


def _write(path, pipe):
    """Write checkpoints for ever; each number to the pipe once it is written."""
    with Folder(path) as folder:
        body = folder.read() or {"groups": [{"parts": [], "state": None}]}
        (group,) = body["groups"]
        while True:
            number = folder.number + 1
            name = f"{number:08d}.npz"
            parts = [*group["parts"][-30:], folder.write(f"part-{name}", {}, {})]
            group["parts"] = parts
            group["state"] = folder.write(f"state-{name}", {}, _arrays(number))
            folder.commit({"groups": [group]})
            os.write(pipe, number.to_bytes(8, "little"))


def kill_writers(kills, seed, work):
    """Kill processes that write checkpoints of arrays; parameters as `kill_fits`."""
    rng, starts = np.random.default_rng(seed), time.perf_counter()
    path, acknowledged, ahead, wrong = work / "folder", 0, 0, []
    leftovers, interval = 0, 0.01  # seconds from a checkpoint to the next
    for kill in range(kills):
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:  # no backend of JAX has been started
            try:
                os.close(receiver)
                _write(path, sender)
            finally:
                os._exit(1)
        os.close(sender)
        with os.fdopen(receiver, "rb", buffering=0) as file:
            told = b""
            for _ in range(rng.integers(0, 4)):
                before = time.perf_counter()
                told += file.read(8)
                interval = time.perf_counter() - before
            time.sleep(rng.uniform(0, 1.5 * interval))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                wrong.append(f"kill {kill}: the writer ended by itself")
            told += file.read()
        if told:
            acknowledged = int.from_bytes(told[-8:], "little")
        leftovers += len(list(path.glob("*.partial")))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # none may be damaged
            try:
                folder = Folder(path, writes=False)
                body = folder.read()
            except Exception as error:
                wrong.append(f"kill {kill}: {error}")
                break
        if folder.number - acknowledged not in (0, 1):
            wrong.append(f"kill {kill}: {folder.number} after {acknowledged}")
        ahead += folder.number > acknowledged
        acknowledged = folder.number
        if body is not None:
            _, arrays = folder.arrays(*body["groups"][0]["state"])
            wanted = _arrays(folder.number)
            if compare(wanted, arrays):
                wrong.append(f"kill {kill}: other arrays in {folder.number}")
    return {
        "kills": kills,
        "checkpoints": acknowledged,
        "killed_while_a_file_was_written": leftovers,
        "killed_before_the_word_of_it": ahead,
        "seconds": round(time.perf_counter() - starts, 1),
        "wrong": wrong,
    }


def main():
    """Kill, print what came of it, and write the result."""
    from bench.machine import describe, write_result

    parser = argparse.ArgumentParser(prog="python -m tests.validation.kills")
    parser.add_argument("--fits", type=int, default=1000, help="kills of fits")
    parser.add_argument("--writers", type=int, default=1000, help="kills of writers")
    parser.add_argument("--seconds", type=float, default=np.inf, help="of the fits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json-name", default=None, help="write bench/results/NAME")
    options = parser.parse_args()
    started = describe()
    found = {"seed": options.seed}
    with tempfile.TemporaryDirectory() as work:
        for kind, kill, *more in (
            ("writers", kill_writers),
            ("fits", kill_fits, options.seconds),
        ):
            folder = Path(work) / kind
            folder.mkdir()
            given = getattr(options, kind), options.seed, folder, *more
            found[kind] = kill(*given)
            print(f"{kind}: {found[kind]}", flush=True)
    if options.json_name:
        path = write_result(options.json_name, found, started)
        print(f"wrote {path.relative_to(path.parents[2])}")
    return 1 if found["writers"]["wrong"] or found["fits"]["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
