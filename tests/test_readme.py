"""What the README says is what the files and the code do."""

import re
from pathlib import Path

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
