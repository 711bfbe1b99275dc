"""The setting that the README calls chosen is the one that did best on random90_1."""

import json

from bench import tables


def test_the_setting_called_chosen_is_the_best_of_those_compared():
    path = tables.RESULTS / "settings_time_ml-100k_d10.json"
    result = json.loads(path.read_text())
    assert result["rows"] == "random90_1" and len(result["results"]) > 5
    scores = {name: one["log_probability"] for name, one in result["results"].items()}
    assert max(scores, key=scores.get) == tables.CHOSEN
    errors = {name: one["rmse_clipped"] for name, one in result["results"].items()}
    assert min(errors, key=errors.get) == tables.CHOSEN


def test_settings_are_compared_on_no_rows_that_are_reported():
    for path in tables.RESULTS.glob("settings_*.json"):
        assert json.loads(path.read_text())["rows"] == "random90_1"
