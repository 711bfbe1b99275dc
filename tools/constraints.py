"""Resolve every package for several Pythons and write constraints.txt.

Usage: ``python tools/constraints.py python3.11 python3.12 python3.13``, or
``make constraints``. For each interpreter pip resolves the base install and the extras
below in a fresh environment without installing anything (``--dry-run --report``). A
version on which all agree is written bare; elsewhere a ``python_version`` marker tells
which one is meant, and the newest Python's version also serves the Pythons after it.

Only names and versions are written: no address, no hash. Packages that a platform other
than the one at hand would add are not in the file, and stay free there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "dev,arviz,plots,docs"
# What builds the package; see [build-system] in pyproject.toml and the Makefile.
BUILD = ["setuptools>=77"]


def resolve(interpreter):
    """Return an interpreter's version, and what pip picks for it.

    Parameters
    ----------
    interpreter : str
        A Python command, at least 3.11.

    Returns
    -------
    version : tuple of int
        Major and minor version.
    packages : dict of str
        Package name -> version.

    Raises
    ------
    subprocess.CalledProcessError
        When the interpreter does not run, or pip finds no solution.
    """
    show = "import sys; print(*sys.version_info[:2])"
    shown = subprocess.run(
        [interpreter, "-c", show], check=True, capture_output=True, text=True
    )
    version = tuple(int(part) for part in shown.stdout.split())
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        subprocess.run([interpreter, "-m", "venv", Path(folder, "venv")], check=True)
        pip = [Path(folder, "venv", "bin", "python"), "-m", "pip"]
        # A recent pip resolves better; the one that comes with Python may be old.
        subprocess.run([*pip, "install", "-qq", "--upgrade", "pip"], check=True)
        command = ["install", "-qq", "--dry-run", "--ignore-installed"]
        target = f"{ROOT}[{EXTRAS}]"
        subprocess.run([*pip, *command, "--report", report, target, *BUILD], check=True)
        found = json.loads(report.read_text())["install"]
    names = [
        (entry["metadata"]["name"], entry["metadata"]["version"]) for entry in found
    ]
    return version, {
        n.lower().replace("_", "-"): v for n, v in names if n != "im3f-jax"
    }


def marker(versions, last):
    """Write the marker that holds for some of the resolved Pythons.

    Parameters
    ----------
    versions : list of tuple of int
        Python versions, ascending, without a gap.
    last : tuple of int
        The newest version resolved: a range that ends there stays open.

    Returns
    -------
    str
        For instance ``python_version >= "3.12"``.
    """
    low, high = (".".join(map(str, v)) for v in (versions[0], versions[-1]))
    if versions[-1] == last:
        return f'python_version >= "{low}"'
    if low == high:
        return f'python_version == "{low}"'
    return f'python_version >= "{low}" and python_version <= "{high}"'


def write_lines(resolved):
    """Turn the resolved versions into the lines of constraints.txt.

    Parameters
    ----------
    resolved : dict
        Python version -> {package name: version}.

    Returns
    -------
    list of str
        Sorted by package, then by Python.
    """
    pythons = sorted(resolved)
    lines = []
    for name in sorted(set().union(*resolved.values())):
        groups = []  # (version, consecutive Pythons that share it)
        for python in pythons:
            version = resolved[python].get(name)
            if groups and groups[-1][0] == version:
                groups[-1][1].append(python)
            else:
                groups.append((version, [python]))
        for version, group in groups:
            if version is None:
                continue
            where = "" if group == pythons else f" ; {marker(group, pythons[-1])}"
            lines.append(f"{name}=={version}{where}")
    return lines


def main(argv=None):
    """Resolve for the interpreters named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="+", help="Python commands, one a version")
    arguments = parser.parse_args(argv)
    resolved = {}
    for interpreter in arguments.pythons:
        print(f"Resolving for {interpreter} ...", file=sys.stderr)
        try:
            version, packages = resolve(interpreter)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{interpreter}: {error}", file=sys.stderr)
            return 1
        resolved[version] = packages
    shown = ", ".join(".".join(map(str, version)) for version in sorted(resolved))
    header = [
        "# The versions a fresh install gets, this year and next: base install, build",
        f"# and the extras {EXTRAS}. Resolved by pip on {date.today()}",
        f"# for Python {shown} ({sys.platform}) by `make constraints`; do not edit.",
    ]
    target = ROOT / "constraints.txt"
    target.write_text("\n".join([*header, *write_lines(resolved)]) + "\n")
    print(f"Wrote {target.name} ({shown})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
