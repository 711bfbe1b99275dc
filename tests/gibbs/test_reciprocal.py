"""A reciprocal model's blocks against its log joint, and what its sweep gives them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs import factors, reciprocal, sweep
from im3f_jax.gibbs.biases import bias_statistics, conditional_biases
from im3f_jax.gibbs.factors import conditional_pair_factors, resample_pair_factors
from im3f_jax.gibbs.halves import conditional_halves
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.row_weights import conditional_row_weights
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.topics import conditional_topics
from im3f_jax.model.log_joint import log_joint
from im3f_jax.model.topic_prior import row_concentration
from tests import tiny
from tests.quick import quick_jit

SPECS = {
    "directed": tiny.reciprocate(tiny.make_spec("weak_limit"), True),
    "unordered": tiny.reciprocate(tiny.make_spec("stick_breaking"), False),
}
REAL = slice(tiny.NUM_RATINGS)
every_spec = pytest.mark.parametrize("name", SPECS)
conditional_factors = quick_jit(conditional_pair_factors)


def factor_arguments(state, data):
    x = tiny.residual(state, data, without=("factors",)).astype(data.rating.dtype)
    prior = state.user_factor_prior
    return prior, x, state.user_factors, state.rating_variance, data.pairs


# --- the blocks -------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [tiny.SIZES, tiny.BlockSizes(2, 2, 2, 16)])
def test_the_conditional_of_a_persons_factors_is_exact(sizes, precision):
    spec, data, state = tiny.make(precision, SPECS["unordered"], sizes=sizes)
    h, p = map(np.float64, conditional_factors(*factor_arguments(state, data)))
    rng = np.random.default_rng(3)
    for person in range(tiny.PERSONS):
        densities, values = [], []
        for _ in range(4):
            value = state.user_factors.copy()
            value[person] = v = rng.normal(size=tiny.LATENT_DIM)
            densities.append(h[person] @ v - 0.5 * v @ p[person] @ v)
            values.append(tiny.tie(state._replace(user_factors=value), spec))
        tiny.assert_same_differences(
            densities, [tiny.joint(value, spec, data) for value in values], precision
        )


def test_a_batch_of_persons_is_drawn_given_the_batches_before_it(monkeypatch, float64):
    _, data, state = tiny.make(float64, SPECS["unordered"])
    monkeypatch.setattr(
        factors, "standard_normal", lambda key, shape, dtype: jnp.zeros(shape, dtype)
    )
    arguments = factor_arguments(state, data)
    drawn = np.asarray(
        quick_jit(lambda *x: resample_pair_factors(jax.random.key(0), *x))(*arguments)
    )
    now = state.user_factors.copy()
    batches = [b[b < tiny.PERSONS] for b in data.pairs.person]
    batches = [b for b in batches if len(b)]
    assert len(batches) > 2
    for batch in batches:
        given = arguments[:2] + (now,) + arguments[3:]
        h, p = map(np.asarray, conditional_factors(*given))
        now[batch] = np.linalg.solve(p[batch], h[batch][..., None])[..., 0]
    np.testing.assert_allclose(drawn, now, rtol=1e-9, atol=1e-12)
    assert not np.any(drawn[tiny.PERSONS :])
    # At once, persons would read what their neighbours were.
    h, p = (np.asarray(x)[: tiny.PERSONS] for x in conditional_factors(*arguments))
    at_once = np.linalg.solve(p, h[..., None])[..., 0]
    assert np.max(np.abs(at_once - drawn[: tiny.PERSONS])) > 0.1


@every_spec
def test_the_conditional_of_the_row_weights_is_exact(name, precision):
    spec, data, state = tiny.make(precision, SPECS[name])
    weights = state.user_topic_weights
    counts = sum(tiny.topic_counts(side, state, data) for side in tiny.SIDES.values())
    assert counts.sum() == 2 * tiny.NUM_RATINGS
    alpha = np.float64(
        conditional_row_weights(
            row_concentration(weights.table_concentration, weights.log_global_weights),
            counts,
        )
    )[: tiny.PERSONS]
    rng = np.random.default_rng(4)
    densities, values = [], []
    for _ in range(4):
        theta = rng.dirichlet(np.full(alpha.shape[1], 1.5), size=len(alpha))
        densities.append(np.sum(alpha * np.log(theta)))
        log_theta = weights.log_row_weights.copy()
        log_theta[: tiny.PERSONS] = np.log(theta)
        own = weights._replace(log_row_weights=log_theta)
        values.append(tiny.tie(state._replace(user_topic_weights=own), spec))
    tiny.assert_same_differences(
        densities, [tiny.joint(value, spec, data) for value in values], precision
    )


@every_spec
def test_the_conditional_of_the_topics_is_exact(name, side, precision):
    spec, data, state = tiny.make(precision, SPECS[name])
    other = side.other
    x = tiny.residual(state, data, without=(f"{other.name}_bias",))
    found = quick_jit(conditional_topics)(
        x.astype(precision.dtype),
        side.rows(data),
        other.rows(data),
        state.user_topic_weights.log_row_weights,
        other.of(state, "bias"),
        state.rating_variance,
    )
    for n in (0, 4, 9):
        values = []
        for k in range(spec.num_user_topics):
            topic = side.of(state, "topic_of_rating").copy()
            topic[n] = k
            values.append(side.put(state, topic_of_rating=topic))
        tiny.assert_same_differences(
            found[n], [tiny.joint(v, spec, data) for v in values], precision
        )


def log_halves(first, x, user_part, item_part, variance):
    """Log density of both halves given the biases, rating by rating."""
    spread = np.sqrt(variance / 2)
    return stats.norm.logpdf(first, user_part, spread) + stats.norm.logpdf(
        x - first, item_part, spread
    )


def test_the_conditional_of_the_halves_is_exact(precision):
    rng = np.random.default_rng(5)
    x, user_part, item_part = rng.normal(size=(3, 6))
    variance = 0.7
    given = [np.asarray(v, precision.dtype) for v in (x, user_part, item_part)]
    found = conditional_halves(*given, precision.dtype(variance))
    first = rng.normal(size=(4, 6))
    spread = np.sqrt(np.float64(found.variance))
    for n in range(6):
        tiny.assert_same_differences(
            stats.norm.logpdf(first[:, n], np.float64(found.mean)[n], spread),
            log_halves(first[:, n], x[n], user_part[n], item_part[n], variance),
            precision,
        )
    # What is left of the sum of both is the rating's noise, whatever the first is.
    np.testing.assert_allclose(
        stats.norm.logpdf(x, user_part + item_part, np.sqrt(variance)),
        log_halves(first[0], x, user_part, item_part, variance)
        - stats.norm.logpdf(first[0], np.float64(found.mean), spread),
        rtol=1e-3,
        atol=1e-4,
    )


def test_the_conditional_of_the_biases_given_halves_is_exact(precision):
    """With the halves in the ratings' place in the log joint."""
    spec, data, state = tiny.make(precision, SPECS["unordered"])
    x = tiny.residual(state, data, without=("user_bias", "item_bias"))
    topics = state.item_topic_of_rating, state.user_topic_of_rating
    rng = np.random.default_rng(6)
    first = rng.normal(size=len(x)).astype(precision.dtype)
    both = reciprocal.both_roles
    valid = np.arange(len(x)) < tiny.NUM_RATINGS
    statistics = bias_statistics(
        both(first, x.astype(precision.dtype) - first),
        both(valid, valid),
        both(data.user, data.item),
        both(*topics),
        state.user_bias.shape,
    )
    prior, variance = state.user_bias_prior, state.rating_variance
    half = precision.dtype(0.5) * variance
    found = conditional_biases(statistics, prior.topic_mean, prior.variance, half)
    mean, spread = np.float64(found.mean), np.sqrt(np.float64(found.variance))
    number = tiny.PERSONS
    densities, joints = [], []
    for _ in range(4):
        bias = rng.normal(size=state.user_bias.shape).astype(precision.dtype)
        value = tiny.tie(state._replace(user_bias=bias), spec)
        densities.append(
            np.sum(stats.norm.logpdf(bias[:number], mean[:number], spread[:number]))
        )
        parts = bias[data.user, topics[0]], bias[data.item, topics[1]]
        parts = [np.float64(part)[REAL] for part in parts]
        of_halves = log_halves(first[REAL], x[REAL], *parts, float(variance))
        rest = stats.norm.logpdf(x[REAL], sum(parts), np.sqrt(float(variance)))
        joints.append(tiny.joint(value, spec, data) + np.sum(of_halves - rest))
    tiny.assert_same_differences(densities, joints, precision)


# --- the sweep --------------------------------------------------------------------


def record(spec, data, state, monkeypatch, *names):
    """Run a sweep and note what some of its functions are given and return."""
    given = {name: [] for name in names}
    for name in names:
        right = getattr(reciprocal, name)

        def note(*args, name=name, right=right):
            value = right(*args)
            given[name].append((args, value))
            return value

        monkeypatch.setattr(reciprocal, name, note)

    def run(key, state, data):
        for calls in given.values():
            calls.clear()
        after, info = gibbs_sweep.__wrapped__(key, state, spec, data)
        # Without what comes first: a key, or a prior, which is no array.
        return after, info, {k: [(a[1:], v) for a, v in c] for k, c in given.items()}

    return jax.jit(run)(jax.random.key(0), state, data)


@pytest.fixture(
    scope="module",
    params=[pytest.param("directed", marks=pytest.mark.thorough), "unordered"],
)
def swept(request):
    """One sweep of a spec, recorded."""
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"], SPECS[request.param])
    names = ("resample_topics", "resample_table_topics", "resample_halves")
    names += ("resample_topic_weights", "resample_rating_variance")
    with (
        pytest.MonkeyPatch.context() as patch,
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
    ):
        return spec, data, state, *record(spec, data, state, patch, *names)


def close(found, expected):
    np.testing.assert_allclose(
        np.asarray(found)[REAL], np.asarray(expected)[REAL], rtol=1e-4, atol=1e-4
    )


@pytest.mark.thorough
def test_a_sweep_gives_each_block_what_it_reads(swept):
    spec, data, state, after, _, calls = swept
    unordered = not spec.reciprocal.directed
    (first, item_topic), (second, user_topic) = calls["resample_topics"]
    now = state._replace(
        user_factors=after.user_factors, item_factors=after.item_factors
    )
    log_theta = state.user_topic_weights.log_row_weights
    close(first[0], tiny.residual(now, data, without=("user_bias",)))
    assert np.array_equal(first[1], data.item) and np.array_equal(first[2], data.user)
    now = now._replace(item_topic_of_rating=np.asarray(item_topic))
    close(second[0], tiny.residual(now, data, without=("item_bias",)))
    assert np.array_equal(second[1], data.user) and np.array_equal(second[2], data.item)
    for call in (first, second):
        np.testing.assert_array_equal(call[3], log_theta)
    now = now._replace(user_topic_of_rating=np.asarray(user_topic))

    # Tables: halves of both roles, each at the table of its own person.
    halves, (user_half, item_half) = calls["resample_halves"][0]
    x = tiny.residual(now, data, without=("user_bias", "item_bias"))
    close(halves[0], x)
    close(halves[1], state.user_bias[data.user, item_topic])
    close(halves[2], state.item_bias[data.item, user_topic])
    close(user_half + item_half, x)
    ((tables, moved),) = calls["resample_table_topics"]
    roles = [np.asarray(part).reshape(-1, 2).T for part in tables[:4]]
    close(roles[0][0], item_half)
    close(roles[0][1], user_half)
    assert np.array_equal(roles[1], [data.user, data.item])
    assert np.array_equal(roles[3], [user_topic, item_topic])
    read = np.asarray(tables[5])[roles[2], roles[3]]
    close(read[0], state.item_bias[data.item, user_topic])
    close(read[1], state.user_bias[data.user, item_topic])
    assert float(tables[6]) == pytest.approx(float(state.rating_variance) / 2)
    assert int(tables[7]) == 2 * tiny.NUM_RATINGS
    topics = np.asarray(moved).reshape(-1, 2).T
    assert np.array_equal(topics[0], after.user_topic_of_rating)
    assert np.array_equal(topics[1], after.item_topic_of_rating)

    # Weights: the counts of both roles.
    ((given, _),) = calls["resample_topic_weights"]
    counts = sum(tiny.topic_counts(side, after, data) for side in tiny.SIDES.values())
    np.testing.assert_array_equal(given[2], counts)

    now = now._replace(user_topic_of_rating=topics[0], item_topic_of_rating=topics[1])
    if unordered:
        halves, (user_half, item_half) = calls["resample_halves"][1]
        close(halves[0], tiny.residual(now, data, without=("user_bias", "item_bias")))
        close(halves[1], state.user_bias[data.user, topics[1]])
        close(halves[2], state.user_bias[data.item, topics[0]])
    squares = np.sum(tiny.residual(after, data, without=()) ** 2)
    ((given, _),) = calls["resample_rating_variance"]
    np.testing.assert_allclose(given[2], squares, rtol=1e-4)


def test_what_the_sides_share_stays_one(swept):
    spec, data, _, after, info, _ = swept
    shared = [(after.user_topic_weights, after.item_topic_weights)]
    if not spec.reciprocal.directed:
        shared += [
            (getattr(after, f"user_{name}"), getattr(after, f"item_{name}"))
            for name in ("factors", "factor_prior", "bias", "bias_prior")
        ]
    for pair in shared:
        jax.tree.map(np.testing.assert_array_equal, *pair)
    assert int(info.num_user_topics) == int(info.num_item_topics)
    used = {*after.user_topic_of_rating[REAL].tolist()}
    used |= {*after.item_topic_of_rating[REAL].tolist()}
    assert int(info.num_user_topics) == len(used)
    # Row weights summed out, from the counts of both roles.
    counts = sum(tiny.topic_counts(side, after, data) for side in tiny.SIDES.values())
    expected = log_joint(after, spec, data, topic_counts=(counts, counts))
    assert float(info.log_joint) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.thorough
def test_other_numbers_and_a_second_sweep_compile_nothing():
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"], SPECS["unordered"])
    spec = jax.tree.map(np.float32, spec)
    state = init_state(jax.random.key(1), spec, data)
    state, _ = gibbs_sweep(jax.random.key(2), state, spec, data)
    before = sweep.gibbs_sweep._cache_size()
    other = replace(spec, global_bias=np.float32(2.5))
    again, _ = gibbs_sweep(jax.random.key(3), state, other, data)
    assert sweep.gibbs_sweep._cache_size() == before
    assert np.all(np.isfinite(again.user_factors))
    np.testing.assert_array_equal(again.user_factors, again.item_factors)


def test_padding_does_not_matter():
    """Of a sweep's deterministic parts: parameters of factors, counts, log joint."""
    with tiny.in_precision("float64") as precision:
        spec = SPECS["unordered"]
        _, data, state = tiny.make(precision, spec)
        found = []
        for fill in (0.0, 7.0):
            number, rows = tiny.PERSONS, slice(tiny.PERSONS, None)
            bias = state.user_bias.copy()
            bias[rows] = fill
            theta = state.user_topic_weights.log_row_weights.copy()
            theta[rows] = -fill
            topic = state.user_topic_of_rating.copy()
            topic[tiny.NUM_RATINGS :] = int(fill) % 2
            weights = state.user_topic_weights._replace(log_row_weights=theta)
            other = tiny.tie(
                state._replace(
                    user_bias=bias,
                    user_topic_weights=weights,
                    user_topic_of_rating=topic,
                ),
                spec,
            )
            h, p = conditional_factors(*factor_arguments(other, data))
            counts = reciprocal.counts_of_persons(
                np.arange(len(topic)) < tiny.NUM_RATINGS,
                data,
                topic,
                other.item_topic_of_rating,
                theta.shape,
            )
            joint = tiny.joint(other, spec, data)
            found.append((h[:number], p[:number], counts[:number], joint))
        jax.tree.map(np.testing.assert_array_equal, *found)
