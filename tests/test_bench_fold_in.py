"""The measurement of fold_in, on a tiny size."""

import json

import numpy as np
import pytest

from bench import fold_in, machine
from im3f_jax.errors import InputError


def test_users_are_split_whole():
    user = np.random.default_rng(0).permutation(np.repeat([3, 5, 8, 9], [4, 6, 2, 7]))
    given, asked = fold_in.split_users(user, 2, 3)
    chosen = np.unique(user[given])
    assert len(chosen) == 2 and 8 not in chosen
    np.testing.assert_array_equal(given | asked, np.isin(user, chosen))
    assert not np.any(given & asked)
    assert [np.sum(user[given] == u) for u in chosen] == [3, 3]
    with pytest.raises(InputError, match="3 users have more than 3 ratings, not 4"):
        fold_in.split_users(user, 4, 3)


@pytest.mark.thorough
@pytest.mark.relaxed  # a fit starts by optax
def test_folding_in_is_timed_apart_from_its_compilation(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    size = ["--data", "60x40x1010", "--latent-dim", "2", "--max-topics", "0"]
    lengths = ["--num-warmup", "4", "--kept", "3", "--new-users", "5", "--ratings", "4"]
    assert fold_in.main([*size, *lengths, "--calls", "2"]) == 0
    (run,) = json.loads((tmp_path / "fold_in.json").read_text())["runs"]
    assert run["kept_draws"] == 3 and run["new_ratings"] == 20
    assert len(run["seconds"]) == 2
    assert 0 < run["median"] < run["first_call"]
    assert run["rmse"]["folded"] != run["rmse"]["prior"]
    assert "5 users of 4 ratings into 3 draws" in capsys.readouterr().out
    assert fold_in.main(["--data", "nothing"]) == 2
    too_few = [*size[:2], "--new-users", "61"]
    assert fold_in.main(too_few) == 2
