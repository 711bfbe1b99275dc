"""Models that depend on time, fitted: by Python, by the command line, and in vain."""

import dataclasses
import inspect
import json
from functools import cache

import jax
import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax import BPMF, IM3F, M3F, Gamma, InputError, InverseGamma
from im3f_jax.cli import main
from im3f_jax.gibbs.init import init_state
from im3f_jax.inference.memory import estimate_draw_bytes
from im3f_jax.model.spec import resolve, validate
from tests import fits, tiny

pytestmark = pytest.mark.relaxed

MODEL = BPMF(2, item_time_bins=3, user_drift_variance=None)


@cache
def data():
    """The ratings of `fits`, each with a time."""
    rng = np.random.default_rng(8)
    return tuple(
        dataclasses.replace(part, timestamp=rng.integers(10**9, size=len(part)))
        for part in fits.data()
    )


@cache
def posterior(num_chains=1):
    """Fit without a MAP start, one compilation less; several chains run at once."""
    method = "sequential" if num_chains == 1 else "vectorized"
    run = {"num_chains": num_chains, "chain_method": method, "init": "prior"}
    return fits.fit(MODEL, *data(), **run)


@pytest.mark.thorough
@pytest.mark.parametrize("num_chains", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_running_error_is_that_of_the_predictions_at_their_times(num_chains):
    (train, test), found = data(), posterior(num_chains)
    assert found.draws.user_drift.shape[:2] == (num_chains, found.num_kept)
    for part, predictions in (
        (train, found.train_predictions),
        (test, found.test_predictions),
    ):
        again = found.predict(part.user_ids, part.item_ids, times=part.timestamp)
        np.testing.assert_allclose(again, predictions, rtol=1e-5)
        without = found.predict(part.user_ids, part.item_ids)
        assert np.max(np.abs(without - predictions)) > 1e-3
    per_draw = found.predict(
        test.user_ids, test.item_ids, times=test.timestamp, per_draw=True
    )
    rmse = np.sqrt(np.mean((per_draw.mean(axis=1) - test.rating) ** 2, axis=-1))
    np.testing.assert_allclose(found.trace["test_rmse"][:, 17], rmse, rtol=1e-5)
    assert found.evaluate(test)["rmse"] == pytest.approx(
        np.sqrt(np.mean((found.test_predictions - test.rating) ** 2))
    )
    assert found.evaluate(test)["num_cold"] > 0


def test_traces_sizes_and_effects():
    found = posterior()
    for name in ("item_time_variance", "user_drift_variance"):
        assert np.all(found.trace[name] > 0) and np.ptp(found.trace[name]) > 0
    each = estimate_draw_bytes(found.spec, 59, 39)
    assert fits.held(found) == each * found.num_kept
    # A new one has nothing of its own.
    assert not np.any(found.draws.item_time[:, :, -1])
    assert not np.any(found.draws.user_drift[:, :, -1])
    drift, bias = found.user_drift, found.item_time_bias
    assert np.flatnonzero(drift.isna()).tolist() == [fits.COLD_USER]
    assert np.flatnonzero(bias.isna().all(axis=1)).tolist() == [fits.COLD_ITEM]
    assert bias.shape == (40, 3) and len(found.time_scale.edges) == 2


def test_a_saved_fit_scores_the_same(tmp_path):
    posterior().save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    fits.same(posterior(), loaded)
    first, second = (one.evaluate(data()[1]) for one in (posterior(), loaded))
    kind = first.pop("log_score_kind"), second.pop("log_score_kind")
    assert kind[0] == kind[1] and second == pytest.approx(first, rel=1e-5)


def test_off_the_state_holds_nothing_of_it():
    spec, layout = tiny.make_spec(), tiny.make_data(np.float32)
    state = jax.eval_shape(init_state, jax.random.key(0), spec, layout)
    assert jax.tree.leaves(state.time) == []


@pytest.mark.slow
def test_off_timestamps_change_no_bit():
    found = fits.fit(fits.MODELS["BPMF"], *data())
    fits.same(found, fits.posterior("BPMF"))
    assert found.time_scale is None and found.draws.item_time is None
    for name in ("item_time_variance", "user_drift_variance"):
        assert not np.any(found.trace[name])


# --- refused --------------------------------------------------------------------------

REFUSED = [
    ("item_time_bins", {"item_time_bins": -1}),
    ("item_time_bins", {"item_time_bins": 2.5}),
    ("item_time_bins", {"item_time_bins": True}),
    ("item_time_bins", {"item_time_bins": "10"}),
    ("give item_time_bins too", {"item_time_variance": 0.1}),
    ("item_time_variance", {"item_time_bins": 4, "item_time_variance": 0.0}),
    ("item_time_variance", {"item_time_bins": 4, "item_time_variance": Gamma(1, 1)}),
    ("user_drift_variance", {"user_drift_variance": -0.1}),
    ("user_drift_variance", {"user_drift_variance": False}),
    ("user_drift_variance", {"user_drift_variance": InverseGamma(0.5, 1)}),
]


@pytest.mark.parametrize("preset", [BPMF, M3F, IM3F])
@pytest.mark.parametrize("named, settings", REFUSED)
def test_a_setting_without_meaning_is_refused(preset, named, settings):
    with pytest.raises(InputError, match=named) as refused:
        preset(**settings)
    assert "\n" not in str(refused.value)


def test_components_that_do_not_fit_are_refused():
    for change, message in (
        ({"item_time": im3f.TimeDrift()}, "must be a NoTime or a TimeBins"),
        ({"user_time": im3f.TimeBins()}, "must be a NoTime or a TimeDrift"),
        ({"user_time": im3f.TimeDrift(), "estimate": "map"}, "use BPMF"),
    ):
        with pytest.raises(InputError, match=message):
            validate(dataclasses.replace(im3f.PMF(2), **{"estimate": "map"} | change))


def test_defaults_are_resolved():
    spec = resolve(MODEL, 3.0, 2.0, 1.0)
    assert spec.item_time == im3f.TimeBins(InverseGamma(3.0, 0.2), 3)
    assert spec.user_time == im3f.TimeDrift(InverseGamma(3.0, 0.2))
    fixed = BPMF(2, item_time_bins=2, item_time_variance=0.3, user_drift_variance=0.4)
    spec = resolve(fixed, 3.0, 2.0, 1.0)
    assert (spec.item_time.variance, spec.user_time.variance) == (0.3, 0.4)
    assert resolve(BPMF(2), 3.0, 2.0, 1.0).item_time == im3f.NoTime()


def test_ratings_without_timestamps_are_refused_in_one_sentence():
    (train, test), (bare, bare_test) = data(), fits.data()
    for given, which in (((bare, test), "training"), ((train, bare_test), "test")):
        with pytest.raises(InputError, match=f"the {which} ratings have no timestamps"):
            fits.fit(MODEL, *given)
    with pytest.raises(InputError, match="the test ratings have no timestamps"):
        posterior().evaluate(bare_test)
    with pytest.raises(InputError, match="no timestamps"):
        im3f.sample_prior(jax.random.key(0), MODEL, bare)


def test_the_prior_reads_the_times_of_the_ratings():
    train = data()[0]
    draw = im3f.sample_prior(jax.random.key(0), MODEL, train)
    assert draw["item_time_bias"].shape == (39, 3)
    scale = posterior().time_scale
    user = posterior().user_row[train.user]
    item = posterior().item_row[train.item]
    mean = train.mean + np.sum(
        draw["user_factors"][user] * draw["item_factors"][item], axis=1
    )
    columns = scale.columns(train.timestamp, user)
    mean += np.asarray(draw["item_time_bias"])[item, columns.bin]
    mean += np.asarray(draw["user_drift"])[user] * columns.drift
    np.testing.assert_allclose(draw["mean"], mean, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_numpyro_model_reads_times():
    numpyro = pytest.importorskip("numpyro")
    train = data()[0]
    model = numpyro.handlers.seed(im3f.generative_model(MODEL, train), 0)
    sites = numpyro.handlers.trace(model).get_trace()
    assert sites["item_time_bias"]["value"].shape == (39, 3)
    assert sites["user_drift"]["value"].shape == (59,)


@pytest.mark.slow
def test_the_prior_check_reads_times():
    train = data()[0]
    assert np.all(np.isfinite(im3f.prior_check(MODEL, train).table["prior mean"]))


# --- the command line -----------------------------------------------------------------


def test_the_options_are_the_arguments():
    for preset in (BPMF, M3F, IM3F):
        parameters = inspect.signature(preset).parameters
        assert parameters["item_time_bins"].default == 0
        assert parameters["item_time_variance"].default is None
        assert parameters["user_drift_variance"].default == 0


def predict(tmp_path, capsys, pairs):
    """Run `im3f predict` on a saved fit; the exit code, predictions, what it said."""
    pairs.to_csv(tmp_path / "pairs.csv", index=False)
    files = [str(tmp_path / name) for name in ("fit.npz", "pairs.csv")]
    code = main(["predict", *files, "--out", str(tmp_path / "out.csv")])
    said = capsys.readouterr().err
    return code, None if code else pd.read_csv(tmp_path / "out.csv"), said


def test_predict_reads_a_column_of_times(tmp_path, capsys):
    found, test = posterior(), data()[1]
    found.save(tmp_path / "fit.npz")
    pairs = test.to_dataframe().drop(columns="rating")
    code, got, said = predict(tmp_path, capsys, pairs)
    assert (code, said) == (0, "")
    np.testing.assert_allclose(got["prediction"], found.test_predictions, rtol=1e-5)
    # Under the other name, by which `load_ratings` finds it too.
    code, again, _ = predict(
        tmp_path, capsys, pairs.rename(columns={"timestamp": "Time"})
    )
    np.testing.assert_array_equal(again["prediction"], got["prediction"])
    # Without that column the time is left out, and said to be.
    code, got, said = predict(tmp_path, capsys, pairs[["user", "item"]])
    assert code == 0 and "no column timestamp" in said
    expected = found.predict(test.user_ids, test.item_ids)
    np.testing.assert_allclose(got["prediction"], expected, rtol=1e-5)
    code, _, said = predict(tmp_path, capsys, pairs.assign(timestamp="noon"))
    assert code == 2 and "'noon'" in said


@pytest.mark.slow
def test_fit_on_the_command_line(tmp_path):
    path, out = tmp_path / "ratings.csv", tmp_path / "fit"
    data()[0].to_dataframe().to_csv(path, index=False)
    command = f"fit {path} --out {out} --quiet --model bpmf --latent-dim 2"
    command += " --likelihood ordinal --item-time-bins 3 --user-drift-variance sampled"
    command += " --item-time-variance 0.2 --split random --init prior"
    assert main([*command.split(), "--num-warmup", "3", "--num-samples", "5"]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    expected = {"type": "TimeBins", "variance": 0.2, "num_bins": 3}
    assert metrics["spec"]["item_time"] == expected
    trace = pd.read_csv(out / "trace.csv")
    np.testing.assert_allclose(trace["item_time_variance"], 0.2, rtol=1e-6)
    # What ran along is what predictions from the kept draws are.
    assert trace["test_rmse"].iloc[-1] == pytest.approx(metrics["rmse"], rel=1e-5)
    wrote = pd.read_csv(out / "predictions.csv")
    assert list(wrote) == ["user", "item", "rating", "timestamp", "prediction"]
    loaded = im3f.load(out / "model.npz")
    again = loaded.predict(wrote["user"], wrote["item"], times=wrote["timestamp"])
    np.testing.assert_allclose(again, wrote["prediction"], rtol=1e-5)
