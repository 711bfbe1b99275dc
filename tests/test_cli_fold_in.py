"""``im3f fold-in``: what it writes, and what it refuses."""

import json

import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax.cli import main
from tests.posterior import worlds
from tests.test_cli import one_line

NUMBER = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Save a model of one user "old" and items 0, 1, ..; a folder as fit makes it."""
    folder = tmp_path_factory.mktemp("fit")
    world = worlds.make_world(im3f.BPMF(2))
    worlds.posterior_of(world, NUMBER).save(folder / "model.npz")
    return folder


def write(path, *lines):
    path.write_text("\n".join(("userId,movieId,rating,note", *lines)) + "\n")
    return str(path)


def test_new_users_go_to_another_file(model, tmp_path, capsys):
    new = write(tmp_path / "new.csv", "ann,1,5,x", "ann,3,4.5,y", "bob,1,1,", "cy,,,")
    out = tmp_path / "wider.npz"
    before = (model / "model.npz").read_bytes()
    assert main(["fold-in", str(model), new, "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.pop("seconds") > 0
    assert said == {
        "side": "user",
        "num_new": 3,
        "num_without_ratings": 1,
        "num_ratings": 3,
        "seed": 0,
        "out": str(out),
    }
    assert (model / "model.npz").read_bytes() == before
    frame = pd.DataFrame(
        {"user": ["ann", "ann", "bob"], "item": [1, 3, 1], "rating": [5, 4.5, 1]}
    )
    posterior = im3f.load(model / "model.npz").fold_in(frame, ids=["cy"])
    pairs = ["ann", "bob", "cy", "old"], [11, 11, 11, 11]
    expected = posterior.predict(*pairs)
    np.testing.assert_array_equal(im3f.load(out).predict(*pairs), expected)
    # And im3f predict reads it.
    asked = write(tmp_path / "pairs.csv", *(f"{u},11,," for u in pairs[0]))
    assert main(["predict", str(out), asked]) == 0
    shown = pd.read_csv(tmp_path / "pairs.csv").assign(prediction=expected)
    assert capsys.readouterr().out == shown.to_csv(index=False)

    assert main(["fold-in", str(model), new, "--out", str(out)]) == 2
    assert "already" in one_line(capsys)
    again = ["fold-in", str(model), new, "--out", str(out), "--overwrite"]
    assert main([*again, "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("3 new users, 3 ratings, ")
    assert not np.any(im3f.load(out).predict(*pairs)[:3] == expected[:3])


def test_new_items_are_numbers_where_items_are(model, tmp_path, capsys):
    out = tmp_path / "wider.npz"
    command = ["fold-in", str(model), "--out", str(out), "--side", "item"]
    new = write(tmp_path / "new.csv", "old,500,5,", "old,501,1,", "nobody,500,3,")
    assert main([*command, new]) == 2
    assert "unknown user: 'nobody'" in one_line(capsys)
    assert not out.exists()
    assert main([*command, new, "--unknown", "drop"]) == 0
    assert im3f.load(out).is_known(["old"] * 2, [500, 501]).all()


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (["ann,1,five,"], [], "the rating 'five' in row 0"),
        (["ann,1,5,", "ann,1,,"], [], "the rating '' in row 1"),
        (["ann,1,5,", "ann,1,4,"], [], "ann"),
        (["ann,77,5,"], [], "unknown item: '77'"),
        (["old,1,5,"], [], "user 'old' had ratings in the fit"),
        ([",1,5,"], [], "ids of new users must be there"),
        (["old,x1,5,"], ["--side", "item"], "a whole number"),
        (["old,007,5,"], ["--side", "item"], "'007'"),
        ([], [], "nobody"),
    ],
)
def test_what_cannot_be_folded_in_is_said(
    model, tmp_path, capsys, lines, options, said
):
    new, out = write(tmp_path / "new.csv", *lines), tmp_path / "wider.npz"
    assert main(["fold-in", str(model), new, "--out", str(out), *options]) == 2
    assert said in one_line(capsys)
    assert not out.exists()


def test_a_file_without_ratings_is_refused(model, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("user,item\nann,1\n")
    command = ["fold-in", str(model), str(tmp_path / "new.csv"), "--out", "x.npz"]
    assert main(command) == 2
    assert "column rating" in one_line(capsys)
