"""What the README and the notebooks say is what the files and the code do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import im3f_jax
from bench import tables

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_table_is_what_its_results_file_says():
    assert "<!-- table: accuracy -->" in README
    assert tables.render(README) == README


def test_every_public_name_in_the_readme_exists():
    names = set(re.findall(r"im3f\.([A-Za-z_]\w*)\(", README))
    assert {"load_ratings", "IM3F"} <= names
    assert names <= set(im3f_jax.__all__)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda p: p.name
)
def test_notebooks_run_top_to_bottom(path):
    done = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
