"""The race of the strategies of indexed sums."""

import json

import numpy as np
import pytest

from bench import machine, reductions, timing


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Let files of results go to a folder of the test."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_cells_fall_as_they_should():
    row, column = reductions.draw_cells(20_000, (50, 4), 1.0, True)
    assert row.dtype == column.dtype == np.int32
    assert np.all(np.diff(row) >= 0) and row.max() < 50 and column.max() < 4
    counts = np.sort(np.bincount(row, minlength=50))[::-1]
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.3)  # Zipf's law
    row, _ = reductions.draw_cells(20_000, (50, 4), 0.0, False)
    assert np.any(np.diff(row) < 0)
    assert np.bincount(row).max() < 1.3 * 400


def test_a_slow_function_is_called_once(monkeypatch):
    def seconds(function, arguments):
        function(*arguments)
        return 50.0 if function is slow else 1.0

    def fast():
        calls.append("fast")

    def slow():
        calls.append("slow")

    class Jitted:
        def __init__(self, function):
            self.function = function

        def lower(self, *arguments):
            return self

        def compile(self):
            return self.function

    calls = []
    monkeypatch.setattr(timing, "_seconds", seconds)
    monkeypatch.setattr(timing.jax, "jit", Jitted)
    found = timing.race({"fast": fast, "slow": slow}, (), 3, slow=20)
    assert calls == ["fast", "slow", "fast", "fast", "fast"]
    assert found["fast"]["number"] == 3
    assert (found["slow"]["median"], found["slow"]["number"]) == (50.0, 1)


def test_the_command_writes_who_won(results, monkeypatch, capsys):
    monkeypatch.setattr(reductions, "SIZES", {"tiny": (2_000, 30)})
    command = "--data tiny --columns 4 --rounds 1 --device cpu --json-name try"
    assert reductions.main(command.split()) == 0
    rows = json.loads((results / "try.json").read_text())["results"]
    # Two sums by cell for each kind of rows, by row and by bin for one.
    assert len(rows) == 2 * len(reductions.ROWS) + 2
    for row in rows:
        best = row["strategies"][row["winner"]]["least"]
        assert best == min(s["least"] for s in row["strategies"].values())
    count = rows[0]
    assert count["sum"] == "count_by_cell" and count["shape"] == [2_000, 30, 4]
    seconds = count["strategies"]["scatter"]
    moved = 9 * 2_000 + 4 * 30 * 4
    assert seconds["gigabytes_per_second"] == pytest.approx(
        moved / seconds["least"] / 1e9
    )
    assert "count_by_cell" in capsys.readouterr().out


def test_a_device_that_is_not_there_is_said(results, capsys):
    import jax

    if jax.default_backend() == "gpu":
        pytest.skip("there is a GPU")
    assert reductions.main(["--device", "gpu", "--quick"]) == 2
    assert "was asked for" in capsys.readouterr().err
