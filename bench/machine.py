"""What a measurement is worth nothing without: machine, versions, commit and date.

Nothing here says where a file lies or what the machine is called, so that a file of
results can be published as it is.
"""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

__all__ = ["RESULTS", "describe", "num_cores", "peak_memory", "write_result"]

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("im3f-jax", "jax", "jaxlib", "numpy", "scipy", "numpyro", "myfm", "smurff")


def num_cores():
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _output(*command):
    """Return what a command prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            cwd=Path(__file__).resolve().parent,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model():
    """Return the model name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _gpus():
    """Return names, memory and driver of the NVIDIA cards, without starting JAX."""
    listed = _output(
        "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv"
    )
    return listed.splitlines()[1:] if listed else []


def _commit():
    """Return the git commit, marked where the working tree differs from it."""
    commit = _output("git", "rev-parse", "HEAD")
    if commit and _output("git", "status", "--porcelain", "--untracked-files=no"):
        commit += " (with changes)"
    return commit


def _versions():
    """Return the versions of Python and of the installed packages that matter."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def describe():
    """Say on what, when and with which versions something is measured.

    Returns
    -------
    dict
        ``date`` (UTC, ISO 8601), ``machine`` (``cpu``, ``cores``, ``memory_gib``,
        ``gpus``, ``system``, and ``load_average`` over the last minute: what else ran),
        ``versions`` and ``commit`` (None outside a git checkout).
    """
    machine = {
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "memory_gib": None,
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": None,
    }
    if hasattr(os, "getloadavg"):  # neither exists on Windows
        pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        machine["memory_gib"] = round(pages * page_size / 2**30, 1)
        machine["load_average"] = round(os.getloadavg()[0], 2)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": _versions(),
        "commit": _commit(),
    }


def peak_memory(reset=False):
    """Return the largest resident memory of this process since the last reset, in MB.

    Parameters
    ----------
    reset : bool
        Start anew from what is resident now. Only Linux can; elsewhere the figure is
        that of the whole process.
    """
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024 / 1e6
    except (OSError, TypeError):  # not Linux, or a kernel that does not allow it
        import resource

        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _plain(value):
    """Turn NumPy's numbers and arrays into what JSON knows."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_result(name, payload, started=None):
    """Write a measurement as ``bench/results/<name>.json``.

    Parameters
    ----------
    name : str
        Name of the file: letters, digits, ``.``, ``_`` and ``-``.
    payload : dict
        What was measured. NumPy numbers and arrays are accepted; NaN is not.
    started : dict, optional
        :func:`describe` as it was before the measurement, so that ``load_average``
        tells what ran beside it; by default it is called now.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the name is no plain file name, or a number is not finite.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise ValueError(f"{name!r} is no plain name for a file of results")
    record = {"name": name, **(started or describe()), **payload}
    text = json.dumps(record, indent=1, default=_plain, allow_nan=False)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(text + "\n")
    return path
