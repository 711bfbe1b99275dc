"""The command line: what it writes, and what it says to a user's mistake."""

import contextlib
import csv
import dataclasses
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import im3f_jax as im3f
from im3f_jax import cli
from im3f_jax.cli import main
from im3f_jax.demo import run_demo
from im3f_jax.inference.checkpoint import Checkpoints
from tests import fits

# Whole fits start by optax, which promotes freely.
pytestmark = pytest.mark.relaxed

FAST = ["--num-warmup", "3", "--num-samples", "5", "--seed", "1", "--latent-dim", "2"]


@pytest.fixture(scope="session")
def ratings_file(tmp_path_factory):
    """Write a CSV whose user ids look like numbers and are none."""
    planted = im3f.planted_ratings(
        num_users=40, num_items=25, num_ratings=500, levels=[1, 2, 3, 4, 5]
    )
    frame = planted.ratings.to_dataframe()
    frame["user"] = [f"{user:03d}" for user in frame["user"]]
    frame["item"] = 10 * frame["item"] + 7
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def fitted(ratings_file, tmp_path_factory):
    """Fit once for all tests that read results; returns the folder."""
    out = tmp_path_factory.mktemp("fit") / "results"
    command = ["fit", str(ratings_file), "--out", str(out), "--quiet", *FAST]
    assert main([*command, "--max-user-topics", "8", "--max-item-topics", "8"]) == 0
    return out


def read(folder):
    frame = pd.read_csv(folder / "predictions.csv", dtype={"user": str})
    return frame, json.loads((folder / "metrics.json").read_text())


def test_fit_writes_predictions_metrics_and_trace(fitted, ratings_file):
    frame, metrics = read(fitted)
    assert list(frame) == ["user", "item", "rating", "prediction"]
    all_rows = pd.read_csv(ratings_file, dtype={"user": str})
    merged = frame.merge(all_rows, on=["user", "item"])
    assert len(merged) == len(frame) == metrics["num_ratings"]
    np.testing.assert_array_equal(merged["rating_x"], merged["rating_y"])
    assert frame["user"].is_unique  # leave one out

    error = frame["prediction"] - frame["rating"]
    assert metrics["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert metrics["mae"] == pytest.approx(np.mean(np.abs(error)), rel=1e-5)
    assert metrics["log_score_kind"] == "log_probability"
    assert metrics["log_score"] < 0
    assert metrics["data"]["file"] == "ratings.csv"
    assert metrics["split"] == {
        "kind": "leave-one-out",
        "seed": 1,
        "num_test": len(frame),
    }
    assert metrics["data"]["num_train"] + len(frame) == metrics["data"]["num_ratings"]
    assert metrics["topics"]["user"]["min"] >= 1
    assert "jax" in metrics["versions"]
    assert metrics["seconds"]["all"] > 0
    assert str(ratings_file.parent) not in json.dumps(metrics)

    trace = pd.read_csv(fitted / "trace.csv")
    assert len(trace) == 3 + 5
    assert {"chain", "sweep", "phase", "rating_variance"} <= set(trace)


def test_the_spec_is_recorded_in_numbers(fitted):
    _, metrics = read(fitted)
    text = json.dumps(metrics["spec"])
    assert "null" not in text
    assert '"latent_dim": 2' in text


def test_predict_gives_what_fit_wrote(fitted, tmp_path):
    frame, _ = read(fitted)
    pairs, out = tmp_path / "pairs.csv", tmp_path / "out.csv"
    given = frame[["item", "user"]].assign(note="a, b")
    given.to_csv(pairs, index=False)
    assert main(["predict", str(fitted), str(pairs), "--out", str(out)]) == 0
    got = pd.read_csv(out, dtype={"user": str})
    pd.testing.assert_frame_equal(got.drop(columns="prediction"), given)
    np.testing.assert_allclose(got["prediction"], frame["prediction"], rtol=1e-5)


OWN = {"user": "customer", "item": "movie_no", "rating": "stars (1/5)"}
NAMED = [word for role in OWN for word in (f"--{role}-column", OWN[role])]


def test_columns_of_other_names(fitted, ratings_file, tmp_path, capsys):
    table = pd.read_csv(ratings_file, dtype={"user": str}).rename(columns=OWN)
    # What is named goes before what has the name.
    table["user"], table["item"], table["title"] = "nobody", range(len(table)), "No. 9"
    own, out = tmp_path / "own.csv", tmp_path / "results"
    table.to_csv(own, index=False)
    command = ["fit", str(own), *NAMED, "--out", str(out), "--quiet", *FAST]
    assert main([*command, "--max-user-topics", "8", "--max-item-topics", "8"]) == 0
    pd.testing.assert_frame_equal(read(out)[0], read(fitted)[0])
    assert " --rating-column 'stars (1/5)' " in read(out)[1]["command"]
    # The other commands that read one's own tables.
    pairs, page = tmp_path / "pairs.csv", tmp_path / "report.html"
    table.head(3).to_csv(pairs, index=False)
    assert main(["predict", str(out), str(pairs), *NAMED[:4]]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith(",user,item,title,prediction") and len(shown) == 4
    report = ["report", str(out), "--quiet", "--out", str(page)]
    assert main([*report, "--ratings", str(own), *NAMED]) == 0
    assert "No. 9" not in page.read_text()  # which belongs to a number of a line
    assert main(["recommend", str(out), "--users-file", str(pairs), *NAMED[:2]]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("0")
    wide = ["fold-in", str(out), "--out", str(tmp_path / "wide.npz")]
    own.write_text(" stars (1/5) ,customer,movie_no\n5,new,7\n")
    assert main([*wide, str(own), *NAMED]) == 0
    assert im3f.load(tmp_path / "wide.npz").is_known(["new"], [7]).all()
    capsys.readouterr()
    predict = ["predict", str(out), str(pairs)]
    for words, refused in (
        (
            [*predict, "--user-column", "item"],
            "name one column item; it names customer",
        ),
        (
            [*predict, *NAMED[:2], "--item-column", "customer"],
            "'customer' is named twice",
        ),
        ([*predict, *NAMED[:4], "--timestamp-column", "title"], "knows no time"),
        (["fit", str(pairs), "--user-column", "Customer"], "one column 'Customer'"),
        (["report", str(out), *NAMED, "--overwrite"], "those of --ratings"),
        (["recommend", str(out), "--all", *NAMED[:2]], "give that too"),
    ):
        assert main(words) == 2
        assert refused in one_line(capsys)


def test_predict_clips_and_writes_to_standard_output(fitted, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("userId,movieId\n000,7\n001,17\n")
    model = str(fitted / "model.npz")
    assert main(["predict", model, str(pairs), "--clip=9,10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["userId,movieId,prediction", "000,7,9.0", "001,17,9.0"]


def test_predict_tells_how_sure_it_is(fitted, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("user,item,note\n000,7,a\n001,17,b\n")
    command = ["predict", str(fitted), str(pairs)]
    assert main([*command, "--quantiles", "0.05,0.95"]) == 0
    got = pd.read_csv(io.StringIO(capsys.readouterr().out))
    added = ["prediction", "std_of_mean", "std_of_rating", "known", "q0.05", "q0.95"]
    assert list(got) == ["user", "item", "note", *added]
    expected = im3f.load(fitted / "model.npz").predict_frame(
        ["000", "001"], [7, 17], quantiles=[0.05, 0.95]
    )
    pd.testing.assert_frame_equal(got[added], expected[added], check_dtype=False)
    assert main([*command, "--spread"]) == 0
    assert list(pd.read_csv(io.StringIO(capsys.readouterr().out)))[3:] == added[:4]
    for wrong in ("0.05;0.95", "2"):
        with contextlib.suppress(SystemExit):
            assert main([*command, "--quantiles", wrong]) == 2
        assert capsys.readouterr().err.startswith("im3f")


def test_predict_refuses_unknown_ids_unless_told(fitted, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("user,item\n0,7\n001,8\n")
    assert main(["predict", str(fitted), str(pairs)]) == 2
    message = one_line(capsys)
    assert "'0'" in message and "'000'" in message  # the id that was probably meant
    assert main(["predict", str(fitted), str(pairs), "--unknown", "nan"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["0,7,", "001,8,"]
    assert main(["predict", str(fitted), str(pairs), "--unknown", "prior"]) == 0
    got = [line.split(",")[2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert np.isfinite(np.array(got, dtype=float)).all()


def one_line(capsys):
    """Return the one line that must be on standard error, and nothing beside it."""
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1, shown.err
    assert shown.err.startswith("im3f")
    return shown.err


@pytest.mark.parametrize(
    "split, kind, number",
    [("random", "random", 50), ("none", "none", 500), ("rows", "rows", 3)],
)
def test_splits(ratings_file, tmp_path, split, kind, number):
    if split == "rows":
        np.savez(tmp_path / "rows.npz", mine=np.array([5, 0, 9]))
        split = f"{tmp_path / 'rows.npz'}:mine"
    out = tmp_path / "out"
    options = [
        "--split",
        split,
        "--model",
        "bpmf",
        "--clip",
        "train",
        "--init",
        "prior",
    ]
    command = ["fit", str(ratings_file), *options, *FAST, "--quiet"]
    assert main([*command, "--out", str(out)]) == 0
    frame, metrics = read(out)
    assert len(frame) == metrics["num_ratings"] == number
    assert metrics["split"]["kind"] == kind
    assert metrics["scored_on"] == ("train" if kind == "none" else "test")
    assert frame["prediction"].between(1, 5).all()
    assert metrics["topics"]["user"]["max"] == 0
    if kind == "rows":
        all_rows = pd.read_csv(ratings_file, dtype={"user": str})
        wanted = all_rows.iloc[[5, 0, 9]].reset_index(drop=True)
        rows = frame.drop(columns="prediction").sort_values(["user", "item"])
        wanted = wanted.sort_values(["user", "item"])
        assert rows.values.tolist() == wanted.values.tolist()


@pytest.mark.parametrize(
    "options, model",
    [
        ([], im3f.IM3F()),
        (["--model", "bpmf", "--latent-dim", "7"], im3f.BPMF(latent_dim=7)),
        (["--model", "pmf", "--global-bias", "3"], im3f.PMF(global_bias=3.0)),
        (
            ["--model=m3f-tif", "--topic-factor-dim=3", "--item-topics=1"],
            im3f.M3F_TIF(2, 1, topic_factor_dim=3),
        ),
        (["--model=reciprocal"], im3f.ReciprocalIM3F()),
        (
            ["--model=reciprocal", "--directed", "--max-topics=8"]
            + ["--table-concentration=2", "--topic-mean-variance=0.5"],
            im3f.ReciprocalIM3F(
                directed=True,
                max_topics=8,
                table_concentration=2.0,
                topic_mean_variance=0.5,
            ),
        ),
        (
            ["--model=separate-dp", "--max-user-topics=3", "--likelihood=ordinal"],
            im3f.SeparateDP(max_user_topics=3, likelihood="ordinal"),
        ),
        (
            ["--model", "bpmf", "--likelihood", "ordinal"],
            im3f.BPMF(likelihood=im3f.Ordinal()),
        ),
        (
            ["--factor-prior", "shrinkage"],
            im3f.IM3F(factor_prior=im3f.MultiplicativeGamma()),
        ),
        (
            ["--model=m3f", "--user-topics=3", "--item-topic-concentration=5"],
            im3f.M3F(user_topics=3, item_topic_concentration=5.0),
        ),
        (
            ["--topics=stick_breaking", "--item-table-concentration=2"]
            + ["--rating-variance-floor=0", "--user-topic-mean-variance=0.5"],
            im3f.IM3F(
                topics="stick_breaking",
                item_table_concentration=2.0,
                rating_variance_floor=0.0,
                user_topic_mean_variance=0.5,
            ),
        ),
        (
            ["--user-shared-bias-variance=sampled", "--item-shared-bias-variance=0.3"],
            im3f.IM3F(user_shared_bias_variance=None, item_shared_bias_variance=0.3),
        ),
        (
            ["--model=bpmf", "--user-noise-shape=sampled", "--degrees-of-freedom=5"],
            im3f.BPMF(user_noise_shape=None, degrees_of_freedom=5.0),
        ),
        (
            ["--item-noise-shape=3", "--user-noise-shape=inf"],
            im3f.IM3F(item_noise_shape=3.0),
        ),
    ],
)
def test_options_are_the_arguments_of_the_presets(options, model):
    assert cli._model(cli._parser().parse_args(["fit", "x", *options])) == model


def test_every_option_of_the_spec_is_an_argument_of_its_preset():
    for name, _, models, _ in cli._SPEC_OPTIONS:
        for model, preset in cli._PRESETS.items():
            arguments = inspect.signature(getattr(im3f, preset)).parameters
            assert (name in arguments) == (model in models), (name, model)


@pytest.mark.thorough
def test_an_ordinal_fit_predicts(ratings_file, tmp_path):
    out = tmp_path / "fit"
    command = ["fit", str(ratings_file), "--out", str(out), "--quiet", *FAST]
    assert main([*command, "--model", "bpmf", "--likelihood", "ordinal"]) == 0
    frame, metrics = read(out)
    assert metrics["log_score_kind"] == "log_probability"
    assert metrics["spec"]["likelihood"]["levels"] == [1, 2, 3, 4, 5]
    assert frame["prediction"].between(1, 5).all()
    pairs = tmp_path / "pairs.csv"
    frame[["user", "item"]].to_csv(pairs, index=False)
    assert main(["predict", str(out), str(pairs), "--out", str(tmp_path / "p")]) == 0
    got = pd.read_csv(tmp_path / "p", dtype={"user": str})
    np.testing.assert_allclose(got["prediction"], frame["prediction"], rtol=1e-5)


def test_the_summary_tells_the_dimension_where_it_is_learned(fitted):
    _, metrics = read(fitted)
    assert 1 <= metrics["effective_dimension"] <= 2
    assert "dimension" not in cli._summary(metrics)
    metrics["spec"]["factor_prior"]["type"] = "MultiplicativeGamma"
    shown = f"effective dimension {metrics['effective_dimension']:.1f} of 2"
    assert shown in cli._summary(metrics).splitlines()


def test_the_summary_counts_topics(fitted):
    _, metrics = read(fitted)
    lines = cli._summary(metrics).splitlines()
    assert lines[0].startswith("test RMSE ") and "log probability" in lines[0]
    assert lines[1].startswith("topics in use, mean over draws: ")
    metrics["seconds"] = {"start": 1.5, "compile": 2.25, "run": 4, "all": 9}
    line = cli._summary(metrics).splitlines()[-1]
    assert ": 3.8 s to start and compile, 4.0 s of sweeps; this call" in line


@pytest.mark.parametrize(
    "options, words",
    [
        (["--model", "bpmf", "--user-topics", "2"], "--user-topics belongs to"),
        (["--user-topics", "2"], "--model m3f"),
        (["--test-fraction", "0.5"], "--split random"),
        (["--split", "half"], "ROWS.npz:KEY"),
        (["--split", "random", "--test-fraction", "1.5"], "test_fraction"),
        (["--num-samples", "0"], "num_samples"),
        (["--num-warmup", "-1"], "num_warmup"),
        (["--thinning", "0"], "thinning"),
        (["--latent-dim", "0"], "latent_dim"),
        (["--rating-variance", "-1"], "rating_variance"),
        (["--rating-variance", "nan"], "rating_variance"),
        (["--likelihood=ordinal", "--rating-variance=1"], "rating_variance belongs"),
        (["--model=pmf", "--likelihood=ordinal"], "--likelihood belongs to"),
        (["--user-noise-shape", "0"], "user_noise_shape"),
        (["--degrees-of-freedom", "nan"], "degrees_of_freedom"),
        (["--topics=crf", "--degrees-of-freedom=5"], "CRF"),
        (["--model=pmf", "--item-noise-shape=2"], "--item-noise-shape belongs to"),
        (["--max-user-topics", "0"], "max_user_topics"),
        (["--split", "no/such.npz:rows"], "No such file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    ratings_file, tmp_path, capsys, options, words
):
    command = ["fit", str(ratings_file), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*command, *options]) == 2
    assert words in one_line(capsys)


def test_a_gpu_asked_for_in_vain_is_a_mistake(ratings_file, tmp_path, capsys):
    import jax

    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    command = ["fit", str(ratings_file), "--out", str(tmp_path / "out"), "--quiet"]
    assert main([*command, "--device", "gpu", "--model", "pmf"]) == 2
    assert "gpu" in one_line(capsys)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "COMMAND"),
        (["fit"], "FILE"),
        (["fit", "x", "--seed", "one"], "invalid int value"),
        (["fit", "x", "--clip", "5,1"], "low to high"),
        (["fit", "x", "--user-shared-bias-variance", "yes"], "a number or sampled"),
        (["fit", "x", "--clip", "max"], "two numbers"),
        (["fit", "x", "--model", "svd"], "invalid choice"),
        (["fit", "x", "--num", "5"], "--num"),  # no abbreviations
        (["recommend"], "recommend"),
        (["fit", "x", "--likelihod", "ordinal"], "see im3f fit --help"),
    ],
)
def test_what_argparse_refuses_is_one_sentence_too(capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert words in one_line(capsys)


def test_results_are_not_overwritten_by_accident(fitted, ratings_file, capsys):
    before = (fitted / "metrics.json").read_bytes()
    command = ["fit", str(ratings_file), "--out", str(fitted), "--quiet"]
    assert main([*command, *FAST]) == 2
    assert "--overwrite" in one_line(capsys)
    assert (fitted / "metrics.json").read_bytes() == before


def test_overwrite(ratings_file, tmp_path):
    (tmp_path / "metrics.json").write_text("old")
    command = ["fit", str(ratings_file), "--out", str(tmp_path), "--overwrite"]
    assert main([*command, "--model", "pmf", *FAST, "--quiet"]) == 0
    assert read(tmp_path)[1]["model"] == "pmf"


@pytest.mark.parametrize("kind", ["empty", "pickle", "one array", "damaged"])
def test_rows_that_are_no_rows(ratings_file, tmp_path, capsys, kind):
    path = tmp_path / "rows.npz"
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "pickle":
        np.savez(path, key=np.array([{}], dtype=object))
    elif kind == "damaged":
        np.savez(path, key=np.arange(3))
        path.write_bytes(path.read_bytes()[:-9])
    else:
        np.save(tmp_path / "rows.npy", np.arange(3))
        path = tmp_path / "rows.npy"
    command = ["fit", str(ratings_file), "--out", str(tmp_path / "out")]
    assert main([*command, "--split", f"{path}:key", "--quiet"]) == 2
    assert path.name in one_line(capsys)


def test_pairs_without_a_header(fitted, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("000,7\n")
    assert main(["predict", str(fitted), str(pairs)]) == 2
    assert "must name one column user" in one_line(capsys)
    pairs.write_text("")
    assert main(["predict", str(fitted), str(pairs)]) == 2
    assert "pairs.csv" in one_line(capsys)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user,item\n000,7\n001\n", "unknown item: ''"),
        # pandas would take the second column for the user
        ("user,item\n9,000,7\n", "Expected 2 fields in line 2, saw 3"),
        ("user,item\n000,7\n9,000,7\n", "Expected 2 fields in line 3, saw 3"),
        ("user,user,item\n000,001,7\n", "one column user; it names user, user, item"),
        ("user,item,prediction\n000,7,3\n", "a column 'prediction' already"),
    ],
)
def test_pairs_that_are_not_what_they_seem(text, words, fitted, tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(text)
    assert main(["predict", str(fitted), str(pairs)]) == 2
    assert re.search(words, one_line(capsys))


CELLS = st.sampled_from(
    ["000", "001", "7", "17", "", " 7", "x", 'a"b', "a,b", "é", "0"]
)
MESS = st.sampled_from([",", '"', "\n", "\r", "\0", "user", "1,2,3\n", "\ud8ff", " "])
# names of the columns, and the places of user and item among them
HEADERS = [(["user", "item", "note"], 0, 1), (["note", "movieId", "User ID"], 2, 1)]


@pytest.fixture(scope="module")
def loaded(fitted):
    """Load once, for examples without number."""
    return im3f.load(fitted / "model.npz")


@given(
    st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=4),
    st.sampled_from(HEADERS),
    st.lists(st.tuples(st.integers(0, 40), MESS), max_size=2),
)
def test_any_pairs_are_predicted_or_refused(
    loaded, tmp_path_factory, rows, header, mess
):
    names, user, item = header
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    content = text.getvalue()
    for place, piece in mess:
        content = content[:place] + piece + content[place:]
    content = content.encode(errors="surrogatepass")
    folder = tmp_path_factory.getbasetemp()
    pairs, out = folder / "any pairs.csv", folder / "any predictions.csv"
    pairs.write_bytes(content)
    out.unlink(missing_ok=True)
    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), pytest.MonkeyPatch.context() as patch:
        patch.setattr(im3f, "load", lambda path: loaded)
        command = ["predict", "model.npz", str(pairs), "--out", str(out)]
        code = main([*command, "--unknown", "nan"])
    assert pairs.read_bytes() == content
    if code:
        assert code == 2 and mess and not out.exists()
        assert shown.getvalue().startswith("im3f: ")
        assert shown.getvalue().count("\n") == 1
        return
    assert shown.getvalue() == ""
    written = list(csv.reader(io.StringIO(out.read_text(encoding="utf-8"), newline="")))
    assert len(written) > 0 and written[0][-1] == "prediction"
    if mess:
        return
    assert [row[:-1] for row in written] == [names, *rows]
    for row in written[1:]:
        is_known = row[user] in ("000", "001") and row[item] in ("7", "17")
        assert bool(row[-1]) == is_known


def test_a_folder_without_a_model(tmp_path, capsys):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("user,item\n1,1\n")
    assert main(["predict", str(tmp_path), str(pairs)]) == 2
    assert "model.npz" in one_line(capsys)


def test_text_that_could_be_two_ids_is_refused():
    class Index:
        ids = np.array([1, "1", 2.0], dtype=object)
        what = "user"

    got = cli._as_known(pd.Series(["2.0", "x"]), Index)
    assert got.tolist() == [2.0, "x"]
    with pytest.raises(im3f.InputError, match="could be any of 1, '1'"):
        cli._as_known(pd.Series(["1"]), Index)


def test_metrics_are_strict_json():
    value = {"a": np.float32(0.5), "b": float("nan"), "c": (np.arange(2), np.True_)}
    assert cli._plain(value) == {"a": 0.5, "b": None, "c": [[0, 1], True]}


def test_an_interrupt_exits_130(monkeypatch, capsys, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(im3f, "load_ratings", interrupt)
    assert main(["fit", "x", "--out", str(tmp_path / "out")]) == 130
    assert one_line(capsys) == "im3f: interrupted\n"


COMMAND = [sys.executable, "-m", "im3f_jax.cli"]


def test_a_run_that_had_to_stop_exits_1(monkeypatch, capsys, tmp_path):
    def stop(*_, **__):
        raise im3f.SamplingError("user_factors is not finite in sweep 7")

    monkeypatch.setattr(im3f, "load_ratings", stop)
    assert main(["fit", "x", "--out", str(tmp_path / "out")]) == 1
    assert "sweep 7" in one_line(capsys)


def test_a_real_process_shows_no_traceback(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "IM3F_DATA_DIR"}
    out = tmp_path / "out"
    done = subprocess.run(
        [*COMMAND, "fit", "nosuch.csv", "--out", str(out)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("im3f: ") and done.stderr.count("\n") == 1
    assert "nosuch.csv" in done.stderr
    assert not out.exists()

    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"im3f_jax {im3f.__version__}\n")


@pytest.mark.slow
def test_an_interrupted_process_keeps_what_it_sampled(ratings_file, tmp_path):
    out = tmp_path / "out"
    run = ["--num-warmup", "0", "--num-samples", "1000000", "--thinning", "1000"]
    command = [*COMMAND, "fit", str(ratings_file), "--out", str(out), "--model", "bpmf"]
    process = subprocess.Popen([*command, *run], stderr=subprocess.PIPE)
    shown = b""
    while b"var=" not in shown:  # the bar has moved
        shown += process.stderr.read1()
        assert process.poll() is None, shown.decode()
    process.send_signal(signal.SIGINT)
    shown += process.communicate(timeout=60)[1]
    assert process.returncode == 130, shown.decode()
    assert b"Traceback" not in shown
    if (out / "metrics.json").exists():  # something had been kept
        assert read(out)[1]["partial"] is True


def test_a_fit_is_resumed(fitted, ratings_file, tmp_path, monkeypatch, capsys):
    """From another folder, and as if it had not been broken off."""

    class Killed(BaseException):
        pass

    save = Checkpoints.save

    def save_and_die(self, number, sweep, *given):
        save(self, number, sweep, *given)
        if sweep == 4:
            raise Killed

    table = tmp_path / "ratings.csv"
    table.write_bytes(ratings_file.read_bytes())
    command = ["fit", "ratings.csv", "--quiet", *FAST, "--checkpoint-dir", "ck"]
    command += ["--max-user-topics", "8", "--max-item-topics", "8", "--clip", "1,5"]
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(Checkpoints, "save", save_and_die)
        with pytest.raises(Killed):
            main([*command, "--checkpoint-every", "2", "--out", "out"])
        # A mistaken command leaves alone what belongs to the other one.
        patch.setattr(Checkpoints, "save", save)
        assert main([*command, "--seed", "2", "--out", "other"]) == 2
    shown = capsys.readouterr().err
    assert "seed is 2, there 1" in shown or "ratings are others" in shown
    folder = str(tmp_path / "ck")
    assert main(["resume", folder, "--quiet"]) == 0
    frame, metrics = read(tmp_path / "out")
    expected, of_fitted = read(fitted)
    pd.testing.assert_frame_equal(
        frame.drop(columns="prediction"), expected.iloc[:, :3]
    )
    np.testing.assert_array_equal(
        frame["prediction"], expected["prediction"].clip(1, 5)
    )
    assert metrics["clip"] == [1, 5] and metrics["log_score"] == of_fitted["log_score"]
    before, after = (pd.read_csv(f / "trace.csv") for f in (fitted, tmp_path / "out"))
    pd.testing.assert_frame_equal(before, after)

    # More samples go on from there, and what was done is not done again.
    assert main(["resume", folder, "--quiet", "--num-samples", "7"]) == 0
    more = pd.read_csv(tmp_path / "out" / "trace.csv")
    assert len(more) == 3 + 7
    pd.testing.assert_frame_equal(more.head(8), after)

    table.write_text(table.read_text().replace(",4.0", ",5.0"))
    assert main(["resume", folder, "--quiet", "--num-samples", "7"]) == 2
    assert "ratings are others" in one_line(capsys)


def test_split_by_time_holds_out_the_last(tmp_path, capsys):
    table = tmp_path / "timed.csv"
    rows = [(f"u{k % 3}", k, 3.0, 100 - k) for k in range(20)]
    pd.DataFrame(rows, columns=["user", "item", "rating", "timestamp"]).to_csv(
        table, index=False
    )
    ratings = im3f.load_ratings(table)
    command = ["fit", str(table), "--split", "time"]
    options = cli._parser().parse_args([*command, "--test-fraction", "0.25"])
    train, test, told = cli._split(ratings, options)
    assert sorted(test.item_ids) == [0, 1, 2, 3, 4] and len(train) == 15
    assert told == {"kind": "time", "test_fraction": 0.25, "num_test": 5}
    assert cli._split(ratings, cli._parser().parse_args(command))[2]["num_test"] == 2
    pd.DataFrame(rows).iloc[:, :3].to_csv(
        table, index=False, header=["user", "item", "rating"]
    )
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "a column timestamp or time" in one_line(capsys)


@pytest.mark.parametrize("content", [None, "{", "[1]", "{}"])
def test_what_cannot_be_resumed_is_said(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "command.json").write_text(content)
    assert main(["resume", str(tmp_path)]) == 2
    words = "holds no checkpoints of" if content is None else "is damaged"
    assert words in one_line(capsys)


@pytest.mark.slow
def test_demo_shows_a_table():
    lines = []
    rows = run_demo(quick=True, show=lines.append)
    assert [row.name for row in rows] == ["the truth", "BPMF(3)", "BPMF(10)", "iM3F(3)"]
    text = "\n".join(lines)
    assert all(row.name in text for row in rows)
    assert min(row.rmse for row in rows) == rows[0].rmse
    assert max(row.log_density for row in rows) == rows[0].log_density
    assert rows[1].user_topics == 0 and rows[3].user_topics >= 1


def test_a_compilation_cache_is_filled_and_then_left(tmp_path):
    settings = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = [getattr(jax.config, name) for name in settings]
    folder = tmp_path / "new" / "cache"
    bound = jax.config.jax_compilation_cache_max_size
    jax.config.update("jax_compilation_cache_max_size", -1)  # as a user has it
    try:
        with cli._compilation_cache(str(folder)):
            jax.jit(lambda x: 3 * x + 1)(np.float32(2)).block_until_ready()
    finally:
        jax.config.update("jax_compilation_cache_max_size", bound)
    filled = {path.name for path in folder.iterdir()}
    assert any(name.endswith("-cache") for name in filled)
    jax.jit(lambda x: 3 * x + 2)(np.float32(2)).block_until_ready()
    assert {path.name for path in folder.iterdir()} == filled
    assert [getattr(jax.config, name) for name in settings] == before
    with cli._compilation_cache(None):
        assert [getattr(jax.config, name) for name in settings] == before


def test_a_compilation_cache_that_is_a_file_is_said(tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(FileExistsError), cli._compilation_cache(str(path)):
        pass


# matplotlib reads names that its dependencies deprecate.
drawing = pytest.mark.filterwarnings("default::PendingDeprecationWarning")


@drawing
def test_report_writes_a_page(fitted, ratings_file, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    _, metrics = read(fitted)
    out = tmp_path / "page.html"
    command = ["report", str(fitted), "--out", str(out)]
    assert main(command) == 0
    assert capsys.readouterr().err == f"Wrote {out}\n"
    text = out.read_text(encoding="utf-8")
    assert f"{metrics['rmse']:.4f}" in text
    assert "What the fit found: ratings.csv" in text
    assert metrics["command"] in text  # no character of it needs escaping
    assert str(ratings_file.parent) not in text
    assert "BPMF and M3F were not fitted beside it" in text

    assert main(command) == 2
    assert "is there already" in one_line(capsys)
    titles = tmp_path / "titles.csv"
    lines = (f"{item},Film <{item}>" for item in range(7, 257, 10))
    titles.write_text("item,title\n" + "\n".join(lines) + "\n")
    more = ["--ratings", str(ratings_file), "--titles", str(titles), "--quiet"]
    assert main([*command, *more, "--overwrite"]) == 0
    assert capsys.readouterr().err == ""
    text = out.read_text(encoding="utf-8")
    assert "Film &lt;7&gt;" in text or "Film &lt;17&gt;" in text
    assert f"{metrics['data']['num_train']:,}" in text
    assert "training ratings by level" in text.lower()


def test_report_fits_what_it_compares_with(fitted, ratings_file, tmp_path, monkeypatch):
    posterior = im3f.load(fitted / "model.npz")
    fits, written = [], {}

    def fit(self, train, test, **settings):
        fits.append((self, train, test, settings))
        return posterior

    def report(self, path, **given):
        written.update(given)

    monkeypatch.setattr("im3f_jax.api.Model.fit", fit)
    monkeypatch.setattr(im3f.Posterior, "report", report)
    out = str(tmp_path / "page.html")
    command = ["report", str(fitted), "--out", out, "--ratings", str(ratings_file)]
    assert main([*command, "--baselines", "--quiet"]) == 0
    bpmf, m3f = (model for model, *_ in fits)
    assert bpmf == im3f.BPMF(2) and m3f == im3f.M3F(2, 1, 2)
    run = {"num_warmup": 3, "num_samples": 5, "thinning": 1, "seed": 1}
    for _, train, test, settings in fits:
        assert settings == run | {"num_chains": 1, "progress": False}
        frame, metrics = read(fitted)
        assert len(train) == metrics["data"]["num_train"]
        pairs = frame.set_index("user")[["item", "rating"]].itertuples(name=None)
        held = {user: rest for user, *rest in pairs}
        rows = zip(test.user_ids, test.item_ids, test.rating, strict=True)
        assert {user: rest for user, *rest in rows} == held
    assert list(written["baselines"]) == ["BPMF", "M3F(2, 1)"]
    assert written["test"] is fits[0][2] and written["train"] is fits[0][1]


def test_report_of_the_model_alone_and_mistakes(fitted, tmp_path, monkeypatch, capsys):
    written = {}
    monkeypatch.setattr(
        im3f.Posterior, "report", lambda self, path, **given: written.update(given)
    )
    alone = tmp_path / "model.npz"
    alone.write_bytes((fitted / "model.npz").read_bytes())
    assert main(["report", str(alone), "--quiet"]) == 0
    assert written["test"] is None and written["command"] is None
    assert main(["report", str(fitted), "--baselines"]) == 2
    assert "give --ratings" in one_line(capsys)
    other = tmp_path / "ratings.csv"
    frame, metrics = read(fitted)
    frame[["user", "item", "rating"]].to_csv(other, index=False)
    assert main(["report", str(fitted), "--ratings", str(other)]) == 2
    number = f"{metrics['data']['num_train']} and {len(frame)}:"
    said = f"gives 0 training and {len(frame)} test ratings, the fit had {number}"
    assert said in one_line(capsys)
    assert main(["report", str(alone), "--ratings", str(other), "--baselines"]) == 2
    assert "needs test ratings" in one_line(capsys)
    assert main(["report", str(tmp_path / "nothing")]) == 2
    assert "nothing" in one_line(capsys)
    for text in ('{"clip": nu', '{"scored_on": "test"}', "[]"):
        (tmp_path / "metrics.json").write_text(text)
        assert main(["report", str(alone), "--overwrite"]) == 2
        assert "metrics.json is damaged" in one_line(capsys)
    (tmp_path / "metrics.json").write_text((fitted / "metrics.json").read_text())
    for column in ("item", "rating"):
        damaged = frame.drop(columns=column)
        for lines in (damaged, damaged.assign(**{column: "x"})):
            lines.to_csv(tmp_path / "predictions.csv", index=False)
            assert main(["report", str(alone), "--overwrite"]) == 2
            assert "predictions.csv is damaged" in one_line(capsys)


@pytest.mark.parametrize("model", ["pmf", "bpmf"])
def test_baselines_beside_pmf_are_no_fits_of_one_sweep(model, monkeypatch):
    posterior = fits.posterior("BPMF")
    if model == "pmf":  # whose posterior tells of one sweep
        shown = {"num_warmup": 0, "num_samples": 1, "thinning": 1}
        spec = dataclasses.replace(posterior.spec, estimate="map")
        posterior = dataclasses.replace(posterior, spec=spec, **shown)
    asked = []

    def fit(self, train, test=None, **run):
        asked.append(run)

    monkeypatch.setattr(type(im3f.BPMF(2)), "fit", fit)
    cli._baselines(posterior, *fits.data(), quiet=True)
    lengths = {} if model == "pmf" else {**fits.LENGTHS, "num_chains": 1}
    assert asked == 2 * [{"progress": False, "seed": fits.LENGTHS["seed"]} | lengths]


def test_the_recorded_command_names_no_folder():
    words = [
        "fit",
        "/a b/c/u.data",
        "--out=x/y",
        "--split",
        "/d/rows.npz:k",
        "--clip=1,5",
    ]
    found = cli._command(words)
    assert found == "im3f fit u.data --out=y --split rows.npz:k --clip=1,5"
