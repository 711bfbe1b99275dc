"""Settings that the README calls chosen are those that did best on random90_1."""

import json
from collections import defaultdict

import numpy as np

from bench import tables


def test_the_settings_called_chosen_are_the_best_of_their_kind():
    errors = defaultdict(list)
    for path in tables.RESULTS.glob("settings_*.json"):
        result = json.loads(path.read_text())
        assert result["rows"] == "random90_1"
        for name, found in result["results"].items():
            errors[name].append(found["rmse_clipped"])
    # Those that were run from several seeds; one run differs from the next by 0.002.
    repeated = {name: np.mean(e) for name, e in errors.items() if len(e) > 2}
    for kind in ("M3F", "IM3F"):
        names = [name for name in repeated if name.startswith(kind)]
        best = min(names, key=repeated.get)
        assert "chosen" in tables.NAMES[best]
    assert sum("chosen" in name for name in tables.NAMES.values()) == 2
