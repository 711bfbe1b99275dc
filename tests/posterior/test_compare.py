"""Models side by side: differences and tests against numpy and scipy."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import im3f_jax as im3f
from im3f_jax.posterior.compare import calibration_error
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


def test_calibration_is_0_where_frequencies_are_the_probabilities():
    proba = np.repeat([[0.25, 0.75], [0.95, 0.05]], [8, 20], axis=0)
    hit = np.eye(2, dtype=bool)[np.repeat([0, 1, 0, 1], [2, 6, 19, 1])]
    assert calibration_error(proba, hit) == pytest.approx(0, abs=1e-12)
    # Of 28 pairs of a level each, the two of 8 are wrong by a half.
    hit[:8] = ~hit[:8]
    assert calibration_error(proba, hit) == pytest.approx(0.5 * 8 / 28)


def test_the_calibration_error_is_that_of_the_probabilities():
    _, test = fits.data()
    for name, posterior in both().items():
        proba = posterior.predict_proba(test.user_ids, test.item_ids)
        expected = calibration_error(proba, test.rating[:, None] == posterior.levels)
        found = im3f.compare({name: posterior}, test)["calibration_error"]
        assert found.item() == pytest.approx(expected) and 0 < expected < 0.2


def test_the_interval_resamples_users():
    _, test = fits.data()
    table = im3f.compare(both(), test)
    assert (table.loc["BPMF", ["rmse_low", "mae_high", "log_score_low"]] == 0).all()
    row = table.loc["M3F"]
    for name in ("rmse", "mae", "log_score"):
        assert row[f"{name}_low"] < row[f"{name}_difference"] < row[f"{name}_high"]
    # Against scipy, over users' sums.
    mine, other = (
        posterior.evaluate(test, pointwise=True)["squared_errors"]
        for posterior in (both()["M3F"], both()["BPMF"])
    )
    _, code = np.unique(test.user, return_inverse=True)
    users = np.bincount(code), np.bincount(code, mine), np.bincount(code, other)

    def difference(count, mine, other, axis):
        count = count.sum(axis)
        return np.sqrt(mine.sum(axis) / count) - np.sqrt(other.sum(axis) / count)

    found = stats.bootstrap(
        users, difference, paired=True, method="percentile", n_resamples=4_000, rng=1
    ).confidence_interval
    length = found.high - found.low
    assert row["rmse_low"] == pytest.approx(found.low, abs=0.1 * length)
    assert row["rmse_high"] == pytest.approx(found.high, abs=0.1 * length)
    # Ratings of one user alone cannot tell: every sample is the same.
    alone = test.select(test.user == test.user[0])
    row = im3f.compare(both(), alone).loc["M3F"]
    assert row["rmse_low"] == row["rmse_high"] == pytest.approx(row["rmse_difference"])
    again = im3f.compare(both(), test, seed=1)
    assert (again["rmse"] == table["rmse"]).all()
    assert again.loc["M3F", "rmse_low"] != table.loc["M3F", "rmse_low"]


@pytest.mark.thorough
def test_cross_validation_holds_out_each_row_once():
    train, test = fits.data()
    models = {name: fits.MODELS[name] for name in ("BPMF", "M3F")}
    splits = list(im3f.k_fold(train, 2, seed=1))
    settings = {"num_warmup": 3, "num_samples": 4, "progress": False}
    table = im3f.cross_validate(models, iter(splits), seed=2, **settings)
    assert list(table.index) == [(m, f) for m in models for f in (0, 1, "all")]
    errors, scores = {}, {}
    for fold, (part, held) in enumerate(splits):
        fitted = {
            name: fits.fit(model, part, held, seed=2, thinning=1, **settings)
            for name, model in models.items()
        }
        expected = im3f.compare(fitted, held, seed=2)
        found = table.xs(fold, level="fold")
        for name in expected:
            assert found[name].to_numpy() == pytest.approx(
                expected[name].to_numpy(), nan_ok=True
            )
        for name, posterior in fitted.items():
            more = posterior.evaluate(held, pointwise=True)
            errors.setdefault(name, []).append(more["squared_errors"])
            scores.setdefault(name, []).append(more["log_scores"])
    errors = {name: np.concatenate(parts) for name, parts in errors.items()}
    assert len(errors["M3F"]) == len(train)
    row = table.loc["M3F", "all"]
    assert row["rmse"] == pytest.approx(np.sqrt(errors["M3F"].mean()))
    expected = stats.ttest_rel(*map(np.concatenate, (scores["M3F"], scores["BPMF"])))
    assert row["log_score_p"] == pytest.approx(expected.pvalue, rel=1e-3)
    calibration = table["calibration_error"]
    assert calibration.loc["M3F", "all"] <= calibration.loc["M3F"][[0, 1]].max()
    assert row["seconds"] == pytest.approx(table["seconds"].loc["M3F"][[0, 1]].sum())


def test_cross_validation_of_nothing_is_refused():
    train, test = fits.data()
    with pytest.raises(im3f.InputError, match="no models"):
        im3f.cross_validate({}, [(train, test)])
    with pytest.raises(im3f.InputError, match="no splits"):
        im3f.cross_validate(fits.MODELS, [])
    with pytest.raises(TypeError, match="num_sample"):
        im3f.cross_validate(fits.MODELS, [(train, test)], num_sample=3)
