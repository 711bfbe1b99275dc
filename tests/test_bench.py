"""The helpers of the benchmarks: what a file of results holds, and the rows."""

import json
import math
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from bench import accuracy, machine, peers, rows
from im3f_jax.errors import InputError


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Let files of results go to a folder of the test."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def strings(value):
    """Yield every string in nested dicts and lists, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings([*value.keys(), *value.values()])
    elif isinstance(value, list):
        for element in value:
            yield from strings(element)


def test_a_result_says_when_on_what_and_with_which_versions(results):
    payload = {"speed": np.float32(0.5), "rounds": np.arange(3), "device": None}
    path = machine.write_result("try-1", payload)
    assert path == results / "try-1.json"
    record = json.loads(path.read_text())
    assert datetime.fromisoformat(record["date"]).tzinfo is not None
    assert {"python", "jax", "jaxlib", "numpy"} <= set(record["versions"])
    assert record["machine"]["cpu"] and record["machine"]["cores"] >= 1
    assert isinstance(record["machine"]["gpus"], list)
    assert "commit" in record
    assert (record["speed"], record["rounds"]) == (0.5, [0, 1, 2])


def test_a_result_tells_no_path_and_no_name_of_the_machine(results):
    import platform

    text = list(strings(json.loads(machine.write_result("try", {}).read_text())))
    for place in (Path.home(), Path.cwd(), Path(machine.__file__).parent):
        assert not any(str(place) in string for string in text)
    assert platform.node() not in text


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_a_name_that_leaves_the_folder_is_refused(results, name):
    with pytest.raises(ValueError, match="plain name"):
        machine.write_result(name, {})


def test_a_result_that_is_not_finite_is_refused(results):
    with pytest.raises(ValueError):
        machine.write_result("try", {"speed": math.nan})
    assert not (results / "try.json").exists()


def test_peak_memory_sees_what_was_taken():
    before = machine.peak_memory(reset=True)
    taken = np.ones(20_000_000)  # 160 MB
    assert machine.peak_memory() - before > 100
    assert taken[0] == 1


def test_seconds_a_sweep_leaves_out_the_first_sweeps():
    # single sweeps: 5 slow ones, then 1, 2, 3 seconds
    ends = np.cumsum([0, 9, 9, 9, 9, 9, 1, 2, 3]).tolist()
    marks = [(n, ends[n - 1], ends[n]) for n in range(1, 9)]
    assert peers.seconds_a_sweep(marks) == 2
    # chunks: one sweep with the compilation, then a short one and a long one
    chunks = [(1, 0.0, 60.0), (3, 60.0, 61.0), (30, 61.0, 63.7)]
    assert peers.seconds_a_sweep(chunks, skipped=1) == pytest.approx(0.1)
    assert peers.seconds_a_sweep(chunks[:1]) is None


def test_paired_difference_is_that_of_the_errors():
    rating = np.tile([1.0, 2.0, 4.0, 5.0], 50)
    noise = np.random.default_rng(0).normal(size=(2, 200))
    ours, theirs = rating + 0.5 * noise[0], rating + noise[1]
    difference, error = peers.paired_difference(ours, theirs, rating)
    expected = peers.rmse(ours, rating) - peers.rmse(theirs, rating)
    assert difference == pytest.approx(expected)
    assert 0.01 < error < 0.1
    assert peers.paired_difference(ours, ours, rating) == (0, 0)


def test_a_peer_that_is_missing_is_said_and_the_run_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(peers, "find_spec", lambda package: None)
    monkeypatch.setattr(peers, "load_rows", lambda data, row_set: None)
    assert peers.main(["--models", "--peers", "smurff", "--data", "ml-100k"]) == 0
    assert "smurff is left out: install it with" in capsys.readouterr().out


def test_ours_is_held_against_each_peer_and_a_failure_stops_nobody(
    results, monkeypatch, capsys
):
    rating = np.tile([1.0, 2.0, 4.0, 5.0], 50)
    speeds = {"bpmf": iter([0.2, 0.1, 0.4]), "smurff": iter([0.4, 0.4, 0.4])}

    def fake(pool, system, data, rows, latent_dim, sweeps, burn_in, seed):
        if system == "myfm":
            raise RuntimeError("something in a folder of this machine")
        return {
            "prediction": rating + (0.5 if system == "bpmf" else -1.0),
            "rating": rating,
            "scale": (1.0, 5.0),
            "seconds_a_sweep": next(speeds[system]),
            "total_seconds": 1.0 * sweeps,
            "memory_over_data_mb": 7,
        }

    monkeypatch.setattr(peers, "in_process", fake)
    monkeypatch.setattr(peers, "load_rows", lambda data, row_set: None)
    monkeypatch.setattr(peers, "find_spec", lambda package: True)
    arguments = "--models bpmf --peers smurff myfm --json-name try".split()
    assert peers.main(arguments) == 1

    shown = capsys.readouterr().out
    assert "myfm failed: RuntimeError: something in a folder" in shown
    record = json.loads((results / "try.json").read_text())
    ours, theirs = record["results"]
    assert ours["seconds_a_sweep"] == 0.2  # the median of its rounds
    assert ours["total_seconds"] == 100  # of the long round
    assert ours["rmse_unclipped"] == pytest.approx(0.5)
    assert theirs["rmse_clipped"] == pytest.approx(np.sqrt(0.75))  # a 1 stays a 1
    (pair,) = record["comparisons"]
    assert pair["seconds_a_sweep_ratio"] == 0.5
    gap = ours["rmse_clipped"] - theirs["rmse_clipped"]
    assert pair["rmse_difference"] == pytest.approx(gap)
    assert [row["error"] for row in record["failed"]] == ["RuntimeError"]


def test_paired_differences_by_hand():
    rng = np.random.default_rng(0)
    mine, theirs = rng.uniform(0.5, 1.5, size=(2, 400)) ** 2
    found = accuracy.paired(
        {"rmse": mine, "log_score": -mine}, {"rmse": theirs, "log_score": None}
    )
    gap = np.sqrt(mine.mean()) - np.sqrt(theirs.mean())
    assert found["rmse_difference"] == pytest.approx(gap)
    assert found.keys() == {"rmse_difference", "rmse_se", "rmse_p"}
    again = accuracy.paired(
        {"rmse": mine, "log_score": -mine},
        {"rmse": mine + 0.1 * theirs, "log_score": -theirs},
    )
    assert again["rmse_p"] < 1e-10
    assert again["log_score_difference"] == pytest.approx((theirs - mine).mean())


def test_level_probabilities_of_a_gaussian():
    levels = np.array([1.0, 2.0, 4.0])
    found = peers.level_probabilities(np.array([1.5, 9.0]), 4.0, levels)
    np.testing.assert_allclose(found.sum(1), 1)
    assert found[0, 0] == pytest.approx(0.5)  # half below the midpoint 1.5
    assert found[1, 2] == pytest.approx(1)


def test_a_missing_folder_is_a_clear_sentence(monkeypatch):
    monkeypatch.delenv("IM3F_DATA_DIR", raising=False)
    with pytest.raises(InputError, match="set IM3F_DATA_DIR"):
        rows.load_rows("ml-100k", "random90_0")


@pytest.mark.parametrize(
    "data, row_set, num_train, num_test, num_cold",
    [
        ("ml-100k", "random90_0", 90_000, 10_000, 14),
        ("ml-100k", "loo_0", 99_057, 943, None),
        ("ml-1m", "random90_0", 900_189, 100_020, 10),
    ],
)
def test_rows_have_the_known_counts(
    data_dir, data, row_set, num_train, num_test, num_cold
):
    if not (data_dir / data).is_dir():
        pytest.skip(f"IM3F_DATA_DIR has no {data}")
    split = rows.load_rows(data, row_set)
    assert (len(split.train), len(split.test)) == (num_train, num_test)
    assert split.train.num_users == split.test.num_users
    if num_cold is not None:
        assert split.num_cold == num_cold


def test_rows_of_data_without_row_sets_follow_the_seed(data_dir):
    if not (data_dir / "ml-latest-small").is_dir():
        pytest.skip("IM3F_DATA_DIR has no ml-latest-small")
    first, again, other = (
        rows.load_rows("ml-latest-small", name)
        for name in ("random90_0", "random90_0", "random90_1")
    )
    assert len(first.test) == 10_084
    np.testing.assert_array_equal(first.test.user, again.test.user)
    assert not np.array_equal(first.test.user, other.test.user)
    assert first.train.timestamp is not None
    left_out = rows.load_rows("ml-latest-small", "loo_0").test
    assert len(left_out) == len(np.unique(left_out.user)) == 610
    with pytest.raises(InputError, match="random90_SEED"):
        rows.load_rows("ml-latest-small", "published")


def test_rows_of_other_sources(data_dir):
    if (data_dir / "ml-1m").is_dir():
        split = rows.load_rows("ml-1m", "published")
        assert (len(split.train), len(split.test)) == (900_000, 100_209)
    if (data_dir / "dblp").is_dir():
        split = rows.load_rows("dblp-ml-dm", "random90_0")
        assert split.train.rating.max() == rows.MOST_PAPERS
        assert len(split.train) + len(split.test) == 164_914


def test_an_unknown_data_set_or_row_set_is_named(data_dir):
    with pytest.raises(InputError, match="no data set 'ml-9'"):
        rows.load_rows("ml-9", "random90_0")
    if (data_dir / "ml-100k").is_dir():
        with pytest.raises(InputError, match="no row set 'random'"):
            rows.load_rows("ml-100k", "random")
