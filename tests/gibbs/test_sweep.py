"""The sweep: every block is given what its exact test gives it, in the right order.

The blocks are proved one by one in the files beside this. Here a sweep is recorded, and
what each block received is compared with the model's sums in plain numpy, taken from
the state as the blocks before it left it.
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from im3f_jax.data.layout import lay_out
from im3f_jax.gibbs import response, topic_weights
from im3f_jax.gibbs import sweep as source
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.state import BiasPriorState, FactorPriorState
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.table_topics import table_room
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.log_joint import mean_of_ratings
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.scalars import Gamma
from im3f_jax.model.time_effects import TimeEffect
from im3f_jax.model.topic_prior import HDP
from tests import tiny
from tests.quick import quick_jit

SPECS = {
    "weak limit and sticks": tiny.make_spec(),
    "sticks and weak limit": tiny.make_spec("stick_breaking", "weak_limit"),
    "finite, one item topic": tiny.make_fixed_spec(0.3, 0.2),
    "no topics": tiny.make_spec("none", "none"),
    "user topics only": tiny.make_spec("finite", "none"),
    "ordinal": tiny.make_ordinal_spec("finite", "none"),
    "shared biases": tiny.share(tiny.make_spec("finite", "weak_limit")),
    "noise": tiny.noisy(tiny.make_spec("finite", "finite")),
    "ordinal noise": tiny.noisy(tiny.make_ordinal_spec("none", "none"), item=None),
    "noise by item": tiny.noisy(tiny.make_spec("none", "none"), None, 1.5, None),
    "shrinkage": tiny.shrink(tiny.make_spec("none", "none")),
    "time": tiny.timed(tiny.noisy(tiny.make_spec("finite", "finite"))),
    "ordinal time": tiny.timed(tiny.make_ordinal_spec("none", "none"), item=None),
}


def module_of(name):
    """Find the module that calls a block: the sweep, or one of its two parts."""
    modules = [m for m in (source, response, topic_weights) if hasattr(m, name)]
    assert len(modules) == 1
    return modules[0]


class Stubs:
    """Stand for the blocks of a sweep: note what they are given, return anything.

    What is returned is drawn by numpy while the sweep is traced, so that no random
    draw has to be compiled, and differs from whatever was there before.
    """

    def __init__(self, dtype):
        self.rng = np.random.default_rng(11)
        self.dtype = dtype
        self.calls = []

    def normal(self, *shape):
        return jnp.asarray(self.rng.normal(size=shape), self.dtype)

    def positive(self):
        return jnp.asarray(self.rng.uniform(0.3, 2), self.dtype)

    def log_weights(self, *shape):
        weights = self.rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
        return jnp.asarray(np.log(weights), self.dtype)

    def resample_factor_prior(self, prior, key, factors, number):
        precision = tiny.positive_definite(self.rng, factors.shape[1])
        return FactorPriorState(
            self.normal(factors.shape[1]), jnp.asarray(precision, self.dtype)
        )

    def resample_column_precisions(self, key, prior, increments, *given):
        drawn = self.normal(*increments.shape)
        return drawn, *(
            self.resample_factor_prior(prior, key, factors, None)
            for factors in given[:2]
        )

    def resample_factors(self, key, prior, x, other, variance, blocks, number, *rest):
        factors = self.normal(blocks.rows, other.shape[1])
        rows = np.arange(blocks.rows, dtype=np.int32)
        return jnp.where(rows[:, None] < number, factors, 0)

    def resample_topics(self, key, x, weight_row, bias_row, log_theta, bias, *rest):
        topics = self.rng.integers(bias.shape[1], size=x.shape)
        return jnp.asarray(topics, jnp.int32)

    def resample_table_topics(self, key, x, weight_row, bias_row, topic, *rest):
        topics = self.rng.integers(rest[1].shape[1], size=x.shape)
        return jnp.asarray(topics, jnp.int32)

    def resample_table_counts(self, key, counts, concentration, total):
        tables = self.rng.integers(5, size=counts.shape[1])
        return jnp.asarray(tables, jnp.int32)

    def resample_table_concentration(self, *given):
        return self.positive()

    def resample_dish_concentration_of_weak_limit(self, *given):
        return self.positive()

    def resample_dish_concentration_of_sticks(self, *given):
        return self.positive()

    def resample_global_weights(self, key, construction, tables, beta):
        return self.log_weights(*tables.shape)

    def resample_row_weights(self, key, concentration, counts):
        return self.log_weights(*counts.shape)

    def resample_biases(self, key, prior, state, bias, sums, variance):
        drawn = BiasPriorState(
            self.normal(bias.shape[1]), self.positive(), self.positive()
        )
        if state.shared is not None:
            drawn = drawn._replace(
                shared=self.normal(bias.shape[0]), shared_variance=self.positive()
            )
        return self.normal(*bias.shape), drawn

    def resample_rating_variance(self, key, likelihood, current, *given):
        return current if isinstance(likelihood, Ordinal) else self.positive()

    def resample_cut_points(self, key, likelihood, cut_points, *given):
        return jnp.sort(self.normal(*cut_points.shape)), self.positive()

    def resample_latent_ratings(self, key, level, *given):
        return self.normal(*level.shape)

    def resample_precisions(self, key, shape, count, *given):
        return jnp.asarray(self.rng.uniform(0.3, 2, count.shape), self.dtype)

    def resample_shape(self, *given):
        return self.positive()

    def resample_effects(self, key, prior, effect, *given):
        return self.normal(*effect.shape), self.positive()

    @contextlib.contextmanager
    def installed(self):
        """Put the stubs in the place of the blocks."""

        def note(name):
            def noted(*given, shared=False, **others):
                # For the Chinese restaurant franchise, and for several devices only.
                assert not any(others.values()), others
                result = getattr(self, name)(*given)
                kept = [None if isinstance(x, str) else x for x in given]
                self.calls.append((name, kept, result))
                return result

            return noted

        with pytest.MonkeyPatch.context() as patch:
            for name in vars(Stubs):
                if name.startswith("resample"):
                    patch.setattr(module_of(name), name, note(name))
            yield


def record_sweep(state, spec, data, stubs):
    """Run a sweep of stubs; return the state, the info and the calls of its blocks."""
    names = []

    def recorded(key, state, spec, data):
        with stubs.installed():
            result = gibbs_sweep.__wrapped__(key, state, spec, data)
        names[:] = [name for name, *_ in stubs.calls]
        return result, [call[1:] for call in stubs.calls]

    (state, info), calls = quick_jit(recorded)(jax.random.key(0), state, spec, data)
    calls = [(name, *call) for name, call in zip(names, calls, strict=True)]
    return state, info, calls


def assert_close(actual, expected):
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, atol=1e-10, rtol=1e-10),
        actual,
        expected,
    )


class Replay:
    """Goes through the calls of a sweep and carries its state along."""

    def __init__(self, state, spec, data, calls):
        self.state, self.spec, self.data = state, spec, data
        self.calls = iter(calls)
        self.keys = []
        self.order = lay_out(
            tiny.USER, tiny.ITEM, tiny.RATING, tiny.NUM_USERS, tiny.NUM_ITEMS
        )[1]
        self.valid = np.arange(len(data.rating)) < tiny.NUM_RATINGS

    def next(self, name):
        """Take the next call, which must be of that block; note its key."""
        called, arguments, result = next(self.calls)
        assert called == name
        result = jax.tree.map(np.asarray, result)
        keys = [x for x in arguments if is_key(x)]
        assert len(keys) == 1
        self.keys += [tuple(jax.random.key_data(keys[0]).tolist())]
        return [x for x in arguments if not is_key(x)], result

    def residual(self, *without):
        return tiny.residual(self.state, self.data, without=without)

    def check_precision(self, given, root=False):
        """Compare what a block was given with the product of the three, or its root."""
        expected = tiny.precision_of(self.state, self.data)
        assert (given is None) == (expected is None)
        if expected is not None:
            real = slice(tiny.NUM_RATINGS)
            assert_close(
                given[real], np.sqrt(expected[real]) if root else expected[real]
            )

    def latent_ratings(self):
        """Expect both steps, and put the latents in the place of the ratings."""
        likelihood = self.spec.likelihood
        level = np.searchsorted(likelihood.levels, tiny.RATING[self.order])
        number = tiny.NUM_RATINGS
        mean = mean_of_ratings(self.state, self.data)[:number]
        given, (cut_points, _) = self.next("resample_cut_points")
        assert_close(given[0], likelihood)
        assert_close(given[1], self.state.cut_points)
        assert_close([x[:number] for x in given[2:4]], [level, mean])
        np.testing.assert_array_equal(given[4], self.valid)
        self.check_precision(given[5], root=True)
        given, latent = self.next("resample_latent_ratings")
        self.check_precision(given[3], root=True)
        assert_close([x[:number] for x in given[:2]], [level, mean])
        assert_close(given[2], cut_points)
        self.state = self.state._replace(cut_points=cut_points)
        self.data = dataclasses.replace(self.data, rating=latent)

    def factor_prior(self, side):
        (prior, factors, number), result = self.next("resample_factor_prior")
        assert_close(prior, self.spec.factor_prior)
        assert_close(factors, side.of(self.state, "factors"))
        assert number == side.number(self.data)
        self.state = side.put(self.state, factor_prior=result)

    def column_precisions(self):
        given, drawn = self.next("resample_column_precisions")
        prior, before, users, items, *numbers = given
        assert_close(prior, self.spec.factor_prior)
        assert_close(before, self.state.column_increments)
        assert_close([users, items], [self.state.user_factors, self.state.item_factors])
        assert numbers == [tiny.NUM_USERS, tiny.NUM_ITEMS]
        self.state = self.state._replace(
            column_increments=drawn[0],
            user_factor_prior=drawn[1],
            item_factor_prior=drawn[2],
        )

    def factors(self, side):
        arguments, result = self.next("resample_factors")
        prior, x, other, variance, blocks, number, precision = arguments
        self.check_precision(precision)
        assert_close(prior, side.of(self.state, "factor_prior"))
        assert_close(x, self.residual("factors"))
        assert_close(other, side.other.of(self.state, "factors"))
        assert variance == self.state.rating_variance
        assert_close(blocks, side.of(self.data, "blocks"))
        assert number == side.number(self.data)
        assert not np.any(result[number:])
        self.state = side.put(self.state, factors=result)

    def topics(self, side):
        arguments, result = self.next("resample_topics")
        x, weight_row, bias_row, log_theta, bias, *others = arguments
        variance, chunk, precision, selecting = others
        assert selecting is None  # tests/gibbs/test_topic_factors.py has the other case
        self.check_precision(precision)
        number = tiny.NUM_RATINGS
        expected = self.residual(f"{side.other_name}_bias")
        assert_close(x[:number], expected[:number])
        assert_close(weight_row, side.rows(self.data))
        assert_close(bias_row, side.other.rows(self.data))
        assert_close(log_theta, side.of(self.state, "topic_weights").log_row_weights)
        assert_close(bias, side.other.of(self.state, "bias"))
        assert variance == self.state.rating_variance
        assert chunk == self.data.chunk
        self.state = side.put(self.state, topic_of_rating=result)
        arguments, moved = self.next("resample_table_topics")
        assert_close(arguments[:3], [x, weight_row, bias_row])
        assert_close(arguments[3], result)
        # Its row weights are not read.
        assert_close(arguments[4], side.of(self.state, "topic_weights"))
        assert_close(arguments[5:7], [bias, variance])
        assert arguments[7] == number
        room = table_room(len(self.data.rating))
        assert arguments[8:10] == [self.data.chunk, room]
        self.check_precision(arguments[10])
        self.state = side.put(self.state, topic_of_rating=moved)

    def weights(self, side):
        prior = side.of(self.spec, "topic_prior")
        if prior.num_topics < 2:
            return
        weights = side.of(self.state, "topic_weights")
        counts = tiny.topic_counts(side, self.state, self.data)
        _, log_pi, beta, gamma, *_ = weights
        total = len(self.data.rating)
        if isinstance(prior, HDP):
            weak = prior.construction == "weak_limit"
            given, tables = self.next("resample_table_counts")
            assert_close(given, [counts, gamma * np.exp(log_pi), total])
            given, gamma = self.next("resample_table_concentration")
            expected = weights.table_concentration
            assert_close(given[0], prior.table_concentration)
            assert_close(given[1:], [expected, counts, tables[None]])
            if weak:
                given, new_beta = self.next("resample_dish_concentration_of_weak_limit")
                assert_close(given[0], prior.dish_concentration)
                assert_close(given[1:], [beta, tables, total])
                beta = new_beta
            given, log_pi = self.next("resample_global_weights")
            assert_close(given[1:], [tables, beta])
            if not weak:
                given, beta = self.next("resample_dish_concentration_of_sticks")
                assert_close(given[0], prior.dish_concentration)
                assert_close(given[1], log_pi)
        given, log_theta = self.next("resample_row_weights")
        assert_close(given, [gamma * np.exp(log_pi), counts])
        self.state = side.put(
            self.state,
            topic_weights=type(weights)(log_theta, log_pi, beta, gamma),
        )

    def biases(self, side):
        if not side.of(self.state, "bias").shape[1]:
            return
        arguments, (bias, bias_prior) = self.next("resample_biases")
        prior, state, current, statistics, variance = arguments
        assert_close(prior, side.of(self.spec, "bias_prior"))
        assert_close(state, side.of(self.state, "bias_prior"))
        assert_close(current, side.of(self.state, "bias"))
        assert_close(tuple(statistics), tiny.bias_sums(side, self.state, self.data))
        assert variance == self.state.rating_variance
        self.state = side.put(self.state, bias=bias, bias_prior=bias_prior)

    def rating_variance(self):
        arguments, result = self.next("resample_rating_variance")
        likelihood, current, squared_error, number = arguments
        assert_close(likelihood, self.spec.likelihood)
        assert current == self.state.rating_variance
        assert_close(squared_error, tiny.squared_error(self.state, self.data))
        assert number == tiny.NUM_RATINGS
        self.state = self.state._replace(rating_variance=result)

    def time(self):
        """Expect what depends on time, of items, then of users given that."""
        for name in ("item", "user"):
            prior = getattr(self.spec, f"{name}_time")
            if not isinstance(prior, TimeEffect):
                continue
            side, times = tiny.SIDES[name], self.data.times
            x = self.residual(f"{name}_time")
            weight = tiny.precision_of(self.state, self.data)
            weight = np.ones(len(x)) if weight is None else weight
            weight = np.where(self.valid, weight, 0)
            row, old = side.rows(self.data), getattr(self.state.time, name)
            bins = times.bin if name == "item" else np.zeros_like(row)
            covariate = np.ones(len(x)) if name == "item" else times.drift
            table = old if old.ndim == 2 else old[:, None]
            sums = np.zeros((2, *table.shape))
            np.add.at(sums[0], (row, bins), weight * covariate**2)
            np.add.at(sums[1], (row, bins), weight * covariate * x)
            given, (drawn, variance) = self.next("resample_effects")
            assert_close(given[0], prior.variance)
            assert_close(given[1], table)
            assert given[2] == getattr(self.state.time, f"{name}_variance")
            assert_close(tuple(given[3]), tuple(sums))
            assert given[4] == self.state.rating_variance
            assert given[5] == side.number(self.data)
            new = {name: drawn.reshape(old.shape), f"{name}_variance": variance}
            self.state = self.state._replace(time=self.state.time._replace(**new))

    def noise(self):
        """Expect precisions by user, by item and by rating, each given the latest."""
        squares = self.residual() ** 2
        valid = self.valid.astype(np.int32)
        for name in ("user", "item", "rating"):
            prior = getattr(self.spec, f"{name}_noise")
            if not isinstance(prior, GammaNoise):
                continue
            # All the others are in it: the latest of the users, the old of ratings.
            others = self.state.noise._replace(**{name: None})
            weight = tiny.precision_of(self.state._replace(noise=others), self.data)
            weighted = squares if weight is None else weight * squares
            if name == "rating":
                row, rows, real = np.arange(len(valid)), len(valid), tiny.NUM_RATINGS
                shape = prior.shape
            else:
                side = tiny.SIDES[name]
                row, rows = side.rows(self.data), side.of(self.data, "rows")
                real = side.number(self.data)
                shape = getattr(self.state.noise, f"{name}_shape")
            given, drawn = self.next("resample_precisions")
            assert_close(given[0], shape)
            np.testing.assert_array_equal(
                given[1], np.bincount(row, valid, rows).astype(int)
            )
            expected = np.bincount(row, np.where(valid, weighted, 0), rows)
            assert_close(given[2], expected)
            assert given[3] == self.state.rating_variance
            new = self.state.noise._replace(**{name: drawn})
            if isinstance(prior.shape, Gamma):
                given, shape_drawn = self.next("resample_shape")
                assert_close(given[:2], [prior.shape, shape])
                p = drawn[:real]
                expected = real, np.sum(p - 1 - np.log(p))
                assert_close(tuple(given[2]), expected)
                new = new._replace(**{f"{name}_shape": shape_drawn})
            self.state = self.state._replace(noise=new)

    def sweep(self):
        """Expect the blocks in the order of DESIGN section 3."""
        user, item = tiny.SIDES["user"], tiny.SIDES["item"]
        if isinstance(self.spec.likelihood, Ordinal):
            self.latent_ratings()
        if self.state.column_increments is None:
            self.factor_prior(user)
            self.factor_prior(item)
        else:
            self.column_precisions()
        self.factors(user)
        self.factors(item)
        if self.spec.num_item_topics > 1:
            self.topics(item)
        if self.spec.num_user_topics > 1:
            self.topics(user)
        self.weights(user)
        self.weights(item)
        self.biases(user)
        self.biases(item)
        self.time()
        self.rating_variance()
        self.noise()
        assert next(self.calls, None) is None


def is_key(x):
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@functools.cache
def record(name):
    """Record one sweep of a spec, in float64."""
    with tiny.in_precision("float64") as precision:
        spec, data, state = tiny.make(precision, SPECS[name])
        recorded = record_sweep(state, spec, data, Stubs(precision.dtype))
    return spec, data, state, *recorded


def replay(name, change=None):
    """Check all that the blocks of a sweep were given, and what became of it."""
    spec, data, state, new, info, calls = record(name)
    replay = Replay(state, spec, data, calls if change is None else change(calls))
    replay.sweep()
    assert_close(new, replay.state)
    # Every block has a key of its own.
    assert len(set(replay.keys)) == len(replay.keys) > 0
    check_info(info, new, spec, data)


@pytest.mark.parametrize("name", SPECS)
def test_blocks_are_given_the_state_as_it_is(name, float64):
    replay(name)


def check_info(info, state, spec, data):
    """Compare the scalars of a sweep with their definitions."""
    info, state = jax.tree.map(np.asarray, (info, state))
    counts = {
        side.name: tiny.topic_counts(side, state, data) for side in tiny.SIDES.values()
    }
    for name, count in counts.items():
        of_topic = count.sum(axis=0)
        assert getattr(info, f"num_{name}_topics") == np.count_nonzero(of_topic)
        share = of_topic[of_topic > 0] / tiny.NUM_RATINGS
        effective = np.exp(-np.sum(share * np.log(share))) if count.shape[1] else 0
        assert_close(getattr(info, f"effective_{name}_topics"), effective)
        side = tiny.SIDES[name]
        weights = side.of(state, "topic_weights")
        assert_close(side.of(info, "dish_concentration"), weights.dish_concentration)
        assert_close(side.of(info, "table_concentration"), weights.table_concentration)
        assert_close(
            side.of(info, "bias_variance"), side.of(state, "bias_prior").variance
        )
        shared = side.of(state, "bias_prior").shared_variance
        assert_close(
            side.of(info, "shared_bias_variance"), 0 if shared is None else shared
        )
        # The means of a side's topics are the centres of the other side's biases.
        assert_close(
            side.of(info, "topic_mean_variance"),
            side.other.of(state, "bias_prior").topic_mean_variance,
        )
    for name in tiny.SIDES:
        shape = getattr(state.noise, f"{name}_shape")
        expected = np.inf if shape is None else shape
        assert getattr(info, f"{name}_noise_shape") == expected
    for name, field in (("item", "item_time"), ("user", "user_drift")):
        variance = getattr(state.time, f"{name}_variance")
        expected = 0 if variance is None else variance
        assert getattr(info, f"{field}_variance") == expected
    squares = np.sum(tiny.residual(state, data, without=()) ** 2)
    precision = tiny.precision_of(state, data)
    if isinstance(spec.likelihood, Ordinal):
        levels, real = np.array(spec.likelihood.levels), slice(tiny.NUM_RATINGS)
        mean = mean_of_ratings(state, data)[real]
        root = np.sqrt(1 if precision is None else precision[real, None])
        upto = special.ndtr(root * (state.cut_points[None] - mean[:, None]))
        expected = levels[-1] - upto @ np.diff(levels)
        squares = np.sum((data.rating[real] - expected) ** 2)
    assert_close(info.residual_rmse, np.sqrt(squares / tiny.NUM_RATINGS))
    assert_close(info.rating_variance, state.rating_variance)
    users, items = np.float64(state.user_factors), np.float64(state.item_factors)
    parts = [np.sum(np.outer(a, b) ** 2) for a, b in zip(users.T, items.T, strict=True)]
    share = parts / np.sum(parts)
    assert_close(info.effective_dimension, np.exp(-np.sum(share * np.log(share))))
    expected = tiny.joint(state, spec, data, topic_counts=tuple(counts.values()))
    assert_close(info.log_joint, expected)


@pytest.mark.parametrize(
    "block, index, stale",
    [
        # The items' factors given the users' old ones.
        ("resample_factors", 3, lambda first, x: x[::-1]),
        # The user topics given the old item topics, so with another residual.
        ("resample_topics", 1, lambda first, x: x + 0.1),
        # The items' biases with sums of before the users' were drawn.
        ("resample_biases", 4, lambda first, x: x._replace(total=x.total + 0.1)),
        # The items' weights with the counts of the users.
        ("resample_table_counts", 1, lambda first, counts: counts[:, ::-1]),
        # One key for both sides.
        ("resample_row_weights", 0, lambda first, key: first),
    ],
)
def test_a_mutant_of_the_sweep_is_found(block, index, stale, float64):
    def change(calls):
        """Give the block of the second side something else."""
        calls = [(name, list(given), result) for name, given, result in calls]
        first, second = (given for name, given, _ in calls if name == block)
        second[index] = stale(first[index], second[index])
        return calls

    with pytest.raises(AssertionError):
        replay("weak limit and sticks", change)


@pytest.mark.parametrize(
    "block, index",
    [("resample_latent_ratings", 3), ("resample_cut_points", 3), ("rows", 2)],
)
def test_a_mutant_of_the_ordinal_sweep_is_found(block, index, float64):
    # Latents given the cut points of before, levels off by one, factors given ratings.
    def change(calls):
        calls = [(name, list(given), result) for name, given, result in calls]
        name = "resample_factors" if block == "rows" else block
        given = next(given for called, given, _ in calls if called == name)
        given[index] = given[index] + 1
        return calls

    with pytest.raises(AssertionError):
        replay("ordinal", change)


def check_mutant(name, block, call, index, wrong):
    """Expect that a wrong argument in one call of a block is found."""

    def change(calls):
        calls = [(called, list(given), result) for called, given, result in calls]
        given = [given for called, given, _ in calls if called == block][call]
        given[index] = wrong(given[index])
        return calls

    with pytest.raises(AssertionError):
        replay(name, change)


@pytest.mark.parametrize(
    "name, block, call, index, wrong",
    [
        ("noise", "resample_factors", 1, 7, lambda p: None),
        ("noise", "resample_factors", 0, 7, np.sqrt),
        ("noise", "resample_topics", 1, 8, lambda p: None),
        ("noise", "resample_table_topics", 0, 11, lambda p: 0 * p + 1),
        ("noise", "resample_biases", 1, 4, lambda s: s._replace(precision=s.count)),
        ("noise", "resample_biases", 0, 4, lambda s: s._replace(total=1.1 * s.total)),
        ("noise", "resample_rating_variance", 0, 3, lambda e: 1.1 * e),
        ("ordinal noise", "resample_cut_points", 0, 6, np.square),
        ("ordinal noise", "resample_latent_ratings", 0, 4, np.square),
        # The other side's precisions forgotten, a stale residual, padding counted.
        ("noise", "resample_precisions", 1, 3, lambda e: 1.1 * e),
        ("noise", "resample_precisions", 2, 2, lambda n: n + 1),
        ("noise by item", "resample_precisions", 0, 4, lambda v: 1.0),
        ("noise", "resample_shape", 0, 3, lambda s: s._replace(count=s.count + 1)),
    ],
)
def test_a_mutant_of_the_noise_is_found(name, block, call, index, wrong, float64):
    check_mutant(name, block, call, index, wrong)


@pytest.mark.parametrize(
    "name, block, call, index, wrong",
    [
        # The part of time left in, or not given to the latent ratings.
        ("time", "resample_factors", 0, 2, lambda x: x + 0.1),
        ("time", "resample_topics", 1, 1, lambda x: x + 0.1),
        ("time", "resample_biases", 0, 4, lambda s: s._replace(total=1.1 * s.total)),
        ("time", "resample_rating_variance", 0, 3, lambda e: 1.1 * e),
        ("ordinal time", "resample_cut_points", 0, 4, lambda m: m + 0.1),
        ("ordinal time", "resample_latent_ratings", 0, 2, lambda m: m + 0.1),
        # A stale residual, precisions forgotten, old effects, the other side's rows.
        ("time", "resample_effects", 1, 4, lambda s: s._replace(total=1.1 * s.total)),
        ("time", "resample_effects", 0, 4, lambda s: s._replace(information=s.total)),
        ("time", "resample_effects", 1, 2, lambda e: 0 * e),
        ("ordinal time", "resample_effects", 0, 6, lambda n: n - 1),
    ],
)
def test_a_mutant_of_the_time_is_found(name, block, call, index, wrong, float64):
    check_mutant(name, block, call, index, wrong)


# The sweep as `fit` compiles it: one compilation, in float32, and with every
# optimisation where XLA_FLAGS does not say otherwise, as `make test` without SLOW=1.


@pytest.fixture(scope="module")
def start():
    """Spec and data as `fit` passes them: numbers as arrays, all on the device.

    Concentrations are fixed and one side has no topics: half the time to compile.
    """
    spec = dataclasses.replace(
        tiny.make_spec("weak_limit", "none"),
        user_topic_prior=HDP(tiny.USER_TOPICS, "weak_limit", 1.0, 2.0),
    )
    data = tiny.make_data(np.float32)
    return on_device(spec, jnp.float32), on_device(data)


def on_device(tree, dtype=None):
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def sweeps(start, seed, number=2):
    spec, data = start
    key = jax.random.key(seed)
    state = on_device(tiny.make_state(spec, data))
    for t in range(number):
        state, info = gibbs_sweep(jax.random.fold_in(key, t), state, spec, data)
    return state, info


def test_a_second_sweep_and_new_numbers_compile_nothing(start):
    spec, data = start
    sweeps(start, seed=0, number=1)
    compiled = gibbs_sweep._cache_size()
    assert compiled > 0
    sweeps(start, seed=1, number=3)
    sweeps((jax.tree.map(lambda x: 1.5 * x, spec), data), seed=0)
    # Other ratings of nearly the same number.
    table = tiny.USER, tiny.ITEM, tiny.RATING
    times = jax.tree.map(lambda x: x[:-2], tiny.TIMES)
    fewer, _ = lay_out(
        *(column[:-2] for column in table), 5, 4, tiny.SIZES, times=times
    )
    sweeps((spec, on_device(fewer)), seed=0)
    assert gibbs_sweep._cache_size() == compiled


def test_a_key_gives_the_same_draws_and_another_key_others(start):
    first, again, other = (sweeps(start, seed)[0] for seed in (7, 7, 8))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    for side in tiny.SIDES.values():
        a, b = side.of(first, "factors"), side.of(other, "factors")
        assert np.all(a[: tiny.NUM_ITEMS] != b[: tiny.NUM_ITEMS])
        assert np.all(side.of(first, "bias") != side.of(other, "bias"))
    assert first.rating_variance != other.rating_variance


def test_everything_stays_finite_and_in_float32(start):
    state, info = sweeps(start, seed=3, number=50)
    # Said of noise that is constant.
    assert info.user_noise_shape == info.item_noise_shape == np.inf
    info = info._replace(user_noise_shape=jnp.ones(()), item_noise_shape=jnp.ones(()))
    for leaf in jax.tree.leaves((state, info)):
        assert leaf.dtype in (np.float32, np.int32)
        assert np.all(np.isfinite(leaf))
    topic = np.asarray(state.user_topic_of_rating)
    assert np.all((topic >= 0) & (topic < tiny.USER_TOPICS))
    for side in tiny.SIDES.values():
        assert not np.any(side.of(state, "factors")[side.number(start[1]) :])
    assert state.rating_variance >= np.float32(0.083)


# Types and keys, which need no compilation.


def describe(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    "dtype, x64", [(np.float64, True), (np.float32, True), (np.float32, False)]
)
def test_a_sweep_keeps_shapes_and_types(name, dtype, x64):
    with jax.enable_x64(x64):
        data = tiny.make_data(dtype)
        spec = jax.tree.map(lambda x: np.asarray(x, dtype), SPECS[name])
        key = jax.random.key(0)
        state = jax.eval_shape(init_state, key, spec, data)
        new, info = jax.eval_shape(gibbs_sweep, key, state, spec, data)
        assert describe(new) == describe(state)
        assert not any(x.weak_type for x in jax.tree.leaves((state, new)))
        topics = {"user_topic_of_rating", "item_topic_of_rating"}
        for name, value in [*state._asdict().items(), *info._asdict().items()]:
            whole = np.int16 if name in topics else np.int32
            for leaf in jax.tree.leaves(value):
                assert leaf.dtype in (dtype, whole)


def test_a_sweep_without_ratings_can_be_traced():
    # Tests of the sampler against its prior run on an empty table.
    nothing = np.zeros(0, np.int32)
    data, _ = lay_out(nothing, nothing, nothing.astype(float), 5, 4, tiny.SIZES)
    key, spec = jax.random.key(0), tiny.make_spec()
    state = jax.eval_shape(init_state, key, spec, data)
    new, _ = jax.eval_shape(gibbs_sweep, key, state, spec, data)
    assert describe(new) == describe(state)


def trace(function, *arguments):
    """Trace anew: a trace that is remembered would not be checked."""
    jax.jit(lambda *given: function.__wrapped__(*given)).trace(*arguments)


@pytest.mark.parametrize("name", SPECS)
def test_no_key_is_used_twice(name):
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"], SPECS[name])
    with jax.debug_key_reuse(True):
        trace(gibbs_sweep, jax.random.key(0), state, spec, data)
        trace(init_state, jax.random.key(0), spec, data)


@pytest.mark.parametrize(
    "name",
    ["resample_factors", "resample_topics", "resample_biases", "resample_row_weights"],
)
def test_a_key_used_twice_is_found(name, monkeypatch):
    module = module_of(name)
    block = getattr(module, name)

    def twice(*given, **more):
        block(*given, **more)
        return block(*given, **more)

    monkeypatch.setattr(module, name, twice)
    spec, data, state = tiny.make(tiny.PRECISIONS["float32"])
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        trace(gibbs_sweep, jax.random.key(0), state, spec, data)
