"""A fitted posterior: its predictions against its draws, its scores and its story."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from tests import fits
from tests.posterior.test_explain import check_parts
from tests.posterior.test_recommend import check_against_all_pairs, seen_by_id

pytestmark = pytest.mark.relaxed

EVERY = list(fits.MODELS)


def means_of_draws(posterior, user_rows, item_rows):
    """Mean of each rating in each draw once more, term by term, (chain, draw, n)."""
    draws, spec = posterior.draws, posterior.spec
    dim, contexts, moods = (
        spec.latent_dim,
        spec.num_item_topics,
        spec.num_user_topics,
    )
    users = np.float64(draws.user_features[:, :, user_rows])
    items = np.float64(draws.item_features[:, :, item_rows])
    mean = draws.global_bias[:, :, None].copy()
    for d in range(dim):
        mean = mean + users[..., d] * items[..., d]
    for k in range(contexts):  # the user's bias, and the item's weight
        mean = mean + users[..., dim + k] * items[..., dim + k]
    for i in range(moods):  # the user's weight, and the item's bias
        place = dim + contexts + i
        mean = mean + users[..., place] * items[..., place]
    return mean


def rows(posterior, user_codes, item_codes):
    """Rows in the draws: those of the trained count up, the cold have the last."""
    trained_users = [u for u in range(60) if u != fits.COLD_USER] + [fits.COLD_USER]
    trained_items = [j for j in range(40) if j != fits.COLD_ITEM] + [fits.COLD_ITEM]
    place_of_user = {u: row for row, u in enumerate(trained_users)}
    place_of_item = {j: row for row, j in enumerate(trained_items)}
    return (
        np.array([place_of_user[u] for u in user_codes]),
        np.array([place_of_item[j] for j in item_codes]),
    )


@pytest.mark.parametrize("name", EVERY)
def test_predict_is_the_mean_over_draws_for_every_pair(name):
    posterior, (train, _) = fits.posterior(name), fits.data()
    users, items = fits.grid(train)
    expected = means_of_draws(posterior, *rows(posterior, users, items))
    each = posterior.predict(users, items, per_draw=True)
    assert each.shape == (1, 3, 60 * 40)
    assert each.dtype == np.float64
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    found = posterior.predict(users, items)
    assert found.shape == (60 * 40,)
    np.testing.assert_allclose(found, expected.mean((0, 1)), rtol=1e-5)
    # Draws differ, so that the mean is not that of one of them.
    assert np.all(each.std(1) > 0)


@pytest.mark.parametrize("name", EVERY)
def test_a_cold_user_and_item_are_predicted_as_new_ones(name):
    posterior = fits.posterior(name)
    known_user, known_item = 0, 0
    pairs = [
        (fits.COLD_USER, known_item, "new", known_item),
        (known_user, fits.COLD_ITEM, known_user, "new"),
        (fits.COLD_USER, fits.COLD_ITEM, "new", "new"),
    ]
    for user, item, new_user, new_item in pairs:
        (cold,) = posterior.predict([user], [item])
        (new,) = posterior.predict([new_user], [new_item], unknown="prior")
        assert np.isfinite(cold) and cold == new
    assert posterior.is_known([0, 0, 17, 17, "0"], [0, 5, 0, 5, 0]).tolist() == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_predictions_of_the_pairs_given_to_fit_come_in_their_order():
    for name in EVERY:
        posterior = fits.posterior(name)
        for ratings, predictions in zip(
            fits.data(),
            (posterior.train_predictions, posterior.test_predictions),
            strict=True,
        ):
            assert np.any(np.diff(ratings.user) < 0), "sorted rows would show nothing"
            expected = posterior.predict(ratings.user_ids, ratings.item_ids)
            np.testing.assert_allclose(predictions, expected, rtol=1e-5)


def test_the_order_of_the_rows_does_not_matter():
    train, test = fits.data()
    order = np.random.default_rng(1).permutation(len(train))
    posterior = fits.fit(fits.MODELS["IM3F"], train.select(order), test)
    expected = fits.posterior("IM3F")
    np.testing.assert_array_equal(
        posterior.train_predictions, expected.train_predictions[order]
    )
    np.testing.assert_array_equal(posterior.test_predictions, expected.test_predictions)


def test_unknown_ids_raise_unless_something_else_is_asked_for():
    posterior = fits.posterior("IM3F")
    with pytest.raises(im3f.InputError, match="unknown user: 60"):
        posterior.predict([60], [0])
    with pytest.raises(im3f.InputError, match="unknown item: '0'.*known as 0"):
        posterior.predict([0], ["0"])
    pairs = [0, 60, 0, 60], [0, 0, -1, -1]
    values = posterior.predict(*pairs, unknown="nan")
    assert np.isnan(values).tolist() == [False, True, True, True]
    assert values[0] == posterior.predict([0], [0])[0]
    each = posterior.predict(*pairs, unknown="nan", per_draw=True)
    assert each.shape == (1, 3, 4)
    assert np.isnan(each[..., 1:]).all() and np.isfinite(each[..., 0]).all()
    assert np.isfinite(posterior.predict(*pairs, unknown="prior")).all()
    with pytest.raises(im3f.InputError, match="unknown is 'mean'"):
        posterior.predict([0], [0], unknown="mean")


def test_pairs_must_be_pairs():
    posterior = fits.posterior("BPMF")
    with pytest.raises(im3f.InputError, match="2 users and 3 items"):
        posterior.predict([0, 1], [0, 1, 2])
    assert posterior.predict([], []).shape == (0,)
    assert posterior.predict([], [], per_draw=True).shape == (1, 3, 0)
    frame = pd.DataFrame({"user": [3, 2], "item": [1, 0]}, index=[7, 7])
    np.testing.assert_array_equal(
        posterior.predict(frame["user"], frame["item"]),
        posterior.predict([3, 2], [1, 0]),
    )


def test_clipping():
    posterior, (train, test) = fits.posterior("BPMF"), fits.data()
    pairs = fits.grid(train)
    free = posterior.predict(*pairs)
    assert free.min() < 2.5 < 4 < free.max()
    np.testing.assert_array_equal(
        posterior.predict(*pairs, clip=(2.5, 4)), np.clip(free, 2.5, 4)
    )
    np.testing.assert_array_equal(
        posterior.predict(*pairs, clip="train"), np.clip(free, 1, 5)
    )
    each = posterior.predict(*pairs, clip=(2.5, 4), per_draw=True)
    assert each.min() == 2.5 and each.max() == 4
    clipped = np.clip(posterior.test_predictions, 2.5, 4)
    scores = posterior.evaluate(test, clip=(2.5, 4))
    assert scores["rmse"] == pytest.approx(
        np.sqrt(np.mean((clipped - test.rating) ** 2))
    )
    # Clipping is about points, not about probabilities.
    assert scores["log_score"] == posterior.evaluate(test)["log_score"]


@pytest.mark.parametrize(
    "clip", ["test", (3, 2), (2, 2), (1, np.nan), 5, (1, 2, 3), ("a", "b"), "15"]
)
def test_a_clip_without_meaning_is_refused(clip):
    posterior = fits.posterior("BPMF")
    with pytest.raises(im3f.InputError, match="^clip is .*None, 'train' or"):
        posterior.predict([0], [0], clip=clip)
    with pytest.raises(im3f.InputError, match="^clip is"):
        posterior.evaluate(fits.data()[1], clip=clip)


@pytest.mark.parametrize("name", EVERY)
def test_evaluate(name):
    posterior, (train, test) = fits.posterior(name), fits.data()
    scores = posterior.evaluate(test)
    assert set(scores) == {
        "rmse",
        "mae",
        "log_score",
        "log_score_kind",
        "dropped_weight",
        "num_ratings",
        "num_cold",
    }
    error = posterior.predict(test.user_ids, test.item_ids) - test.rating
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-5)
    assert scores["mae"] == pytest.approx(np.mean(np.abs(error)), rel=1e-5)
    assert scores["rmse"] == pytest.approx(
        posterior.trace["test_rmse"][0, -1], rel=1e-5
    )
    assert scores["num_ratings"] == len(test) == 290
    cold = (test.user == fits.COLD_USER) | (test.item == fits.COLD_ITEM)
    assert scores["num_cold"] == cold.sum() > 20
    assert scores["log_score_kind"] == "log_probability"
    assert np.log(1 / 5) < scores["log_score"] < 0  # better than no opinion
    assert posterior.evaluate(train)["num_cold"] == 0
    assert "log_score" not in posterior.evaluate(test, log_score=False)


def test_evaluate_finds_ids_in_another_index():
    posterior, (_, test) = fits.posterior("IM3F"), fits.data()
    few = test.select(np.arange(0, 290, 7))
    again = im3f.Ratings.from_dataframe(few.to_dataframe())
    assert again.users is not test.users and len(again.users) < 60
    assert posterior.evaluate(again) == pytest.approx(posterior.evaluate(few))
    other = im3f.Ratings.from_arrays([0, 99], [0, 1], [3.0, 4.0])
    with pytest.raises(im3f.InputError, match="unknown user: 99"):
        posterior.evaluate(other)


def test_evaluate_refuses_what_holds_no_ratings():
    posterior, (_, test) = fits.posterior("BPMF"), fits.data()
    with pytest.raises(im3f.InputError, match="no ratings to score"):
        posterior.evaluate(test.select(np.arange(0)))
    with pytest.raises(im3f.InputError, match="type DataFrame"):
        posterior.evaluate(test.to_dataframe())


def test_a_summary_predicts_the_pairs_given_and_says_so():
    train, test = fits.data()
    whole, summary = (
        fits.posterior("IM3F"),
        fits.fit(fits.MODELS["IM3F"], store="summary"),
    )
    for ratings in (test, train, test.select(np.arange(5)[::-1])):
        pairs = ratings.user_ids, ratings.item_ids
        np.testing.assert_allclose(
            summary.predict(*pairs), whole.predict(*pairs), rtol=1e-5
        )
    np.testing.assert_allclose(
        summary.predict(*map(np.append, pairs, (train.user[0], train.item[0])))[-1:],
        whole.predict(train.user_ids[:1], train.item_ids[:1]),
        rtol=1e-5,
    )
    scores = summary.evaluate(test)
    assert scores["rmse"] == pytest.approx(whole.evaluate(test)["rmse"])
    assert "log_score" not in scores
    seen = set(zip(*map(np.append, (train.user, train.item), (test.user, test.item)),
                   strict=True))  # fmt: skip
    user, item = next(pair for pair in zip(*fits.grid(train), strict=True)
                      if pair not in seen)  # fmt: skip
    for pairs in (([user], [item]), ([user, test.user[0]], [item, test.item[0]])):
        with pytest.raises(im3f.InputError, match="1 of .* pairs .*store='factors'"):
            summary.predict(*pairs)
    with pytest.raises(im3f.InputError, match="kept no draws.*store='factors'"):
        summary.predict(test.user_ids, test.item_ids, per_draw=True)


def test_a_summary_has_nothing_for_an_unknown_id():
    # A pair's key must not fall on that of another pair: -1 is the last item before.
    train, test = fits.data()
    summary = fits.fit(fits.MODELS["IM3F"], store="summary")
    last = np.flatnonzero(train.item == 39)[0]
    after = int(train.user[last]) + 1
    assert after < 60
    with pytest.raises(im3f.InputError, match="1 of 1 pairs"):
        summary.predict([after], ["?"], unknown="prior")
    values = summary.predict(
        [after, "?", test.user[0]], ["?", 0, test.item[0]], unknown="nan"
    )
    assert np.isnan(values).tolist() == [True, True, False]


def test_topics_are_counted_in_kept_draws():
    posterior, kept = fits.posterior("IM3F"), fits.kept_sweeps()
    for side, most in (("user", 4), ("item", 5)):
        number = getattr(posterior, f"num_{side}_topics")
        effective = getattr(posterior, f"effective_{side}_topics")
        assert number.shape == effective.shape == (1, 3)
        assert number.dtype.kind == "i"
        trace = posterior.trace[f"num_{side}_topics"]
        np.testing.assert_array_equal(number, trace[:, kept])
        assert np.all((1 <= number) & (number <= most))
        assert np.all((1 <= effective) & (effective <= number + 1e-5))
    # The chain starts in one topic a side; what the warm-up did is not counted.
    assert posterior.trace["num_user_topics"].shape == (1, 19)
    m3f, bpmf = fits.posterior("M3F"), fits.posterior("BPMF")
    assert np.unique(m3f.num_user_topics) == 2 and np.unique(m3f.num_item_topics) == 3
    assert np.unique(bpmf.num_user_topics) == np.unique(bpmf.num_item_topics) == 0


def test_the_trace_as_a_frame():
    posterior = fits.fit(fits.MODELS["BPMF"], num_chains=2)
    frame = posterior.trace_frame()
    assert list(frame)[:4] == ["chain", "sweep", "phase", "kept"]
    assert list(frame)[4:] == list(posterior.trace)
    assert len(frame) == 2 * 19
    assert frame["chain"].tolist() == [0] * 19 + [1] * 19
    assert frame["sweep"].tolist() == list(range(19)) * 2
    assert frame.groupby("phase").size().to_dict() == {"warmup": 12, "sample": 26}
    for chain, part in frame.groupby("chain"):
        assert part.loc[part["kept"], "sweep"].tolist() == fits.kept_sweeps().tolist()
        np.testing.assert_array_equal(
            part["log_joint"], posterior.trace["log_joint"][chain]
        )


def test_the_posterior_says_what_it_is():
    text = repr(fits.posterior("M3F"))
    assert text.startswith(
        "Posterior(latent_dim=2, chains=1, sweeps=19, kept=3 a chain"
    )
    assert "user_topics=2, item_topics=3" in text
    assert "cpu" in text and "\n" not in text and len(text) < 200
    assert "item_topics=0" in repr(fits.posterior("BPMF"))
    low = dataclasses.replace(fits.posterior("M3F"))
    low.trace = {**low.trace, "num_user_topics": np.arange(19)[None]}
    assert "user_topics=9..17" in repr(low)


@pytest.mark.parametrize("name", EVERY)
def test_a_fit_recommends_what_was_not_rated_in_training(name):
    posterior, (train, _) = fits.posterior(name), fits.data()
    pairs = set(zip(train.user_ids.tolist(), train.item_ids.tolist(), strict=True))
    assert seen_by_id(posterior) == pairs
    few = [0, fits.COLD_USER, 59, 30]
    found = check_against_all_pairs(posterior, pairs, n=6, users=few)
    assert fits.COLD_ITEM not in set(found["item"])


@pytest.mark.parametrize("name", EVERY)
def test_parts_of_a_prediction_sum_to_it(name):
    parts = ["global bias", "factors", "user bias", "item bias"]
    pairs = [(0, 0), (fits.COLD_USER, 7), (40, fits.COLD_ITEM)]
    check_parts(fits.posterior(name), pairs, parts[: 2 if name == "BPMF" else 4])


def test_how_it_was_run_is_kept():
    posterior = fits.posterior("BPMF")
    assert (posterior.seed, posterior.num_warmup, posterior.num_samples) == (3, 6, 13)
    assert posterior.thinning == 4 and not posterior.partial
    assert set(posterior.seconds) == {"start", "compile", "run"}
    assert all(seconds >= 0 for seconds in posterior.seconds.values())
    assert {"python", "im3f-jax", "jax", "jaxlib", "numpy"} <= set(posterior.versions)
    np.testing.assert_array_equal(posterior.levels, [1, 2, 3, 4, 5])
    assert posterior.is_discrete is True
