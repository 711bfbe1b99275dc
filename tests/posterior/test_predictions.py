"""Predictions, scores and files of a posterior whose draws are known."""

import json

import numpy as np
import pytest
from scipy.special import ndtr

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.inference.run import Draws
from im3f_jax.model.spec import resolve
from im3f_jax.posterior.posterior import Posterior
from im3f_jax.posterior.score import TOPICS, log_score

USERS, ITEMS, DIM = 5, 4, 2
CHAINS, KEPT = 2, 3
# Users in the order of their rows; "cold" has no training rating.
NAMES = ["ann", "bob", "cy", "dee", "eve", "cold"]


def make_draws(user_topics, item_topics, seed=0):
    rng = np.random.default_rng(seed)

    def side(rows, weights, biases, weights_first):
        factors = rng.normal(size=(CHAINS, KEPT, rows, DIM))
        theta = rng.dirichlet(np.full(weights, 0.7), (CHAINS, KEPT, rows))
        bias = rng.normal(size=(CHAINS, KEPT, rows, biases))
        parts = (theta, bias) if weights_first else (bias, theta)
        return np.concatenate([factors, *parts], axis=-1).astype(np.float32)

    return Draws(
        user_features=side(USERS + 1, user_topics, item_topics, False),
        item_features=side(ITEMS + 1, item_topics, user_topics, True),
        global_bias=rng.normal(3, 0.1, (CHAINS, KEPT)),
        rating_variance=rng.uniform(0.5, 1.0, (CHAINS, KEPT)),
        cut_points=np.zeros((CHAINS, KEPT, 0)),
    )


def make_posterior(spec, draws, **more):
    """Write a posterior out; user "cold" has no training rating."""
    table = im3f.Ratings.from_arrays(
        [*NAMES, "ann"], [10, 20, 30, 40, 10, 10, 20], [1.0, 2, 3, 4, 5, 3, 2]
    )
    row = np.empty(USERS + 1, int)
    row[table.users.lookup(NAMES)] = np.arange(USERS + 1)
    names = ("rating_variance", "num_user_topics", "num_item_topics")
    return Posterior(
        spec=spec,
        users=table.users,
        items=table.items,
        user_row=row,
        item_row=np.append(np.arange(ITEMS), ITEMS),
        draws=draws,
        trace={name: np.arange(CHAINS * 5.0).reshape(CHAINS, 5) for name in names},
        levels=np.arange(1.0, 6.0),
        is_discrete=True,
        num_warmup=2,
        num_samples=3,
        thinning=1,
        seed=0,
        device="cpu",
        versions={},
        seconds={},
        **more,
    )


@pytest.fixture(scope="module")
def posterior():
    model = im3f.IM3F(DIM, max_user_topics=3, max_item_topics=2)
    return make_posterior(resolve(model, 3.0, 1.0, 1.0), make_draws(3, 2))


def rating_means(draws, user, item):
    """Give means of a rating under each pair of topics, and their weights."""
    for c in range(CHAINS):
        for s in range(KEPT):
            u = draws.user_features[c, s, user].astype(float)
            j = draws.item_features[c, s, item].astype(float)
            a, bias, theta_user = np.split(u, [DIM, DIM + 2])
            b, theta_item, item_bias = np.split(j, [DIM, DIM + 2])
            mean = draws.global_bias[c, s] + a @ b
            mean = mean + bias[:, None] + item_bias[None]
            weight = theta_item[:, None] * theta_user[None]
            yield mean, weight, draws.rating_variance[c, s]


def test_predict_averages_the_mean_of_each_draw(posterior):
    found = posterior.predict(["bob", "eve"], [40, 10])
    row = {name: posterior.user_row[posterior.users.lookup([name])[0]] for name in
           ("bob", "eve")}  # fmt: skip
    for value, user, item in zip(found, (row["bob"], row["eve"]), (3, 0), strict=True):
        means = [np.sum(m * w) for m, w, _ in rating_means(posterior.draws, user, item)]
        assert value == pytest.approx(np.mean(means), rel=1e-5)
    each = posterior.predict(["bob"], [40], per_draw=True)
    assert each.shape == (CHAINS, KEPT, 1)
    assert each.mean() == pytest.approx(found[0], rel=1e-6)


def test_cold_and_unknown_ids_are_predicted_as_new_ones(posterior):
    (cold,) = posterior.predict(["cold"], [20])
    means = [np.sum(m * w) for m, w, _ in rating_means(posterior.draws, USERS, 1)]
    assert cold == pytest.approx(np.mean(means), rel=1e-5)
    (prior,) = posterior.predict(["zoe"], [20], unknown="prior")
    assert prior == cold
    values = posterior.predict(["zoe", "ann"], [20, 20], unknown="nan")
    assert np.isnan(values).tolist() == [True, False]
    assert posterior.is_known(["cold", "ann", "zoe"], [10] * 3).tolist() == [
        False,
        True,
        False,
    ]
    with pytest.raises(InputError, match="zoe"):
        posterior.predict(["zoe"], [20])
    with pytest.raises(InputError, match="'10'.*known as 10"):
        posterior.predict(["ann"], ["10"])


def test_clip(posterior):
    low, high = np.array(posterior.predict(["ann"], [10], clip=(2.0, 2.5))), (2.0, 2.5)
    assert high[0] <= low[0] <= high[1]
    trained = posterior.predict(["ann"], [10], clip="train")
    assert 1 <= trained[0] <= 5
    for bad in ("test", (3, 2)):
        with pytest.raises(InputError, match="clip"):
            posterior.predict(["ann"], [10], clip=bad)


@pytest.mark.parametrize("density", [True, False])
def test_log_score_is_that_of_the_mixture(posterior, density):
    levels = np.array([1.0, 2.0, 3.0, 5.0])
    rating = np.array([2.0, 5.0, 1.0])
    user, item = np.array([0, 3, USERS]), np.array([1, 2, 0])
    found = log_score(
        posterior.draws, posterior.spec, user, item, rating,
        None if density else levels,
    )  # fmt: skip
    edges = [-np.inf, 1.5, 2.5, 4.0, np.inf]
    for n in range(3):
        each = []
        for mean, weight, variance in rating_means(posterior.draws, user[n], item[n]):
            sd = np.sqrt(variance)
            if density:
                p = np.exp(-0.5 * (rating[n] - mean) ** 2 / variance)
                p /= np.sqrt(2 * np.pi * variance)
            else:
                k = np.searchsorted(levels, rating[n])
                p = ndtr((edges[k + 1] - mean) / sd) - ndtr((edges[k] - mean) / sd)
            each.append(np.sum(weight * p))
        assert found.log_score[n] == pytest.approx(np.log(np.mean(each)), abs=1e-4)
    assert found.dropped == pytest.approx(0, abs=1e-6)


def test_probabilities_of_all_levels_sum_to_1(posterior):
    levels = np.array([0.5, 1.0, 2.5, 4.0])
    zeros = np.zeros(len(levels), int)
    found = log_score(posterior.draws, posterior.spec, zeros, zeros, levels, levels)
    assert np.exp(found.log_score).sum() == pytest.approx(1, abs=1e-5)


def test_topics_left_out_are_reported():
    many = TOPICS + 4
    draws = make_draws(many, many)
    spec = im3f.IM3F(DIM, max_user_topics=many, max_item_topics=many)
    row = np.zeros(1, int)
    found = log_score(draws, spec, row, row, np.array([3.0]), None)
    lost = []
    for c in range(CHAINS):
        for s in range(KEPT):
            theta_user = np.sort(draws.user_features[c, s, 0, DIM + many :])
            theta_item = np.sort(draws.item_features[c, s, 0, DIM : DIM + many])
            lost.append(1 - theta_user[-TOPICS:].sum() * theta_item[-TOPICS:].sum())
    assert found.dropped == pytest.approx(np.mean(lost), abs=1e-5)
    assert found.dropped > 0


def test_evaluate_counts_the_cold(posterior):
    test = im3f.Ratings.from_arrays(["ann", "cold"], [10, 20], [1.0, 5.0])
    scores = posterior.evaluate(test)
    assert scores["num_ratings"] == 2
    assert scores["num_cold"] == 1
    assert scores["log_score_kind"] == "log_probability"
    error = posterior.predict(["ann", "cold"], [10, 20]) - [1.0, 5.0]
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)))
    assert scores["mae"] == pytest.approx(np.mean(np.abs(error)))


def test_kept_draws_leave_the_warm_up_out(posterior):
    assert posterior.num_kept == 3
    assert posterior.num_user_topics.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert (
        posterior.trace_frame()["phase"].tolist()
        == (["warmup"] * 2 + ["sample"] * 3) * 2
    )


def test_saved_and_loaded_it_predicts_the_same(posterior, tmp_path):
    path = tmp_path / "fit.npz"
    posterior.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["fit.npz"]
    again = im3f.load(path)
    assert again.spec == posterior.spec
    pairs = ["bob", "cold"], [40, 10]
    assert again.predict(*pairs).tolist() == posterior.predict(*pairs).tolist()
    with pytest.raises(InputError, match="zoe"):
        again.predict(["zoe"], [10])


def test_a_file_that_is_no_posterior_is_refused(posterior, tmp_path):
    path = tmp_path / "fit.npz"
    posterior.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays["header"]))
    header["format_version"] = 99
    np.savez(path, **arrays | {"header": np.array(json.dumps(header))})
    with pytest.raises(InputError, match="version 99.*version 1"):
        im3f.load(path)
    path.write_bytes(b"not a file of arrays")
    with pytest.raises(InputError):
        im3f.load(path)
