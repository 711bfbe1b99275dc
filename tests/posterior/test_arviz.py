"""A posterior in ArviZ: groups, dimensions, files, and its own functions run on it."""

import builtins
import dataclasses
import math
import warnings
from functools import cache

import numpy as np
import pytest
from scipy.special import logsumexp

import im3f_jax as im3f
from tests import fits

az = pytest.importorskip("arviz")
arviz_of_today = pytest.importorskip("im3f_jax.posterior.arviz")

pytestmark = pytest.mark.relaxed

ALWAYS = {"posterior", "sample_stats", "constant_data"}
WITH_RATINGS = {"observed_data", "log_likelihood"}


@cache
def sampled(num_chains):
    """Fit 60 draws a chain; not to be changed."""
    lengths = {"num_warmup": 5, "num_samples": 60, "thinning": 1}
    return fits.fit(fits.MODELS["IM3F"], num_chains=num_chains, **lengths)


def groups_of(tree):
    """List the names of the groups of a tree, or of an older InferenceData."""
    names = tree.groups() if callable(tree.groups) else tree.groups
    return {name.strip("/") for name in names} - {""}


@pytest.mark.parametrize("num_chains", [1, 4])
def test_dimensions_are_chain_and_draw(num_chains):
    posterior = sampled(num_chains)
    tree = posterior.to_arviz()
    assert groups_of(tree) == ALWAYS
    for group in ("posterior", "sample_stats"):
        for values in tree[group].data_vars.values():
            assert values.dims == ("chain", "draw")
            assert values.shape == (num_chains, 60)
    found = tree["posterior"]["rating_variance"]
    np.testing.assert_array_equal(found, posterior.rating_variance)
    found = tree["sample_stats"]["lp"]
    np.testing.assert_array_equal(found, posterior.trace["log_joint"][:, 5:])
    names = {"num_user_topics", "effective_item_topics", "item_bias_variance"}
    assert names <= set(tree["posterior"].data_vars)
    names = {"residual_rmse", "test_rmse_draw", "train_rmse_draw"}
    assert names <= set(tree["sample_stats"].data_vars)


def test_every_scalar_of_the_trace_has_a_place():
    posterior = sampled(1)
    tree = posterior.to_arviz()
    placed = {name for group in ALWAYS for name in tree[group].data_vars}
    running = {"test_rmse", "train_rmse"}  # are of no draw
    accepted = {"cut_points_accepted"}  # of no step that a Gaussian model takes
    expected = posterior.trace.keys() - running - accepted - {"log_joint"}
    assert placed == expected | {"lp", "global_bias"}


@pytest.mark.parametrize("num_chains", [1, 4])
def test_arviz_runs_on_it_and_warns_of_nothing_constant(num_chains):
    posterior = sampled(num_chains)
    assert np.ptp(posterior.trace["user_dish_concentration"]) == 0
    tree = posterior.to_arviz()
    table = az.summary(tree)  # warnings are errors here
    assert set(table.index) == set(tree["posterior"].data_vars)
    assert float(tree["constant_data"]["user_dish_concentration"]) == 1
    assert float(tree["constant_data"]["user_noise_shape"]) == math.inf
    assert float(tree["constant_data"]["global_bias"]) == posterior.spec.global_bias


def test_it_is_plotted():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with warnings.catch_warnings():  # of matplotlib about an old ArviZ
        warnings.simplefilter("ignore", DeprecationWarning)
        az.plot_trace(sampled(4).to_arviz(), var_names=["rating_variance"])
    assert plt.get_fignums()
    plt.close("all")


def test_leave_one_out_runs_on_the_training_ratings():
    train, _ = fits.data()
    tree = sampled(4).to_arviz(log_likelihood=train)
    assert groups_of(tree) == ALWAYS | WITH_RATINGS
    with warnings.catch_warnings():  # of importance weights: the fit is a short one
        warnings.simplefilter("ignore", UserWarning)
        found = az.loo(tree, pointwise=True)
    of_all = getattr(found, "elpd", None) or found["elpd_loo"]
    values = tree["log_likelihood"]["rating"].values.reshape(240, -1)
    in_sample = logsumexp(values, axis=0).sum() - len(train) * math.log(240)
    assert of_all < in_sample < 0


def test_log_likelihoods_are_the_densities_of_each_draw(monkeypatch):
    posterior, (_, test) = sampled(4), fits.data()
    tree = posterior.to_arviz(log_likelihood=test)
    values = tree["log_likelihood"]["rating"]
    assert values.dims == ("chain", "draw", "row")
    assert values.shape == (4, 60, len(test))
    np.testing.assert_array_equal(tree["observed_data"]["rating"], test.rating)
    for group in WITH_RATINGS:
        np.testing.assert_array_equal(tree[group]["user"], test.user_ids)
        np.testing.assert_array_equal(tree[group]["item"], test.item_ids)
    # Of one rating in one draw, written out.
    chain, draw, n = 2, 31, 5
    user = posterior.draws.user_features[chain, draw, posterior.user_row[test.user[n]]]
    item = posterior.draws.item_features[chain, draw, posterior.item_row[test.item[n]]]
    dim, contexts = posterior.spec.latent_dim, posterior.spec.num_item_topics
    mean = posterior.draws.global_bias[chain, draw] + user[:dim] @ item[:dim]
    mean = mean + user[dim : dim + contexts, None] + item[None, dim + contexts :]
    weight = item[dim : dim + contexts, None] * user[None, dim + contexts :]
    variance = posterior.rating_variance[chain, draw]
    each = -((test.rating[n] - mean) ** 2) / variance - np.log(2 * np.pi * variance)
    expected = logsumexp(each / 2, b=weight)
    np.testing.assert_allclose(values[chain, draw, n], expected, rtol=1e-4)
    # Their mean over draws is what `evaluate` scores on a scale without levels.
    smooth = dataclasses.replace(posterior, is_discrete=False)
    scores = smooth.evaluate(test, pointwise=True)["log_scores"]
    each = values.values.reshape(240, -1).astype(np.float64)
    mixed = logsumexp(each, axis=0) - math.log(240)
    np.testing.assert_allclose(mixed, scores, rtol=1e-5)


def test_an_ordinal_model_gives_cut_points_and_log_probabilities():
    # The draws are made up: this model takes long to compile.
    levels = (1.0, 2.0, 3.0, 4.0, 5.0)
    base, (_, test) = sampled(1), fits.data()
    spec = dataclasses.replace(base.spec, likelihood=im3f.Ordinal(levels))
    points = np.sort(np.random.default_rng(0).normal(size=(1, 60, 4)), axis=-1)
    draws = base.draws._replace(cut_points=points)
    posterior = dataclasses.replace(
        base, spec=spec, draws=draws, levels=np.array(levels), _fitted=[]
    )
    tree = posterior.to_arviz(log_likelihood=test)
    assert tree["posterior"]["cut_points"].dims == ("chain", "draw", "cut_point")
    np.testing.assert_array_equal(tree["posterior"]["cut_points"], points)
    np.testing.assert_array_equal(tree["posterior"]["cut_point"], levels[:-1])
    scores = posterior.evaluate(test, pointwise=True)["log_scores"]
    values = tree["log_likelihood"]["rating"].values[0].astype(np.float64)
    mixed = logsumexp(values, axis=0) - math.log(60)
    np.testing.assert_allclose(mixed, scores, rtol=1e-5)


def test_the_warmup_comes_on_request():
    posterior = sampled(4)
    tree = posterior.to_arviz(warmup=True)
    assert groups_of(tree) == ALWAYS | {"warmup_posterior", "warmup_sample_stats"}
    assert set(tree["warmup_posterior"].data_vars) == set(tree["posterior"].data_vars)
    found = tree["warmup_posterior"]["rating_variance"]
    np.testing.assert_array_equal(found, posterior.trace["rating_variance"][:, :5])
    assert "train_rmse_draw" not in tree["warmup_sample_stats"]


@pytest.mark.parametrize("num_chains", [1, 4])
def test_a_netcdf_file_gives_it_back(num_chains, tmp_path):
    pytest.importorskip("h5netcdf")
    train, _ = fits.data()
    tree = sampled(num_chains).to_arviz(log_likelihood=train, warmup=True)
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    back = az.from_netcdf(tmp_path / "fit.nc")
    assert groups_of(back) == groups_of(tree)
    for group in groups_of(tree):
        assert set(back[group].data_vars) == set(tree[group].data_vars)
        for name, values in tree[group].variables.items():
            np.testing.assert_array_equal(back[group][name], values)
            assert back[group][name].dims == values.dims
    assert dict(back.attrs) == dict(tree.attrs)


def test_ids_of_mixed_types_are_kept_apart_in_a_file(tmp_path):
    pytest.importorskip("h5netcdf")
    train = im3f.Ratings.from_arrays(
        [1, "1", 1, "b"], ["x", "x", "y", "y"], [1, 2, 3, 4]
    )
    tree = sampled(1).to_arviz()
    for index, codes, expected in (
        (train.users, train.user, ["1", "'1'", "1", "'b'"]),
        (train.items, train.item, ["x", "x", "y", "y"]),
    ):
        ids = arviz_of_today._plain_ids(index, codes)
        assert ids.tolist() == expected
        group = tree["constant_data"]
        data = group.to_dataset() if hasattr(group, "to_dataset") else group
        data = data.assign_coords(id=("row", ids))
        data.to_netcdf(tmp_path / "ids.nc", engine="h5netcdf")


def test_attributes_tell_how_it_was_made():
    posterior = sampled(4)
    tree = posterior.to_arviz()
    attributes = tree.attrs
    assert attributes["inference_library"] == "im3f_jax"
    assert attributes["inference_library_version"] == im3f.__version__
    assert attributes["jax_version"] == posterior.versions["jax"]
    assert (attributes["seed"], attributes["device"]) == (3, posterior.device)
    assert (attributes["num_warmup"], attributes["partial"]) == (5, 0)
    assert tree["posterior"].attrs["creation_library"] == "im3f_jax"


def test_a_single_draw_keeps_its_scalars():
    tree = fits.fit(im3f.PMF(2)).to_arviz()
    assert tree["posterior"]["rating_variance"].shape == (1, 1)
    assert "rating_variance" not in tree["constant_data"]


def test_what_cannot_be_given_is_named(monkeypatch):
    posterior, (train, _) = sampled(1), fits.data()
    summary = dataclasses.replace(posterior, draws=None)
    assert groups_of(summary.to_arviz()) == ALWAYS
    with pytest.raises(im3f.InputError, match="kept no draws.*store='factors'"):
        summary.to_arviz(log_likelihood=train)
    with pytest.raises(im3f.InputError, match="of type DataFrame"):
        posterior.to_arviz(log_likelihood=train.to_dataframe())
    monkeypatch.setattr(arviz_of_today, "machine_memory", lambda: 2 * 100 * 240)
    with pytest.raises(im3f.InputError, match="1010 ratings.*at most 100 ratings"):
        posterior.to_arviz(log_likelihood=train)


def test_without_arviz_the_extra_is_named(monkeypatch):
    found = builtins.__import__

    def without(name, *args):
        if name == "im3f_jax.posterior.arviz":
            raise ModuleNotFoundError("No module named 'arviz'", name="arviz")
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(im3f.InputError, match="needs arviz: install the extra arviz"):
        sampled(1).to_arviz()
