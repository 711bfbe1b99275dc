"""One chain on several devices; what shards compute is what one device does."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.gibbs import factors
from im3f_jax.gibbs.factor_prior import conditional_factor_prior
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.inference.sharding import (
    check_sharded,
    choose_devices,
    cut_state,
    join_state,
)
from im3f_jax.model.log_joint import log_joint
from im3f_jax.numerics.reductions import count_by_cell
from tests.quick import quick_jit
from tests.validation import members, shards

ROOT = Path(__file__).resolve().parents[2]


FIRST, SECOND = shards.MEMBERS


@pytest.fixture(
    scope="module",
    params=[FIRST, pytest.param(SECOND, marks=pytest.mark.thorough)],
)
def drawn(request):
    """A state with ratings from the prior: spec, data, state."""
    spec, data = members.MEMBERS[request.param], members.data_of(request.param)
    draw = quick_jit(members.prior_state)
    state, rating = draw(jax.random.key(7), spec, data)
    return spec, dataclasses.replace(data, rating=rating), state


def whole(function, given):
    """Run function(state, data) on one device."""
    _, data, state = given
    return quick_jit(function)(state, data)


def in_shards(function, given):
    """Run function(state, data) in shards: each leaf gets an axis of shards."""

    def run(state, data):
        return shards.sharded_sweep(
            lambda key, state, spec, data: function(state, data),
            None,
            state,
            None,
            data,
        )

    return whole(run, given)


@pytest.mark.thorough
def test_the_log_joint_counts_everything_once(drawn):
    spec = drawn[0]

    def explicit(state, data):
        return log_joint(state, spec, data)

    def summed_out(state, data):
        valid = jnp.arange(data.rating.shape[0], dtype=jnp.int32) < data.num_ratings
        counts = [
            count_by_cell(valid, row, topic, weights.log_row_weights.shape)
            for row, topic, weights in (
                (data.user, state.user_topic_of_rating, state.user_topic_weights),
                (data.item, state.item_topic_of_rating, state.item_topic_weights),
            )
        ]
        if data.axis:
            counts[1] = jax.lax.psum(counts[1], data.axis)
        return log_joint(state, spec, data, None, tuple(counts))

    for function in (explicit, summed_out):
        found = in_shards(function, drawn)
        np.testing.assert_allclose(found, float(whole(function, drawn)), rtol=2e-5)


def test_conditionals_are_those_of_one_device(drawn):
    spec = drawn[0]

    def of_users(state, data):
        return conditional_factor_prior(
            spec.factor_prior, state.user_factors, data.num_users, axis=data.axis
        )

    found = in_shards(of_users, drawn)
    for part, value in zip(found, whole(of_users, drawn), strict=True):
        for one in part:
            np.testing.assert_allclose(one, value, rtol=1e-4, atol=1e-5)

    def of_items(state, data):
        given = data.item_blocks, None, jnp.zeros((), jnp.int32)
        return factors._batch_parameters(
            state.item_factor_prior,
            jnp.where(data.rating != 0, data.rating, 0),
            state.user_factors,
            state.rating_variance,
            *given,
            axis=data.axis,
        )

    found = in_shards(of_items, drawn)
    for part, value in zip(found, whole(of_items, drawn), strict=True):
        place = shards.cut().one().item_blocks.place
        rows = part.reshape(-1, *part.shape[2:])[place]
        count = members.NUM_ITEMS
        np.testing.assert_allclose(rows[:count], value[:count], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("drawn", shards.MEMBERS[:1], indirect=True)
def test_what_is_told_is_the_same_on_all_shards(drawn):
    spec = drawn[0]

    def one_sweep(state, data):
        return gibbs_sweep.__wrapped__(jax.random.key(0), state, spec, data)

    state, info = in_shards(one_sweep, drawn)
    own = {"user_factors", "user_bias", "user_topic_of_rating", "item_topic_of_rating"}
    for name, value in [*state._asdict().items(), *info._asdict().items()]:
        if name in own:
            assert not np.array_equal(value[0], value[1])
            continue
        if name == "user_topic_weights":
            value = value._replace(log_row_weights=None)
        if name == "user_bias_prior":
            value = value._replace(shared=None)
        for leaf in jax.tree.leaves(value):
            for one in leaf[1:]:
                np.testing.assert_array_equal(one, leaf[0], err_msg=name)


def test_a_state_is_cut_and_put_together(drawn):
    _, data, state = drawn
    found = shards.cut()
    again = join_state(cut_state(state, found), found, data)
    count = members.NUM_RATINGS
    for name in ("user_topic_of_rating", "item_topic_of_rating"):
        np.testing.assert_array_equal(
            getattr(again, name)[:count], getattr(state, name)[:count]
        )
    rows = members.NUM_USERS, members.NUM_ITEMS
    for side, number in zip(("user", "item"), rows, strict=True):
        for name in (f"{side}_factors", f"{side}_bias"):
            np.testing.assert_array_equal(
                getattr(again, name)[:number], getattr(state, name)[:number]
            )
        name = f"{side}_topic_weights"
        np.testing.assert_array_equal(
            getattr(again, name).log_row_weights[:number],
            getattr(state, name).log_row_weights[:number],
        )
    assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, state)


def test_which_devices():
    (only,) = choose_devices(None)
    assert choose_devices("all", "cpu") == jax.devices("cpu")
    assert choose_devices([only]) == [only]
    assert choose_devices(1, "cpu") == [only]
    for wrong, message in (
        (1_000, "there are 1 of kind 'cpu'"),
        ("every", "'all', a number of them"),
        (0, "'all', a number"),
        (True, "'all', a number"),
        ([only], "not both"),
    ):
        with pytest.raises(InputError, match=message):
            choose_devices(wrong, "cpu")
    for wrong, message in (([], "'all', a number"), ([only, only], "twice")):
        with pytest.raises(InputError, match=message):
            choose_devices(wrong)
    with pytest.raises(InputError, match="Give one device, or"):
        choose_devices("all", only)


@pytest.mark.parametrize(
    "model, what",
    [
        (lambda: im3f.IM3F(topics=im3f.CRF()), "a CRF"),
        (lambda: im3f.ReciprocalIM3F(), "a reciprocal model"),
        (lambda: im3f.SeparateDP(), "topics of one's own"),
        (lambda: im3f.M3F_TIF(), "topic factors"),
        (lambda: im3f.BPMF(factor_prior="shrinkage"), "shrinkage"),
        (lambda: im3f.BPMF(item_time_bins=3), "time"),
        (lambda: im3f.BPMF(degrees_of_freedom=4), "noise that differs"),
        (lambda: im3f.PMF(), "PMF's mode"),
    ],
)
def test_models_without_a_sweep_in_shards_are_named(model, what):
    with pytest.raises(InputError, match=what):
        check_sharded(model())


def environment(**more):
    flags = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"{flags} {more.pop('flags', '')}",
        **more,
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_both(commands, folder):
    """Run two processes that wait for each other; what each printed."""
    running = [
        subprocess.Popen(
            command,
            env=environment(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        told = [process.communicate(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, told, strict=True):
        assert process.returncode == 0, errors
    return [shown for shown, _ in told]


def together(how):
    """Run both of two_processes.py; what each tells."""
    port = str(free_port())
    command = [sys.executable, "-m", "tests.inference.two_processes", port]
    told = run_both([[*command, str(number), how] for number in range(2)], ROOT)
    return [json.loads(shown.splitlines()[-1]) for shown in told]


@pytest.mark.slow  # the next one asks for as much
def test_processes_with_other_clocks_keep_one_pace():
    first, second = together("to the end")
    assert first["sweeps"] == second["sweeps"] == list(range(1, 61))
    assert first["trace"] == second["trace"]
    assert first["rmse"] == second["rmse"]
    assert first["device"] == "2 x cpu (cpu)"


@pytest.mark.thorough
def test_an_interrupted_process_ends_both_after_one_sweep():
    first, second = together("interrupted")
    assert first["partial"] and second["partial"]
    assert first["sweeps"] == second["sweeps"] == list(range(1, 31))
    assert first["trace"] == second["trace"] and len(first["trace"]) == 30


def test_processes_with_other_settings_refuse():
    for told in together("other settings"):
        assert "do not have the same ratings and settings" in told["refused"]


@pytest.mark.thorough
def test_a_fit_on_devices():
    """On 8 devices forced on the host: see on_devices.py."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.on_devices", "1", "4"],
        env=environment(flags="--xla_force_host_platform_device_count=8"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    one, four = (json.loads(line) for line in done.stdout.splitlines())
    assert four["device"].startswith("4 x cpu")
    assert four["again"]  # the same draws, bit for bit
    for found in (one, four):
        assert found["predicts"] < 1e-4  # what is kept predicts as the sweeps did
        assert found["topics"] < 1e-5  # and topics are those of the caller's ratings
    # One bit of one device is found, and named.
    variance, factors, prior = four["differ"]
    assert variance == ["rating_variance"]
    assert factors == ["item_factors"]
    fields = ("topic_mean", "topic_mean_variance", "variance")
    assert prior == [f"item_bias_prior.{field}" for field in fields]
    # The same distribution: means over the kept draws, with their errors.
    for name, (mean, error) in one["means"].items():
        other, other_error = four["means"][name]
        assert abs(mean - other) < 4.5 * np.hypot(error, other_error), name
    assert abs(one["rmse"] - four["rmse"]) < 0.02


@pytest.mark.slow
def test_a_fit_on_other_numbers_of_devices():
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.on_devices", "1", "2", "3", "8"],
        env=environment(flags="--xla_force_host_platform_device_count=8"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    one, *others = (json.loads(line) for line in done.stdout.splitlines())
    assert len(others) == 3
    for found in others:
        for name, (mean, error) in one["means"].items():
            other, other_error = found["means"][name]
            assert abs(mean - other) < 4.5 * np.hypot(error, other_error), name


def distributed_fit(folder, *more):
    """Write a table of ratings; give commands of two processes that fit it."""
    rng = np.random.default_rng(0)
    cells = np.unique(rng.integers(0, 30 * 20, 300))
    table = "\n".join(f"u{c // 20},i{c % 20},{1 + c % 5}" for c in cells)
    (folder / "ratings.csv").write_text(f"user,item,rating\n{table}\n")
    command = [sys.executable, "-m", "im3f_jax.cli", "fit", "ratings.csv"]
    command += ["--model", "im3f", "--latent-dim", "2", "--init", "prior"]
    command += ["--max-user-topics", "4", "--max-item-topics", "4"]
    # Processes whose clocks differ would run chunks of other lengths in the warm-up.
    command += ["--num-warmup", "60", "--num-samples", "4", "--split", "random"]
    command += ["--distributed", "--coordinator", f"127.0.0.1:{free_port()}"]
    command += ["--num-processes", "2", *more]
    return [
        [*command, "--process-id", str(number), "--out", f"out{number}"]
        for number in range(2)
    ]


@pytest.mark.thorough
def test_two_processes(tmp_path):
    """`im3f fit --distributed` on the loopback address."""
    run_both(distributed_fit(tmp_path), tmp_path)
    assert not (tmp_path / "out1").exists()  # the first process writes
    found = json.loads((tmp_path / "out0" / "metrics.json").read_text())
    assert found["device"] == "2 x cpu (cpu)"
    posterior = im3f.load(tmp_path / "out0" / "model.npz")
    assert posterior.draws.user_features.shape[:2] == (1, 4)
    with open(tmp_path / "out0" / "predictions.csv") as file:
        rows = file.read().splitlines()[1:]
    assert len(rows) == found["split"]["num_test"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_two_processes_that_are_killed_go_on(victim, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    run_both(distributed_fit(whole), whole)
    saved = "--checkpoint-dir", "run", "--checkpoint-every", "3"
    running = [
        subprocess.Popen(
            command, env=environment(), cwd=broken, stderr=subprocess.DEVNULL
        )
        for command in distributed_fit(broken, *saved)
    ]
    try:
        deadline = time.monotonic() + 300
        while not list((broken / "run").glob("checkpoint-*5.json")):
            assert time.monotonic() < deadline and running[victim].poll() is None
            time.sleep(0.01)
        running[victim].kill()  # the other one then ends by itself, or is ended
        time.sleep(1)
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert not (broken / "out0" / "model.npz").exists()
    run_both(distributed_fit(broken, *saved), broken)
    for name in ("trace.csv", "predictions.csv"):
        written = [(folder / "out0" / name).read_text() for folder in (whole, broken)]
        assert written[0] == written[1]
