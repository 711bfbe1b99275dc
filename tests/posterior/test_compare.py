"""Models side by side: differences and tests against numpy and scipy."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import im3f_jax as im3f
from tests import fits

pytestmark = pytest.mark.relaxed  # fits start by optax


def both():
    return {"BPMF": fits.posterior("BPMF"), "M3F": fits.posterior("M3F")}


@pytest.mark.parametrize("clip", [None, "train"])
def test_differences_are_paired(clip):
    _, test = fits.data()
    table = im3f.compare(both(), test, clip=clip)
    assert list(table.index) == ["BPMF", "M3F"]
    errors, scores = {}, {}
    for name, posterior in both().items():
        found = posterior.evaluate(test, clip=clip, pointwise=True)
        predicted = posterior.predict(test.user_ids, test.item_ids, clip=clip)
        errors[name] = predicted - test.rating
        scores[name] = found["log_scores"]
        row = table.loc[name]
        assert row["rmse"] == pytest.approx(np.sqrt(np.mean(errors[name] ** 2)), 1e-6)
        assert row["mae"] == pytest.approx(np.mean(np.abs(errors[name])), rel=1e-6)
        assert row["log_score"] == pytest.approx(np.mean(scores[name]))
        assert found["squared_errors"].shape == scores[name].shape == (len(test),)
    row, first = table.loc["M3F"], table.loc["BPMF"]
    assert row["rmse_difference"] == pytest.approx(row["rmse"] - first["rmse"])
    assert row["mae_difference"] == pytest.approx(row["mae"] - first["mae"])
    for name, a, b in (
        ("log_score", scores["M3F"], scores["BPMF"]),
        ("rmse", errors["M3F"] ** 2, errors["BPMF"] ** 2),
        ("mae", np.abs(errors["M3F"]), np.abs(errors["BPMF"])),
    ):
        expected = stats.ttest_rel(a, b)
        assert row[f"{name}_p"] == pytest.approx(expected.pvalue, rel=1e-3)
        ratio = row[f"{name}_difference"] / row[f"{name}_se"]
        assert ratio == pytest.approx(expected.statistic, rel=1e-4)


def test_the_first_is_compared_with_itself():
    _, test = fits.data()
    row = im3f.compare(both(), test).loc["BPMF"]
    assert row["rmse_difference"] == row["log_score_difference"] == 0
    assert row["mae_se"] == 0 and np.isnan(row["mae_p"])
    alone = im3f.compare({"one": fits.posterior("BPMF")}, test.select(np.arange(1)))
    assert len(alone) == 1


def test_what_does_not_compare_is_refused():
    _, test = fits.data()
    with pytest.raises(im3f.InputError, match="no posteriors"):
        im3f.compare({}, test)
    fitted = both()
    fitted["M3F"] = dataclasses.replace(fitted["M3F"], is_discrete=False)
    with pytest.raises(im3f.InputError, match="different kinds"):
        im3f.compare(fitted, test)
    table = im3f.compare(fitted, test, log_score=False)
    assert "log_score" not in table and table["rmse"].notna().all()
