"""The notebooks run top to bottom, and what is committed is what the scripts gave."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebooks import DRAWS, Cell, cells_of

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / "notebooks").glob("*.py"))
MOST_BYTES = 300_000  # of one notebook, and 1 MB of all
# Paths of the machine that executed: folders that hold homes, work and scratch.
OWN_PATH = re.compile(r"(?<![\w.~/])/(?:home|root|work|tmp|Users|mnt|opt)/|[A-Z]:\\\\")

by_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)


def notebook_of(path):
    return json.loads(path.with_suffix(".ipynb").read_text("utf-8"))


def run_scripts(paths, timeout, **settings):
    """Run scripts in a process of their own; return the number of figures of each."""
    given = {k: v for k, v in os.environ.items() if not k.startswith("IM3F_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebooks", *paths],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        env=given | settings,
    )
    assert done.returncode == 0, done.stderr
    return [int(n) for n in re.findall(r"^figures: (\d+)$", done.stdout, re.MULTILINE)]


def test_there_are_six_and_they_are_small():
    assert [path.name[:2] for path in SCRIPTS] == ["01", "02", "03", "04", "05", "06"]
    sizes = [path.with_suffix(".ipynb").stat().st_size for path in SCRIPTS]
    assert max(sizes) < MOST_BYTES
    assert sum(sizes) < 1_000_000


@pytest.mark.thorough
def test_they_run_on_drawn_ratings():
    # Together, so that what several fit is compiled once.
    figures = run_scripts(SCRIPTS, 1800, IM3F_NOTEBOOK_SIZE="short")
    for path, number in zip(SCRIPTS, figures, strict=True):
        code = [cell.source for cell in cells_of(path) if cell.kind == "code"]
        assert number == sum(any(word in cell for word in DRAWS) for cell in code) > 0


@pytest.mark.slow
@by_script
def test_runs_in_full(path):
    data = {k: os.environ[k] for k in ["IM3F_DATA_DIR"] if k in os.environ}
    run_scripts([path], 3600, **data)


@by_script
def test_the_notebook_is_its_script(path):
    cells = notebook_of(path)["cells"]
    found = [Cell(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    assert found == cells_of(path)


@by_script
def test_outputs_are_of_one_run_without_errors(path):
    code = [c for c in notebook_of(path)["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds <= {"stream", "execute_result", "display_data"}


@by_script
def test_every_cell_that_draws_has_its_picture(path):
    for cell in notebook_of(path)["cells"]:
        draws = any(word in "".join(cell["source"]) for word in DRAWS)
        pictures = [
            output["data"]["image/png"]
            for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})
        ]
        assert len(pictures) == (cell["cell_type"] == "code" and draws)


@by_script
def test_nothing_tells_of_the_machine_that_ran_it(path):
    text = path.with_suffix(".ipynb").read_text("utf-8")
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not OWN_PATH.search(without_pictures)
