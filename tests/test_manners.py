"""What users expect of an estimator: it keeps what it was given, and says so."""

import ast
import copy
import dataclasses
import logging
import math
import pickle
from pathlib import Path

import jax
import pytest

import im3f_jax as im3f
from im3f_jax.inference import devices
from tests import fits
from tests.test_house import every_module, run_python

PUBLIC = {name: getattr(im3f, name) for name in im3f.__all__}

PRESETS = {
    "BPMF": im3f.BPMF(3, rating_variance=0.5, global_bias=3.0),
    "PMF": im3f.PMF(4, factor_precision=2.0),
    "M3F": im3f.M3F(3, 2, 5, user_bias_variance=im3f.InverseGamma(2.0, 1.0)),
    "M3F_TIF": im3f.M3F_TIF(topic_factor_dim=3, item_time_bins=4),
    "SeparateDP": im3f.SeparateDP(2, max_user_topics=5, degrees_of_freedom=4.0),
    "ReciprocalIM3F": im3f.ReciprocalIM3F(2, directed=True, likelihood="ordinal"),
    "IM3F": im3f.IM3F(
        latent_dim=40,
        topics="stick_breaking",
        user_dish_concentration=1e-4,
        item_table_concentration=im3f.Gamma(2.0, 0.5),
        likelihood=im3f.Ordinal((1, 2, 3)),
        factor_prior="shrinkage",
        degrees_of_freedom=math.inf,
    ),
    "CRF": im3f.IM3F(2, topics=im3f.CRF("conditional"), user_noise_shape=math.inf),
}
every_preset = pytest.mark.parametrize("model", PRESETS.values(), ids=PRESETS)


# --- models -----------------------------------------------------------------------


@every_preset
def test_repr_is_python_that_makes_an_equal_model(model):
    again = eval(repr(model), PUBLIC)
    assert again == model and repr(again) == repr(model)
    # Also of models that no preset made.
    other = dataclasses.replace(model, latent_dim=7)
    assert other != model and repr(other).startswith("Model(latent_dim=7")
    assert eval(repr(other), PUBLIC) == other


def test_repr_shows_what_was_given():
    assert repr(im3f.IM3F()) == "IM3F()"
    said = "IM3F(latent_dim=40, rating_variance=0.25)"
    assert repr(im3f.IM3F(40, rating_variance=0.25)) == said
    assert repr(dataclasses.replace(im3f.IM3F(40), latent_dim=2)).count("=") < 15


@every_preset
def test_copies_are_equal(model):
    pickled = pickle.loads(pickle.dumps(model))
    cloned = model.__sklearn_clone__()
    for other in (copy.copy(model), copy.deepcopy(model), pickled, cloned):
        assert other is not model
        assert other == model and repr(other) == repr(model)


@every_preset
def test_scikit_learn_clones_it(model):
    from sklearn.base import clone

    other = clone(model)
    assert other == model and other is not model and repr(other) == repr(model)


@every_preset
def test_settings_come_back_by_name(model):
    shallow = model.get_params(deep=False)
    assert type(model)(**shallow) == model
    deep = model.get_params()
    assert shallow.items() <= deep.items() and len(deep) > len(shallow)
    for name, value in deep.items():
        found = model
        for part in name.split("__"):
            found = getattr(found, part)
        assert found is value


def test_settings_are_stored_as_given():
    concentration = im3f.Gamma(2.0, 0.5)
    model = im3f.IM3F(
        user_dish_concentration=1e-4,
        item_table_concentration=concentration,
        rating_variance=None,
    )
    settings = model.get_params()
    assert settings["user_topic_prior__dish_concentration"] == 1e-4
    assert settings["item_topic_prior__table_concentration"] is concentration
    assert settings["item_topic_prior__table_concentration__rate"] == 0.5
    assert settings["likelihood__variance"] is None  # not yet the documented default


@pytest.mark.relaxed
def test_a_fit_changes_no_model_and_no_number_given():
    # Of a Gibbs sampler's: test_api.py.
    model = im3f.PMF(2, rating_variance=0.3, global_bias=3.25)
    before, said = model.get_params(), repr(model)
    posterior = fits.fit(model)
    assert model.get_params() == before and repr(model) == said
    assert posterior.spec.likelihood.variance == 0.3
    assert posterior.spec.global_bias == 3.25
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.latent_dim = 3
    # With every default resolved it reads too.
    assert eval(repr(posterior.spec), PUBLIC) == posterior.spec != model


# --- the source: logging and warnings ---------------------------------------------


def calls(tree, name):
    """List the calls of a function, by its dotted name."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [node for node in found if ast.unparse(node.func) == name]


@every_module
def test_nothing_is_printed_but_by_the_commands(name, tree):
    if name not in ("im3f_jax.cli", "im3f_jax.demo"):
        assert calls(tree, "print") == []
        assert "stdout" not in ast.dump(tree) and "basicConfig" not in ast.dump(tree)


@every_module
def test_warnings_are_of_our_category(name, tree):
    for call in calls(tree, "warnings.warn") + calls(tree, "warn"):
        given = [ast.unparse(one) for one in call.args[1:2]]
        given += [ast.unparse(k.value) for k in call.keywords if k.arg == "category"]
        assert given == ["Im3fWarning"]


@every_module
def test_loggers_are_named_by_their_modules(name, tree):
    for call in calls(tree, "logging.getLogger"):
        assert [ast.unparse(one) for one in call.args] in (["__name__"], ["'im3f_jax'"])
    for level in ("debug", "info", "warning", "error"):  # the root logger
        assert calls(tree, f"logging.{level}") == []


def test_the_readers_of_the_source_find_what_they_look_for():
    tree = ast.parse("import warnings\nprint(1)\nwarnings.warn('x', UserWarning)")
    assert len(calls(tree, "print")) == 1
    (call,) = calls(tree, "warnings.warn")
    assert ast.unparse(call.args[1]) == "UserWarning"


# --- devices ----------------------------------------------------------------------


def test_the_report_tells_what_jax_runs_on():
    report = im3f.device_report()
    assert report.default == devices.describe_device(jax.devices()[0])
    assert report.default in [name for name, _ in report.devices]
    assert report.jax_version == jax.__version__ and not report.x64
    said = str(report)
    for part in (f"JAX {jax.__version__}", "x64 off", f"runs on: {report.default}"):
        assert part in said
    if jax.default_backend() == "cpu":
        assert f"{devices.machine_memory() / 1e9:.3g} GB" in said


@pytest.fixture
def card(monkeypatch):
    """Show an NVIDIA GPU to a process whose JAX runs on the CPU, as it chose to."""
    if jax.default_backend() != "cpu":
        pytest.skip("JAX does not run on the CPU here")
    monkeypatch.setattr(devices, "_nvidia_gpus", lambda: ["NVIDIA H100"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    class Config:
        jax_platforms = None
        jax_enable_x64 = False

    monkeypatch.setattr(devices.jax, "config", Config)
    return Config


def test_a_gpu_left_unused_is_told_with_the_reason(card, monkeypatch, caplog):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    (said,) = im3f.device_report().advice
    assert "CPU although there is an NVIDIA GPU" in said and "extra cuda13" in said
    assert said in str(im3f.device_report())
    assert "NVIDIA GPU: NVIDIA H100" in str(im3f.device_report())
    with caplog.at_level(logging.WARNING, logger="im3f_jax"):
        assert devices.choose_device("auto").platform == "cpu"
    assert caplog.messages == [said]
    caplog.clear()
    devices.choose_device("cpu")  # asked for: nothing to tell
    assert caplog.messages == []

    monkeypatch.setattr(devices, "find_spec", lambda name: "13" in name or None)
    assert "look at its driver" in im3f.device_report().advice[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides it" in im3f.device_report().advice[0]
    card.jax_platforms = "cpu"
    assert "JAX_PLATFORMS" in im3f.device_report().advice[0]
    devices.choose_device("auto")  # told to use nothing else
    assert caplog.messages == []


def test_without_a_gpu_there_is_nothing_to_tell(card, monkeypatch, caplog):
    monkeypatch.setattr(devices, "_nvidia_gpus", lambda: [])
    assert im3f.device_report().advice == []
    devices.choose_device("auto")
    assert caplog.messages == []


def test_cards_are_read_off_the_driver(monkeypatch, tmp_path):
    folder = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H100\nIRQ:  5\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    (tmp_path / "dev" / "nvidiactl").touch()
    monkeypatch.setattr(devices, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert devices._nvidia_gpus() == ["NVIDIA H100"]
    (folder / "information").unlink()
    assert [Path(x).name for x in devices._nvidia_gpus()] == ["nvidia0"]


def test_the_report_starts_backends_only_when_it_is_called():
    code = """
import im3f_jax
report = im3f_jax.device_report
from jax._src import xla_bridge
before = xla_bridge.backends_are_initialized()
report()
print(before, xla_bridge.backends_are_initialized())
"""
    assert run_python(code).split() == ["False", "True"]
