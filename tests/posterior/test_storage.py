"""Saved and loaded: self-contained, without pickle, and refused where unreadable."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.data.archive import read_archive, write_archive
from im3f_jax.data.ids import IdIndex
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import resolve
from im3f_jax.posterior.storage import (
    FORMAT_VERSION,
    READABLE,
    spec_from_json,
    spec_to_json,
)
from tests import fits

pytestmark = pytest.mark.relaxed

IDS = {
    "int": range(100, 100 - 60, -1),
    "str": [f"user {i:02d} é" for i in range(60)],
    "mixed": [1, 1.0, "1", True, *range(2, 30), *map(str, range(2, 30))],
    "large": [2**62 + i for i in range(60)],
    "float": [i / 4 for i in range(60)],
}


def with_users(posterior, ids):
    users, codes = IdIndex.from_values(list(ids), "user")
    assert len(users) == len(codes) == 60
    return dataclasses.replace(posterior, users=users)


@pytest.mark.parametrize("kind", list(IDS))
def test_a_round_trip_for_ids_of_every_kind(kind, tmp_path):
    saved = with_users(fits.posterior("IM3F"), IDS[kind])
    saved.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    ids = saved.users.ids.tolist()
    assert loaded.users.ids.tolist() == ids
    assert [type(i) for i in loaded.users.ids.tolist()] == [type(i) for i in ids]
    pairs = ids, [i % 40 for i in range(60)]
    np.testing.assert_array_equal(loaded.predict(*pairs), saved.predict(*pairs))
    np.testing.assert_array_equal(
        loaded.predict(*pairs, per_draw=True), saved.predict(*pairs, per_draw=True)
    )
    np.testing.assert_array_equal(loaded.is_known(*pairs), saved.is_known(*pairs))
    for unknown in ("no such user", 12345678):
        with pytest.raises(im3f.InputError, match="unknown user"):
            loaded.predict([unknown], [0])


@pytest.mark.parametrize("name", list(fits.MODELS))
def test_everything_comes_back(name, tmp_path):
    saved, (_, test) = fits.posterior(name), fits.data()
    saved.save(tmp_path / "fit")  # under this name, whatever its ending
    assert [path.name for path in tmp_path.iterdir()] == ["fit"]
    loaded = im3f.load(str(tmp_path / "fit"))
    fits.same(saved, loaded)
    for first, second in zip(saved.seen, loaded.seen, strict=True):
        np.testing.assert_array_equal(first, second, strict=True)
    for field in dataclasses.fields(saved):
        if field.name in ("users", "items", "draws", "trace", "seen", "_fitted"):
            continue
        a, b = getattr(saved, field.name), getattr(loaded, field.name)
        assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name
    assert repr(loaded) == repr(saved)
    first, second = saved.evaluate(test), loaded.evaluate(test)
    assert first.pop("log_score_kind") == second.pop("log_score_kind")
    assert second == pytest.approx(first, rel=1e-5)
    again = tmp_path / "again"
    loaded.save(again)
    fits.same(saved, im3f.load(again))


def test_no_array_needs_pickle(tmp_path):
    saved = with_users(fits.posterior("IM3F"), IDS["mixed"])
    saved.save(tmp_path / "fit.npz")
    with np.load(tmp_path / "fit.npz", allow_pickle=False) as file:
        arrays = dict(file)
    assert all(array.dtype != object for array in arrays.values())
    header = json.loads(str(arrays["header"]))
    assert header["format_version"] == FORMAT_VERSION
    assert header["spec"]["type"] == "ModelSpec"


def test_a_summary_predicts_its_pairs_after_loading_too(tmp_path):
    train, test = fits.data()
    saved = fits.fit(fits.MODELS["IM3F"], store="summary")
    saved.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    assert loaded.draws is None
    for ratings in (train, test):
        pairs = ratings.user_ids, ratings.item_ids
        np.testing.assert_array_equal(loaded.predict(*pairs), saved.predict(*pairs))
    assert loaded.evaluate(test) == saved.evaluate(test)
    with pytest.raises(im3f.InputError, match="1 of 1 pairs"):
        loaded.predict([0], ["?"], unknown="prior")
    with pytest.raises(im3f.InputError, match="store='summary'"):
        loaded.predict(train.user_ids, train.item_ids, per_draw=True)


def test_numbers_of_numpy_can_be_saved(tmp_path):
    model = im3f.BPMF(
        np.int64(2), rating_variance_floor=np.float32(0.75), global_bias=np.float64(3)
    )
    posterior = fits.fit(
        model,
        seed=np.int64(3),
        num_warmup=np.int32(1),
        num_samples=np.int64(4),
        thinning=np.int8(2),
    )
    posterior.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    assert loaded.spec == posterior.spec
    assert loaded.spec.likelihood.variance_floor == 0.75
    assert loaded.seed == 3 and loaded.num_kept == 2


def test_specs_of_every_kind_come_back_from_json():
    models = [
        im3f.PMF(3),
        im3f.BPMF(3),
        im3f.M3F(2, 0, 3, user_bias_variance=InverseGamma(2.0, 0.3)),
        im3f.M3F(2, 2, 3, user_shared_bias_variance=None),
        im3f.IM3F(3, item_shared_bias_variance=0.4),
        im3f.BPMF(3, user_noise_shape=None, item_noise_shape=2.0, degrees_of_freedom=5),
        im3f.IM3F(
            3,
            topics="stick_breaking",
            user_dish_concentration=Gamma(1.0, 2.0),
            item_topic_mean_variance=InverseGamma(3.0, 0.1),
        ),
    ]
    for model in models:
        spec = resolve(model, 3.5, 1.2, 0.5)
        text = json.dumps(spec_to_json(spec), allow_nan=False)
        assert spec_from_json(json.loads(text)) == spec


def test_ids_that_cannot_be_written_are_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "fit.npz"
    fits.posterior("BPMF").save(path)
    before = path.read_bytes()
    tuples = IdIndex(np.fromiter(((i, i) for i in range(60)), dtype=object), "user")
    broken = dataclasses.replace(fits.posterior("BPMF"), users=tuples)
    with pytest.raises(im3f.InputError, match="tuple"):
        broken.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "fit.npz"
    fits.posterior("BPMF").save(path)
    before = path.read_bytes()

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space"):
        fits.posterior("IM3F").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def rewrite(path, change, header=None):
    """Write a file again as `save` would have, with other arrays and header."""
    found, arrays, _ = read_archive(path, "im3f_jax posterior", READABLE, "a posterior")
    change(arrays)
    write_archive(path, found | (header or {}), arrays)


@pytest.mark.parametrize("version", [0, 5, 99, "1.0"])
def test_another_version_is_refused_by_both_numbers(version, tmp_path):
    path = tmp_path / "fit.npz"
    fits.posterior("BPMF").save(path)
    rewrite(path, lambda arrays: None, {"format_version": version})
    with pytest.raises(im3f.InputError) as refused:
        im3f.load(path)
    assert f"version {version}" in str(refused.value)
    assert f"reads version {FORMAT_VERSION}" in str(refused.value)
    assert str(path) in str(refused.value)


# Of each format version a file that the library of that version wrote, with what it
# then predicted.
FORMATS = Path(__file__).parent / "formats"


def test_there_is_a_file_of_every_format_version():
    assert sorted(READABLE) == list(range(1, FORMAT_VERSION + 1))
    written = {f"version_{version}.npz" for version in READABLE}
    assert {path.name for path in FORMATS.glob("*.npz")} == written


@pytest.mark.parametrize("version", READABLE)
def test_a_file_of_every_format_version_still_predicts(version, tmp_path):
    told = json.loads((FORMATS / f"version_{version}.json").read_text())
    for path in (FORMATS / f"version_{version}.npz", tmp_path / "again.npz"):
        loaded = im3f.load(path)
        pairs = told["users"], told["items"]
        np.testing.assert_allclose(
            loaded.predict(*pairs), told["predictions"], rtol=1e-5
        )
        if "times" in told:
            found = loaded.predict(*pairs, times=told["times"])
            np.testing.assert_allclose(found, told["at_times"], rtol=1e-5)
            assert not np.allclose(found, told["predictions"])
        assert loaded.num_kept == 2 and loaded.users.ids[0] == "user 0"
        if version == 1:  # knew of no means of shrunk columns: they were 0
            assert loaded.spec.factor_prior.mean_precision == 1e6
        loaded.save(tmp_path / "again.npz")


def read_or_refused(path):
    """Load a file; None where it is refused, in one sentence that names it."""
    try:
        return im3f.load(path)
    except im3f.InputError as error:
        assert str(path) in str(error) and "\n" not in str(error), error
        return None


def test_a_file_cut_short_is_refused(tmp_path):
    content = (FORMATS / f"version_{FORMAT_VERSION}.npz").read_bytes()
    path = tmp_path / "cut.npz"
    for size in range(0, len(content), 499):
        path.write_bytes(content[:size])
        assert read_or_refused(path) is None, size


def test_a_bit_that_flips_is_refused_or_changes_nothing(tmp_path):
    whole = FORMATS / f"version_{FORMAT_VERSION}.npz"
    expected, content = im3f.load(whole), whole.read_bytes()
    rng, path, refused = np.random.default_rng(0), tmp_path / "flipped.npz", 0
    for place in rng.choice(len(content), 300, replace=False):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        found = read_or_refused(path)
        refused += found is None
        if found is not None:  # such as the date of a member of the zip
            fits.same(expected, found)
            assert found.spec == expected.spec and found.seed == expected.seed
    assert refused > 200


def test_a_file_without_its_checksum_is_refused(tmp_path):
    path = tmp_path / "fit.npz"
    fits.posterior("BPMF").save(path)
    with np.load(path) as file:
        arrays = dict(file)
    del arrays["checksum"]
    np.savez(path, **arrays)
    with pytest.raises(im3f.InputError, match="has no checksum"):
        im3f.load(path)


def put(name, index, value):
    def change(arrays):
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def cut(name, axis=0):
    def change(arrays):
        arrays[name] = np.delete(arrays[name], -1, axis)

    return change


def as_type(name, dtype):
    def change(arrays):
        arrays[name] = arrays[name].astype(dtype)

    return change


@pytest.mark.parametrize(
    "change, words",
    [
        (put("draws.user_features", (0, 1, 2, 0), np.nan), "draws.user_features holds"),
        (put("draws.global_bias", (0, 0), np.inf), "draws.global_bias holds"),
        (put("levels", 0, np.nan), "levels holds"),
        (put("train_predictions", 5, np.nan), "train_predictions holds"),
        (put("user_row", 3, -1), "user_row holds"),
        (put("user_row", 3, 99), "draws.user_features is of"),
        (cut("draws.user_features", 2), "draws.user_features is of"),
        (cut("draws.item_features", 3), "draws.item_features is of"),
        (cut("draws.global_bias", 1), "draws.global_bias is of"),
        (cut("trace.test_rmse", 1), "trace.test_rmse is of"),
        (cut("user_ids"), "user ids, but"),
        (as_type("draws.item_features", "U9"), "draws.item_features is of type <U9"),
        (as_type("item_row", float), "item_row is of type float64"),
        (as_type("trace.log_joint", "U9"), "trace.log_joint is of"),
        (lambda arrays: arrays.pop("draws.user_features"), "user_features"),
        (lambda arrays: arrays.pop("levels"), "there is no levels"),
        (lambda arrays: arrays.pop("trace.rating_variance"), "rating_variance"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(change, words, tmp_path):
    path = tmp_path / "fit.npz"
    fits.posterior("IM3F").save(path)
    rewrite(path, lambda arrays: None)
    assert read_or_refused(path) is not None
    rewrite(path, change)
    with pytest.raises(im3f.InputError, match=f"not a saved posterior.*{words}"):
        im3f.load(path)


def foreign_files(folder):
    """Write files that are no posterior, each by its name."""
    fits.posterior("BPMF").save(folder / "whole")
    whole = (folder / "whole").read_bytes()
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("user,item,rating\n1,2,3\n")
    (folder / "cut short").write_bytes(whole[: len(whole) // 2])
    (folder / "zip of something").write_bytes(b"PK\x03\x04 and so on")
    damaged = bytearray(whole)
    at = whole.index(b"user_row.npy") + 200
    damaged[at : at + 50] = bytes(50 * [255])
    (folder / "damaged").write_bytes(damaged)
    with open(folder / "one array", "wb") as file:
        np.save(file, np.arange(3))
    with open(folder / "a pickle", "wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    with open(folder / "arrays", "wb") as file:
        np.savez(file, user=np.arange(3))
    with open(folder / "another header", "wb") as file:
        np.savez(file, header=np.array('{"format_version": 1}'))
    with open(folder / "header of a list", "wb") as file:
        np.savez(file, header=np.array("[1]"))
    with open(folder / "header without JSON", "wb") as file:
        np.savez(file, header=np.array("hello"))
    fits.data()[0].save_npz(folder / "ratings")
    return sorted(path for path in folder.iterdir() if path.name != "whole")


def test_files_that_are_no_posterior_are_refused_by_name(tmp_path):
    paths = foreign_files(tmp_path)
    assert len(paths) == 12
    for path in paths:
        with pytest.raises(im3f.InputError) as refused:
            im3f.load(path)
        message = str(refused.value)
        assert f"{path} is not a saved posterior" in message, path.name
        assert "pickle" not in message.removeprefix(str(path)), path.name
        assert "\n" not in message


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        im3f.load(tmp_path / "nothing.npz")
