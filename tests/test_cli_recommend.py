"""``im3f recommend`` and ``im3f similar``: what they write, and what they refuse."""

import json

import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax.cli import main
from tests.posterior.test_recommend import make_posterior
from tests.test_cli import one_line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    make_posterior().save(folder / "model.npz")
    return folder


@pytest.fixture(scope="module")
def posterior(folder):
    return im3f.load(folder / "model.npz")


def read(text):
    return pd.DataFrame([json.loads(line) for line in text.splitlines()])


def test_users_come_by_name_by_file_or_all(folder, posterior, tmp_path, capsys):
    command = ["recommend", str(folder), "-n", "4"]
    out = tmp_path / "out.csv"
    assert main([*command, "--user", "u07", "u02", "--user", "u07"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("user,rank,item,mean,std_of_mean\nu07,1,")
    expected = posterior.recommend(["u07", "u02", "u07"], 4)
    assert shown == expected.to_csv(index=False)

    users = tmp_path / "users.csv"
    users.write_text("note,User ID\nx,u02\ny,u30\n")
    assert main([*command, "--users-file", str(users), "--out", str(out)]) == 0
    expected = posterior.recommend(["u02", "u30"], 4)
    assert out.read_text() == expected.to_csv(index=False)

    model = str(folder / "model.npz")
    assert main(["recommend", model, "--all", "--out", str(out)]) == 0
    assert out.read_text() == posterior.recommend().to_csv(index=False)
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", "users.csv"}


def test_bounds_and_what_was_seen(folder, posterior, capsys):
    command = ["recommend", str(folder), "--user", "u03", "--json", "--include-seen"]
    assert main([*command, "--rank-by", "lower", "--level", "0.75", "-n", "100"]) == 0
    found = read(capsys.readouterr().out)
    expected = posterior.recommend(
        "u03", 100, exclude_seen=False, rank_by="lower", level=0.75
    )
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert len(found) > len(posterior.recommend("u03", 100))


def test_titles_stand_beside_items(folder, tmp_path, capsys):
    titles = tmp_path / "titles.csv"
    lines = [f'{10 * j},"No {j}, é"' for j in range(40)]
    titles.write_text("\n".join(["item,title", *lines]), encoding="utf-8")
    command = ["recommend", str(folder), "--user", "u03", "--titles", str(titles)]
    assert main([*command, "--json", "-n", "50"]) == 0
    text = capsys.readouterr().out
    found = read(text)
    assert list(found)[:4] == ["user", "rank", "item", "title"] and "é" in text
    for item, title in zip(found["item"], found["title"], strict=True):
        assert title == (f"No {item // 10}, é" if item < 400 else "")
    assert main(["similar", str(folder), "130", "--titles", str(titles)]) == 0
    assert capsys.readouterr().out.startswith("rank,item,title,similarity,std\n1,")
    titles.write_text("item,title\n7,Seven\n")
    assert main(command) == 2
    assert "none of the model's 45" in one_line(capsys)


def test_similar_items_and_users(folder, posterior, tmp_path, capsys):
    assert main(["similar", str(folder), "130", "-n", "3"]) == 0
    expected = posterior.similar_items(130, 3).to_csv(index=False)
    assert capsys.readouterr().out == expected
    out = tmp_path / "out.json"
    command = ["similar", str(folder), "u20", "--users", "--json", "--out", str(out)]
    assert main(command) == 0
    found, expected = read(out.read_text()), posterior.similar_users("u20")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["recommend", "--user", "u2"], "unknown user: 'u2'"),
        (["recommend", "--user", "u02", "-n", "0"], "n is 0"),
        (["recommend", "--user", "u02", "--level", "1"], "level is 1"),
        (["recommend", "--user", "u02", "--time", "5"], "reads no times"),
        (["recommend", "--user", "u02", "--titles", "no/such"], "no/such"),
        (["recommend", "--users-file", "no/such.csv"], "No such file"),
        (["similar", "131"], "unknown item: '131'"),
        (["similar", "290"], "no training rating"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    folder, tmp_path, capsys, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)  # nothing is found, nothing written
    command, *rest = arguments
    assert main([command, str(folder), *rest, "--out", "out"]) == 2
    assert words in one_line(capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["recommend"], "DIR"),
        (["recommend", "x"], "--user --users-file --all"),
        (["recommend", "x", "--all", "--user", "a"], "not allowed with"),
        (["recommend", "x", "--all", "--rank-by", "best"], "invalid choice"),
        (["similar", "x"], "ID"),
    ],
)
def test_what_argparse_refuses_is_one_sentence_too(capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert words in one_line(capsys)


def test_a_new_user_gets_a_list_on_request(folder, posterior, capsys):
    command = ["recommend", str(folder), "--user", "zoe", "-n", "2"]
    assert main([*command, "--unknown", "prior"]) == 0
    expected = posterior.recommend("zoe", 2, unknown="prior").to_csv(index=False)
    assert capsys.readouterr().out == expected
