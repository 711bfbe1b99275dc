"""What a fit keeps, and what is read in single draws: topics, and a named draw."""

import dataclasses
import logging

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.inference.memory import estimate_draw_bytes, format_bytes
from tests import fits

pytestmark = pytest.mark.relaxed


@pytest.fixture(scope="module")
def kept():
    """Return a fit that kept everything; not to be changed."""
    return fits.fit(fits.MODELS["IM3F"], store="all", num_chains=2)


def test_the_topics_kept_are_those_of_the_callers_ratings(kept):
    train, _ = fits.data()
    assert (np.diff(train.user) < 0).any()  # the layout has another order
    topics = kept.draws.user_topic, kept.draws.item_topic
    for topic, prior in zip(topics, (4, 5), strict=True):
        assert topic.shape == (2, 3, len(train)) and topic.dtype == np.int8
        assert topic.min() >= 0 and topic.max() < prior
    occupied = [[len(np.unique(draw)) for draw in chain] for chain in topics[0]]
    np.testing.assert_array_equal(occupied, kept.num_user_topics)
    found = fits.residual_rmse(kept, train)
    np.testing.assert_allclose(found, kept._kept("residual_rmse"), rtol=1e-5)
    # Which it is with the topics of no other ratings.
    moved = kept.draws._replace(user_topic=np.roll(kept.draws.user_topic, 1, axis=-1))
    found = fits.residual_rmse(dataclasses.replace(kept, draws=moved), train)
    assert np.abs(found - kept._kept("residual_rmse")).max() > 1e-3


def test_what_is_kept_does_not_change_the_draws(kept):
    one = fits.posterior("IM3F")  # by default "factors"
    assert one.draws.user_topic is None and one.draws.item_topic is None
    np.testing.assert_array_equal(
        one.draws.user_features[0], kept.draws.user_features[0]
    )


def test_without_topics_none_are_kept():
    bpmf = fits.fit(fits.MODELS["BPMF"], store="all")
    assert bpmf.draws.user_topic is None and bpmf.draws.item_topic is None
    with pytest.raises(im3f.InputError, match="no item topics"):
        bpmf.coassignment([0], "item")


def test_a_file_keeps_them(kept, tmp_path):
    kept.save(tmp_path / "fit.npz")
    loaded = im3f.load(tmp_path / "fit.npz")
    fits.same(kept, loaded)
    assert loaded.draws.user_topic.dtype == np.int8
    rows = [3, 1, 4]
    np.testing.assert_array_equal(loaded.coassignment(rows), kept.coassignment(rows))


def test_their_size_is_told_and_counts_in_the_limit(caplog):
    model, (train, _) = fits.MODELS["IM3F"], fits.data()
    spec = fits.posterior("IM3F").spec
    users, items = train.users, train.items
    sizes = len(users) - 1, len(items) - 1  # one of each is cold
    factors = estimate_draw_bytes(spec, *sizes)
    each = estimate_draw_bytes(spec, *sizes, len(train))
    assert each == factors + 2 * len(train)
    with caplog.at_level(logging.INFO, logger="im3f_jax"):
        found = fits.fit(model, store="all", memory_limit=3 * each)
    assert f"kept draws: {format_bytes(3 * each)}" in caplog.text
    topics = found.draws.user_topic, found.draws.item_topic
    held = fits.held(found) + sum(values.nbytes for values in topics)
    assert held == 3 * each
    with pytest.raises(im3f.InputError, match="thinning=5 fits; store='factors' leave"):
        fits.fit(model, store="all", memory_limit=3 * each - 1)
    assert fits.fit(model, memory_limit=3 * factors).num_kept == 3


@pytest.mark.parametrize(
    "number, size", [(128, 1), (129, 2), (2**15, 2), (2**15 + 1, 4)]
)
def test_topics_take_the_bytes_that_their_number_needs(number, size):
    model = im3f.M3F(number, 0, 2)
    more = estimate_draw_bytes(model, 5, 5, 10) - estimate_draw_bytes(model, 5, 5)
    assert more == 10 * size


def test_coassignment_counts_the_draws_that_agree(kept):
    rows = np.array([7, 500, 7, 12])
    for side in ("user", "item"):
        topics = getattr(kept.draws, f"{side}_topic").reshape(6, -1)[:, rows]
        found = kept.coassignment(rows, side)
        expected = [[np.mean(topics[:, i] == topics[:, j]) for j in range(4)]
                    for i in range(4)]  # fmt: skip
        np.testing.assert_allclose(found, expected)
        assert (found[0] == found[2]).all() and (np.diag(found) == 1).all()
    many = kept.coassignment(np.arange(100))
    assert ((0 < many) & (many < 1)).any()
    # The names of topics play no part.
    names = np.stack([np.random.default_rng(k).permutation(5) for k in range(6)])
    renamed = np.take_along_axis(names, kept.draws.item_topic.reshape(6, -1), axis=1)
    draws = kept.draws._replace(item_topic=renamed.reshape(2, 3, -1))
    other = dataclasses.replace(kept, draws=draws)
    np.testing.assert_array_equal(other.coassignment(rows, "item"), found)


@pytest.mark.parametrize(
    "rows, side, message",
    [
        ([0], "moods", "side is 'moods'"),
        ([0, 1010], "user", "Row 1010 is none of the 1010"),
        ([-1], "user", "Row -1 is none"),
        ([0.5], "user", "whole numbers"),
        ([True], "user", "whole numbers"),
        ([[0]], "user", "one dimension"),
    ],
)
def test_rows_that_are_none_are_refused(kept, rows, side, message):
    with pytest.raises(im3f.InputError, match=message):
        kept.coassignment(rows, side)
    assert kept.coassignment([]).shape == (0, 0)


@pytest.mark.parametrize("store", ["factors", "summary"])
def test_what_was_not_kept_is_named(store):
    found = fits.fit(fits.MODELS["IM3F"], store=store)
    with pytest.raises(im3f.InputError, match="no topics of its ratings.*store='all'"):
        found.coassignment([0])


def test_topics_of_each_rows_own_are_not_shared(kept):
    own = dataclasses.replace(
        kept, spec=dataclasses.replace(kept.spec, own_topics=True)
    )
    with pytest.raises(im3f.InputError, match="no two rows share"):
        own.coassignment([0])


def test_an_unknown_store_is_refused():
    with pytest.raises(im3f.InputError, match="store is 'topics'.*'factors', 'all'"):
        fits.fit(fits.MODELS["IM3F"], store="topics")
