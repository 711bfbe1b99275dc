"""The Chinese restaurant franchise against the model's joint, written out in numpy.

A seating's probability is the product of the chances of sitting down, one customer
after another; ratings with a dish whose mean and biases are summed out are jointly
normal, with the covariance written out.
"""

import dataclasses
import itertools
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from im3f_jax.gibbs import crf
from im3f_jax.gibbs.biases import bias_statistics, resample_biases
from im3f_jax.gibbs.concentrations import (
    conditional_dish_concentration_of_franchise,
    resample_dish_concentration_of_franchise,
)
from im3f_jax.gibbs.crf import conditional_dish, conditional_tables, resample_franchise
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.state import BiasPriorState, Seating
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.model.bias_prior import TopicNormal
from im3f_jax.model.scalars import Gamma
from im3f_jax.model.topic_prior import CRF, NoTopics, log_density_of_seating
from tests import gof, tiny
from tests.quick import quick_jit
from tests.validation.crf_prior import draw_seating, draw_state

MAX_TABLES, NUM_TOPICS, CENTER = 5, 6, 0.3
ALIVE = (1, 2, 4)  # slots with a dish; the others are free
NUMBERS = crf.Franchise(0.6, 0.25, 0.4, 1.3, 0.8)


# --- the model once more, in numpy ------------------------------------------------


def log_seating(row, table, dish, beta, gamma):
    """Log probability of a seating, customer by customer. `dish` maps (row, table)."""
    total, seated, served = 0.0, Counter(), Counter()
    of_row = Counter()
    for r, t in zip(row, table, strict=True):
        chance = 1 / (of_row[r] + gamma)
        if seated[r, t]:
            chance *= seated[r, t]
        else:
            k = dish[r, t]
            tables = sum(served.values())
            chance *= gamma * (served[k] if served[k] else beta) / (tables + beta)
            served[k] += 1
        seated[r, t] += 1
        of_row[r] += 1
        total += np.log(chance)
    return total


def log_of_new_dish(x, other, numbers):
    """Log density of the ratings of a dish, its mean and biases summed out."""
    sigma2, variance, tau2 = numbers[:3]
    same = np.equal.outer(other, other)
    covariance = sigma2 * np.eye(len(x)) + variance * same + tau2
    return stats.multivariate_normal.logpdf(x, np.full(len(x), CENTER), covariance)


def log_of_ratings(likelihood, x, other, topic, bias, known, numbers):
    """Log density of all ratings; dishes that are not `known` have no biases yet."""
    total = 0.0
    for k in np.unique(topic):
        here = topic == k
        if likelihood == "conditional" and k in known:
            mean = bias[other[here], k]
            total += stats.norm.logpdf(x[here], mean, np.sqrt(numbers[0])).sum()
        else:
            total += log_of_new_dish(x[here], other[here], numbers)
    return total


class Case:
    """Twelve ratings of one side at random tables, with random dishes and biases."""

    def __init__(self, side, precision, likelihood, seed=3):
        rng = np.random.default_rng(seed)
        self.likelihood, self.dtype = likelihood, precision.dtype
        self.numbers = NUMBERS
        if likelihood == "marginal":
            self.numbers = NUMBERS._replace(bias_variance=0.0)
        row, other = {"user": (tiny.USER, tiny.ITEM), "item": (tiny.ITEM, tiny.USER)}[
            side.name
        ]
        order = np.lexsort((other, row))
        self.row, self.other = row[order], other[order]
        self.x = rng.normal(0, 1, len(row)).astype(self.dtype).astype(float)
        self.table = rng.integers(1, 4, len(row))
        self.dish = {
            (r, t): int(rng.choice(ALIVE))
            for r, t in sorted(set(zip(self.row, self.table, strict=True)))
        }
        self.bias = rng.normal(0, 1, (other.max() + 1, NUM_TOPICS))
        self.bias = self.bias.astype(self.dtype).astype(float)

    def joint(self, table, dish, known):
        topic = np.array([dish[r, t] for r, t in zip(self.row, table, strict=True)])
        return log_seating(self.row, table, dish, *self.numbers[3:]) + log_of_ratings(
            self.likelihood, self.x, self.other, topic, self.bias, known, self.numbers
        )

    def cast(self, values):
        return jnp.asarray(values, self.dtype)

    def scalars(self):
        return crf.Franchise(*[self.cast(v) for v in self.numbers])

    def dishes(self, keep, dish):
        """Counts and sums over the ratings `keep` and the tables of `dish`."""
        topic = np.array(
            [self.dish[r, t] for r, t in zip(self.row, self.table, strict=True)]
        )
        served = Counter(dish.values())
        y = self.x - CENTER
        at = [keep & (topic == k) for k in range(NUM_TOPICS)]
        found = crf.Dishes(
            np.array([served[k] for k in range(NUM_TOPICS)], np.int32), *[None] * 4
        )
        if self.likelihood == "conditional":
            return found
        return found._replace(
            customers=np.array([here.sum() for here in at], np.int32),
            total=self.cast([y[here].sum() for here in at]),
        )


@pytest.fixture(params=["conditional", "marginal"])
def likelihood(request):
    return request.param


def differences_of_tables(case, n, given=lambda x: x):
    """Conditional and joint of the choices of rating n."""
    row, others = case.row[n], np.arange(len(case.row)) != n
    seated = Counter(case.table[(case.row == row) & others])
    left = {
        place: k
        for place, k in case.dish.items()
        if place != (row, case.table[n]) or seated[place[1]]
    }
    known = set(left.values())
    customers = np.array([seated[t] for t in range(MAX_TABLES)], np.int32)
    dish_of_table = np.array([left.get((row, t), -1) for t in range(MAX_TABLES)])
    log_weights = conditional_tables(
        case.likelihood,
        given(case.scalars()),
        jnp.asarray(customers),
        jnp.asarray(dish_of_table, jnp.int32),
        case.dishes(others, left),
        case.cast(case.x[n] - CENTER),
        case.cast(case.bias[case.other[n]] - CENTER),
    )
    free_table = int(np.argmin(customers > 0))
    free_dish = next(k for k in range(NUM_TOPICS) if k not in known)
    joint, chosen = [], []
    for choice in range(MAX_TABLES + NUM_TOPICS + 1):
        dish, table = dict(left), case.table.copy()
        k = choice - MAX_TABLES
        if choice < MAX_TABLES:
            possible, table[n] = customers[choice] > 0, choice
        else:
            possible = k in known or k == NUM_TOPICS
            table[n] = free_table
            dish[row, free_table] = free_dish if k == NUM_TOPICS else k
        if possible:
            joint.append(case.joint(table, dish, known))
            chosen.append(choice)
    impossible = np.setdiff1d(np.arange(len(log_weights)), chosen)
    assert np.all(np.isneginf(np.asarray(log_weights)[impossible]))
    return np.asarray(log_weights)[chosen], joint


list_tables = quick_jit(lambda *given: crf._list_tables(*given))


def differences_of_dishes(case, place, given=lambda x: x):
    """Conditional and joint of the dishes of a table."""
    left = {p: k for p, k in case.dish.items() if p != place}
    here = (case.row == place[0]) & (case.table == place[1])
    known = set(left.values())
    numbers = given(case.scalars())
    # The sums of the table as the step takes them.
    rows = int(case.row.max()) + 1
    customers = np.zeros((rows, MAX_TABLES), np.int32)
    np.add.at(customers, (case.row, case.table), 1)
    size = len(case.row)
    ratings = crf._Ratings(
        case.cast(case.x - CENTER),
        jnp.asarray(case.row, jnp.int32),
        jnp.asarray(case.other, jnp.int32),
        jnp.int32(size),
    )
    room = crf._Room(jnp.asarray(case.table, jnp.int32), customers, *[None] * 4)
    listed = list_tables(numbers, ratings, room)
    index = sorted(case.dish).index(place)
    assert (int(listed.row[index]), int(listed.slot[index])) == place
    sums = crf.TableSums(*[x[index] for x in listed.sums])
    assert int(sums.count) == here.sum()
    offset = case.bias[case.other[here]] - CENTER
    y = case.x[here, None] - CENTER
    gain = np.sum(offset * (y - offset / 2), axis=0) / case.numbers[0]
    log_weights = conditional_dish(
        case.likelihood,
        numbers,
        case.dishes(~here, left),
        sums,
        case.cast(gain),
    )
    free_dish = next(k for k in range(NUM_TOPICS) if k not in known)
    chosen = [*sorted(known), NUM_TOPICS]
    joint = [
        case.joint(
            case.table, left | {place: free_dish if k == NUM_TOPICS else k}, known
        )
        for k in chosen
    ]
    impossible = np.setdiff1d(np.arange(NUM_TOPICS), chosen)
    assert np.all(np.isneginf(np.asarray(log_weights)[impossible]))
    return np.asarray(log_weights)[chosen], joint


def test_tables_of_each_rating(likelihood, side, precision):
    case = Case(side, precision, likelihood)
    for n in range(len(case.row)):
        tiny.assert_same_differences(*differences_of_tables(case, n), precision)


def test_dishes_of_each_table(likelihood, side, precision):
    case = Case(side, precision, likelihood)
    cells = Counter(zip(case.row, case.table, case.other, strict=True))
    assert len(case.dish) > 5
    # A pair that is rated twice, both at one table: two ratings of one bias.
    assert max(cells.values()) == 2
    for place in case.dish:
        tiny.assert_same_differences(*differences_of_dishes(case, place), precision)


def test_a_single_pair_need_not_be_repeated(precision):
    # With bias variance 0 nothing depends on who the others are.
    case = Case(tiny.SIDES["user"], precision, "conditional")
    case.numbers = case.numbers._replace(bias_variance=0.0)
    for place in list(case.dish)[:3]:
        tiny.assert_same_differences(*differences_of_dishes(case, place), precision)


@pytest.mark.parametrize(
    "name", ["topic_mean_variance", "bias_variance", "rating_variance"]
)
def test_a_missing_variance_is_found(name, float64):
    case = Case(tiny.SIDES["user"], float64, "conditional")

    def wrong(numbers):
        return numbers._replace(**{name: getattr(numbers, name) * 0.5})

    with tiny.found():
        tiny.assert_same_differences(*differences_of_tables(case, 4, wrong), float64)
    with tiny.found():
        place = list(case.dish)[0]
        tiny.assert_same_differences(
            *differences_of_dishes(case, place, wrong), float64
        )


@pytest.mark.parametrize("by", [-1, 1])
def test_a_table_count_off_by_one_is_found(by, monkeypatch, likelihood, float64):
    case = Case(tiny.SIDES["user"], float64, likelihood)
    count = crf._log_count
    monkeypatch.setattr(crf, "_log_count", lambda n, dtype: count(n + by, dtype))
    with tiny.found():
        for n in range(len(case.row)):
            tiny.assert_same_differences(*differences_of_tables(case, n), float64)
    with tiny.found():
        for place in case.dish:
            tiny.assert_same_differences(*differences_of_dishes(case, place), float64)


def test_map_puts_the_mean_in_place_of_the_dish(float64):
    # The paper's: Normal(x; mu_P, sigma^2), and Normal(x; c_0, sigma^2) for a new dish.
    case = Case(tiny.SIDES["user"], float64, "map")
    place = list(case.dish)[0]
    left = {p: k for p, k in case.dish.items() if p != place}
    here = (case.row == place[0]) & (case.table == place[1])
    topic = np.array(
        [case.dish[r, t] for r, t in zip(case.row, case.table, strict=True)]
    )
    x, zero = case.x[here], np.zeros(())
    sums = crf.TableSums(here.sum(), np.sum(x - CENTER), zero, zero, zero)
    found = np.asarray(
        conditional_dish(
            "map",
            case.scalars(),
            case.dishes(~here, left),
            jax.tree.map(jnp.asarray, sums),
            None,
        )
    )
    sigma2, _, tau2, beta, _ = case.numbers
    served = Counter(left.values())
    expected = []
    for k in sorted(served):
        rest = case.x[~here & (topic == k)] - CENTER
        mean = CENTER + rest.sum() / sigma2 / (1 / tau2 + len(rest) / sigma2)
        density = stats.norm.logpdf(x, mean, np.sqrt(sigma2)).sum()
        expected.append(np.log(served[k]) + density)
    expected.append(np.log(beta) + stats.norm.logpdf(x, CENTER, np.sqrt(sigma2)).sum())
    tiny.assert_same_differences(
        found[[*sorted(served), NUM_TOPICS]], expected, float64
    )


def test_log_density_of_a_seating(precision):
    case = Case(tiny.SIDES["user"], precision, "conditional")
    customers = np.zeros((6, MAX_TABLES), np.int32)
    np.add.at(customers, (case.row, case.table), 1)
    dish = np.full(customers.shape, -1, np.int32)
    for place, k in case.dish.items():
        dish[place] = k
    found = log_density_of_seating(
        jnp.asarray(customers), jnp.asarray(dish), NUM_TOPICS, *case.scalars()[3:]
    )
    expected = log_seating(case.row, case.table, case.dish, *case.numbers[3:])
    np.testing.assert_allclose(found, expected, atol=precision.atol)
    # The order in which the customers come does not matter.
    back = log_seating(case.row[::-1], case.table[::-1], case.dish, *case.numbers[3:])
    np.testing.assert_allclose(back, expected, rtol=1e-12)


def test_expected_weights_are_the_chances_of_the_next_customer(precision):
    rng = np.random.default_rng(1)
    dish = rng.choice([-1, *ALIVE], (4, 3)).astype(np.int32)
    counts = rng.integers(0, 3, (4, NUM_TOPICS)).astype(np.int32)
    beta, gamma = 0.7, 2.5
    scalars = jnp.asarray(beta, precision.dtype), jnp.asarray(gamma, precision.dtype)
    theta, pi = crf.expected_weights(jnp.asarray(dish), jnp.asarray(counts), *scalars)
    tables = np.array([(dish == k).sum() for k in range(NUM_TOPICS)], float)
    tables[0] = beta  # the lowest free slot
    share = tables / tables.sum()
    np.testing.assert_allclose(np.exp(pi), share, rtol=1e-5)
    expected = (counts + gamma * share) / (counts.sum(1, keepdims=True) + gamma)
    np.testing.assert_allclose(np.exp(theta), expected, rtol=1e-5)
    np.testing.assert_allclose(np.exp(theta).sum(1), 1, rtol=1e-5)
    assert np.all(np.isfinite(theta)) and np.all(np.isfinite(pi))


# --- draws ------------------------------------------------------------------------


def start_of(row, rows, num_topics=6, max_tables=5):
    """Seat all at one table a row, with one dish."""
    seats = np.full((rows, max_tables), -1, np.int32)
    seats[np.unique(row), 0] = 0
    return Seating(jnp.zeros(len(row), jnp.int32), jnp.asarray(seats), jnp.int32(0))


@pytest.fixture
def small_blocks(monkeypatch):
    """Take few tables at once: the noise of a block costs more than tiny data."""
    monkeypatch.setattr(crf, "TABLES", 8)


@partial(quick_jit, static_argnames=("prior", "number"))
def chain(key, prior, x, row, other, numbers, seating, bias, number, thinning):
    """Draw seating and biases in turn; tables and topics of every thinning-th state."""
    variance, spread = numbers[1:3]
    center = jnp.asarray(CENTER, x.dtype)
    normal = TopicNormal(variance, spread, center)
    valid = jnp.ones(x.shape, bool)

    def step(_, carry):
        key, seating, bias, bias_prior = carry
        key, seat_key, bias_key = jax.random.split(key, 3)
        topic, seating, bias, bias_prior = resample_franchise(
            seat_key, prior, seating, bias, bias_prior, center, numbers[3:],
            x, row, other, jnp.int32(x.shape[0]), numbers[0], x.shape[0],
        )  # fmt: skip
        sums = bias_statistics(x, valid, other, topic, bias.shape)
        bias, bias_prior = resample_biases(
            bias_key, normal, bias_prior, bias, sums, numbers[0]
        )
        return key, seating, bias, bias_prior

    def some(carry, _):
        carry = jax.lax.fori_loop(0, thinning, step, carry)
        seating = carry[1]
        table = seating.table_of_rating
        return carry, (table, seating.dish_of_table[row, table], seating.overflow)

    zero = jnp.full(bias.shape[1], center, x.dtype)
    carry = key, seating, bias, BiasPriorState(zero, variance, spread)
    return jax.lax.scan(some, carry, length=number)[1]


# Room that four ratings in two rows cannot exhaust. (The chain reads the
# concentrations elsewhere: one compilation serves all.)
TINY = CRF("conditional", num_topics=6, max_tables=3)


def run_chain(seed, prior, x, row, other, numbers, number, thinning, checked=True):
    cast = partial(jnp.asarray, dtype=jnp.float32)
    row, other = jnp.asarray(row, jnp.int32), jnp.asarray(other, jnp.int32)
    seating = start_of(row, int(row.max()) + 1, prior.num_topics, prior.max_tables)
    bias = jnp.full((int(other.max()) + 1, prior.num_topics), CENTER, jnp.float32)
    numbers = crf.Franchise(*[cast(v) for v in numbers])
    table, topic, overflow = chain(
        jax.random.key(seed), prior, cast(x), row, other, numbers, seating, bias,
        number, thinning,
    )  # fmt: skip
    if not checked:
        return table, topic, np.asarray(overflow)
    assert not np.any(overflow)
    return np.asarray(table), np.asarray(topic)


def canonical(values):
    """Rename labels by their first appearance."""
    names = {}
    return tuple(names.setdefault(v, len(names)) for v in values)


def partitions(number):
    """All partitions of 0 .. number - 1, as canonical labels."""
    return sorted(
        {canonical(v) for v in itertools.product(range(number), repeat=number)}
    )


ROW, OTHER = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
X = np.array([1.6, 1.1, -0.9, 1.5])


def exact_posterior(numbers):
    """Probability of (tables, dishes) of four ratings, both as partitions."""
    found = {}
    for first, second in itertools.product(partitions(2), repeat=2):
        table = np.array([*first, *second])
        places = sorted(set(zip(ROW, table, strict=True)))
        for labels in partitions(len(places)):
            dish = dict(zip(places, labels, strict=True))
            topic = np.array([dish[p] for p in zip(ROW, table, strict=True)])
            found[tuple(table), canonical(topic)] = log_seating(
                ROW, table, dish, *numbers[3:]
            ) + log_of_ratings("none", X, OTHER, topic, None, (), numbers)
    assert len(found) == 27
    weights = np.exp(np.array(list(found.values())))
    return dict(zip(found, weights / weights.sum(), strict=True))


def frequencies(table, topic, names):
    counts = Counter(
        (canonical(t[:2]) + canonical(t[2:]), canonical(k))
        for t, k in zip(table.tolist(), topic.tolist(), strict=True)
    )
    assert set(counts) <= set(names)
    return [counts[name] for name in names]


@pytest.mark.thorough
def test_long_runs_give_the_posterior_of_all_partitions(likelihood, small_blocks):
    numbers = NUMBERS._replace(
        bias_variance=0.3 if likelihood == "conditional" else 0.0,
        dish_concentration=1.2,
        table_concentration=1.5,
    )
    posterior = exact_posterior(numbers)
    prior = dataclasses.replace(TINY, likelihood=likelihood)
    drawn = run_chain(5, prior, X, ROW, OTHER, numbers, 6000, 5)
    gof.assert_frequencies(
        frequencies(*drawn, list(posterior)), list(posterior.values())
    )
    # The test sees a wrong table concentration, and a wrong tau^2.
    for wrong in (
        numbers._replace(table_concentration=1.0),
        numbers._replace(topic_mean_variance=0.1),
    ):
        other = exact_posterior(wrong)
        with pytest.raises(AssertionError, match="chi-squared"):
            gof.assert_frequencies(
                frequencies(*drawn, list(other)), list(other.values())
            )


@pytest.mark.thorough
def test_without_data_the_seating_is_that_of_the_prior(small_blocks):
    row, other = np.repeat(np.arange(3), 6), np.tile(np.arange(6), 3)
    numbers = NUMBERS._replace(rating_variance=1e8)
    beta, gamma = numbers[3:]
    prior = CRF("conditional", beta, gamma, 16, 6)
    drawn = run_chain(6, prior, np.zeros(18), row, other, numbers, 2000, 5)
    rng = np.random.default_rng(7)
    expected = [draw_seating(rng, row, beta, gamma) for _ in range(10000)]

    def statistics(table, topic):
        return (
            len(set(zip(row, table, strict=True))),
            len(set(topic)),
            topic[0] == topic[1],
            topic[0] == topic[17],
        )

    first = [
        statistics(*pair) for pair in zip(*map(np.ndarray.tolist, drawn), strict=True)
    ]
    second = [statistics(table, topic) for table, topic in expected]
    for a, b in zip(zip(*first, strict=True), zip(*second, strict=True), strict=True):
        values = sorted(set(a) | set(b))
        assert len(values) > 1
        counts = np.array([[x.count(v) for v in values] for x in (a, b)])
        rare = counts.sum(0) < 60
        counts = np.column_stack([counts[:, ~rare], counts[:, rare].sum(1)])
        counts = counts[:, counts.sum(0) > 0]
        assert stats.chi2_contingency(counts).pvalue > gof.FAILURE / 4
    # And the simulation is the process: two of a row share a dish with this chance.
    same = 1 / (1 + gamma) + gamma / (1 + gamma) / (1 + beta)
    gof.assert_mean(np.array([s[2] for s in second]), same)


def test_one_dish_step_draws_from_its_conditional(small_blocks):
    # A sampler that left it out would still have the right posterior, in the long run.
    numbers = crf.Franchise(*[jnp.float32(v) for v in NUMBERS])
    ratings = crf._Ratings(
        jnp.asarray([1.2, 0.9, -0.5, -0.2], jnp.float32),
        jnp.asarray([0, 0, 1, 1], jnp.int32),
        jnp.asarray([0, 1, 0, 1], jnp.int32),
        jnp.int32(4),
    )
    offset = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    room = crf._Room(
        jnp.zeros(4, jnp.int32),
        jnp.asarray([[2], [2]], jnp.int32),
        jnp.asarray([[3], [5]], jnp.int32),
        crf.Dishes(
            jnp.asarray(np.bincount([3, 5], minlength=8), jnp.int32),
            jnp.asarray(offset),
            jnp.zeros(8),
            None,
            None,
        ),
        jnp.int32(0),
        jnp.int32(0),
    )
    keys = jax.random.split(jax.random.key(9), 5000)
    step = partial(crf._dish_step, likelihood="conditional", numbers=numbers, chunk=4)
    step = partial(step, ratings=ratings, room=room)
    drawn = quick_jit(lambda keys: jax.lax.map(lambda key: step(key).dish, keys))(keys)
    drawn = np.asarray(drawn)[..., 0]
    y, e = np.float64(ratings.y), offset.astype(float)

    def log_table(r, k, column):
        here = slice(2 * r, 2 * r + 2)
        return -0.5 * np.sum((y[here] - column[:, k]) ** 2) / NUMBERS[0]

    def log_new(r):
        covariance = (NUMBERS[0] + NUMBERS[1]) * np.eye(2) + NUMBERS[2]
        density = stats.multivariate_normal.logpdf(
            y[2 * r : 2 * r + 2], np.zeros(2), covariance
        )
        return density + np.log(2 * np.pi * NUMBERS[0])

    # The first table: the second one's dish, or a new one, which takes slot 0.
    weights = np.array([log_table(0, 5, e), np.log(NUMBERS[3]) + log_new(0)])
    first = np.exp(weights - np.logaddexp(*weights))
    counts = [np.sum(drawn[:, 0] == k) for k in (5, 0)]
    gof.assert_frequencies(counts, first)
    # The second, where the first took its dish.
    weights = np.array([log_table(1, 5, e), np.log(NUMBERS[3]) + log_new(1)])
    second = np.exp(weights - np.logaddexp(*weights))
    there = np.asarray(drawn[drawn[:, 0] == 5])
    gof.assert_frequencies([np.sum(there[:, 1] == k) for k in (5, 0)], second)
    with pytest.raises(AssertionError, match="chi-squared"):  # the step left out
        gof.assert_frequencies([0, len(drawn)], first)


def test_a_draw_takes_tables_then_dishes(monkeypatch):
    # Without the dishes' step the posterior would stay as it is.
    taken = []
    for name in ("_table_step", "_dish_step"):
        step = getattr(crf, name)

        def record(*given, name=name, step=step):
            taken.append((name, given[-2], step(*given)))
            return taken[-1][-1]

        monkeypatch.setattr(crf, name, record)
    size = len(X)
    seating = start_of(ROW, 2, TINY.num_topics, TINY.max_tables)
    bias = jnp.full((2, TINY.num_topics), CENTER, jnp.float32)
    numbers = [jnp.float32(v) for v in NUMBERS]
    means = BiasPriorState(bias[0], *numbers[1:3])
    draw = partial(resample_franchise, prior=TINY, chunk=size)
    jax.eval_shape(
        lambda key: draw(
            key,
            seating=seating,
            bias=bias,
            bias_prior=means,
            center=jnp.float32(CENTER),
            concentrations=numbers[3:],
            residual=jnp.asarray(X, jnp.float32),
            row=jnp.asarray(ROW, jnp.int32),
            other=jnp.asarray(OTHER, jnp.int32),
            num_ratings=jnp.int32(size),
            rating_variance=numbers[0],
        ),
        jax.random.key(0),
    )
    (first, _, seated), (second, given, _) = taken
    assert (first, second) == ("_table_step", "_dish_step")
    assert given is seated


def test_the_biases_of_a_new_dish_are_drawn_given_its_table():
    # Mean and covariance of mu and of the column, by conditioning one joint normal.
    numbers = crf.Franchise(*[jnp.float32(v) for v in NUMBERS])
    sigma2, variance, tau2 = NUMBERS[:3]
    count, total = np.array([2.0, 0, 1, 0]), np.array([1.1, 0, -0.4, 0])
    room = crf._Room(
        *[None] * 3,
        crf.Dishes(None, jnp.full((4, 3), 7.0), jnp.full(3, 8.0), None, None),
        None,
        None,
    )

    @quick_jit
    @jax.vmap
    def draw(key):
        found = crf._give_birth(
            key, numbers, room, jnp.int32(1), jnp.float32(count), jnp.float32(total)
        ).dishes
        return found.offset, found.mean

    offset, mean = draw(jax.random.split(jax.random.key(3), 20000))
    np.testing.assert_array_equal(offset[..., [0, 2]], 7.0)
    np.testing.assert_array_equal(mean[:, [0, 2]], 8.0)
    precision = np.diag(1 / variance + count / sigma2)
    precision = np.pad(precision, ((1, 0), (1, 0)))
    precision[0, 0] = 1 / tau2 + 4 / variance
    precision[0, 1:] = precision[1:, 0] = -1 / variance
    covariance = np.linalg.inv(precision)
    expected = covariance @ np.append(0, total / sigma2)
    drawn = np.column_stack([mean[:, 1], offset[..., 1]])
    white = np.linalg.solve(np.linalg.cholesky(covariance), (drawn - expected).T).T
    gof.assert_mean(white, 0)
    products = white[:, :, None] * white[:, None]
    gof.assert_mean(products.reshape(-1, 25), np.eye(5).reshape(-1))


def test_the_dish_concentration(float64):
    # p(beta | D, m..) is proportional to the prior times beta^D
    # Gamma(beta) / Gamma(beta + m..).
    prior, tables = Gamma(2.0, 1.5), np.array([7, 0, 2, 1], np.int32)
    keys = jax.random.split(jax.random.key(1), 300)

    @quick_jit
    @jax.vmap
    def draw(key):
        def step(t, beta):
            return resample_dish_concentration_of_franchise(
                jax.random.fold_in(key, t), prior, beta, jnp.asarray(tables)
            )

        return jax.lax.fori_loop(0, 20, step, jnp.asarray(1.0))

    grid = np.linspace(1e-4, 25, 40000)
    rising = np.sum(np.log(grid[:, None] + np.arange(tables.sum())), axis=1)
    log_density = tiny.log_gamma_density(grid, 2.0, 1.5) + 3 * np.log(grid) - rising
    weights = np.exp(log_density - log_density.max())
    running = np.cumsum(weights) / weights.sum()
    gof.assert_ks(draw(keys), lambda x: np.interp(x, grid, running))
    found = conditional_dish_concentration_of_franchise(
        prior, jnp.asarray(3), jnp.log(jnp.asarray(0.2))
    )
    assert (found.shape, found.rate) == (5.0, 1.5 - np.log(0.2))


# --- many customers, little room --------------------------------------------------


@pytest.mark.parametrize("likelihood", ["conditional", "marginal"])
def test_thousands_of_customers_at_one_table(likelihood):
    # ML-1M's largest item has 3,428 ratings: sigma^(2n) is 0 in float32.
    number, rows = 3428, 3
    rng = np.random.default_rng(2)
    row = np.append(np.zeros(number, np.int32), [1, 1, 2, 2])
    other = np.append(np.arange(number), [0, 1, 0, 1]).astype(np.int32)
    x = rng.normal(1.0, 0.5, len(row)).astype(np.float32)
    variance = 0.0 if likelihood == "marginal" else 0.01
    scalars = [jnp.float32(v) for v in (0.25, variance, 0.2, 1.0, 1.0)]
    numbers = crf.Franchise(*scalars)
    seating = start_of(row, rows, 4, 4)
    bias = np.full((number, 4), 1.0, np.float32)
    bias[:, 1] = 0.99
    prior = CRF(likelihood, 1.0, 1.0, 4, 4)
    bias_prior = BiasPriorState(jnp.asarray(bias[0]), *scalars[1:3])
    topic, after, bias_after, _ = quick_jit(
        lambda key: resample_franchise(
            key, prior, seating, jnp.asarray(bias), bias_prior, jnp.float32(0.0),
            tuple(scalars[3:]), jnp.asarray(x), jnp.asarray(row), jnp.asarray(other),
            jnp.int32(len(row)), scalars[0], len(row),
        )
    )(jax.random.key(0))  # fmt: skip
    assert np.all(np.isfinite(bias_after)) and int(after.overflow) == 0
    counts = np.bincount(topic)
    # A dish at the prior's mean would cost each of them two nats.
    assert counts.max() > 0.9 * number
    # The weights of the large table's dish, against float64.
    customers = jnp.asarray([[number], [2], [2]], jnp.int32)
    room = crf._Room(jnp.zeros(len(row), jnp.int32), customers, *[None] * 4)
    ratings = crf._Ratings(*map(jnp.asarray, (x, row, other)), jnp.int32(len(row)))
    sums = crf.TableSums(*[s[0] for s in list_tables(numbers, ratings, room).sums])
    rest = x[number:].astype(float)
    dishes = crf.Dishes(jnp.asarray([2, 1], jnp.int32), *[None] * 4)
    exact, e = x[:number].astype(float), bias[:number, :2].astype(float)
    if likelihood == "conditional":
        gain = np.sum(e * (exact[:, None] - e / 2), axis=0) / 0.25
        known = gain
        spread = 0.25 + variance
        new = stats.norm.logpdf(exact, 0, np.sqrt(spread)).sum()
        grown = 0.2 * number / spread
        new += 0.5 * (0.2 * (exact.sum() / spread) ** 2 / (1 + grown) - np.log1p(grown))
        new -= stats.norm.logpdf(exact, 0, 0.5).sum()
        gain = jnp.asarray(gain, jnp.float32)
    else:
        gain = None
        dishes = dishes._replace(
            customers=jnp.asarray([4, 0], jnp.int32),
            total=jnp.asarray([rest.sum(), 0], jnp.float32),
        )
        s2 = 1 / (1 / 0.2 + np.array([4, 0]) / 0.25)
        mean = s2 * np.array([rest.sum(), 0]) / 0.25
        off = exact[:, None] - mean
        inner = off.sum(0) ** 2 * s2 / (0.25 + number * s2)
        density = -0.5 * ((off**2).sum(0) - inner) / 0.25
        density -= 0.5 * np.log1p(number * s2 / 0.25)
        known = density + 0.5 * np.sum(exact**2) / 0.25
        new = known[1]  # of nobody
    found = conditional_dish(likelihood, numbers, dishes, sums, gain)
    expected = np.append(known + np.log([2, 1]), new)
    # Thousands of nats, by sums of thousands of terms in float32.
    np.testing.assert_allclose(found, expected, rtol=5e-6)
    assert np.all(expected > 5000)


def test_dishes_and_tables_are_born_and_die(small_blocks):
    numbers = NUMBERS._replace(dish_concentration=2.0, table_concentration=2.0)
    _, topic = run_chain(8, TINY, X, ROW, OTHER, numbers, 6000, 1)
    number = np.array([len(set(t)) for t in topic.tolist()])
    assert set(number) == {1, 2, 3, 4}
    assert np.any(np.diff(number) > 0) and np.any(np.diff(number) < 0)


@pytest.mark.parametrize(
    "gamma, flag", [(1e-6, crf.NO_DISH_FREE), (1e6, crf.NO_TABLE_FREE)]
)
def test_running_out_of_room_is_told(gamma, flag, small_blocks):
    # Two dishes and one table a row. One table is enough where nobody sits apart.
    numbers = NUMBERS._replace(dish_concentration=50.0, table_concentration=gamma)
    prior = CRF("conditional", num_topics=2, max_tables=1)
    *_, overflow = run_chain(8, prior, X, ROW, OTHER, numbers, 5, 1, checked=False)
    assert overflow[0] & flag


# --- the sweep --------------------------------------------------------------------


def franchise_spec(item_topics="none", likelihood="conditional"):
    spec = tiny.make_spec("none", item_topics)
    return dataclasses.replace(spec, user_topic_prior=sampled_franchise(likelihood))


def sampled_franchise(likelihood, room=8):
    return CRF(likelihood, Gamma(3.0, 1.5), Gamma(2.0, 1.5), room, room)


@pytest.mark.thorough
def test_a_sweep_keeps_the_books(float64):
    # Fixed variances, and factors of a fixed prior: half the time to compile.
    spec = dataclasses.replace(
        tiny.make_fixed_spec(0.3, 0.2),
        user_topic_prior=sampled_franchise("conditional"),
        item_topic_prior=NoTopics(),
    )
    data, key = tiny.make_data(np.float64), jax.random.key(0)
    state = init_state(key, spec, data, start_topics=2)
    sweep = quick_jit(lambda *given: gibbs_sweep.__wrapped__(*given))
    seen = set()
    for t in range(30):
        weights = state.user_topic_weights
        seating = jax.tree.map(np.asarray, weights.seating)
        table, dish = seating.table_of_rating, seating.dish_of_table
        assert int(seating.overflow) == 0
        number = tiny.NUM_RATINGS
        user = np.asarray(data.user)[:number]
        here = dish[user, table[:number]]
        np.testing.assert_array_equal(here, state.user_topic_of_rating[:number])
        assert np.all(here >= 0)
        # A table has a dish where somebody sits, and nowhere else.
        places = set(zip(user.tolist(), table[:number].tolist(), strict=True))
        assert places == set(map(tuple, np.argwhere(dish >= 0).tolist()))
        theta = np.exp(weights.log_row_weights)
        np.testing.assert_allclose(theta.sum(1), 1, rtol=1e-9)
        seen.add(len(set(here.tolist())))
        state, info = sweep(jax.random.fold_in(key, t), state, spec, data)
        assert int(info.num_user_topics) == len(
            set(np.asarray(state.user_topic_of_rating)[:number].tolist())
        )
    assert len(seen) > 1
    # The log joint: of the dishes in use, and of the seating.
    place = {
        (r, t): int(np.asarray(state.user_topic_weights.seating.dish_of_table)[r, t])
        for r, t in np.argwhere(
            np.asarray(state.user_topic_weights.seating.dish_of_table) >= 0
        ).tolist()
    }
    table = np.asarray(state.user_topic_weights.seating.table_of_rating)[:number]
    beta, gamma = state.user_topic_weights[2:4]
    seats = log_seating(user, table, place, float(beta), float(gamma))
    used = sorted(set(place.values()))
    prior, item = spec.item_bias_prior, state.item_bias_prior
    deviation = np.sqrt(float(item.variance))
    biases = np.asarray(state.item_bias)[: tiny.NUM_ITEMS, used]
    means = np.asarray(item.topic_mean)[used]
    expected = (
        seats
        + stats.norm.logpdf(biases, means, deviation).sum()
        + stats.norm.logpdf(
            means, prior.topic_mean, np.sqrt(float(item.topic_mean_variance))
        ).sum()
        + tiny.log_gamma_density(float(beta), 3.0, 1.5)
        + tiny.log_gamma_density(float(gamma), 2.0, 1.5)
    )
    # What is left of the log joint without this side's topics and their biases.
    none = dataclasses.replace(spec, user_topic_prior=NoTopics())
    empty = np.zeros((data.item_rows, 0))
    bare = state._replace(
        item_bias=empty,
        user_topic_weights=state.user_topic_weights._replace(seating=None),
    )
    squares = jnp.asarray(tiny.squared_error(state, data))
    rest = tiny.joint(bare, none, data, squared_error=squares)
    np.testing.assert_allclose(float(info.log_joint), expected + rest, rtol=1e-9)


@pytest.mark.parametrize("likelihood", ["conditional", "marginal", "map"])
@pytest.mark.parametrize(
    "dtype, x64", [(np.float64, True), (np.float32, True), (np.float32, False)]
)
def test_a_sweep_keeps_shapes_and_types(likelihood, dtype, x64):
    with jax.enable_x64(x64):
        data = tiny.make_data(dtype)
        spec = franchise_spec("weak_limit", likelihood)
        spec = jax.tree.map(lambda x: np.asarray(x, dtype), spec)
        key = jax.random.key(0)
        state = jax.eval_shape(init_state, key, spec, data)
        new, info = jax.eval_shape(gibbs_sweep, key, state, spec, data)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(
            lambda x: (x.shape, x.dtype), state
        )
        for leaf in jax.tree.leaves((state, info)):
            assert leaf.dtype in (dtype, np.int32)


@pytest.mark.parametrize("likelihood", ["conditional", "marginal"])
def test_no_key_is_used_twice(likelihood):
    spec, data = franchise_spec("weak_limit", likelihood), tiny.make_data(np.float32)
    key = jax.random.key(0)
    with jax.debug_key_reuse(True):
        state = jax.eval_shape(lambda *g: init_state.__wrapped__(*g), key, spec, data)
        jax.jit(lambda *g: gibbs_sweep.__wrapped__(*g)).trace(key, state, spec, data)


def test_a_state_from_the_prior(float64):
    spec = franchise_spec()
    side = sampled_franchise("conditional", 16)
    spec = dataclasses.replace(spec, user_topic_prior=side, item_topic_prior=side)
    data = tiny.make_data(np.float64)
    state, rating = draw_state(3, spec, data)
    drawn = dataclasses.replace(data, rating=rating)
    start = jax.eval_shape(init_state, jax.random.key(0), spec, drawn)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), start
    )
    residual = tiny.residual(state, drawn, without=())[: tiny.NUM_RATINGS]
    assert 0.01 < np.mean(residual**2) / state.rating_variance < 4
