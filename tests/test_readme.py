"""What the README and docs/ say is what the files and the code do."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import im3f_jax
from bench import tables

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*tables.pages(), ROOT / "CONTRIBUTING.md"]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "\n".join(TEXTS.values())

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_every_table_is_what_its_results_file_says(page):
    assert tables.render(TEXTS[page]) == TEXTS[page]


def test_every_table_stands_on_a_page():
    shown = re.findall(r"<!-- table: (\w+) -->\n\S", ALL)
    assert set(shown) == set(tables.TABLES)


def test_the_check_of_tables_tells_a_number_that_was_changed(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "pages", lambda: [page])
    page.write_text(tables.render("<!-- table: demo -->\n<!-- end -->\n"))
    assert tables.main(["--check"]) == 0
    page.write_text(page.read_text().replace("0.7", "0.8", 1))
    assert tables.main(["--check"]) == 1
    assert tables.main([]) == 0
    assert tables.main(["--check"]) == 0


@every_page
def test_the_python_on_a_page_parses_and_its_names_exist(page):
    for code in re.findall(r"```python\n(.*?)```", TEXTS[page], flags=re.DOTALL):
        ast.parse(code)
    names = set(re.findall(r"\bim3f\.([A-Za-z_]\w*)", TEXTS[page]))
    assert names <= set(im3f_jax.__all__)
    known = {field.name for field in dataclasses.fields(im3f_jax.Posterior)}
    known |= set(dir(im3f_jax.Posterior))
    assert set(re.findall(r"(?<!im3f_jax/)\bposterior\.(\w+)", TEXTS[page])) <= known


def anchors(text):
    """List the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading).lower() for heading in headings]
    return [heading.replace(" ", "-") for heading in kept]


@every_page
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", TEXTS[page])
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link
    assert links or page.name == "CONTRIBUTING.md"


def test_every_page_is_linked_from_the_readme():
    readme = TEXTS[ROOT / "README.md"]
    for page in PAGES[1:]:
        assert f"]({page.relative_to(ROOT).as_posix()}" in readme


def test_the_readme_stays_short_and_cites_this_version():
    readme = TEXTS[ROOT / "README.md"]
    assert len(readme.splitlines()) < 350
    version = im3f_jax.__version__
    assert f"version = {{{version}}}" in readme
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation
