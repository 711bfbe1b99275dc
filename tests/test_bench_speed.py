"""The measurements of speed and memory, on tiny sizes or stand-ins of them."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bench import first_sweep, machine, memory, synthetic, throughput
from im3f_jax.errors import InputError

pytestmark = pytest.mark.relaxed  # fits start by optax

TINY = "60x40x1010"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Let files of results go to a folder of the test."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def read(path):
    return json.loads(path.read_text())


def stand_in(seconds, name="try", number=1000, platform="cpu", dim=2, topics=0):
    """Give what `measure` would."""
    return {
        "data": name,
        "num_ratings": number,
        "num_users": 10,
        "num_items": 5,
        "latent_dim": dim,
        "truncation": topics,
        "device": f"{platform} (of the test)",
        "platform": platform,
        "compile": 1.0,
        "sweep": {"median": seconds, "least": seconds, "largest": seconds, "number": 3},
        "ratings_per_second": number / seconds,
    }


# --- data ----------


def test_quick_rows_fill_every_row_and_follow_the_seed():
    user, item, rating = synthetic.draw_rows(300, 70, 5000)
    assert (user.dtype, item.dtype, rating.dtype) == (np.int32, np.int32, np.float32)
    assert set(np.unique(rating)) == {1, 2, 3, 4, 5}
    for rows, number in ((user, 300), (item, 70)):
        counts = np.bincount(rows, minlength=number)
        assert len(counts) == number and counts.min() >= 1
        assert counts.max() > 3 * np.median(counts)  # some are far more active
    again, other = (synthetic.draw_rows(300, 70, 5000, seed) for seed in (0, 1))
    np.testing.assert_array_equal(item, again[1])
    assert not np.array_equal(item, other[1])
    with pytest.raises(InputError, match="too few"):
        synthetic.draw_rows(300, 70, 299)


@pytest.mark.parametrize("name", ["2m", "10x20", "10x20x", "0x5x5", "axbxc"])
def test_a_size_that_is_none_is_said(name, capsys):
    with pytest.raises(InputError, match="USERSxITEMSxRATINGS"):
        synthetic.parse_size(name)
    assert throughput.main(["--data", "1m", name]) == 2  # before anything is drawn
    assert memory.main(["--estimate", name]) == 2
    assert first_sweep.main(["--data", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_rows_without_a_rating_are_left_out():
    columns = throughput.load(TINY)
    assert len(columns.rating) == 1010
    for row, number in ((columns.user, columns.num_users), (columns.item, 40)):
        assert row.dtype == np.int32
        np.testing.assert_array_equal(np.unique(row), np.arange(number))


# --- the comparison ----------


def test_one_setting_is_measured():
    found = throughput.measure(throughput.load(TINY), 2, 0, "cpu", 3)
    assert found["sweep"]["number"] == 3
    assert 0 < found["sweep"]["least"] <= found["sweep"]["median"]
    assert found["compile"] > 0 and "blocks" not in found
    assert found["platform"] == "cpu" and "cpu" in throughput.there()


def test_what_a_device_cannot_hold_is_no_reason_to_start(monkeypatch):
    monkeypatch.setattr(throughput, "device_memory", lambda device: 1000)
    with pytest.raises(MemoryError, match="more than the 1 kB of cpu"):
        throughput.measure(throughput.load(TINY), 2, 0, "cpu", 3)


def test_the_crossover_is_the_size_from_which_on_the_gpu_wins():
    def at(topics, *ratios):
        return [
            stand_in(seconds, name, number, platform, topics=topics)
            for (name, number), ratio in zip(
                (("c", 30), ("a", 10), ("b", 20)), ratios, strict=True
            )
            for platform, seconds in (("cpu", ratio), ("gpu", 1.0))
        ]

    # In the order c, a, b; of which a is the smallest and c the largest.
    found = throughput.crossovers(
        [*at(0, 3.0, 0.5, 2.0), *at(1, 3.0, 2.0, 0.5), *at(2, 0.9, 2.0, 2.0)]
        + [*at(3, 2.0, 2.0, 2.0), stand_in(1.0, "a", 10, topics=4)]
    )
    assert [entry["from"] for entry in found] == ["b", "c", None, "a"]
    assert list(found[0]["cpu_over_gpu"].items()) == [("a", 0.5), ("b", 2), ("c", 3)]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("host"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory on the card"),
    ],
    ids=["host", "device"],
)
def test_a_size_that_does_not_fit_is_said_and_the_others_go_on(
    results, monkeypatch, capsys, error
):
    def fake(columns, latent_dim, truncation, device, *more):
        number = len(columns.rating)
        if device == "gpu" and number == 2000:
            raise error
        slow = 1e-6 * number if device == "cpu" else 1e-3
        return stand_in(slow, columns.name, number, device, latent_dim, truncation)

    monkeypatch.setattr(throughput, "measure", fake)
    names = ["60x40x500", "60x40x2000", "80x60x3000"]
    command = ["--data", *names, "--device", "cpu", "gpu", "--latent-dim", "2", "3"]
    assert throughput.main([*command, "--max-topics", "0", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("left out, out of memory") == 4
    assert "D=3, K=4: the GPU is the faster from 80x60x3000 on" in shown
    record = read(results / "throughput_sizes.json")
    assert len(record["results"]) == 20 and len(record["failed"]) == 4
    assert record["failed"][0]["error"] == "out of memory"
    assert {entry["from"] for entry in record["crossovers"]} == {"80x60x3000"}
    pytest.importorskip("matplotlib")
    assert (results / "throughput_sizes.png").stat().st_size > 10_000


def test_other_errors_stop_the_comparison(results, monkeypatch):
    def broken(*arguments):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(throughput, "measure", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        throughput.main(["--data", TINY, "--device", "cpu"])


def test_the_short_form_and_a_single_device(results, monkeypatch, capsys):
    asked = []

    def fake(columns, latent_dim, truncation, device, sweeps, *more):
        asked.append((latent_dim, truncation, device, sweeps))
        return stand_in(0.5, columns.name, 1000, device, latent_dim, truncation)

    monkeypatch.setattr(throughput, "measure", fake)
    monkeypatch.setattr(throughput, "there", lambda: ["cpu"])
    assert throughput.main(["--quick", "--data", TINY]) == 0
    assert asked == [(40, 0, "cpu", 5), (40, 128, "cpu", 5)]
    assert "only cpu measured: no crossover" in capsys.readouterr().out
    assert read(results / "throughput_quick.json")["crossovers"] == []
    assert throughput.parse(["--quick"]).data == ["1m"]


# --- growth and chains ----------


def test_growth_is_the_line_through_the_sizes(results, monkeypatch):
    def fake(columns, latent_dim, truncation, device, *more):
        number = len(columns.rating)
        assert columns.num_users == number // 100
        seconds = 0.01 + 2e-6 * number
        return stand_in(seconds, columns.name, number, device, latent_dim, truncation)

    monkeypatch.setattr(throughput, "measure", fake)
    monkeypatch.setattr(throughput, "GROWTH", (1000, 10_000, 100_000))
    assert throughput.main(["--growth", "--device", "cpu"]) == 0
    (found,) = read(results / "growth.json")["growth"]
    assert (found["latent_dim"], found["truncation"]) == (10, 32)
    assert found["slope_ns"] == pytest.approx(2000)
    assert found["intercept_ms"] == pytest.approx(10)
    assert found["ratio"] == pytest.approx(2.1 / 3.0)
    assert [size["num_ratings"] for size in found["sizes"]] == [1000, 10_000, 100_000]


def test_chains_are_counted_in_the_throughput(results, monkeypatch):
    asked = []

    class Fake:
        def __init__(self, dim):
            assert dim == 2

        def fit(self, train, *, num_chains, chain_method, num_samples, **more):
            assert (more["store"], more["track_train"]) == ("summary", False)
            assert len(train) == 1010
            asked.append((chain_method, num_chains))
            at_once = chain_method != "sequential"
            run = num_samples * (1 if at_once else num_chains)
            seconds = {"start": 0.0, "compile": 7.0 / num_samples, "run": float(run)}
            return SimpleNamespace(seconds=seconds, device="cpu (of the test)")

    monkeypatch.setattr(throughput.im3f, "BPMF", Fake)
    command = ["--chains", "--data", TINY, "--device", "cpu", "--num-chains", "1", "4"]
    assert throughput.main([*command, "--latent-dim", "2", "--max-topics", "0"]) == 0
    found = read(results / "chains.json")["chains"]
    each = [(m, n) for m in throughput.CHAIN_METHODS for n in (1, 4)]
    assert asked == [one for one in each for _ in range(2)]  # the first compiles
    assert {one["compile"] for one in found} == {7.0}
    assert [one["sweeps_a_second"] for one in found] == [1, 1, 1, 4, 1, 4]
    assert throughput.parse(["--chains"]).num_chains == (1, 2, 4, 8)


# --- memory and the first sweep ----------


def test_an_estimate_draws_nothing(monkeypatch, capsys):
    monkeypatch.setattr(memory, "draw_rows", None)
    monkeypatch.setattr(memory, "lay_out", None)
    size = "480000x17770x100000000"
    assert memory.main(["--estimate", size, "--device", "gpu"]) == 0
    shown = capsys.readouterr().out
    assert "rating work" in shown and "at the start: 19.2 GB" in shown
    assert shown.count("GB, fits in 80 GB") == 2
    assert memory.main(["--estimate", size, "--memory-gb", "10"]) == 0
    assert "does NOT fit in 10 GB" in capsys.readouterr().out
    at_once = memory.estimate(size, 32, 64, "gpu", 4)["start"]["total"]
    assert at_once > 3 * memory.estimate(size, 32, 64, "gpu")["start"]["total"]


def test_a_run_tells_the_peak_of_each_stage(results):
    command = ["--run", TINY, "--latent-dim", "2", "--max-topics", "0", "--sweeps", "2"]
    assert memory.main(command) == 0
    record = read(results / f"memory_{TINY}.json")
    stages = ["imports", "columns drawn", "Ratings.from_arrays", "layout"]
    stages += ["start, first sweep", "sweeps", "result"]
    assert list(record["peaks_mb"]) == list(record["seconds"]) == stages
    assert record["peak_mb"] == max(record["peaks_mb"].values()) > 50
    assert 0 < record["estimate_mb"]["total"] < 100


def test_the_first_sweep_is_timed():
    found = first_sweep.time_fit(TINY, 2, 0, "cpu")
    assert found["first_sweep"] >= found["start"] + found["compile"] > 0


def test_cold_and_warm_are_processes_of_their_own(results, monkeypatch, capsys):
    seen = []

    def fake(arguments, cache):
        seen.append((arguments, cache))
        seconds = {"first_sweep": 3.0, "start": 1.0, "compile": 1.0, "cpu": 3.0}
        return seconds | {"device": "cpu (of the test)"}

    monkeypatch.setattr(first_sweep, "_in_process", fake)
    assert first_sweep.main(["--data", TINY, "--max-topics", "0"]) == 0
    caches = [cache for _, cache in seen]
    assert caches[0] is None and caches[1] == caches[2] is not None
    assert seen[0][0][:4] == ["--data", TINY, "--latent-dim", "40"]
    record = read(results / "first_sweep.json")
    assert list(record["runs"]) == ["no cache", "cold cache", "warm cache"]
    assert caches[1] not in (results / "first_sweep.json").read_text()
