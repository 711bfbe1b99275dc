"""Checkpoints: what goes on from one equals what was never broken off."""

import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.data.layout import lay_out
from im3f_jax.gibbs import topic_room
from im3f_jax.inference import run
from im3f_jax.inference.checkpoint import Folder, Places
from im3f_jax.model.spec import resolve
from tests import fits
from tests.inference.test_run import compilations

pytestmark = pytest.mark.relaxed

ROOT = Path(__file__).parents[2]
BPMF, IM3F = fits.MODELS["BPMF"], fits.MODELS["IM3F"]


class Killed(BaseException):
    """Stands for the death of the process: nothing catches it."""


def break_off(model, folder, sweep, chain=0, how=Killed, **settings):
    """Fit until a chain has done so many sweeps."""

    def callback(done, elapsed, metrics):
        if metrics["chain"] == chain and done >= sweep:
            raise how

    return fits.fit(model, checkpoint_dir=folder, callback=callback, **settings)


def killed(*given, **settings):
    """Break a fit off, and lose what no checkpoint has."""
    with pytest.raises(Killed):
        break_off(*given, **settings)


def go_on(model, folder, **settings):
    """Fit again; with the sweeps after which a chunk ended, by chain."""
    seen = []
    found = fits.fit(
        model,
        checkpoint_dir=folder,
        callback=lambda sweep, elapsed, m: seen.append((m["chain"], sweep)),
        **settings,
    )
    return found, seen


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "name, store, every, at",
    [("IM3F", "all", 5, 12), ("IM3F", "summary", 4, 10), ("BPMF", "factors", 1, 7)],
)
def test_a_fit_goes_on_as_if_it_had_not_been_broken_off(
    name, store, every, at, tmp_path, caplog
):
    caplog.set_level("INFO")
    settings = {"store": store, "checkpoint_every": every}
    killed(fits.MODELS[name], tmp_path, at, **settings)
    found, seen = go_on(fits.MODELS[name], tmp_path, **settings)
    (told,) = (m for m in caplog.messages if m.startswith("resumed from"))
    done = int(told.split(": ")[1].split()[0])
    assert done >= at - every + 1 and done % every == 0
    assert seen[0][1] > done and seen[-1] == (0, 19)
    fits.same(fits.fit(fits.MODELS[name], store=store), found)
    if store == "all":
        assert found.draws.user_topic.shape == (1, 3, len(fits.data()[0]))
    assert not found.partial
    assert names(tmp_path)[:2] == sorted(
        f"checkpoint-{n:08d}.json" for n in (-(-19 // every) - 1, -(-19 // every))
    )


@pytest.mark.parametrize(
    "method",
    ["sequential", "parallel", pytest.param("vectorized", marks=pytest.mark.slow)],
)
def test_several_chains_go_on(method, tmp_path):
    settings = {"num_chains": 3, "thinning": 2, "chain_method": method}
    expected = fits.fit(BPMF, **settings)
    at = (12, 1) if method == "sequential" else (12, 0)
    killed(BPMF, tmp_path, *at, checkpoint_every=5, **settings)
    found, seen = go_on(BPMF, tmp_path, checkpoint_every=5, **settings)
    assert seen[0][0] == at[1] and seen[0][1] > 10
    fits.same(expected, found)


def test_more_samples_go_on_where_fewer_ended_and_nothing_compiles(tmp_path):
    settings = {"num_chains": 2, "thinning": 2, "chain_method": "sequential"}
    expected = fits.fit(BPMF, num_samples=14, **settings)
    fewer = fits.fit(BPMF, num_samples=7, **settings)
    fits.fit(BPMF, num_samples=7, checkpoint_dir=tmp_path, **settings)
    with compilations() as seconds:
        again, seen = go_on(BPMF, tmp_path, num_samples=7, **settings)
        assert seen == []
        found, seen = go_on(BPMF, tmp_path, num_samples=14, **settings)
    assert seconds == []
    assert min(sweep for _, sweep in seen) > 13 and {chain for chain, _ in seen} == {
        0,
        1,
    }
    fits.same(fewer, again)
    fits.same(expected, found)
    assert found.seconds["run"] > again.seconds["run"] > 0
    with pytest.raises(im3f.InputError, match=r"is 7, there 14 \(it may only grow\)"):
        fits.fit(BPMF, num_samples=7, checkpoint_dir=tmp_path, **settings)


def test_an_interrupt_writes_a_checkpoint_too(tmp_path, caplog):
    part = break_off(BPMF, tmp_path, 12, how=KeyboardInterrupt, thinning=2)
    assert part.partial and part.num_kept == 3
    assert "goes on from there" in caplog.messages[-1]
    found, seen = go_on(BPMF, tmp_path, thinning=2)
    assert 12 < seen[0][1] <= 14
    fits.same(fits.fit(BPMF, thinning=2), found)
    assert not found.partial


def test_ctrl_c_waits_for_the_end_of_a_chunk(tmp_path, caplog):
    def callback(done, elapsed, metrics):
        if done == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # no draw was kept
        fits.fit(BPMF, checkpoint_dir=tmp_path, checkpoint_every=2, callback=callback)
    assert signal.getsignal(signal.SIGINT) is before
    assert "goes on from there" in caplog.messages[-1]
    found, seen = go_on(BPMF, tmp_path, checkpoint_every=2)
    assert 4 < seen[0][1] <= 6
    fits.same(fits.posterior("BPMF"), found)


def damage(path):
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def last(folder, kind):
    return max(folder.glob(f"{kind}-*"))


@pytest.mark.parametrize("kind", ["checkpoint", "state", "part"])
@pytest.mark.parametrize("how", ["cut short", "a byte", "another", "gone"])
def test_the_one_before_serves_where_the_newest_is_damaged(kind, how, tmp_path):
    killed(BPMF, tmp_path, 12, checkpoint_every=5)
    path = last(tmp_path, kind)
    (tmp_path / "state-000-00000099.npz.partial").write_bytes(b"half")
    if how == "a byte":
        damage(path)
    elif how == "gone":
        path.unlink()
    elif how == "another":  # whole, but not the one that belongs there
        path.write_bytes(min(tmp_path.glob(f"{kind}-*")).read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:-30])
    seen = []
    if (kind, how) == ("checkpoint", "gone"):  # nothing tells of it
        found, seen = go_on(BPMF, tmp_path, checkpoint_every=5)
    else:
        with pytest.warns(im3f.Im3fWarning, match="damaged, and the one before.*001"):
            found = BPMF.fit(
                *fits.data(),
                **fits.LENGTHS,
                progress=False,
                checkpoint_dir=tmp_path,
                checkpoint_every=5,
                callback=lambda sweep, *_: seen.append((0, sweep)),
            )
    assert 5 < seen[0][1] <= 10
    fits.same(fits.posterior("BPMF"), found)
    assert not list(tmp_path.glob("*.partial"))


def test_where_each_is_damaged_that_is_said(tmp_path):
    killed(BPMF, tmp_path, 12, checkpoint_every=5)
    for path in tmp_path.glob("checkpoint-*"):
        damage(path)
    with pytest.raises(im3f.InputError, match="No checkpoint in .* is whole") as said:
        fits.fit(BPMF, checkpoint_dir=tmp_path)
    assert "\n" not in str(said.value)


def test_a_checkpoint_of_another_fit_is_refused_by_what_differs(tmp_path):
    killed(BPMF, tmp_path, 12, checkpoint_every=5)
    train, test = fits.data()
    other = dataclasses.replace(train, rating=np.roll(train.rating, 1))
    renamed = dataclasses.replace(
        train.users, ids=np.array([f"u{i}" for i in train.users.ids])
    )
    named = [dataclasses.replace(part, users=renamed) for part in (train, test)]
    for change, words in (
        ({"seed": 4}, "seed is 4, there 3"),
        ({"num_warmup": 7}, "num_warmup is 7, there 6"),
        ({"store": "summary"}, "store is 'summary', there 'factors'"),
        ({"num_chains": 2}, "num_chains is 2, there 1"),
        ({"model": im3f.BPMF(2, rating_variance=0.5)}, "likelihood.variance"),
        ({"model": im3f.M3F(2, 3, 2)}, "user_topic_prior.type is 'FiniteDirichlet'"),
        ({"train": other, "test": test}, "another fit: the training ratings are oth"),
        ({"train": train, "test": test.select(np.arange(9))}, "the test ratings are"),
        ({"train": named[0], "test": named[1]}, "the training ratings are others"),
    ):
        given = {"model": BPMF} | change
        with pytest.raises(im3f.InputError, match=words) as said:
            fits.fit(checkpoint_dir=tmp_path, **given)
        assert "\n" not in str(said.value) and str(tmp_path) in str(said.value)
    fits.same(fits.posterior("BPMF"), go_on(BPMF, tmp_path)[0])


def test_other_versions_are_warned_of(tmp_path, monkeypatch):
    from im3f_jax import api

    versions = api._versions()
    monkeypatch.setattr(api, "_versions", lambda: versions | {"jax": "0.1"})
    killed(BPMF, tmp_path, 12, checkpoint_every=5)
    monkeypatch.undo()
    words = f"jax {versions['jax']} in the place of 0.1: its draws have the same distr"
    with pytest.warns(im3f.Im3fWarning, match=words):
        BPMF.fit(*fits.data(), **fits.LENGTHS, progress=False, checkpoint_dir=tmp_path)


def test_another_format_version_is_refused_by_both_numbers(tmp_path):
    with Folder(tmp_path) as folder:
        state = folder.write("state-1.npz", {}, {})
        body = {"groups": [{"parts": [], "state": state}]}
        folder.commit(body | {"format_version": 7})
    with pytest.raises(im3f.InputError, match="version 7, but .* reads version 1"):
        Folder(tmp_path).read()


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    names = "part-of-mine.csv", "state-of-affairs", "checkpoint-old.json", "a.partial"
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "part-000-00000007.npz.partial").write_text("of a process that died")
    with Folder(tmp_path) as folder:
        assert folder.read() is None
        for number in range(3):
            state = folder.write(f"state-000-{number:08d}.npz", {}, {})
            folder.commit({"groups": [{"parts": [], "state": state}]})
    kept = {f"state-000-{n:08d}.npz" for n in (1, 2)}
    kept |= {f"checkpoint-{n:08d}.json" for n in (2, 3)}
    assert {path.name for path in tmp_path.iterdir()} == {*names, *kept, "lock"}


def test_one_process_at_a_time_writes_to_a_folder(tmp_path):
    with Folder(tmp_path):
        with pytest.raises(im3f.InputError, match="Another fit writes"):
            fits.fit(BPMF, checkpoint_dir=tmp_path)
    assert Folder(tmp_path).read() is None


def test_a_full_disk_is_one_sentence_and_the_last_checkpoint_stands(tmp_path):
    before, sizes = resource.getrlimit(resource.RLIMIT_FSIZE), []

    def callback(done, elapsed, metrics):
        if done == 10:  # no file may grow beyond this any more
            sizes.append(last(tmp_path, "state").stat().st_size)
            resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[0] // 2, before[1]))

    try:
        with pytest.raises(OSError, match="the checkpoint of sweep 15 cannot") as said:
            fits.fit(
                BPMF, checkpoint_dir=tmp_path, checkpoint_every=5, callback=callback
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "that of sweep 10 stands" in str(said.value)
    assert not list(tmp_path.glob("*.partial"))
    found, seen = go_on(BPMF, tmp_path, checkpoint_every=5)
    assert 10 < seen[0][1] <= 15
    fits.same(fits.posterior("BPMF"), found)


def test_a_draw_that_is_not_finite_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    finite = run._finite

    def broken(carry):
        found = finite(carry)
        late = int(carry.sweep) > 12
        return found | ({"user_factors": np.array(False)} if late else {})

    monkeypatch.setattr(run, "_finite", broken)
    with pytest.raises(im3f.SamplingError, match="after sweep 1[34] .*: user_factors"):
        fits.fit(BPMF, checkpoint_dir=tmp_path, checkpoint_every=4)
    monkeypatch.undo()
    found, seen = go_on(BPMF, tmp_path, checkpoint_every=4)
    assert 12 < seen[0][1] <= 16
    fits.same(fits.posterior("BPMF"), found)


@pytest.mark.parametrize(
    "model, settings, words",
    [
        (im3f.PMF(2), {}, "PMF is found in one step"),
        (BPMF, {"checkpoint_every": 0}, "checkpoint_every is 0"),
    ],
)
def test_settings_without_meaning_are_refused(model, settings, words, tmp_path):
    with pytest.raises(im3f.InputError, match=words):
        fits.fit(model, checkpoint_dir=tmp_path, **settings)


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(im3f.InputError, match="no checkpoints in .*file: File exists"):
        fits.fit(BPMF, checkpoint_dir=tmp_path / "file")


# --- every part of a state ----------------------------------------------------------

TIMED = {"item_time_bins": 3, "user_drift_variance": None}
NOISE = {"user_noise_shape": None, "degrees_of_freedom": 5}
MEMBERS = {
    "shrinkage": im3f.BPMF(2, factor_prior="shrinkage", **NOISE),
    "ordinal and time": im3f.M3F(2, 1, 2, likelihood="ordinal", **TIMED),
    "topic factors": im3f.M3F_TIF(2, 2, 2, topic_factor_dim=1),
    "own topics": im3f.SeparateDP(2, max_user_topics=3, max_item_topics=2),
    "persons": im3f.ReciprocalIM3F(2, max_topics=3),
    "shared": im3f.IM3F(2, max_user_topics=3, user_shared_bias_variance=None),
    "franchise": im3f.IM3F(2, topics=im3f.CRF(num_topics=4, max_tables=3)),
}


@pytest.mark.parametrize("name", list(MEMBERS))
def test_every_array_of_a_state_comes_back(name):
    """By shapes alone, which compiles nothing."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(12, size=(2, 40))
    times = None
    if name == "ordinal and time":
        times = im3f.data.times.TimeColumns(np.zeros(40, np.int32), np.zeros(40))
    layout, _ = lay_out(user, item, np.ones(40), 12, 12, times=times)
    spec = resolve(MEMBERS[name], 3.0, 1.0, 1.0, [1, 2, 3])
    spec = jax.tree.map(np.float32, spec)
    pairs = run.Pairs(
        *(np.zeros(8, np.int32), np.zeros(8, np.int32), np.zeros(8, np.float32)),
        count=np.int32(5),
        chunk=8,
        times=None
        if times is None
        else type(times)(*(np.zeros(8, t.dtype) for t in times)),
    )
    data, pairs = jax.device_put((layout, pairs))
    loop = run._Loop(spec, data, pairs, 2, 3, 1, None, None, None, 1, 0)
    shape = jax.eval_shape(
        lambda key: loop._start(key, "prior", True), jax.random.key(0)
    )
    carry = jax.tree.map(
        lambda x: np.asarray(rng.integers(0, 99, x.shape), x.dtype), shape
    )
    places = Places(np.arange(40), np.arange(5), (12, 12))
    arrays = places.join(carry)
    found = places.cut(shape, arrays, spec)
    jax.tree.map(np.testing.assert_array_equal, found.state, carry.state)
    assert found.kept == carry.kept
    np.testing.assert_array_equal(found.test_sum[:5], carry.test_sum[:5])
    np.testing.assert_array_equal(found.train_sum[:40], carry.train_sum[:40])
    for gone in arrays:
        if gone.startswith("state."):
            fewer = {n: v for n, v in arrays.items() if n != gone}
            with pytest.raises(im3f.InputError, match="no such array"):
                places.cut(shape, fewer, spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MEMBERS))
def test_every_member_goes_on(name, tmp_path):
    train, test = fits.data()
    if name == "persons":
        train, test = train.select(train.user < train.item), None
    if name == "ordinal and time":
        stamp = np.arange(len(train) + len(test))
        train = dataclasses.replace(train, timestamp=stamp[: len(train)])
        test = dataclasses.replace(test, timestamp=stamp[len(train) :])
    settings = {"train": train, "test": test, "init": "prior", "num_samples": 20}
    expected = fits.fit(MEMBERS[name], **settings)
    killed(MEMBERS[name], tmp_path, 14, checkpoint_every=5, **settings)
    found, seen = go_on(MEMBERS[name], tmp_path, checkpoint_every=5, **settings)
    assert seen[0][1] > 10
    fits.same(expected, found)
    assert found.spec == expected.spec


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sequential", "parallel", "vectorized"])
def test_room_that_has_grown_is_in_the_checkpoint(method, monkeypatch, tmp_path):
    monkeypatch.setattr(topic_room, "LEAST_ROOM", 6)
    model = im3f.IM3F(2, max_user_topics=12, max_item_topics=12)
    settings = {"num_warmup": 0, "num_samples": 24, "thinning": 1, "num_chains": 2}
    settings |= {"chain_method": method}
    expected = fits.fit(model, **settings)
    stored = [
        p.stored
        for p in (expected.spec.user_topic_prior, expected.spec.item_topic_prior)
    ]
    assert 12 in stored  # it has
    for at in ((9, 0), (20, 1 if method == "sequential" else 0)):
        folder = tmp_path / str(at)
        killed(model, folder, *at, checkpoint_every=4, **settings)
        found, _ = go_on(model, folder, checkpoint_every=4, **settings)
        fits.same(expected, found)
        assert found.spec == expected.spec


# --- processes ----------------------------------------------------------------------


@pytest.mark.thorough
def test_processes_that_are_killed_lose_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "tests.validation.kills", "--fits", "2"]
        + ["--writers", "50"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("'wrong': []") == 2


@pytest.mark.slow
def test_checkpoints_move_between_numbers_of_devices(tmp_path):
    flags = "--xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-m", "tests.inference.checkpoints_on_devices", tmp_path],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        | {"XLA_FLAGS": f"--xla_backend_optimization_level=0 {flags}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"2 to 2": True, "2 to 1": True, "1 to 3": True}
