"""The measurement of how much room topics need."""

import json

import pytest

from bench import machine, room


def test_rooms_double_at_once_and_halve_with_patience():
    needed = [3, 33, 70, 20, 20, 20, 20, 65, 5, 5, 5]
    assert room.rooms(needed, 100) == [32, 64, *9 * [100]]
    # Half of 100 is 50, then 25, which is less than a fit begins with.
    halved = room.rooms(needed, 100, patience=3)
    assert halved == [32, 64, 100, 100, 100, 50, 50, 100, 100, 100, 50]
    assert room.rooms([5] * 9, 16, patience=1) == 9 * [16]


@pytest.mark.thorough
def test_the_command_counts_what_a_chain_needs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(room, "LEAST_ROOM", 2)
    command = ["--data", "30x20x400", "--sweeps", "3", "--latent-dim", "2"]
    command += ["--max-topics", "4", "--rounds", "1", "--patience", "1"]
    assert room.main([*command, "--topics", "stick_breaking"]) == 0
    found = json.loads((tmp_path / "room.json").read_text())["runs"]
    assert [run["topics"] for run in found] == ["stick_breaking"]
    for run in found:
        for side in room.SIDES:
            needed = run[side]["needed"]
            assert len(needed) == 3 and 1 <= min(needed) and max(needed) <= 4
            for policy in ("grown", "shrunk"):
                widths = {int(width) for width in run[side][policy]["sweeps"]}
                assert sum(run[side][policy]["sweeps"].values()) == 3
                assert widths <= {int(width) for width in run["widths"]} <= {2, 4}
        saved = run["saved"]
        assert saved["sweeps_seconds"] > 0 and saved["more_changes"] >= 0
    assert capsys.readouterr().out.count("a sweep") >= 1


def test_each_data_set_has_its_number_of_sweeps(capsys):
    with pytest.raises(SystemExit):
        room.main(["--data", "100k", "--sweeps", "3", "4"])
    assert "a number for each" in capsys.readouterr().err
    assert room.main(["--data", "nothing", "--sweeps", "3"]) == 2
