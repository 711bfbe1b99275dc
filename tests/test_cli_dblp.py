"""``im3f dblp``: the table it writes, and what it says to a user's mistake."""

import gzip
import inspect
import os
import subprocess
import sys

import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax import cli
from im3f_jax.cli import main

RECORDS = [
    ("conf/kdd/1", 1999, "", ["B, Jr.", 'A "Al" &Ouml;z 0001']),
    ("conf/kdd/2", 2000, "", ["B, Jr.", 'A "Al" &Ouml;z 0001']),
    ("conf/icml/1", 2001, "", ["NA", "B, Jr."]),
    ("journals/corr/1", 2001, ' publtype="informal"', ["NA", "null"]),
    ("conf/kdd/3", 2010, "", ["P", "Q", "R"]),
]
OZ = 'A "Al" \u00d6z 0001'
ALL = {(OZ, "B, Jr."): 2, ("B, Jr.", "NA"): 1, **dict.fromkeys(["PQ", "PR", "QR"], 1)}
ALL = {tuple(pair): count for pair, count in ALL.items()}


@pytest.fixture
def file(tmp_path):
    text = '<?xml version="1.0" encoding="ISO-8859-1"?>\n<dblp>\n'
    for key, year, attribute, authors in RECORDS:
        names = "".join(f"<author>{name}</author>" for name in authors)
        text += f'<article key="{key}"{attribute}>{names}<year>{year}</year></article>'
    path = tmp_path / "dblp.xml.gz"
    path.write_bytes(gzip.compress((text + "</dblp>").encode()))
    return path


def read(path):
    frame = pd.read_csv(path, keep_default_na=False)
    assert list(frame) == ["user", "item", "rating"]
    assert frame["rating"].dtype == int
    return frame.set_index(["user", "item"])["rating"].to_dict()


def one_line(capsys):
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith("im3f")
    return shown.err


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.csv.gz"])
def test_pairs_are_written_as_a_table_that_fit_reads(
    file, tmp_path, capsys, monkeypatch, name
):
    monkeypatch.setattr(cli, "_ROWS_AT_ONCE", 2)
    out = tmp_path / name
    assert main(["dblp", str(file), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "dblp.xml.gz: 100%" in shown.err
    assert "skipped: 1 informal" in shown.err
    assert f"Wrote 5 pairs to {out}" in shown.err
    assert read(out) == ALL
    packed = out.read_bytes()[:2] == b"\x1f\x8b"
    assert packed == name.endswith(".gz")
    assert not list(tmp_path.glob("*.partial"))
    again, ratings = im3f.load_ratings(out), im3f.load_dblp(file, progress=False)
    pd.testing.assert_frame_equal(again.to_dataframe(), ratings.to_dataframe())


def test_the_same_pairs_give_the_same_bytes(file, tmp_path):
    outs = tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"
    for out in outs:
        assert main(["dblp", str(file), "--out", str(out), "--quiet"]) == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert outs[0].read_bytes()[4:8] == bytes(4)  # no time of day


@pytest.mark.parametrize(
    "options, expected",
    [
        (["--min-count", "2"], {(OZ, "B, Jr."): 2}),
        (["--max-authors", "2"], [(OZ, "B, Jr."), ("B, Jr.", "NA")]),
        (["--max-authors", "none"], ALL),
        (["--years", "2000-2001"], [(OZ, "B, Jr."), ("B, Jr.", "NA")]),
        (["--years", "2000"], {(OZ, "B, Jr."): 1}),
        (["--years", "2010"], [("P", "Q"), ("P", "R"), ("Q", "R")]),
        (["--years", "2002-"], [("P", "Q"), ("P", "R"), ("Q", "R")]),
        (["--years=-2000"], {(OZ, "B, Jr."): 2}),
        (["--venues", "conf/icml"], {("B, Jr.", "NA"): 1}),
        (["--venues", "conf/icml,conf/kdd"], [*ALL]),
        (["--informal"], [*ALL, ("NA", "null")]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_options(file, tmp_path, options, expected):
    out = tmp_path / "pairs.csv"
    command = ["dblp", str(file), "--out", str(out), "--quiet"]
    assert main([*command, *options]) == 0
    pairs = read(out)
    assert set(pairs) == set(expected)
    if isinstance(expected, dict):
        assert pairs == expected


def test_the_words_and_defaults_are_those_of_python(file, tmp_path):
    command = ["dblp", str(file), "--out", str(tmp_path / "x.csv")]
    arguments = vars(cli._parser().parse_args(command))
    parameters = inspect.signature(im3f.load_dblp).parameters
    shared = {"min_count", "max_authors", "years", "venues", "informal"}
    assert set(parameters) == {"path", "progress", "return_report"} | shared
    for name in shared:
        assert arguments[name] == parameters[name].default


def test_quiet_says_nothing(file, tmp_path, capsys):
    assert main(["dblp", str(file), "--out", str(tmp_path / "x.csv"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_file_that_is_there_is_kept_unless_told(file, tmp_path, capsys):
    out = tmp_path / "pairs.csv"
    out.write_text("mine\n")
    command = ["dblp", str(file), "--out", str(out), "--quiet"]
    assert main(command) == 2
    assert "is there already" in one_line(capsys)
    assert out.read_text() == "mine\n"
    assert main([*command, "--overwrite"]) == 0
    assert read(out) == ALL


def test_a_write_that_fails_leaves_what_was_there(file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "pairs.csv.gz"
    out.write_bytes(b"mine")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    assert main(["dblp", str(file), "--out", str(out), "--overwrite", "--quiet"]) == 2
    assert "No space left" in one_line(capsys)
    assert out.read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "dblp.xml.gz",
        "pairs.csv.gz",
    ]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--out", "x.txt"], "--out must end in .csv or .csv.gz"),
        (["--out", "nosuch/x.csv"], "nosuch is no folder that can be written to"),
        (["--min-count", "0"], "min_count must be at least 1"),
        (["--years", "2001-2000"], "years must run from the first to the last"),
        (["--venues", "KDD"], "no paper has the venue 'KDD'"),
        (["--venues", ","], "venues names none"),
        (["--min-count", "9"], "no pair of authors is left"),
    ],
    ids=str,
)
def test_mistakes_are_one_sentence_and_exit_code_2(
    file, tmp_path, capsys, monkeypatch, options, said
):
    monkeypatch.chdir(tmp_path)
    command = ["dblp", str(file), "--out", "pairs.csv", "--quiet", *options]
    assert main(command) == 2
    assert said in one_line(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["dblp.xml.gz"]


@pytest.mark.parametrize(
    "options, said",
    [
        (["--years", "x"], "--years: must be years such as"),
        (["--years", "-"], "--years: must be years such as"),
        (["--max-authors", "x"], "--max-authors: must be a whole number or none"),
        ([], "required: --out"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_read(file, tmp_path, capsys, options, said):
    out = ["--out", str(tmp_path / "x.csv")] if options else []
    with pytest.raises(SystemExit) as stopped:
        main(["dblp", str(file), *out, *options])
    assert stopped.value.code == 2
    assert said in one_line(capsys)


def test_a_real_process_tells_a_broken_file_without_a_traceback(file, tmp_path):
    file.write_bytes(file.read_bytes()[:-20])
    out = tmp_path / "pairs.csv.gz"
    environment = {k: v for k, v in os.environ.items() if k != "IM3F_DATA_DIR"}
    done = subprocess.run(
        [sys.executable, "-m", "im3f_jax.cli", "dblp", file, "--out", out, "--quiet"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("im3f: ") and done.stderr.count("\n") == 1
    assert "dblp.xml.gz: line 1: the gzip file is cut short here" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dblp.xml.gz"]


def test_the_bar_is_closed_before_an_error_is_told(file, tmp_path, capsys):
    file.write_bytes(file.read_bytes()[:-20])
    assert main(["dblp", str(file), "--out", str(tmp_path / "x.csv")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("im3f: ") and "cut short" in lines[-1]


def test_an_interrupt_exits_130(file, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(im3f, "load_dblp", interrupt)
    assert main(["dblp", str(file), "--out", str(tmp_path / "x.csv")]) == 130
    assert one_line(capsys) == "im3f: interrupted\n"
