"""The run: what draws depend on, what is kept, what compiles, and how it stops."""

import hashlib
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.data.layout import lay_out
from im3f_jax.inference import run
from im3f_jax.model.scalars import Gamma
from im3f_jax.model.spec import resolve
from tests import fits

pytestmark = pytest.mark.relaxed

BPMF, IM3F = fits.MODELS["BPMF"], fits.MODELS["IM3F"]


@contextmanager
def compilations():
    """List the seconds of each compilation within the block."""
    seconds = []

    def listen(event, duration, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# --- what draws do not depend on --------------------------------------------------


@pytest.mark.parametrize("name", ["BPMF", "IM3F"])
@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_draws_do_not_depend_on_chunks(name, seconds, monkeypatch):
    expected = fits.posterior(name)
    monkeypatch.setattr(run, "CHUNK_SECONDS", seconds)
    stops = []
    summary = fits.fit(
        fits.MODELS[name],
        store="summary",
        callback=lambda sweep, elapsed, metrics: stops.append(sweep),
    )
    # One sweep a chunk, or one to see how long it takes and then all.
    assert stops == (list(range(1, 20)) if seconds < 1 else [1, 19])
    assert summary.draws is None
    fits.same(expected, summary)
    fits.same(expected, fits.fit(fits.MODELS[name]))


def test_chunks_are_no_longer_than_the_buffer(monkeypatch):
    monkeypatch.setattr(run, "CHUNK_SECONDS", 1e9)
    stops = []
    fits.fit(
        BPMF,
        num_warmup=80,
        num_samples=70,
        store="summary",
        callback=lambda sweep, elapsed, metrics: stops.append(sweep),
    )
    assert stops == [1, 65, 129, 150]


def test_the_seed_decides_and_numpy_has_no_part_in_it():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    fits.same(fits.fit(IM3F), fits.posterior("IM3F"))
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    other = fits.fit(IM3F, seed=4)
    expected = fits.posterior("IM3F").trace["rating_variance"]
    assert not np.any(other.trace["rating_variance"] == expected)


def digest(posterior):
    """Hash of all draws and traces."""
    found = hashlib.sha256()
    for name in sorted(posterior.trace):
        found.update(np.ascontiguousarray(posterior.trace[name]).tobytes())
    for values in jax.tree.leaves(posterior.draws):
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()


@pytest.mark.thorough
def test_another_process_draws_the_same_and_prints_nothing():
    code = """
import numpy as np
np.random.seed(12345)
from tests import fits
from tests.inference.test_run import digest
print(digest(fits.posterior("BPMF")))
"""
    # It compiles for itself.
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest(fits.posterior("BPMF"))]
    assert done.stderr == ""


def test_the_first_of_two_chains_is_the_single_chain():
    one, two = fits.posterior("IM3F"), fits.fit(IM3F, num_chains=2)
    # At once in threads, or one after another.
    fits.same(two, fits.fit(IM3F, num_chains=2, chain_method="sequential"))
    for name, values in one.trace.items():
        np.testing.assert_array_equal(values[0], two.trace[name][0], err_msg=name)
    for a, b in zip(*map(jax.tree.leaves, (one.draws, two.draws)), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        # (Weights that underflow are 0 in both; a Gaussian has no cut points.)
        same = a is one.draws.global_bias or not a.size
        assert same or not np.array_equal(b[0], b[1])
    # Predictions are means over the draws of both.
    _, test = fits.data()
    draws = two.predict(test.user_ids, test.item_ids, per_draw=True)
    assert draws.shape == (2, 3, len(test))
    np.testing.assert_allclose(two.test_predictions, draws.mean((0, 1)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BPMF", "IM3F"])
def test_chains_at_once_are_chains_one_after_another(name):
    # The same keys; sums are taken in another order, so that topics differ once a
    # uniform falls between: the first sweeps agree, the rest does in distribution.
    settings = {"num_chains": 2, "num_warmup": 3, "num_samples": 60, "thinning": 1}
    apart = fits.fit(fits.MODELS[name], **settings, chain_method="sequential")
    at_once = fits.fit(fits.MODELS[name], **settings, chain_method="vectorized")
    fits.same(apart, fits.fit(fits.MODELS[name], **settings, chain_method="parallel"))
    assert at_once.draws.user_features.shape == apart.draws.user_features.shape
    for trace in ("rating_variance", "log_joint", "test_rmse_draw", "residual_rmse"):
        a, b = apart.trace[trace], at_once.trace[trace]
        assert a.shape == b.shape == (2, 63)
        np.testing.assert_allclose(a[:, :2], b[:, :2], rtol=1e-3, err_msg=trace)
        spread = a[:, 10:].std()
        assert abs(a[:, 10:].mean() - b[:, 10:].mean()) < 1.5 * spread
    _, test = fits.data()
    draws = at_once.predict(test.user_ids, test.item_ids, per_draw=True)
    np.testing.assert_allclose(at_once.test_predictions, draws.mean((0, 1)), rtol=1e-5)


# --- what is kept -----------------------------------------------------------------


def test_thinning_counts_sweeps_from_the_end_of_the_warmup():
    every = fits.fit(BPMF, thinning=1)
    assert every.draws.rating_variance.shape == (1, 13)
    for thinning in (2, 3, 13):
        some = fits.fit(BPMF, thinning=thinning)
        kept = slice(thinning - 1, None, thinning)
        assert some.num_kept == 13 // thinning
        for a, b in zip(*map(jax.tree.leaves, (every.draws, some.draws)), strict=True):
            np.testing.assert_array_equal(a[:, kept], b)
        # The sweeps themselves are the same, the kept ones are those of the trace.
        for name in ("rating_variance", "log_joint", "test_rmse_draw"):
            np.testing.assert_array_equal(every.trace[name], some.trace[name])
        np.testing.assert_array_equal(
            some.rating_variance, every.trace["rating_variance"][:, 6:][:, kept]
        )


def test_what_is_kept_of_a_sweep():
    posterior = fits.posterior("IM3F")
    sweeps = fits.kept_sweeps()
    assert posterior.num_kept == len(sweeps)
    assert {values.shape for values in posterior.trace.values()} == {(1, 19)}
    np.testing.assert_array_equal(
        posterior.draws.rating_variance,
        posterior.trace["rating_variance"][:, sweeps].astype(np.float64),
    )
    users, items = 59, 39  # trained; the last row is that of a new one
    width = 2 + 4 + 5
    assert posterior.draws.user_features.shape == (1, 3, users + 1, width)
    assert posterior.draws.item_features.shape == (1, 3, items + 1, width)
    assert posterior.draws.user_features.dtype == np.float32
    assert all(np.isfinite(values).all() for values in jax.tree.leaves(posterior.draws))


def test_running_errors_are_those_of_the_mean_of_the_kept_draws():
    posterior, (train, test) = fits.posterior("IM3F"), fits.data()
    for name, ratings in (("test", test), ("train", train)):
        draws = posterior.predict(ratings.user_ids, ratings.item_ids, per_draw=True)[0]

        def rmse(predictions, ratings=ratings):
            return np.sqrt(np.mean((predictions - ratings.rating) ** 2))

        mean = posterior.trace[f"{name}_rmse"][0]
        each = posterior.trace[f"{name}_rmse_draw"][0]
        kept = fits.kept_sweeps()
        for m, sweep in enumerate(kept):
            assert each[sweep] == pytest.approx(rmse(draws[m]), rel=1e-5)
            assert mean[sweep] == pytest.approx(rmse(draws[: m + 1].mean(0)), rel=1e-5)
        assert np.isnan(mean[: kept[0]]).all()
    # Of the test set every sweep is scored, and the mean stays between kept draws.
    assert np.isfinite(posterior.trace["test_rmse_draw"]).all()
    running = posterior.trace["test_rmse"][0]
    assert running[kept[0] + 1] == running[kept[0]]
    # Predicting all training ratings takes time: kept draws only.
    assert np.isnan(np.delete(posterior.trace["train_rmse_draw"][0], kept)).all()


def test_without_a_test_set_and_without_train_predictions():
    train, _ = fits.data()
    posterior = fits.fit(BPMF, train, None, track_train=False)
    assert posterior.test_predictions is None
    assert posterior.train_predictions is None
    for name in ("test_rmse", "test_rmse_draw", "train_rmse", "train_rmse_draw"):
        assert np.isnan(posterior.trace[name]).all()
    # What is predicted on the way changes no draw.
    for name in ("rating_variance", "log_joint"):
        np.testing.assert_allclose(
            posterior.trace[name], fits.posterior("BPMF").trace[name], rtol=1e-4
        )


# --- what compiles ----------------------------------------------------------------


def test_a_second_fit_compiles_nothing():
    fits.posterior("IM3F")
    size = run.run_chunk._cache_size()
    train, test = fits.data()
    fewer = im3f.IM3F(
        2,
        max_user_topics=4,
        max_item_topics=5,
        user_dish_concentration=0.3,
        item_table_concentration=2.0,
        rating_variance_floor=0.01,
        global_bias=2.5,
    )
    fits.fit(IM3F, num_chains=2)  # compiles what takes chains apart
    with compilations() as seconds:
        fits.fit(IM3F)
        fits.fit(fewer)
        fits.fit(IM3F, num_warmup=2, num_samples=30, thinning=3, num_chains=2, seed=9)
        fits.fit(IM3F, train, test.select(np.arange(7)))
    assert seconds == []
    assert run.run_chunk._cache_size() == size


def test_a_prior_in_the_place_of_a_number_compiles_anew():
    # So that the test above would notice.
    with_prior = im3f.IM3F(
        2, max_user_topics=4, max_item_topics=5, user_table_concentration=Gamma(2, 1)
    )
    first, second = (
        jax.tree.structure(resolve(model, 3.0, 1.0, 1.0))
        for model in (IM3F, with_prior)
    )
    assert first != second
    with compilations() as seconds:
        jax.jit(lambda x: x + 1)(np.float32(1))
    assert len(seconds) == 1


def test_ratings_of_nearly_one_number_share_a_compilation():
    fits.posterior("BPMF")
    size = run.run_chunk._cache_size()
    with compilations() as seconds:
        for number in (1000, 1010, 1020):
            train, test = fits.data(number)
            assert len(train) == number
            posterior = fits.fit(BPMF, train, test)
            assert len(posterior.train_predictions) == number
    assert seconds == []
    assert run.run_chunk._cache_size() == size


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", list(fits.MODELS))
def test_a_chunk_mixes_no_types_and_keeps_those_of_its_carry(name, x64):
    # Traced, not compiled, under strict promotion of types and ranks.
    dtype = np.float64 if x64 else np.float32
    train, _ = fits.data()
    layout, _ = lay_out(train.user, train.item, train.rating, 60, 40, dtype=dtype)
    pairs = run.Pairs(
        *(np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(64, dtype)),
        count=np.int32(7),
        chunk=64,
    )
    spec = resolve(fits.MODELS[name], 3.0, 1.0, 1.0)
    spec = jax.tree.map(lambda x: np.asarray(x, dtype), spec)
    with (
        jax.enable_x64(x64),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        data, pairs = jax.device_put((layout, pairs))
        loop = run._Loop(spec, data, pairs, 2, 3, 1, None, None, None, 1, 0)
        key = jax.random.key(0)
        before = jax.eval_shape(
            partial(loop._start, init="prior", track_train=True), key
        )
        plan = run.Plan(np.int32(2), np.int32(1))
        after = jax.eval_shape(
            run._chunk, before, key, np.int32(0), np.int32(3), plan, spec, data, pairs
        )
    assert after == before
    floats = {x.dtype for x in jax.tree.leaves(after) if x.dtype.kind == "f"}
    assert floats == {np.dtype(dtype)}


# --- how it reports and stops -----------------------------------------------------


def test_a_callback_gets_sweep_seconds_and_metrics():
    calls = []
    settings = {"num_chains": 2, "chain_method": "sequential"}
    posterior = fits.fit(IM3F, **settings, callback=lambda *all: calls.append(all))
    chains = [metrics["chain"] for _, _, metrics in calls]
    assert chains == sorted(chains) and set(chains) == {0, 1}
    for chain in (0, 1):
        mine = [call for call in calls if call[2]["chain"] == chain]
        sweeps = [sweep for sweep, _, _ in mine]
        assert sweeps == sorted(set(sweeps)) and sweeps[-1] == 19
        assert [m["num_sweeps"] for _, _, m in mine] == np.diff([0, *sweeps]).tolist()
        elapsed = [seconds for _, seconds, _ in mine]
        assert 0 < elapsed[0] and elapsed == sorted(elapsed)
        for sweep, _, metrics in mine:
            at = {name: v[chain, sweep - 1] for name, v in posterior.trace.items()}
            np.testing.assert_equal(metrics["rmse"], float(at["test_rmse"]))
            for name in ("rating_variance", "num_user_topics", "num_item_topics"):
                assert metrics[name] == at[name]


def test_nothing_is_printed_and_the_bar_goes_to_standard_error(capfd):
    fits.fit(BPMF)
    assert capfd.readouterr() == ("", "")
    fits.fit(BPMF, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "19/19" in shown.err and "test rmse=" in shown.err


def test_the_configuration_of_jax_is_left_alone():
    before = dict(jax.config.values)
    fits.fit(BPMF)
    assert dict(jax.config.values) == before


def stop_at(sweep, chain=0):
    """Be Ctrl-C, once a chain has done so many sweeps."""

    def callback(done, elapsed, metrics):
        if metrics["chain"] == chain and done >= sweep:
            raise KeyboardInterrupt

    return callback


def assert_of_one_piece(posterior):
    """Draws, trace and running means of an interrupted run are of the same draws."""
    train, test = fits.data()
    assert posterior.partial
    assert "partial" in repr(posterior)
    assert posterior.num_kept == posterior.draws.global_bias.shape[1]
    np.testing.assert_array_equal(
        posterior.rating_variance, np.float32(posterior.draws.rating_variance)
    )
    for ratings, running in (
        (train, posterior.train_predictions),
        (test, posterior.test_predictions),
    ):
        predicted = posterior.predict(ratings.user_ids, ratings.item_ids)
        np.testing.assert_allclose(predicted, running, rtol=1e-5)
    assert posterior.evaluate(test)["num_ratings"] == len(test)


def test_an_interrupt_keeps_what_was_sampled(caplog):
    whole = fits.fit(BPMF, thinning=2)
    part = fits.fit(BPMF, thinning=2, callback=stop_at(12))
    assert part.num_kept == 3
    assert part.trace["rating_variance"].shape == (1, 12)
    np.testing.assert_array_equal(
        part.draws.user_features, whole.draws.user_features[:, :3]
    )
    assert_of_one_piece(part)
    assert "1 of 1 chains, with 3 of 6 draws" in caplog.text
    assert not whole.partial and "partial" not in repr(whole)


def test_an_interrupt_in_a_later_chain_keeps_the_chains_that_were_done():
    settings = {"thinning": 2, "chain_method": "sequential"}
    whole = fits.fit(BPMF, num_chains=2, **settings)
    part = fits.fit(BPMF, num_chains=3, callback=stop_at(10, chain=2), **settings)
    for a, b in zip(*map(jax.tree.leaves, (whole.draws, part.draws)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert part.trace["log_joint"].shape == (2, 19)
    assert_of_one_piece(part)


def test_an_interrupt_of_chains_at_once_keeps_a_part_of_each():
    settings = {"thinning": 2, "num_chains": 2}
    whole = fits.fit(BPMF, **settings)
    part = fits.fit(BPMF, callback=stop_at(12), **settings)
    assert part.draws.user_features.shape[:2] == (2, 3)
    assert part.trace["log_joint"].shape == (2, 12)
    np.testing.assert_array_equal(
        part.draws.user_features, whole.draws.user_features[:, :3]
    )
    assert_of_one_piece(part)


def test_an_interrupt_before_the_first_kept_draw_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        fits.fit(BPMF, callback=stop_at(1))


def test_an_error_in_a_callback_is_raised():
    def callback(sweep, elapsed, metrics):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fits.fit(BPMF, callback=callback)


@pytest.mark.parametrize("store", ["all", "summary"])
def test_a_draw_that_is_not_finite_stops_the_run_by_name(store, monkeypatch):
    # The square of a rating's distance to this bias is infinite in float32.
    monkeypatch.setattr(run, "CHUNK_SECONDS", 1e-9)
    model = im3f.BPMF(2, global_bias=1e25)
    with pytest.raises(im3f.SamplingError) as stopped:
        fits.fit(model, init="prior", store=store)
    message = str(stopped.value)
    assert "rating_variance" in message or "user_factors" in message
    assert "after sweep 1 " in message and "\n" not in message


@pytest.mark.parametrize("name", ["user_factors", "user_bias_prior.variance"])
def test_every_array_of_the_state_is_watched(name):
    loop, carry = some_carry()
    assert loop._check(carry, 4, 5) is None
    first, *rest = name.split(".")
    bad = getattr(carry.state, first)
    if rest:
        bad = bad._replace(**{rest[0]: getattr(bad, rest[0]) * np.nan})
    else:
        bad = bad * np.nan
    broken = carry._replace(state=carry.state._replace(**{first: bad}))
    with pytest.raises(im3f.SamplingError, match=rf"sweep 5 .*sweep 4\): {name}\. "):
        loop._check(broken, 4, 5)


def some_carry():
    """Make what goes from chunk to chunk, as it is before the first."""
    train, _ = fits.data()
    layout, _ = lay_out(train.user, train.item, train.rating, 60, 40)
    spec = resolve(BPMF, 3.0, 1.0, 1.0)
    spec = jax.tree.map(np.float32, spec)
    none = np.zeros(0, np.int32)
    pairs = run.Pairs(none, none, np.zeros(0, np.float32), np.int32(0), 64)
    data, pairs = jax.device_put((layout, pairs))
    loop = run._Loop(spec, data, pairs, 2, 3, 1, None, None, None, 1, 0)
    return loop, loop._start(jax.random.key(0), "prior", False)
