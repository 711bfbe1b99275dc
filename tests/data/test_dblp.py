"""DBLP: which records give pairs, what a hostile or broken file does, and memory."""

import gzip
import logging
import random
import re
import socket
import subprocess
import sys
from collections import Counter
from html import unescape
from itertools import combinations

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.data import dblp
from im3f_jax.data.dblp import load_dblp
from im3f_jax.errors import InputError

DECLARATION = '<?xml version="1.0" encoding="ISO-8859-1"?>\n'
DOCTYPE = '<!DOCTYPE dblp SYSTEM "dblp.dtd">\n'


def paper(*authors, tag="article", key="journals/x/1", year=2001, more="", publtype=""):
    """Write one record, in a line."""
    names = "".join(f"<author>{name}</author>" for name in authors)
    kind = publtype and f' publtype="{publtype}"'
    return (
        f'<{tag} key="{key}" mdate="2016-01-29"{kind}>{names}<title>T.</title>'
        f"<year>{year}</year>{more}</{tag}>\n"
    )


def document(*records, head=DECLARATION + DOCTYPE, encoding="latin-1"):
    return (head + "<dblp>\n" + "".join(records) + "</dblp>\n").encode(encoding)


@pytest.fixture
def load(tmp_path):
    """Load bytes from a file; gives the pairs as a dict, and the report."""

    def load_bytes(content, *, name="dblp.xml", **options):
        path = tmp_path / name
        path.write_bytes(content)
        ratings, report = load_dblp(path, progress=False, return_report=True, **options)
        return pairs_of(ratings), report

    return load_bytes


def pairs_of(ratings):
    users, items = ratings.user_ids.tolist(), ratings.item_ids.tolist()
    pairs = dict(zip(zip(users, items, strict=True), ratings.rating, strict=True))
    assert len(pairs) == len(ratings)
    return pairs


# --- which pairs ------------------------------------------------------------------


def test_pairs_are_unordered_and_counted(load):
    records = paper("B", "A"), paper("A", "C", "B"), paper("B", "A"), paper("A")
    pairs, report = load(document(*records))
    assert pairs == {("A", "B"): 3, ("A", "C"): 1, ("B", "C"): 1}
    assert (report.papers, report.pairs, report.authors) == (3, 3, 3)
    assert report.records == {"article": 4}
    assert report.skipped == {"one author": 1}


def test_user_comes_before_item_by_code_points_and_rows_are_sorted(tmp_path):
    path = tmp_path / "dblp.xml"
    names = ["b", "B", "Ä", "A B", "A", "A 0001"]
    path.write_bytes(document(paper(*names), paper("Ä", "b")))
    ratings = load_dblp(path, progress=False)
    rows = [*zip(ratings.user_ids.tolist(), ratings.item_ids.tolist(), strict=True)]
    assert rows == sorted(map(tuple, map(sorted, combinations(names, 2))))
    assert ratings.rating.tolist() == [1.0] * 14 + [2.0]


@pytest.mark.parametrize(
    "tag",
    ["article", "inproceedings", "incollection", "book", "phdthesis", "mastersthesis"],
)
def test_publications_give_pairs(load, tag):
    pairs, report = load(document(paper("A", "B", tag=tag)))
    assert pairs == {("A", "B"): 1}
    assert report.records == {tag: 1}


@pytest.mark.parametrize("tag", ["www", "proceedings", "data", "person", "x"])
def test_other_records_give_none(load, tag):
    records = paper("A", "C", tag=tag), paper("A", "B"), paper("B", "C", tag=tag)
    pairs, report = load(document(*records))
    assert pairs == {("A", "B"): 1}
    assert report.records == {tag: 2, "article": 1}
    assert report.skipped == {"no publication": 2}


def test_editors_give_no_pairs(load):
    editors = "<editor>C</editor><editor>D</editor>"
    records = paper("A", "B", more=editors), paper(tag="book", more=editors)
    pairs, report = load(document(*records))
    assert pairs == {("A", "B"): 1}
    assert report.skipped == {"no author": 1}


def test_suffix_numbers_are_part_of_the_name(load):
    pairs, _ = load(document(paper("Wei Wang 0001", "Wei Wang 0010", "Wei Wang")))
    assert set(pairs) == {
        ("Wei Wang", "Wei Wang 0001"),
        ("Wei Wang", "Wei Wang 0010"),
        ("Wei Wang 0001", "Wei Wang 0010"),
    }


def test_who_stands_twice_counts_once(load):
    pairs, report = load(document(paper("A", "B", "A"), paper("C", "C"), paper("", "")))
    assert pairs == {("A", "B"): 1}
    assert report.skipped == {"one author": 1, "no author": 1}


def test_spaces_around_and_line_ends_within_a_name(load):
    records = (
        paper(" A\r\n  B ", "C"),
        paper("A B", "\n", "C\t"),
        paper("A B\n", "A  B"),
        paper("C", "Za\N{NO-BREAK SPACE}b"),  # not white space of XML: kept
    )
    pairs, report = load(document(*records))
    assert pairs == {("A B", "C"): 2, ("C", "Za\N{NO-BREAK SPACE}b"): 1}
    assert report.skipped == {"one author": 1}


def test_informal_papers_are_left_out_unless_asked_for(load):
    content = document(
        paper("A", "B", publtype="informal"),
        paper("A", "B", publtype="informal withdrawn"),
        paper("A", "B", publtype="encyclopedia"),
        paper("A", "B"),
    )
    pairs, report = load(content)
    assert pairs == {("A", "B"): 2}
    assert report.skipped == {"informal": 2}
    pairs, report = load(content, informal=True)
    assert pairs == {("A", "B"): 4}
    assert report.skipped == {}


def test_papers_over_max_authors_are_skipped_and_counted(load):
    content = document(paper(*"ABCD"), paper(*"ABC"), paper(*"ABAC", "", " C"))
    pairs, report = load(content, max_authors=3)
    assert pairs == {("A", "B"): 2, ("A", "C"): 2, ("B", "C"): 2}
    assert report.skipped == {"over max_authors": 1}
    pairs, report = load(content, max_authors=None)
    assert pairs["A", "B"] == 3 and pairs["C", "D"] == 1
    assert report.skipped == {}


def test_fifty_authors_are_not_too_many_by_default(load):
    names = [f"N{i:02d}" for i in range(51)]
    pairs, report = load(document(paper(*names), paper(*names[:50])))
    assert len(pairs) == 50 * 49 / 2 and set(pairs.values()) == {1}
    assert report.skipped == {"over max_authors": 1}


def test_rare_pairs_are_left_out_and_counted(load):
    records = [paper("A", "B")] * 3 + [paper("A", "C")] * 2 + [paper("B", "C")]
    pairs, report = load(document(*records), min_count=2)
    assert pairs == {("A", "B"): 3, ("A", "C"): 2}
    assert (report.pairs, report.rare_pairs, report.authors) == (2, 1, 3)


def test_years_are_bounds_included(load):
    content = document(
        paper("A", "B", year=1999),
        paper("A", "C", year=2000),
        paper("A", "D", year=" 2002 "),
        paper("A", "E", year=2003),
        paper("A", "F", year="to appear"),
        '<article key="journals/x/2"><author>A</author><author>G</author></article>',
    )
    pairs, report = load(content, years=(2000, 2002))
    assert {item for _, item in pairs} == {"C", "D"}
    assert report.skipped == {"outside years": 4}
    assert {item for _, item in load(content, years=(2002, None))[0]} == {"D", "E"}
    assert {item for _, item in load(content, years=(None, 2000))[0]} == {"B", "C"}
    assert len(load(content)[0]) == 6


def test_venues_are_the_first_two_parts_of_the_key(load):
    content = document(
        paper("A", "B", key="conf/kdd/Smith99"),
        paper("A", "C", key="conf/kddx/Smith99"),
        paper("A", "D", key="journals/jmlr/Smith99a"),
        paper("A", "E", key="conf/kdd/2009w/Smith99"),
        paper("A", "F", key="phd/Smith99"),
    )
    pairs, report = load(content, venues=["conf/kdd", "journals/jmlr"])
    assert {item for _, item in pairs} == {"B", "D", "E"}
    assert report.skipped == {"outside venues": 2}
    assert {item for _, item in load(content, venues="phd")[0]} == {"F"}
    with pytest.raises(InputError, match="no paper has the venue 'KDD', 'conf/k'.*key"):
        load(content, venues=["conf/kdd", "KDD", "conf/k"])


def test_only_elements_right_below_a_record_count(load):
    title = (
        "<title>On <i>H<sub>2</sub></i><sup>3</sup> <author>X</author>"
        "<article><author>Y</author></article></title><note><year>1900</year></note>"
    )
    record = (
        f'<article key="journals/x/1">{title}<author orcid="0000" aux="x">A <i>B</i>'
        "</author><author>C</author><year>2000</year></article>"
    )
    pairs, report = load(document(record), years=(2000, 2000))
    assert pairs == {("A B", "C"): 1}
    assert report.records == {"article": 1}


def test_every_record_is_counted_once(load):
    records = [
        paper("A", "B"),
        paper("A", "B", publtype="informal", year=1900),
        paper("A", "B", year=1900, key="conf/y/1"),
        paper("A", "B", key="conf/y/1"),
        paper(*"ABCD"),
        paper("A"),
        paper(),
        paper("A", tag="www"),
    ]
    options = {"years": (2000, 2010), "venues": "journals/x", "max_authors": 3}
    _, report = load(document(*records), **options)
    assert report.papers == 1
    assert set(report.skipped.values()) == {1} and len(report.skipped) == 7
    assert sum(report.records.values()) == report.papers + sum(report.skipped.values())


def test_the_report_is_logged(load, caplog):
    with caplog.at_level(logging.INFO, logger="im3f_jax"):
        _, report = load(document(paper("A", "B"), paper(*"ABC")), max_authors=2)
    assert caplog.messages == [f"dblp.xml: {report}"]
    assert "1 pairs of 2 authors from 1 papers" in caplog.text
    assert "2 records (2 article) skipped: 1 over max_authors" in caplog.text


def test_the_result_is_what_the_same_table_of_pairs_would_be(tmp_path):
    rng = random.Random(0)
    records = [paper(*rng.sample("ABCDEFGHIJ", 3)) for _ in range(30)]
    path = tmp_path / "dblp.xml"
    path.write_bytes(document(*records))
    ratings = load_dblp(path, progress=False)
    again = im3f.Ratings.from_dataframe(ratings.to_dataframe())
    for side in ("users", "items"):
        ids, known = getattr(again, side).ids, getattr(ratings, side).ids
        assert ids.tolist() == known.tolist()
    for column in ("user", "item", "rating"):
        got, wanted = getattr(ratings, column), getattr(again, column)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    train, test = im3f.random_split(ratings, test_fraction=0.2, seed=0)
    assert len(train) + len(test) == len(ratings)
    train, test = im3f.leave_one_out(ratings, seed=0)
    assert train.users is ratings.users
    ratings.save_npz(tmp_path / "pairs.npz")
    assert pairs_of(im3f.load_ratings(tmp_path / "pairs.npz")) == pairs_of(ratings)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_any_papers_are_counted_right(load, monkeypatch, chunk):
    monkeypatch.setattr(dblp, "_CHUNK", chunk)  # so that chunks must be merged
    monkeypatch.setattr(dblp, "_BLOCK", 997)
    rng = random.Random(1)
    names = [f"N{i} 000{i % 3}" for i in range(40)]
    papers = [rng.choices(names, k=rng.randrange(9)) for _ in range(400)]
    expected = Counter()
    for authors in papers:
        expected.update(combinations(sorted(set(authors)), 2))
    content = document(*(paper(*authors) for authors in papers))
    assert load(content)[0] == expected
    common = {pair: count for pair, count in expected.items() if count >= 3}
    assert 0 < len(common) < len(expected)
    assert load(gzip.compress(content), min_count=3)[0] == common


# --- entities ---------------------------------------------------------------------

ENTITIES = "&Ouml; &ograve; &amp; &#233; &#x17E; &micro; &times; &reg;"
TEXT = "\u00d6 \u00f2 & \u00e9 \u017e \u00b5 \u00d7 \u00ae"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


HEADS = {
    "its DTD absent": DECLARATION + DOCTYPE,
    "its DTD on the network": DECLARATION
    + '<!DOCTYPE dblp SYSTEM "http://dblp.org/xml/dblp.dtd">\n',
    "a public DTD": DECLARATION + '<!DOCTYPE dblp PUBLIC "-//X//" "https://x.y/z">\n',
    "no DTD": DECLARATION + "\n",
    "declarations of its own": DECLARATION + '<!DOCTYPE dblp [<!ENTITY a "b">]>\n',
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_names_are_right_without_the_dtd(load, no_network, head):
    pairs, _ = load(document(paper("A", f"B {ENTITIES}"), head=head))
    assert pairs == {("A", f"B {TEXT}"): 1}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_an_unknown_entity_is_an_error_with_its_line(load, no_network, head):
    content = document(paper("A", "B"), paper("A", "\nB &Scaron;"), head=head)
    with pytest.raises(InputError, match=r"dblp.xml: line 6: the entity &Scaron; is"):
        load(content)


def test_an_unknown_entity_in_a_title_is_an_error_too(load):
    more = "<title>&nosuch;</title>"
    with pytest.raises(InputError, match="line 4: the entity &nosuch; is unknown"):
        load(document(paper("A", "B", more=more)))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_the_dtd_beside_the_file_is_read(load, tmp_path, encoding):
    dtd = (
        "<!-- Universit\u00e4t -->\n<!ENTITY % field 'author|title|year'>\n"
        '<!ELEMENT article (%field;)*>\n<!ENTITY Scaron "&#352;">\n'
        '<!ENTITY Ouml "O">\n<!ATTLIST article publtype CDATA "informal">\n'
    )
    (tmp_path / "dblp.dtd").write_bytes(dtd.encode(encoding))
    pairs, _ = load(document(paper("A", "B &Scaron;&Ouml;&eacute;")))
    # The file's own declaration comes first, and ours where it has none.
    assert pairs == {("A", "B \u0160O\u00e9"): 1}


def test_a_dtd_elsewhere_is_not_read(load, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "x.dtd").write_text('<!ENTITY mine "m">')
    for system_id in ("../x.dtd", str(tmp_path / "x.dtd")):
        head = f'<!DOCTYPE dblp SYSTEM "{system_id}">\n'
        content = document(paper("A", "B &mine;"), head=head)
        with pytest.raises(InputError, match="line 3: the entity &mine; is unknown"):
            load(content, name="in/dblp.xml")
        # The same name beside the file stands for it.
        assert load(content, name="dblp.xml")[0] == {("A", "B m"): 1}


def declaring(declarations):
    return f'<!DOCTYPE dblp SYSTEM "dblp.dtd" [\n{declarations}]>\n'


LAUGHS = '<!ENTITY l0 "lol">\n' + "".join(
    f'<!ENTITY l{i + 1} "{f"&l{i};" * 10}">\n' for i in range(9)
)
HOSTILE = {
    "billion laughs": (LAUGHS, "&l9;", "'l1' is made of entities"),
    "laughs of parameters": (
        '<!ENTITY % p0 "<!-- lol -->">\n'
        + "".join(f"<!ENTITY % p{i + 1} '{f'%p{i};' * 10}'>\n" for i in range(9))
        + "%p9;",
        "x",
        None,  # such references are no XML in the file itself
    ),
    "one long entity": (f'<!ENTITY a "{"a" * 10_000}">', "&a;" * 10, "'a' is longer"),
    "elements": ('<!ENTITY a "<author>B</author>">', "&a;", "'a' is made of"),
    "hidden references": ('<!ENTITY a "&#38;b;">', "&a;", "'a' is made of"),
    "a file": ('<!ENTITY a SYSTEM "secret.txt">', "&a;", "'a' is external"),
    "an address": ('<!ENTITY a SYSTEM "http://x.y/z">', "&a;", "'a' is external"),
    "external parameters": (
        '<!ENTITY % a SYSTEM "secret.txt"> %a;',
        "x",
        "'a' is external",
    ),
}


@pytest.mark.parametrize("declarations, text, said", HOSTILE.values(), ids=HOSTILE)
def test_hostile_entities_are_refused(
    load, tmp_path, no_network, declarations, text, said
):
    (tmp_path / "secret.txt").write_text("secret")
    content = document(paper("A", text), head=declaring(declarations))
    with pytest.raises(InputError, match=r"dblp.xml: line \d+: ") as raised:
        load(content)
    assert said is None or said in str(raised.value)


@pytest.mark.parametrize(
    "dtd, said",
    [
        (LAUGHS, "'l1' is made of"),
        ('<!ENTITY % a SYSTEM "secret.txt"> %a;', "'a' is external"),
        (
            '<!ENTITY % p0 "ababababab">\n'
            + "".join(f"<!ENTITY % p{i + 1} '{f'%p{i};' * 10}'>\n" for i in range(9)),
            "'p3' is longer",
        ),
        ("<!ELEMENT", "dblp.dtd, line 2"),
        ("%nosuch;", "%nosuch; is unknown"),
        (" " * 300_000, "dblp.dtd beside it is no DTD"),
    ],
    ids=["laughs", "external", "parameters", "no DTD", "unknown", "long"],
)
def test_a_hostile_dtd_is_refused(load, tmp_path, no_network, dtd, said):
    (tmp_path / "secret.txt").write_text("<!ENTITY b 'c'>")
    (tmp_path / "dblp.dtd").write_text(dtd)
    with pytest.raises(InputError, match=re.escape(said)):
        load(document(paper("A", "B")))


def test_the_entities_of_xml_may_be_declared(load):
    head = declaring('<!ENTITY amp "&#38;#38;">\n<!ENTITY lt "&#38;#60;">')
    pairs, _ = load(document(paper("A", "B &amp;&lt;&gt;"), head=head))
    assert pairs == {("A", "B &<>"): 1}


# --- files ------------------------------------------------------------------------

GOOD = document(paper("A", "B"), paper("J\u00f6rg", "M\u00fcller"))
BROKEN = {
    "empty": (b"", "is empty"),
    "empty gzip": (gzip.compress(b""), "is empty"),
    "white space": (b" \n\n", "line 3: the file is cut short"),
    "no XML": (b"user,item,rating\n1,2,3\n", "line 1: this is no XML"),
    "no XML in gzip": (gzip.compress(b"{}"), "line 1: this is no XML"),
    "another root": (b"<html>\n</html>", "line 1: the root is <html>"),
    "cut after a record": (GOOD[:-9], "line 5: the file is cut short"),
    "cut in a tag": (GOOD[:-15], "line 5: the file is cut short"),
    "cut in an entity": (GOOD.partition(b"A<")[0] + b"&ou", "line 4: the file is cut"),
    "gzip cut": (gzip.compress(GOOD)[:-20], "line 1: the gzip file is cut short"),
    "gzip without its sum": (gzip.compress(GOOD)[:-6], "the gzip file is cut short"),
    "gzip with a wrong sum": (
        gzip.compress(GOOD)[:-8] + b"12345678",
        "the gzip file is corrupt",
    ),
    "gzip of garbage": (gzip.compress(GOOD)[:12] + b"\xff" * 99, "gzip file is corr"),
    "gzip and more": (gzip.compress(GOOD) + b"more", "the gzip file is corrupt"),
    "crossed tags": (
        document(paper("A", "B"), "<www>\n<x></www>"),
        r"line 6: mismatched tag",
    ),
    "two roots": (GOOD + GOOD[GOOD.index(b"<dblp>") :], "line 7: junk"),
    "Latin-1 that says UTF-8": (
        GOOD.replace(b"ISO-8859-1", b"UTF-8"),
        r"line 5: not well-formed \(invalid token\)",
    ),
    "an unknown encoding": (GOOD.replace(b"ISO-8859-1", b"x"), "line 1: unknown enc"),
    "a zip of something": (b"PK\x03\x04and so on", "not a file of plain arrays"),
    "no pairs": (document(paper("A"), paper("B")), "no pair.*2 one author"),
    "no records": (document(), "no pair of authors is left"),
    "a name without end": (document(paper("A", "B" * 2_000_000)), "line 4: a name"),
    "deep elements": (document("<i>" * 200 + "</i>" * 200), "line 4: more than 100 el"),
}


@pytest.mark.parametrize("content, said", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_told_in_one_sentence(load, content, said):
    with pytest.raises(InputError, match=f"dblp.xml: .*{said}") as raised:
        load(content)
    assert "\n" not in str(raised.value)


def test_a_tag_or_comment_without_end_is_refused(load, monkeypatch):
    monkeypatch.setattr(dblp, "_MAX_TOKEN", 2_000_000)
    content = document(paper("A", "B"), f"<!-- {'x' * 3_000_000} -->")
    with pytest.raises(InputError, match="line 5: a tag or comment of more"):
        load(content)
    monkeypatch.setattr(dblp, "_MAX_TOKEN", 4_000_000)
    assert load(content)[0] == {("A", "B"): 1}
    # Long text is no token: it is read in pieces.
    monkeypatch.setattr(dblp, "_MAX_TOKEN", 1_000_000)
    more = f"<title>{'x' * 3_000_000}</title>"
    assert load(document(paper("A", "B", more=more)))[0] == {("A", "B"): 1}


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InputError, match="nosuch.*no file.*dblp.org"):
        load_dblp(tmp_path / "nosuch", progress=False)
    with pytest.raises(InputError, match="no file"):
        load_dblp(tmp_path, progress=False)


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        gzip.compress(GOOD),
        gzip.compress(GOOD[:200]) + gzip.compress(GOOD[200:]),  # two members
        GOOD.replace(b"\n", b"\r\n"),
        GOOD.replace(b"\n", b" "),
        GOOD.decode("latin-1").replace("ISO-8859-1", "UTF-8").encode(),
        GOOD.decode("latin-1").replace(DECLARATION, "").encode(),
        GOOD.decode("latin-1").replace("ISO-8859-1", "UTF-16").encode("utf-16"),
        GOOD.replace(b"ISO-8859-1", b"windows-1252"),
    ],
    ids=["plain", "gz", "gz twice", "CRLF", "one line", "UTF-8", "?", "UTF-16", "1252"],
)
def test_files_of_any_form(load, content):
    expected = {("A", "B"): 1, ("J\u00f6rg", "M\u00fcller"): 1}
    assert load(content, name="some file")[0] == expected


@pytest.mark.parametrize(
    "options, said",
    [
        ({"min_count": 0}, "min_count must be at least 1, not 0"),
        ({"min_count": 1.5}, "min_count must be an integer, not 1.5"),
        ({"max_authors": 1}, "max_authors must be at least 2, or None, not 1"),
        ({"max_authors": "9"}, "max_authors must be an integer, not '9'"),
        ({"years": 2000}, r"years must be \(first, last\), not 2000"),
        ({"years": (2000, 2001, 2002)}, r"years must be \(first, last\)"),
        ({"years": (2001, 2000)}, "years must run from the first to the last"),
        ({"years": ("2000", 2001)}, "the first of years must be an integer"),
        ({"venues": []}, "venues names none"),
        ({"venues": [1]}, "venues must be text, not 1"),
        ({"informal": "no"}, "informal must be True or False"),
    ],
)
def test_options_that_make_no_sense(load, options, said):
    with pytest.raises(InputError, match=said):
        load(GOOD, **options)


def test_the_bar_counts_the_bytes_of_the_file(tmp_path, capsys):
    path = tmp_path / "dblp.xml.gz"
    records = [paper(f"A{i}", f"B{i * i % 9973}") for i in range(3000)]
    path.write_bytes(gzip.compress(document(*records)))
    size = path.stat().st_size
    load_dblp(path)
    shown = capsys.readouterr().err
    assert "dblp.xml.gz: 100%" in shown
    assert f"{size / 1000:.1f}k/{size / 1000:.1f}k" in shown
    load_dblp(path, progress=False)
    assert capsys.readouterr().err == ""


# --- memory -----------------------------------------------------------------------

# Peak and present size of the process come from the kernel: getrusage would count what
# the parent had before.
MEASURE = """
import re, sys, im3f_jax as im3f
from pathlib import Path

def size(what):
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{what}:\\s+(\\d+) kB", status)[1]) / 1024

im3f.load_dblp(sys.argv[1], progress=False)
before = size("VmRSS")
ratings = im3f.load_dblp(sys.argv[2], progress=False)
print(size("VmHWM") - before, len(ratings), int(ratings.rating.sum()))
"""


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_200_megabytes_of_few_authors_take_little_memory(tmp_path):
    rng = random.Random(0)
    names = [f"A{i:03d} &Ouml;zt&uuml;rk" for i in range(300)]
    filler = f"<title>A <i>title</i>{' of some length' * 20}</title>"
    tags = ["article", "inproceedings", "www", "proceedings", "data"]
    records = [
        paper(*rng.sample(names, 20), tag=tags[i % 5], more=filler) for i in range(1000)
    ]
    block = "".join(records).encode()
    times = 200_000_000 // len(block) + 1
    path, small = tmp_path / "dblp.xml.gz", tmp_path / "small.xml"
    small.write_bytes(document(*records))
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((DECLARATION + DOCTYPE + "<dblp>\n").encode())
        for _ in range(times):
            file.write(block)
        file.write(b"</dblp>\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, small, path],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    growth, num_pairs, joint_papers = done.stdout.split()
    assert int(joint_papers) == times * 400 * 190
    assert 0 < int(num_pairs) <= 300 * 299 / 2
    # It took 33 MB on Linux when this was written. To keep the pairs of every paper, or
    # its names, takes more than 100.
    assert float(growth) < 80, f"grew by {growth} MB"


# --- papers.npz -------------------------------------------------------------------


OZTURK = "\u00d6zt\u00fcrk 0001"


@pytest.fixture
def papers(tmp_path):
    """Write the four papers of a small dump, and load them."""
    names = ["B", "A", OZTURK, "D", "unused"]

    def load_papers(*, names=names, drop=(), **options):
        arrays = {
            "author_flat": np.array([0, 1, 2, 0, 1, 0, 3, 0, 1, 2, 3], np.int32),
            "n_authors": np.array([3, 3, 1, 4], np.uint8),
            "year": np.array([1999, 2000, 2000, 2001], np.int16),
            "venue": np.array([0, 0, 0, 1], np.int16),
            "type": np.zeros(4, np.int8),
        }
        arrays |= {name: options.pop(name) for name in arrays if name in options}
        for name in drop:
            del arrays[name]
        np.savez(tmp_path / "papers.npz", **arrays)
        text = "".join(f"{name}\n" for name in names).encode()
        (tmp_path / "authors.txt.gz").write_bytes(gzip.compress(text))
        (tmp_path / "venues.txt").write_text("conf/kdd\nbooks/x\n")
        path = tmp_path / "papers.npz"
        ratings, report = load_dblp(path, return_report=True, **options)
        return pairs_of(ratings), report

    return load_papers


def test_papers_give_the_same_as_their_xml(papers):
    pairs, report = papers()
    expected = Counter()
    for authors in ([*"AB", OZTURK], "AB", [*"ABD", OZTURK]):
        expected.update(combinations(authors, 2))
    assert pairs == expected
    assert report.records == {"papers.npz": 4}
    assert (report.papers, report.authors) == (3, 4)
    assert report.skipped == {"one author": 1}


def test_papers_are_chosen_by_the_same_options(papers, monkeypatch):
    monkeypatch.setattr(dblp, "_CHUNK", 2)
    pairs, report = papers(max_authors=3)
    assert pairs == {("A", "B"): 2, ("A", OZTURK): 1, ("B", OZTURK): 1}
    assert report.skipped == {"one author": 1, "over max_authors": 1}
    pairs, report = papers(min_count=3)
    assert pairs == {("A", "B"): 3} and report.rare_pairs == 5
    pairs, report = papers(years=(2000, 2000))
    assert pairs == {("A", "B"): 1}
    assert report.skipped == {"outside years": 2, "one author": 1}
    # A paper of one author, too: it is skipped once.
    assert papers(years=(1999, 1999))[1].skipped == {"outside years": 3}
    pairs, report = papers(years=(None, 2000))
    assert pairs == {("A", "B"): 2, ("A", OZTURK): 1, ("B", OZTURK): 1}


def test_papers_are_chosen_by_venue(papers, tmp_path):
    papers()
    path = tmp_path / "papers.npz"
    pairs = pairs_of(load_dblp(path, venues="conf/kdd"))
    assert pairs == {("A", "B"): 2, ("A", OZTURK): 1, ("B", OZTURK): 1}
    with pytest.raises(InputError, match="no paper has the venue 'conf/x'"):
        load_dblp(path, venues=["conf/kdd", "conf/x"])


def test_papers_do_not_say_which_are_informal(papers, caplog):
    with caplog.at_level(logging.INFO, logger="im3f_jax"):
        papers()
        assert "does not say which papers are informal: all count" in caplog.text
        caplog.clear()
        papers(informal=True)
        assert "informal" not in caplog.text


@pytest.mark.parametrize(
    "change, said",
    [
        ({"drop": ["year", "venue"]}, "has no array year, venue"),
        ({"n_authors": np.array([3, 3, 1, 3])}, "arrays do not agree in length"),
        ({"year": np.array([1999])}, "arrays do not agree in length"),
        ({"names": ["A", "B", "C"]}, "points beyond the 3 lines of authors.txt.gz"),
        ({"names": ["A", "B", "C", "A"]}, "names an author twice"),
        ({"author_flat": np.arange(-1, 10)}, "points beyond the 5 lines"),
    ],
)
def test_papers_that_do_not_fit_together(papers, change, said):
    with pytest.raises(InputError, match=f"papers.npz: .*{said}"):
        papers(**change)


def test_what_lies_beside_the_papers_must_be_there(papers, tmp_path):
    papers()
    path = tmp_path / "papers.npz"
    (tmp_path / "venues.txt").unlink()
    assert load_dblp(path).mean > 1  # venues are needed only where asked for
    with pytest.raises(InputError, match="there must be a file venues.txt beside it"):
        load_dblp(path, venues="conf/kdd")
    (tmp_path / "authors.txt.gz").write_bytes(gzip.compress(b"A\nB")[:-9])
    with pytest.raises(InputError, match="authors.txt.gz beside it cannot be read"):
        load_dblp(path)
    (tmp_path / "authors.txt.gz").unlink()
    with pytest.raises(InputError, match="must be a file authors.txt.gz beside it"):
        load_dblp(path)


# --- real data --------------------------------------------------------------------


@pytest.fixture(scope="session")
def dblp_dir(data_dir):
    if not (data_dir / "dblp").is_dir():
        pytest.skip("IM3F_DATA_DIR has no dblp")
    return data_dir / "dblp"


def test_real_excerpts(dblp_dir):
    num_records = 0
    for path in (dblp_dir / "xml_samples").glob("*_*.xml"):
        if path.name == "kdd_reserialised.xml":
            continue
        ratings, report = load_dblp(
            path, informal=True, progress=False, return_report=True
        )
        num_records += sum(report.records.values())
        text = " ".join([*ratings.users.ids, *ratings.items.ids])
        assert not re.search("[&;<>]", text)
    assert num_records == 265
    path = dblp_dir / "xml_samples" / "evelasquez-4_dblp.xml"
    ratings = load_dblp(path, informal=True, progress=False)
    # Of a report that is informal, and nowhere else in this excerpt.
    pair = "Michael Schwarz 0001", "Thomas Prescher 0002"
    assert pairs_of(ratings)[pair] == 2
    assert pair not in pairs_of(load_dblp(path, progress=False))


def test_real_records_of_kdd(dblp_dir):
    path = dblp_dir / "xml_samples" / "kdd_reserialised.xml"
    ratings, report = load_dblp(path, progress=False, return_report=True)
    assert report.records == {"inproceedings": 3113, "proceedings": 69}
    expected = Counter()
    content = path.read_text("latin-1")
    named = re.findall("&([A-Za-z]+);", content)
    assert sum(name not in ("amp", "lt", "gt") for name in named) == 371
    # Read again by other means: a record is text between its tags.
    for record in re.findall("<inproceedings.*?</inproceedings>", content, re.S):
        names = set(re.findall("<author>(.*?)</author>", record))
        expected.update(combinations(sorted(map(unescape, names)), 2))
    assert pairs_of(ratings) == expected


@pytest.mark.slow
def test_the_whole_of_dblp(dblp_dir):
    path = dblp_dir / "papers.npz"
    ratings, report = load_dblp(path, return_report=True)
    assert (len(ratings), report.authors) == (6_662_983, 1_549_702)
    assert (ratings.rating > 10).sum() == 72_375
    assert report.skipped["over max_authors"] == 42
    assert sum(report.records.values()) == 2_868_960
    kdd = load_dblp(path, venues="conf/kdd")
    xml = dblp_dir / "xml_samples" / "kdd_reserialised.xml"
    assert pairs_of(kdd) == pairs_of(load_dblp(xml, progress=False))
