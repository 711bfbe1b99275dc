"""People who rate people: fits with one franchise, and what is refused."""

import dataclasses
from functools import cache

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.data.layout import lay_out
from im3f_jax.inference.memory import estimate_draw_bytes, estimate_memory
from im3f_jax.model.prior import prior_rows
from im3f_jax.model.spec import resolve, validate
from im3f_jax.posterior.prior_check import prior_check
from tests import fits
from tests.posterior.test_explain import check_parts
from tests.posterior.test_recommend import check_against_all_pairs

pytestmark = pytest.mark.relaxed

PERSONS = 60
# From one topic a chain needs more sweeps than these to find the moods.
LENGTHS = {"num_warmup": 60, "num_samples": 60, "thinning": 2, "seed": 1}
LENGTHS |= {"start_topics": 2}
every_kind = pytest.mark.parametrize(
    "directed", [False, pytest.param(True, marks=pytest.mark.thorough)]
)


def model(directed, **settings):
    return im3f.ReciprocalIM3F(2, directed=directed, max_topics=4, **settings)


@cache
def planted(directed):
    """Ratings of persons with one of two moods, mostly; and their weights (P, 2).

    A person's mood selects what the other of a pair adds, whichever is named first.
    Ids are text; pairs stand in any order.
    """
    rng = np.random.default_rng(5)
    first, second = np.triu_indices(PERSONS, 1)
    chosen = rng.permutation(len(first))[:900]
    first, second = first[chosen], second[chosen]
    swap = rng.random(900) < 0.5
    first, second = np.where(swap, second, first), np.where(swap, first, second)
    weight = np.where(rng.random(PERSONS) < 0.5, 0.95, 0.05)
    weights = np.stack([weight, 1 - weight], axis=1)
    moods = (rng.random((2, 900)) > weight[[first, second]]).astype(int)
    bias, other = rng.normal(size=(2, PERSONS, 2))
    other = other if directed else bias
    mean = 3 + bias[first, moods[1]] + other[second, moods[0]]
    rating = mean + 0.3 * rng.normal(size=900)
    ids = np.array([f"p{k:02}" for k in range(PERSONS)])
    return im3f.Ratings.from_arrays(ids[first], ids[second], rating), weights


@cache
def parts(directed):
    return im3f.random_split(planted(directed)[0], test_fraction=0.1, seed=0)


@cache
def posterior(directed):
    return fits.fit(model(directed), *parts(directed), **LENGTHS)


# --- fits -------------------------------------------------------------------------


@pytest.mark.thorough
@every_kind
def test_the_planted_moods_are_found(directed):
    """By how likely two persons are in one mood: of labels that says nothing."""
    found = posterior(directed)
    width = 2 + 4
    theta = found.draws.user_features[0, :, :-1, width:]
    again = found.draws.item_features[0, :, :-1, 2:width]
    np.testing.assert_allclose(theta, again, rtol=1e-6)  # one person, both roles
    weights = planted(directed)[1]
    row = found.user_row[found.users.lookup([f"p{k:02}" for k in range(PERSONS)])]
    together = np.einsum("spk,sqk->pq", theta, theta)[np.ix_(row, row)] / len(theta)
    pairs = np.triu_indices(PERSONS, 1)
    correlation = np.corrcoef(together[pairs], (weights @ weights.T)[pairs])[0, 1]
    assert correlation > 0.8
    assert 1.5 < found.effective_user_topics.mean() < 2.5
    scores = found.evaluate(parts(directed)[1])
    assert scores["rmse"] < 0.7 * np.std(parts(directed)[1].rating)
    assert scores["num_cold"] == 0 and np.isfinite(scores["log_score"])


@every_kind
def test_the_running_error_is_that_of_the_predictions(directed):
    (train, test), found = parts(directed), posterior(directed)
    for part, predictions in (
        (train, found.train_predictions),
        (test, found.test_predictions),
    ):
        again = found.predict(part.user_ids, part.item_ids)
        np.testing.assert_allclose(again, predictions, rtol=1e-5)
    rmse = np.sqrt(np.mean((found.test_predictions - test.rating) ** 2))
    assert found.trace["test_rmse"][0, -1] == pytest.approx(rmse, rel=1e-5)
    assert found.evaluate(test)["rmse"] == pytest.approx(rmse, rel=1e-5)


@every_kind
def test_a_pair_has_one_prediction_in_either_order_or_two(directed):
    test, found = parts(directed)[1], posterior(directed)
    pairs = test.user_ids, test.item_ids
    there, back = found.predict(*pairs), found.predict(*pairs[::-1])
    if directed:
        assert np.abs(there - back).max() > 0.1
        return
    np.testing.assert_array_equal(there, back)
    np.testing.assert_array_equal(
        found.predict(*pairs, per_draw=True), found.predict(*pairs[::-1], per_draw=True)
    )
    mirrored = im3f.Ratings.from_arrays(*pairs[::-1], test.rating)
    assert found.evaluate(mirrored)["rmse"] == pytest.approx(
        found.evaluate(test)["rmse"], rel=1e-12
    )


def test_the_order_of_pairs_and_of_rows_decides_nothing():
    (train, test), found = parts(False), posterior(False)
    order = np.random.default_rng(0).permutation(len(train) + len(test))
    rows = [np.append(getattr(train, name), getattr(test, name))[order]
            for name in ("item_ids", "user_ids", "rating")]  # fmt: skip
    again = im3f.split_by_rows(
        im3f.Ratings.from_arrays(*rows), np.flatnonzero(order >= len(train))
    )
    again = fits.fit(model(False), *again, **LENGTHS)
    for name in ("rating_variance", "test_rmse", "num_user_topics"):
        np.testing.assert_allclose(again.trace[name], found.trace[name], rtol=1e-3)


@every_kind
def test_a_shorter_run_is_the_beginning_of_a_longer(directed):
    short = fits.fit(
        model(directed), *parts(directed), **LENGTHS | {"num_samples": 7, "thinning": 1}
    )
    for name in ("rating_variance", "log_joint", "num_user_topics"):
        np.testing.assert_array_equal(
            short.trace[name][0], posterior(directed).trace[name][0, :67]
        )


@every_kind
def test_a_saved_fit_is_the_same(directed, tmp_path):
    found, test = posterior(directed), parts(directed)[1]
    found.save(tmp_path / "fit.npz")
    again = im3f.load(tmp_path / "fit.npz")
    fits.same(found, again)
    assert again.spec.reciprocal == im3f.Reciprocal(directed)
    np.testing.assert_array_equal(
        again.predict(test.item_ids, test.user_ids),
        found.predict(test.item_ids, test.user_ids),
    )


def test_a_summary_predicts_its_pairs_in_either_order(tmp_path):
    train, test = parts(False)
    found = fits.fit(model(False), train, test, store="summary", **LENGTHS)
    found.save(tmp_path / "fit.npz")
    for each in (found, im3f.load(tmp_path / "fit.npz")):
        for pair in ((test.user_ids, test.item_ids), (test.item_ids, test.user_ids)):
            np.testing.assert_array_equal(each.predict(*pair), found.test_predictions)


@every_kind
def test_persons_are_recommended_and_never_to_themselves(directed):
    found, train = posterior(directed), parts(directed)[0]
    pairs = set(zip(train.user_ids.tolist(), train.item_ids.tolist(), strict=True))
    if not directed:
        pairs |= {(q, p) for p, q in pairs}
    oneself = {(p, p) for p in found.users.ids}
    some = found.users.ids[[3, 0, 59]]
    check_against_all_pairs(found, pairs | oneself, n=PERSONS, users=some)
    everyone = {"n": PERSONS, "users": some, "exclude_seen": False}
    check_against_all_pairs(found, oneself, **everyone)
    new = found.recommend("new", PERSONS, unknown="prior")
    assert sorted(new["item"]) == sorted(found.users.ids)


@every_kind
def test_parts_of_a_prediction_sum_to_it(directed):
    found = posterior(directed)
    names = ["global bias", "factors", "user bias", "item bias"]
    check_parts(found, [("p03", "p40"), ("p40", "p03")], names)
    there, back = found.explain("p03", "p40"), found.explain("p40", "p03")
    if not directed:  # what is the user's part one way is the item's the other way
        assert there.parts.loc["user bias", "mean"] == pytest.approx(
            back.parts.loc["item bias", "mean"], abs=1e-5
        )


@every_kind
def test_memory_is_told(directed):
    found = posterior(directed)
    each = estimate_draw_bytes(found.spec, PERSONS, PERSONS)
    assert fits.held(found) == each * found.num_kept
    rows = prior_rows(model(directed), parts(directed)[0])
    given = rows.user, rows.item, np.ones(len(rows.user)), PERSONS, PERSONS
    layout, _ = lay_out(*given, unordered=not directed)
    parts_of = estimate_memory(found.spec, layout)
    plain = dataclasses.replace(found.spec, reciprocal=im3f.NotReciprocal())
    assert parts_of["halves"] > 0 and "halves" not in estimate_memory(plain, layout)
    assert parts_of["table work"] > 0
    assert parts_of["total"] > estimate_memory(plain, layout)["total"]


# --- the prior --------------------------------------------------------------------


@pytest.mark.thorough
@every_kind
def test_prior_draws_share_what_the_sides_share(directed):
    train = parts(directed)[0]
    draw = im3f.sample_prior(jax.random.key(0), model(directed), train, num_draws=2)
    assert draw["log_user_row_weights"].shape == (2, PERSONS, 4)
    for name in draw:
        if "user" not in name or name.endswith("_of_rating"):
            continue
        other = draw[name.replace("user", "item")]
        one = "weights" in name or "concentration" in name or not directed
        assert np.array_equal(draw[name], other) == (one or "mean_variance" in name)
    assert prior_check(model(directed), train).table.shape[0] > 10


# --- what is refused --------------------------------------------------------------


def test_pairs_that_tell_of_held_out_ones_are_refused():
    given = im3f.Ratings.from_arrays(list("abbc"), list("bcaa"), [1.0, 2, 3, 4])
    with pytest.raises(InputError, match="one pair of train"):
        model(False).fit(given)
    train, test = im3f.split_by_rows(given, [2])
    with pytest.raises(InputError, match="'a' and 'b' are a pair of test"):
        model(False).fit(train, test)
    with pytest.raises(InputError, match="'a' is paired with themselves"):
        model(True).fit(im3f.Ratings.from_arrays(["a", "b"], ["a", "a"], [1.0, 2]))
    with pytest.raises(InputError, match="of one kind"):
        model(True).fit(im3f.Ratings.from_arrays([1, 2], ["1", "2"], [1.0, 2]))


@pytest.mark.parametrize(
    "named, settings",
    [
        ("max_topics is 1,", {"max_topics": 1}),
        ("^dish_concentration", {"dish_concentration": -1.0}),
        ("^table_concentration", {"table_concentration": 0.0}),
        ("^bias_variance", {"bias_variance": -1.0}),
        ("^topic_mean_variance", {"topic_mean_variance": "x"}),
        ("directed is 1,", {"directed": 1}),
        ("does not go with topics=CRF", {"topics": im3f.CRF()}),
        ("does not go with shrinkage", {"factor_prior": "shrinkage"}),
        ("topics is 'no'", {"topics": "no"}),
    ],
)
def test_a_setting_without_meaning_is_refused(named, settings):
    with pytest.raises(InputError, match=named) as refused:
        im3f.ReciprocalIM3F(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "message, changed",
    [
        ("one franchise", {"item_topic_prior": im3f.IM3F().item_topic_prior}),
        ("one table of biases", {"item_bias_prior": im3f.TopicNormal(0.3)}),
        ("noise that differs", {"user_noise": im3f.GammaNoise(2.0)}),
        ("noise that differs", {"rating_noise": im3f.GammaNoise(2.0)}),
        ("share a part", {"user_bias_prior": im3f.SharedNormal()}),
        ("depend on time", {"item_time": im3f.TimeBins(None, 3)}),
        ("depend on time", {"user_time": im3f.TimeDrift()}),
        ("topics select", {"topic_factors": im3f.TopicFactors(2)}),
        ("must be a NotReciprocal", {"reciprocal": True}),
    ],
)
def test_what_does_not_go_together_is_refused(message, changed):
    with pytest.raises(InputError, match=message):
        validate(dataclasses.replace(model(False), **changed))


def test_defaults_are_resolved_alike_for_both_sides():
    spec = resolve(im3f.ReciprocalIM3F(), 3.0, 2.0, 1.0)
    assert spec.reciprocal == im3f.Reciprocal(False)
    assert spec.user_bias_prior == spec.item_bias_prior
    assert spec.user_bias_prior.variance == im3f.InverseGamma(3.0, 0.2)
    assert spec.user_topic_prior == spec.item_topic_prior


# --- real data --------------------------------------------------------------------


@pytest.mark.thorough
def test_trust_among_traders(data_dir):
    """Bitcoin Alpha: persons rate one another; theirs is one index."""
    table = np.load(data_dir / "bitcoin-alpha" / "alpha.npz")
    user, item, rating = (table[name] for name in ("user", "item", "rating"))
    busy = (user < 150) & (item < 150)
    given = im3f.Ratings.from_arrays(user[busy], item[busy], rating[busy])
    train, test = im3f.random_split(given, seed=0)
    found = fits.fit(model(True), train, test, **LENGTHS)
    scores = found.evaluate(test)
    assert np.isfinite(scores["log_score"])
    assert len(found.users) == len({*given.user_ids} | {*given.item_ids})
    assert scores["rmse"] < np.std(test.rating)


@pytest.mark.slow
def test_authors_of_joint_papers(data_dir):
    table = np.load(data_dir / "dblp" / "coauthor_ml_dm.npz")
    few = np.minimum(table["user"], table["item"]) % 97 == 0
    few = np.flatnonzero(few)[:1500]
    given = im3f.Ratings.from_arrays(
        *(table[name][few] for name in ("user", "item")),
        table["rating"][few].clip(1, 4),
    )
    train, test = im3f.random_split(given, seed=0)
    found = fits.fit(model(False, likelihood="ordinal"), train, test, **LENGTHS)
    proba = found.predict_proba(test.user_ids, test.item_ids)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(
        proba, found.predict_proba(test.item_ids, test.user_ids)
    )
    assert np.isfinite(found.evaluate(test)["log_score"])
