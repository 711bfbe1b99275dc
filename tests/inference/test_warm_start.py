"""The MAP fit: its gradients, its objective, and that it ends at a mode."""

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.inference.warm_start import _weighted_sums, fit_map, order_columns
from tests import fits, tiny


@pytest.mark.parametrize("name", list(tiny.SIDES))
@pytest.mark.parametrize(
    "sizes", [tiny.SIZES, tiny.BlockSizes(block=2, group=2, rows=2, chunk=16)]
)
def test_sums_by_blocks_are_sums_over_ratings(name, sizes):
    side = tiny.SIDES[name]
    data = tiny.make_data(np.float32, sizes)
    rng = np.random.default_rng(1)
    other_rows = side.other.of(data, "rows")
    other = rng.normal(size=(other_rows, 3)).astype(np.float32)
    values = rng.normal(size=len(data.rating)).astype(np.float32)
    values[tiny.NUM_RATINGS :] = 0  # as `fit_map` masks them
    expected = np.zeros((side.of(data, "rows"), 3))
    for n in range(tiny.NUM_RATINGS):
        row, other_row = side.rows(data)[n], side.other.rows(data)[n]
        expected[row] += values[n] * np.float64(other[other_row])
    found = jax.jit(_weighted_sums)(values, other, side.of(data, "blocks"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_columns_are_put_in_order_and_their_product_stays():
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(64, 4)), rng.normal(size=(32, 4))
    a[50:] = b[20:] = 0  # padding
    a[:, 3] = a[:, 0] + a[:, 1]  # of rank 3
    users, items = order_columns(
        np.float32(a), np.float32(b), np.int32(50), np.int32(20)
    )
    users, items = np.float64(users), np.float64(items)
    np.testing.assert_allclose(users @ items.T, a @ b.T, atol=2e-5)
    values = np.linalg.svd(a @ b.T, compute_uv=False)[:4]
    for factors, number, limit in ((users, 50, values), (items, 20, values)):
        gram = factors.T @ factors / number
        expected = np.diag(limit / np.sqrt(50 * 20))
        np.testing.assert_allclose(gram, expected, atol=1e-5)


def test_columns_are_put_in_order_where_rows_are_fewer():
    a, b = np.random.default_rng(5).normal(size=(2, 3, 5)).astype(np.float32)
    users, items = order_columns(a, b, np.int32(3), np.int32(3))
    assert users.shape == items.shape == (3, 5)
    np.testing.assert_allclose(
        np.asarray(users) @ np.asarray(items).T, a @ b.T, atol=1e-5
    )
    sizes = np.sum(np.asarray(users) ** 2, axis=0)
    assert np.all(np.diff(sizes) < 1e-6) and np.all(sizes[3:] < 1e-6)


@pytest.fixture(scope="module")
def pmf():
    """Fit PMF to fits.data(); and the ratings less the global bias."""
    train, test = fits.data()
    return fits.fit(im3f.PMF(2), train, test)


def numbers(posterior):
    """sigma^2 and the precision of the factors."""
    spec = posterior.spec
    return spec.likelihood.variance, spec.factor_prior.precision


def objective(a, b, posterior, train):
    """The negative log joint of PMF once more, in numpy."""
    variance, precision = numbers(posterior)
    user, item = posterior.user_row[train.user], posterior.item_row[train.item]
    error = train.rating - posterior.spec.global_bias - np.sum(a[user] * b[item], 1)
    return 0.5 * (error @ error / variance + precision * (np.sum(a**2) + np.sum(b**2)))


def least_squares(a, b, posterior, train, rounds):
    """Alternating least squares: each half round is exact."""
    variance, precision = numbers(posterior)
    x = train.rating - posterior.spec.global_bias
    user, item = posterior.user_row[train.user], posterior.item_row[train.item]
    for _ in range(rounds):
        for mine, other, row, column in ((a, b, user, item), (b, a, item, user)):
            for r in range(len(mine)):
                seen = other[column[row == r]]
                gram = seen.T @ seen / variance + precision * np.eye(seen.shape[1])
                mine[r] = np.linalg.solve(gram, seen.T @ x[row == r] / variance)
    return a, b


@pytest.mark.relaxed
def test_pmf_ends_near_a_mode(pmf):
    train, _ = fits.data()
    a, b = (np.float64(f[0, 0]) for f in pmf.draws[:2])
    reached = objective(a, b, pmf, train)
    # The trace has the objective before the last step.
    assert -pmf.trace["log_joint"][0, 0] == pytest.approx(reached, rel=1e-3)
    nearest = objective(*least_squares(a.copy(), b.copy(), pmf, train, 40), pmf, train)
    assert nearest <= reached < nearest + 0.002 * abs(nearest)
    # And the mode is none of the poor ones: no random start ends much lower.
    rng = np.random.default_rng(0)
    for _ in range(3):
        start = rng.normal(size=a.shape), rng.normal(size=b.shape)
        other = objective(*least_squares(*start, pmf, train, 40), pmf, train)
        assert reached < 1.01 * other


@pytest.mark.relaxed
def test_the_objective_falls_and_is_that_of_pmf(pmf):
    from im3f_jax.data.layout import lay_out

    train, _ = fits.data()
    layout, _ = lay_out(
        pmf.user_row[train.user], pmf.item_row[train.item], train.rating, 59, 39
    )
    variance, precision = map(np.float32, numbers(pmf))
    bias = np.float32(pmf.spec.global_bias)
    result = fit_map(
        jax.random.key(0), jax.device_put(layout), 2, bias, variance, precision, 60
    )
    values = np.asarray(result.objective)
    assert np.isfinite(values).all()
    # Adam's steps of 0.03 overshoot near the end, by little.
    assert values[-1] < 0.9 * values[0]
    assert np.max(np.diff(values)) < 0.002 * values[0]
    a, b = np.float64(result.user_factors), np.float64(result.item_factors)
    assert not a[59:].any() and not b[39:].any()  # padding
    reached = objective(a[:60], b[:40], pmf, train)
    assert values[-1] == pytest.approx(reached, rel=2e-3)


@pytest.mark.relaxed
def test_pmf_is_a_posterior_of_one_draw(pmf):
    train, test = fits.data()
    assert pmf.num_kept == 1
    assert pmf.draws.global_bias.shape == (1, 1)
    # Its variance, where none is given, is 0.7 times that of the training ratings.
    assert pmf.spec.likelihood.variance == pytest.approx(0.7 * np.var(train.rating))
    np.testing.assert_allclose(
        pmf.predict(test.user_ids, test.item_ids), pmf.test_predictions, rtol=1e-5
    )
    np.testing.assert_allclose(
        pmf.predict(train.user_ids, train.item_ids), pmf.train_predictions, rtol=1e-5
    )
    scores = pmf.evaluate(test)
    assert scores["rmse"] < np.std(test.rating)
    assert scores["num_cold"] > 0
    # A cold user's vector is the prior's mean, 0.
    cold = pmf.predict([fits.COLD_USER], [0])
    np.testing.assert_allclose(cold, pmf.spec.global_bias, rtol=1e-6)
    assert len(pmf.trace_frame()) == 1


@pytest.mark.relaxed
def test_pmf_follows_the_scale_of_the_ratings(pmf):
    # In hundredths: the model is the same, and so are the predictions.
    train, test = fits.data()
    small = fits.with_ratings(train, train.rating / 100)
    fitted = fits.fit(im3f.PMF(2, rating_variance=numbers(pmf)[0] / 1e4), small, None)
    assert fitted.spec.likelihood.variance == numbers(pmf)[0] / 1e4
    found = 100 * fitted.predict(test.user_ids, test.item_ids)
    expected = pmf.predict(test.user_ids, test.item_ids)
    # Adam takes other steps on another scale, to the same mode.
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.1


@pytest.mark.relaxed
def test_persons_in_unordered_pairs_have_one_table():
    spec = tiny.reciprocate(tiny.make_spec("none"), False)
    data = tiny.make_data(np.float32, spec=spec)
    bias, variance, precision = np.float32([2.9, 0.5, 1.5])

    def gradient(a):
        """Of the objective with one |A|^2, over the ratings one by one."""
        result = precision * a
        for n in range(tiny.NUM_RATINGS):
            u, v = data.user[n], data.item[n]
            error = (data.rating[n] - bias - a[u] @ a[v]) / variance
            result[u] -= error * a[v]
            result[v] -= error * a[u]
        return result

    fits = [
        fit_map(
            jax.random.key(0), data, 2, bias, variance, precision, steps, one_table=True
        )
        for steps in (0, 500)
    ]
    start, end = (np.float64(fit.user_factors) for fit in fits)
    for fit in fits:
        np.testing.assert_array_equal(fit.user_factors, fit.item_factors)
    assert np.linalg.norm(gradient(end)) < 0.01 * np.linalg.norm(gradient(start))
    assert np.linalg.norm(end) > 1
