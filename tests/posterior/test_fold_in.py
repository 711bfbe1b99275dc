"""New users and items: held against closed forms, simulation, and a fit with them."""

import dataclasses
import inspect
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.gibbs import new_rows
from im3f_jax.inference.features import RowParts, parts_of_rows
from im3f_jax.posterior import fold_in as fold_in_module
from tests import fits
from tests.gof import FAILURE, assert_ks, assert_mean
from tests.posterior import worlds

# No rating that is simulated is of the last row; all tests read predictions for it.
LAST = worlds.OTHERS - 1
DRAWS = 9  # with each new row's own rank among them: ten bins
SIMULATED, EMPTY = 2000, 1500

# Between them: both sides, both constructions, both likelihoods, all kinds of noise,
# biases with a shared part and without.
RANKED = {
    "users": (
        im3f.IM3F(2, max_user_topics=3, max_item_topics=4, user_noise_shape=None),
        "user",
    ),
    "items": (
        im3f.IM3F(
            2,
            max_user_topics=3,
            max_item_topics=4,
            topics="stick_breaking",
            likelihood="ordinal",
            item_noise_shape=None,
            degrees_of_freedom=4.0,
            user_shared_bias_variance=0,
            item_shared_bias_variance=0,
        ),
        "item",
    ),
}


def folded_rows(posterior, side, ids):
    """Give the parts of new rows in every draw, each of shape (draws, ids, ..)."""
    rows = getattr(posterior, f"{side}_row")[getattr(posterior, f"{side}s").lookup(ids)]
    vectors = getattr(posterior.draws, f"{side}_features")[0][:, rows]
    parts = parts_of_rows(vectors.astype(np.float64), posterior.spec, side)
    return SimpleNamespace(**parts._asdict())


def chances_of_ranks(name, num_sweeps=fold_in_module.NUM_SWEEPS):
    """Simulate rows and fold them in; p-values of the ranks, and what was folded.

    Among draws from their posterior the rows that made the ratings have every rank as
    often as any other (Cook, Gelman and Rubin 2006; Talts and others 2018). So they
    have among draws from the prior, where nothing ranked depends on the ratings: the
    likelihood does (Modrak and others 2023).
    """
    model, side = RANKED[name]
    world = worlds.make_world(model, side)
    truth, ids, frame = worlds.simulate(world, SIMULATED, most=LAST)
    empty = [f"empty{i}" for i in range(EMPTY)]
    posterior = worlds.posterior_of(world, DRAWS)
    folded = posterior.fold_in(
        frame, side=side, ids=[*ids, *empty], num_sweeps=num_sweeps
    )
    drawn = folded_rows(folded, side, ids)
    one = SimpleNamespace(**{name: value[None] for name, value in vars(truth).items()})
    ranks = {
        part: np.sum(found < values, axis=0)
        for (part, values), found in zip(
            worlds.parts_of(truth, world, LAST).items(),
            worlds.parts_of(drawn, world, LAST).values(),
            strict=True,
        )
    }
    given = world, ids, frame
    found, values = (worlds.log_likelihood(r, *given) for r in (drawn, one))
    rated = np.isin(ids, frame[side])
    ranks["likelihood"] = np.sum(found < values, axis=0)[rated]
    chances = {
        part: stats.chisquare(np.bincount(rank, minlength=DRAWS + 1)).pvalue
        for part, rank in ranks.items()
    }
    return chances, world, posterior, folded, empty


@pytest.mark.thorough
@pytest.mark.parametrize("name", RANKED)
def test_simulated_rows_rank_evenly_among_their_draws(name):
    chances, world, posterior, folded, empty = chances_of_ranks(name)
    assert {"own bias", "other bias", "most", "likelihood"} < chances.keys()
    assert min(chances.values()) > FAILURE / len(chances), chances
    # Rows without ratings are drawn from the prior, which expects what is predicted for
    # an unknown id (the latent rating's mean, of an ordinal model).
    drawn = folded_rows(folded, world.side, empty)
    means = worlds.parts_of(drawn, world, LAST)["mean"]
    expected = worlds.parts_of(
        folded_rows(posterior, world.side, ["old"]), world, LAST
    )["mean"][0]
    assert_mean(means.reshape(-1), expected[0])
    if not world.ordinal:
        prior = posterior.predict(["zoe"], [LAST], unknown="prior")
        assert prior[0] == pytest.approx(world.global_bias + expected[0], rel=1e-5)
    # Whatever the prior, and not only in mean.
    weights = world.concentration * world.global_weights
    first = stats.beta(weights[0], weights[1:].sum()).cdf
    assert_ks(drawn.weights[0, :, 0], first)


def test_the_number_of_sweeps_is_said_once():
    asked = inspect.signature(im3f.Posterior.fold_in).parameters["num_sweeps"]
    assert asked.default == fold_in_module.NUM_SWEEPS


def test_topics_beyond_the_columns_keep_their_share():
    model = RANKED["users"][0]
    world = worlds.make_world(model)
    columns = len(world.global_weights)
    prior = dataclasses.replace(
        world.spec.user_topic_prior, num_topics=2 * columns, stored=columns
    )
    spec = dataclasses.replace(world.spec, user_topic_prior=prior)
    weights = np.float32(0.9 * world.global_weights)
    given = {"table_concentration": np.float32(2.0)} | dict.fromkeys(
        ("shared_variance", "noise_shape", "global_bias", "rating_variance"), 1.0
    )
    expected = RowParts(np.zeros(2), np.zeros(4), weights, None)
    found = fold_in_module._population(expected, np.eye(2), given, None, spec, "user")
    np.testing.assert_allclose(found.concentration, [*(2 * weights), 0.2], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", ["weights left out", "half the bias", "other topics kept", "one sweep"]
)
def test_a_wrong_sweep_is_found_by_the_ranks(mutant, monkeypatch):
    sweeps = fold_in_module.NUM_SWEEPS
    match mutant:
        case "weights left out":
            right = new_rows.resample_row_weights
            monkeypatch.setattr(
                new_rows, "resample_row_weights", lambda k, c, n: right(k, c, 0 * n)
            )
        case "half the bias":
            given = new_rows.resample_rows

            def half(*args):
                bias, shared = given(*args)
                return bias / 2, shared

            monkeypatch.setattr(new_rows, "resample_rows", half)
        case "other topics kept":
            draw = new_rows.resample_topics

            def of_own_only(key, x, weight_row, bias_row, weights, bias, *more):
                drawn = draw(key, x, weight_row, bias_row, weights, bias, *more)
                others = bias.shape[0] > worlds.OTHERS + 100  # the new rows' biases
                return 0 * drawn if others else drawn

            monkeypatch.setattr(new_rows, "resample_topics", of_own_only)
        case "one sweep":
            sweeps = 1
    fold_in_module._fold_draw.clear_cache()
    try:
        chances = chances_of_ranks("users", sweeps)[0]
    finally:
        fold_in_module._fold_draw.clear_cache()
    assert min(chances.values()) < 1e-8, chances


def closed_form(world, items, ratings):
    """Mean and precision of a new row's factors given its ratings, in a BPMF."""
    b = world.factors[items]
    precision = world.factor_precision + b.T @ b / world.variance
    pull = world.factor_precision @ world.factor_mean
    pull = pull + b.T @ (ratings - world.global_bias) / world.variance
    return np.linalg.solve(precision, pull), precision


@pytest.mark.parametrize("side", ["user", "item"])
def test_without_topics_draws_are_of_the_closed_form(side):
    """As many new rows with the same ratings as there are draws to be looked at."""
    world = worlds.make_world(im3f.BPMF(2), side)
    items, ratings = np.array([0, 3, 4, 7]), np.array([5.0, 1.0, 4.5, 2.0])
    ids = [f"n{i}" for i in range(2000)]
    other = "item" if side == "user" else "user"
    frame = pd.DataFrame(
        {
            side: np.repeat(ids, len(items)),
            other: np.tile(items, len(ids)),
            "rating": np.tile(ratings, len(ids)),
        }
    )
    empty = [f"empty{i}" for i in range(2000)]
    posterior = worlds.posterior_of(world, 2)
    folded = posterior.fold_in(frame, side=side, ids=empty)
    for names, given in ((ids, (items, ratings)), (empty, (items[:0], ratings[:0]))):
        mean, precision = closed_form(world, *given)
        drawn = folded_rows(folded, side, names).factors
        # By L' of the precision L L': independent standard normals.
        white = (drawn - mean) @ np.linalg.cholesky(precision)
        for column in np.moveaxis(white.reshape(-1, 2), 1, 0):
            assert_ks(column, stats.norm.cdf, share=4)
        assert_mean((white[..., 0] * white[..., 1]).reshape(-1), 0.0)


def test_new_rows_of_one_seed_are_independent():
    """Of both sides, and of one side folded in one after the other."""
    world = worlds.make_world(im3f.BPMF(2))
    posterior = worlds.posterior_of(world, 400)
    both = posterior.fold_in(None, ids=["first"]).fold_in(None, ids=["second"])
    both = both.fold_in(None, side="item", ids=[99])
    first, second = (
        (folded_rows(both, "user", [one]).factors[:, 0] - world.factor_mean)
        @ np.linalg.cholesky(world.factor_precision)
        for one in ("first", "second")
    )
    item = folded_rows(both, "item", [99]).factors[:, 0]  # standard normal
    for one, other in ((first, second), (first, item), (second, item)):
        assert_mean((one * other).reshape(-1), 0.0)


def test_of_a_map_fit_new_factors_are_the_mode():
    world = worlds.make_world(im3f.PMF(2))
    frame = pd.DataFrame({"user": "new", "item": [1, 2, 9], "rating": [5.0, 1, 4]})
    folded = worlds.posterior_of(world, 1).fold_in(frame, ids=["empty"])
    mean, _ = closed_form(world, frame["item"].to_numpy(), frame["rating"].to_numpy())
    drawn = folded_rows(folded, "user", ["new", "empty"]).factors[0]
    np.testing.assert_allclose(drawn, [mean, world.factor_mean], rtol=1e-4, atol=1e-5)


# --- a fit ------------------------------------------------------------------------

LONG = {"num_warmup": 100, "num_samples": 400, "thinning": 4}


@pytest.mark.thorough
@pytest.mark.relaxed
@pytest.mark.parametrize("name", ["BPMF", pytest.param("IM3F", marks=pytest.mark.slow)])
def test_new_users_are_predicted_as_by_a_fit_with_them(name):
    """Three users, so few that a fit without them has the same shapes: one program."""
    train, _ = fits.data()
    theirs = np.isin(train.user, np.arange(3))
    others, theirs = train.select(~theirs), train.select(theirs)
    whole = fits.fit(fits.MODELS[name], train, **LONG)
    without = fits.fit(fits.MODELS[name], others, **LONG)
    users, items = fits.grid(train)
    new = np.isin(users, np.unique(theirs.user_ids)) & (items != fits.COLD_ITEM)
    pairs = users[new], items[new]
    expected = whole.predict(*pairs, return_std=True)

    def distance(posterior):
        return np.sqrt(np.mean((posterior.predict(*pairs) - expected.mean) ** 2))

    # By half of how sure the fit is; and by far less than without their ratings.
    found = distance(without.fold_in(theirs))
    assert found < 0.5 * np.mean(expected.std_of_mean)
    assert found < 0.5 * distance(without)


@pytest.fixture(scope="module")
def frame():
    """Ratings of two new users, and the ids of a third."""
    return pd.DataFrame(
        {"user": [901, 901, 902], "item": [1, 2, 30], "rating": [5.0, 4, 1]}
    )


@pytest.mark.relaxed
def test_the_fit_stays_as_it_is_and_the_new_one_is_whole(frame, tmp_path):
    train, test = fits.data()
    posterior = fits.posterior("BPMF")
    before = posterior.draws.user_features.copy()
    users = posterior.users
    folded = posterior.fold_in(frame, ids=[903, fits.COLD_USER])
    np.testing.assert_array_equal(posterior.draws.user_features, before)
    assert posterior.users is users and 901 not in users.ids
    # Others are predicted as before, by the same numbers.
    pairs = fits.grid(train)
    old = pairs[0] != fits.COLD_USER
    pairs = pairs[0][old], pairs[1][old]
    np.testing.assert_array_equal(posterior.predict(*pairs), folded.predict(*pairs))
    new = [901, 902, 903, fits.COLD_USER]
    assert folded.is_known(new, [1] * 4).all()
    assert not posterior.is_known(new, [1] * 4).any()
    assert not folded.is_known([903], [fits.COLD_ITEM]).any()
    values = folded.predict(new, [4] * 4)
    assert len(set(values)) == 4
    prior = posterior.predict([77], [4], unknown="prior")
    assert folded.predict([77], [4], unknown="prior") == prior
    scores = folded.evaluate(test)
    assert scores["num_cold"] < posterior.evaluate(test)["num_cold"]
    # Those of the test set that the fit was given are predicted anew.
    error = folded.predict(test.user_ids, test.item_ids) - test.rating
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)
    # Recommended is what they have not rated; what others have is remembered.
    assert not folded.recommend([901], 40)["item"].isin([1, 2]).any()
    assert len(folded.recommend([901], 40)) == len(folded.recommend([903], 40)) - 2
    pd.testing.assert_frame_equal(folded.recommend([3], 5), posterior.recommend([3], 5))
    # The same call gives the same draws, another seed others.
    again = posterior.fold_in(frame, ids=[903, fits.COLD_USER])
    np.testing.assert_array_equal(again.predict(new, [4] * 4), values)
    other = posterior.fold_in(frame, ids=[903, fits.COLD_USER], seed=1)
    assert not np.any(other.predict(new, [4] * 4) == values)
    # Saved, loaded, and folded into again: an item that new users rated.
    folded.save(tmp_path / "model.npz")
    loaded = im3f.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(new, [4] * 4), values)
    item = pd.DataFrame({"user": [901, 3], "item": 555, "rating": [5.0, 4]})
    wider = loaded.fold_in(item, side="item")
    np.testing.assert_array_equal(wider.predict(new, [4] * 4), values)
    assert wider.is_known([902], [555]).all()
    assert np.isfinite(wider.predict([902], [555])).all()
    assert not wider.recommend([901], 40)["item"].isin([1, 2, 555]).any()
    assert wider.recommend([902], 40)["item"].isin([555]).any()
    # With an item that is cold still.
    wider.save(tmp_path / "wider.npz")
    pairs = [901, 77, 3], [555, 4, fits.COLD_ITEM]
    np.testing.assert_array_equal(
        im3f.load(tmp_path / "wider.npz").predict(*pairs, unknown="prior"),
        wider.predict(*pairs, unknown="prior"),
    )


@pytest.mark.relaxed
def test_ratings_and_frames_are_the_same(frame):
    posterior = fits.posterior("BPMF")
    by_frame = posterior.fold_in(frame)
    by_ratings = posterior.fold_in(im3f.Ratings.from_dataframe(frame))
    new = [901, 902], [4, 4]
    np.testing.assert_array_equal(by_frame.predict(*new), by_ratings.predict(*new))
    twice = pd.concat([frame, frame.assign(rating=2.0)])
    with pytest.raises(InputError, match="901"):
        posterior.fold_in(twice)
    last = posterior.fold_in(twice, duplicates="last")
    assert last.predict([901], [4]) < by_frame.predict([901], [4])


@pytest.mark.relaxed
def test_what_cannot_be_folded_in_is_named(frame, caplog):
    posterior = fits.posterior("BPMF")

    def refused(match, ratings=frame, of=posterior, **settings):
        with pytest.raises(InputError, match=match):
            of.fold_in(ratings, **settings)

    refused("user 3, 4 had ratings in the fit", frame.assign(user=[3, 4, 903]))
    refused("unknown item: 999", frame.assign(item=[999, 1, 2]))
    cold = frame.assign(item=[fits.COLD_ITEM, 1, 2])
    refused(f"item {fits.COLD_ITEM} had no rating in the fit", cold)
    refused("kind integer and new user ids of kind string", frame.assign(user="x"))
    refused("type list", [1, 2, 3])
    refused("nobody", None)
    refused("nobody", frame[:0])
    refused("side is 'users'", side="users")
    refused("unknown is 'prior'", unknown="prior")
    refused("num_sweeps is 0", num_sweeps=0)
    refused("seed is -1", seed=-1)
    kept = posterior.draws._replace(
        user_factor_precision=None, item_factor_precision=None
    )
    refused("older version", of=dataclasses.replace(posterior, draws=kept))
    refused("summary", of=dataclasses.replace(posterior, draws=None))
    some = frame.assign(item=[999, fits.COLD_ITEM, 2])
    folded = posterior.fold_in(some, unknown="drop")
    assert "2 of 3 ratings" in caplog.text
    alone = posterior.fold_in(frame.assign(item=2)[2:], ids=[901])
    new = [901, 902], [4, 4]
    np.testing.assert_array_equal(folded.predict(*new), alone.predict(*new))


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (im3f.ReciprocalIM3F(2), "reciprocal"),
        (im3f.IM3F(2, topics=im3f.CRF()), "CRF"),
        (im3f.SeparateDP(2), "of each row's own"),
        (im3f.M3F_TIF(2, 2), "topic factors"),
        (im3f.BPMF(2, user_drift_variance=1.0), "time"),
    ],
)
def test_models_whose_new_rows_are_not_drawn_are_refused_by_name(model, part, frame):
    posterior = worlds.posterior_of(worlds.make_world(im3f.BPMF(2)), 1)
    with pytest.raises(InputError, match=part):
        dataclasses.replace(posterior, spec=model).fold_in(frame)
