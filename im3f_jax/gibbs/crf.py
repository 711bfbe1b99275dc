"""Block: the seating of a side's Chinese restaurant franchise, tables then dishes.

The exact sampler of the untruncated model (Teh et al. 2006; the paper's table and dish
steps, with the other side's bias taken off the residual). Rows are restaurants, ratings
customers, topics dishes. USER topics index ITEM biases: for the users' franchise the
row is the user, the "other row" the item.

Written with y = x - c_0, the residual less the prior mean of the biases, and
e_o[k] = bias_o[k] - c_0; log densities are taken relative to prod_n Normal(x_n; c_0,
sigma^2), which keeps a table of thousands of customers within float32.

A choice is a race: log weight plus Gumbel noise, the largest wins. Noise belongs to a
slot, and slots are taken lowest first, so that a draw does not depend on how much room
there is, bit for bit. Where room runs out the seating says so in `overflow`, and means
nothing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.gibbs.biases import (
    bias_statistics,
    conditional_biases,
    conditional_topic_means,
)
from im3f_jax.gibbs.state import BiasPriorState, Seating
from im3f_jax.model.topic_prior import CRF, tables_of_dishes
from im3f_jax.numerics.random import standard_normal
from im3f_jax.numerics.reductions import count_by_cell, sum_by_cell

__all__ = [
    "NO_DISH_FREE",
    "NO_TABLE_FREE",
    "Dishes",
    "Franchise",
    "TableSums",
    "conditional_dish",
    "conditional_tables",
    "expected_weights",
    "resample_franchise",
]

# Bits of `Seating.overflow`.
NO_TABLE_FREE = 1
NO_DISH_FREE = 2

# Log weight of a slot without a dish: its exponential is 0, and it is finite.
LOG_NOTHING = -1e4

# Tables whose sums are held at once in the dish step.
TABLES = 256


class Dishes(NamedTuple):
    """What the choices need to know of each dish; unused parts are None."""

    tables: Array  # m_k, int32, shape (K,)
    offset: Array | None  # e = biases - c_0, shape (other rows, K); "conditional"
    mean: Array | None  # mu - c_0, shape (K,); "conditional"
    customers: Array | None  # n_k, int32, shape (K,); "marginal" and "map"
    total: Array | None  # sum of y over the customers, shape (K,)


class Franchise(NamedTuple):
    """Numbers that stay as they are during a step; scalars."""

    rating_variance: Array  # sigma^2
    bias_variance: Array  # sigma_0^2
    topic_mean_variance: Array  # tau^2
    dish_concentration: Array  # beta
    table_concentration: Array  # gamma


class TableSums(NamedTuple):
    """Sums over the ratings of a table, relative to Normal(c_0, sigma^2) each.

    A cell holds the table's ratings of one other row: one rating, or the repetitions of
    a pair. With c ratings of total S in a cell and w = sigma^2 + c sigma_0^2:
    """

    count: Array  # number of ratings, int32
    total: Array  # sum of y
    weight: Array  # sum over cells of c / w
    pull: Array  # sum over cells of S / w
    gain: Array  # sum over cells of S^2 sigma_0^2 / (2 sigma^2 w) - log(w / sigma^2)/2


def conditional_tables(
    likelihood: str,
    numbers: Franchise,
    customers: Array,
    dish_of_table: Array,
    dishes: Dishes,
    y: Array,
    offset: Array | None,
) -> Array:
    """Full conditional of a rating's table, the rating itself taken out of all counts.

    - table t in use: n_rt p_k(x), k its dish;
    - a new table with dish k: gamma m_k / (m.. + beta) p_k(x);
    - a new table with a new dish: gamma beta / (m.. + beta) p_new(x).

    "conditional": p_k = Normal(bias_o[k], sigma^2) and p_new = Normal(c_0,
    sigma^2 + sigma_0^2 + tau^2). "marginal": Normal(mu_P, sigma^2 + s_P^2) with mean
    and variance of mu_k given the other ratings with the dish, and Normal(c_0,
    sigma^2 + tau^2). "map": Normal(mu_P, sigma^2) and Normal(c_0, sigma^2).

    Parameters
    ----------
    likelihood
        "conditional", "marginal" or "map".
    numbers
        Variances and concentrations.
    customers, dish_of_table
        Of the rating's row, int32, shape (T,).
    dishes
        Counts and sums without the rating.
    y
        Residual less c_0, rating scale, scalar.
    offset
        e_o of the rating's other row, shape (K,); None but for "conditional".

    Returns
    -------
    Array
        Log weights in nats up to a constant, -inf where there is nothing, shape
        (T + K + 1,): tables, then dishes of a new table, then a new dish.
    """
    sigma2 = numbers.rating_variance
    if likelihood == "conditional":
        score = offset * (y - 0.5 * offset) / sigma2
        spread = numbers.bias_variance + numbers.topic_mean_variance
    else:
        one = TableSums(jnp.ones((), jnp.int32), y, *[jnp.zeros_like(y)] * 3)
        score = _collapsed(likelihood, numbers, dishes, one)
        spread = numbers.topic_mean_variance
    if likelihood == "map":
        spread = jnp.zeros_like(spread)
    new = 0.5 * (
        y**2 / sigma2 * (spread / (sigma2 + spread)) - jnp.log1p(spread / sigma2)
    )
    dtype = score.dtype
    seated = customers > 0
    at_table = score[jnp.where(seated, dish_of_table, 0)]
    at_table = jnp.where(seated, at_table + _log_count(customers, dtype), -jnp.inf)
    base = _log_new_table(numbers, dishes.tables)
    return jnp.concatenate(
        [
            at_table,
            jnp.where(
                dishes.tables > 0,
                score + base + _log_count(dishes.tables, dtype),
                -jnp.inf,
            ),
            (base + jnp.log(numbers.dish_concentration) + new)[None],
        ]
    )


def conditional_dish(
    likelihood: str,
    numbers: Franchise,
    dishes: Dishes,
    sums: TableSums,
    gain: Array | None,
) -> Array:
    """Full conditional of a table's dish, the table itself taken out of all counts.

    Dish k in use: m_k times the density of the table's ratings under it; a new dish:
    beta times their joint density with the new dish's mean and biases summed out, which
    is normal with mean c_0 and covariance sigma^2 on the diagonal, sigma_0^2 within
    and tau^2 between and within other rows. "marginal" and "map" as in
    `conditional_tables`, the mean and variance of mu_k given the other tables.

    Parameters
    ----------
    likelihood, numbers
        As in `conditional_tables`.
    dishes
        Counts and sums without the table.
    sums
        Of the table, scalars.
    gain
        sum_n e(y_n - e / 2) / sigma^2 over the table's ratings, e = e_o[k], shape
        (K,); None but for "conditional".

    Returns
    -------
    Array
        Log weights in nats up to a constant, shape (K + 1,), the new dish last.
    """
    tau2 = numbers.topic_mean_variance
    if likelihood == "conditional":
        score = gain
        new = sums.gain + _integrated(sums.weight, sums.pull, tau2)
    else:
        score = _collapsed(likelihood, numbers, dishes, sums)
        sigma2 = numbers.rating_variance
        count = sums.count.astype(score.dtype)
        new = _integrated(count / sigma2, sums.total / sigma2, tau2)
        if likelihood == "map":
            new = jnp.zeros_like(new)
    known = jnp.where(
        dishes.tables > 0, score + _log_count(dishes.tables, score.dtype), -jnp.inf
    )
    return jnp.append(known, jnp.log(numbers.dish_concentration) + new)


def _integrated(weight: Array, pull: Array, variance: Array) -> Array:
    """Log of the mean of exp(pull m - weight m^2 / 2) over m ~ Normal(0, variance)."""
    grown = variance * weight
    return 0.5 * (variance * pull**2 / (1 + grown) - jnp.log1p(grown))


def _collapsed(
    likelihood: str, numbers: Franchise, dishes: Dishes, sums: TableSums
) -> Array:
    """Log density of ratings under each dish with mu_k summed out or put in, (K,).

    mu_k - c_0 given the dish's other ratings has variance s_P^2 = 1 / (1 / tau^2 +
    n_k / sigma^2) and mean mu_P = s_P^2 / sigma^2 sum y, written without 1 / tau^2.
    """
    sigma2, tau2 = numbers.rating_variance, numbers.topic_mean_variance
    dtype = sigma2.dtype
    spread = sigma2 + tau2 * dishes.customers.astype(dtype)
    mean = tau2 * dishes.total / spread
    count = sums.count.astype(dtype)
    score = mean * (sums.total - 0.5 * count * mean) / sigma2
    if likelihood == "map":
        return score
    # About mu_P, what mu_k - mu_P adds.
    return score + _integrated(
        count / sigma2, (sums.total - count * mean) / sigma2, tau2 * sigma2 / spread
    )


def _log_new_table(numbers: Franchise, tables: Array) -> Array:
    """log(gamma / (m.. + beta)), scalar."""
    total = jnp.sum(tables, dtype=jnp.int32).astype(numbers.dish_concentration.dtype)
    return jnp.log(numbers.table_concentration) - jnp.log(
        total + numbers.dish_concentration
    )


def _log_count(count: Array, dtype) -> Array:
    return jnp.log(jnp.maximum(count, 1).astype(dtype))


def expected_weights(
    dish_of_table: Array, counts: Array, dish: Array, table: Array
) -> tuple[Array, Array]:
    """Weights of the topics of a next rating, given the seating.

    theta[row, k] = (n_rk + gamma pi_k) / (n_r + gamma), with pi_k = m_k / (m.. + beta),
    and pi = beta / (m.. + beta) in the lowest free slot, whose biases are a fresh draw
    from their prior. Free slots beyond it weigh nothing.

    Parameters
    ----------
    dish_of_table
        -1 where nobody sits, int32, shape (rows, T).
    counts
        Ratings in each (row, topic) cell, int32, shape (rows, K).
    dish, table
        beta and gamma, scalars.

    Returns
    -------
    tuple of Array
        log theta, shape (rows, K), and log pi, shape (K,).
    """
    num_topics = counts.shape[1]
    tables = tables_of_dishes(dish_of_table, num_topics)
    slots = jnp.arange(num_topics, dtype=jnp.int32)
    mass = jnp.where(slots == _free(tables), dish, tables.astype(dish.dtype))
    total = jnp.sum(tables, dtype=jnp.int32).astype(dish.dtype)
    pi = mass / (total + dish)
    of_row = jnp.sum(counts, axis=1, dtype=jnp.int32).astype(dish.dtype)
    theta = (counts.astype(dish.dtype) + table * pi[None]) / (of_row + table)[:, None]

    def log(x):
        return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), LOG_NOTHING)

    return log(theta), log(pi)


def resample_franchise(
    key: Array,
    prior: CRF,
    seating: Seating,
    bias: Array,
    bias_prior: BiasPriorState,
    center: Array,
    concentrations: tuple[Array, Array],
    residual: Array,
    row: Array,
    other: Array,
    num_ratings: Array,
    rating_variance: Array,
    chunk: int,
) -> tuple[Array, Seating, Array, BiasPriorState]:
    """Draw a side's tables one after another, then its dishes.

    Parameters
    ----------
    key
        A typed key.
    prior
        The side's topic prior.
    seating
        Before.
    bias, bias_prior, center
        The OTHER side's biases, which these topics index, rating scale, shape (other
        rows, K), their means and variances, and c_0. Under a `SharedNormal` all is
        given the shared parts s: the bias of a new dish for row u is Normal(mu_k + s_u,
        sigma_0^2).
    concentrations
        beta and gamma, scalars.
    residual
        Ratings less everything but this bias, rating scale, shape (N,).
    row, other
        Row of each rating on this side and on the other, int32, shape (N,); rows of
        padding are the last.
    num_ratings
        Number of ratings that are not padding, int32 scalar.
    rating_variance
        sigma^2, scalar.
    chunk
        Ratings whose noise is held at once; a divisor of N, static.

    Returns
    -------
    tuple
        Topic of each rating, int32, shape (N,); the seating; the biases, of which
        those of new dishes (and under "marginal" and "map" all) are drawn anew given
        the seating; and their means.
    """
    table_key, dish_key, mean_key, bias_key = jax.random.split(key, 4)
    (size,), num_topics = row.shape, bias.shape[1]
    numbers = Franchise(
        rating_variance,
        bias_prior.variance,
        bias_prior.topic_mean_variance,
        *concentrations,
    )
    # Given the part of the biases common to all dishes, a dish's are those of a
    # `TopicNormal`: it is taken off here, and put back at the end.
    shared = bias_prior.shared
    if shared is not None:
        residual, bias = residual - shared[other], bias - shared[:, None]
    # Rows in order, each one's ratings by other row.
    order = jnp.argsort(row, stable=True)
    ratings = _Ratings(
        residual[order] - center,
        row[order],
        other[order],
        num_ratings.astype(jnp.int32),
    )
    valid = jnp.arange(size, dtype=jnp.int32) < num_ratings
    table = seating.table_of_rating[order]
    customers = count_by_cell(valid, ratings.row, table, seating.dish_of_table.shape)
    dish = jnp.maximum(seating.dish_of_table, 0)
    dishes = Dishes(tables_of_dishes(seating.dish_of_table, num_topics), *[None] * 4)
    if prior.likelihood == "conditional":
        dishes = dishes._replace(
            offset=bias - center, mean=bias_prior.topic_mean - center
        )
    else:
        dishes = _collapsed_sums(dishes, ratings, valid, dish[ratings.row, table])
    room = _Room(
        table,
        customers,
        dish,
        dishes,
        births=jnp.zeros((), jnp.int32),
        overflow=jnp.zeros((), jnp.int32),
    )
    room = _table_step(table_key, prior.likelihood, numbers, ratings, room, chunk)
    room = _dish_step(dish_key, prior.likelihood, numbers, ratings, room, chunk)

    table = jnp.zeros_like(seating.table_of_rating).at[order].set(room.table)
    topic = room.dish[row, table]
    free = jnp.any(room.dishes.tables == 0)  # that of the next new dish
    seating = Seating(
        table,
        jnp.where(room.customers > 0, room.dish, -1),
        room.overflow | jnp.where(free, 0, NO_DISH_FREE).astype(jnp.int32),
    )
    if prior.likelihood == "conditional":
        bias, mean = room.dishes.offset + center, room.dishes.mean + center
    else:
        statistics = bias_statistics(residual, valid, other, topic, bias.shape)
        found = conditional_topic_means(
            statistics, *numbers[1:3], center, rating_variance
        )
        noise = standard_normal(mean_key, (num_topics,), bias.dtype)
        mean = found.mean + jnp.sqrt(found.variance) * noise
        found = conditional_biases(statistics, mean, numbers[1], rating_variance)
        noise = standard_normal(bias_key, bias.shape[::-1], bias.dtype).T
        bias = found.mean + jnp.sqrt(found.variance) * noise
    if shared is not None:
        bias = bias + shared[:, None]
    return topic, seating, bias, bias_prior._replace(topic_mean=mean)


class _Ratings(NamedTuple):
    """Ratings in the order of their rows."""

    y: Array
    row: Array
    other: Array
    number: Array  # that are not padding


class _Room(NamedTuple):
    """A seating under way."""

    table: Array  # of each rating in the order of rows, shape (N,)
    customers: Array  # shape (rows, T)
    dish: Array  # any number where nobody sits, shape (rows, T)
    dishes: Dishes
    births: Array  # of dishes in this step so far
    overflow: Array


def _collapsed_sums(dishes: Dishes, ratings: _Ratings, valid, topic) -> Dishes:
    shape = (1, dishes.tables.shape[0])
    nowhere = jnp.zeros_like(topic)
    y = jnp.where(valid, ratings.y, 0)
    return dishes._replace(
        customers=count_by_cell(valid, nowhere, topic, shape)[0],
        total=sum_by_cell(y, nowhere, topic, shape)[0],
    )


def _move(dishes: Dishes, dish: Array, sign: int, tables, count, total) -> Dishes:
    """Add to or take from a dish: tables, customers and the sum of their y."""
    here = jnp.arange(dishes.tables.shape[0], dtype=jnp.int32) == dish
    moved = dishes._replace(
        tables=dishes.tables + sign * jnp.where(here, tables, 0).astype(jnp.int32)
    )
    if dishes.customers is None:
        return moved
    return moved._replace(
        customers=dishes.customers + sign * jnp.where(here, count, 0),
        total=dishes.total + sign * jnp.where(here, total, 0),
    )


def _free(count: Array) -> Array:
    """Lowest slot that nobody has; 0 where there is none."""
    return jnp.argmax(count == 0).astype(jnp.int32)


def _noise(key: Array, tables: int, dishes: int, number: int, dtype) -> Array:
    """Draw standard Gumbels of the choices, shape (number, tables + dishes + 1).

    Drawn slot by slot, the new dish first: what a slot gets does not depend on how many
    there are. From 32 bits, in fine steps where a small weight must win.
    """
    slots = max(tables, dishes + 1)
    kinds = 2 if tables else 1
    bits = jax.random.bits(key, (slots, kinds, number), jnp.uint32)
    u = (bits.astype(dtype) + 0.5) * 2.0**-32
    u = jnp.minimum(u, 1 - jnp.finfo(dtype).epsneg)
    noise = lax.optimization_barrier(-jnp.log(-jnp.log1p(-u)))
    parts = [noise[1 : dishes + 1, 0], noise[:1, 0]]
    if tables:
        parts.insert(0, noise[:tables, 1])
    return jnp.concatenate(parts).T


def _row_of(array: Array, row: Array) -> Array:
    return lax.dynamic_slice(array, (row, jnp.zeros_like(row)), (1, array.shape[1]))[0]


def _put_row(array: Array, row: Array, values: Array) -> Array:
    return lax.dynamic_update_slice(array, values[None], (row, jnp.zeros_like(row)))


def _table_step(
    key: Array,
    likelihood: str,
    numbers: Franchise,
    ratings: _Ratings,
    room: _Room,
    chunk: int,
) -> _Room:
    """Draw the table of each rating, given all others."""
    noise_key, birth_key = jax.random.split(key)
    max_tables, num_topics = room.dish.shape[1], room.dishes.tables.shape[0]
    dtype = ratings.y.dtype
    slots = jnp.arange(max_tables, dtype=jnp.int32)
    nobody = jnp.full((), -1, jnp.int32)

    def seat(carry, noise, start):
        n, room, _ = carry
        row, y, table = ratings.row[n], ratings.y[n], room.table[n]
        customers, dish = _row_of(room.customers, row), _row_of(room.dish, row)
        # The rating gets up, and its table goes with the last one.
        customers = customers - (slots == table).astype(jnp.int32)
        empty = (customers[table] == 0).astype(jnp.int32)
        dishes = _move(room.dishes, dish[table], -1, empty, 1, y)
        offset = None
        if likelihood == "conditional":
            offset = _row_of(dishes.offset, ratings.other[n])
        log_weights = conditional_tables(
            likelihood, numbers, customers, dish, dishes, y, offset
        )
        race = log_weights + _row_of(noise, n - start)
        choice = jnp.argmax(race).astype(jnp.int32)
        opens = choice >= max_tables
        born = choice == max_tables + num_topics
        free_table, free_dish = _free(customers), _free(dishes.tables)
        table = jnp.where(opens, free_table, choice)
        served = jnp.where(born, free_dish, choice - max_tables)
        served = jnp.where(opens, served, dish[table])
        overflow = jnp.where(
            opens & (customers[free_table] > 0), NO_TABLE_FREE, 0
        ) | jnp.where(born & (dishes.tables[free_dish] > 0), NO_DISH_FREE, 0)
        here = slots == table
        room = room._replace(
            table=lax.dynamic_update_slice(room.table, table[None], (n,)),
            customers=_put_row(room.customers, row, customers + here.astype(jnp.int32)),
            dish=_put_row(room.dish, row, jnp.where(here, served, dish)),
            dishes=_move(dishes, served, 1, opens.astype(jnp.int32), 1, y),
            births=room.births + born.astype(jnp.int32),
            overflow=overflow.astype(jnp.int32),
        )
        return n + 1, room, jnp.where(born, served, nobody)

    def until_birth(carry, noise, start, stop):
        n, room = carry
        n, room, born = lax.while_loop(
            lambda c: (c[0] < stop) & (c[2] < 0) & (c[1].overflow == 0),
            lambda c: seat(c, noise, start),
            (n, room, nobody),
        )
        if likelihood == "conditional":
            last = jnp.maximum(n - 1, 0)
            rows = jnp.arange(room.dishes.offset.shape[0], dtype=jnp.int32)
            here = rows == ratings.other[last]
            room = _give_birth(
                jax.random.fold_in(birth_key, room.births),
                numbers,
                room,
                born,
                here.astype(dtype),
                jnp.where(here, ratings.y[last], 0),
            )
        return n, room

    def one_chunk(c, room):
        start = c.astype(jnp.int32) * chunk
        stop = jnp.minimum(start + chunk, ratings.number)
        noise = _noise(
            jax.random.fold_in(noise_key, c), max_tables, num_topics, chunk, dtype
        )
        return lax.while_loop(
            lambda carry: (carry[0] < stop) & (carry[1].overflow == 0),
            lambda carry: until_birth(carry, noise, start, stop),
            (start, room),
        )[1]

    chunks = ratings.y.shape[0] // chunk
    return lax.fori_loop(0, chunks, one_chunk, room)


def _give_birth(
    key: Array,
    numbers: Franchise,
    room: _Room,
    dish: Array,
    count: Array,
    total: Array,
) -> _Room:
    """Draw mean and biases of a new dish given its table; nothing for dish -1.

    mu given the table with the biases summed out, then all biases given mu: those of
    other rows without a rating there are Normal(mu, sigma_0^2). `count` and `total` of
    the table's y have shape (other rows,), floating.
    """
    sigma2, variance, tau2 = numbers[:3]
    dtype = count.dtype
    spread = sigma2 + count * variance
    shrink = 1 + tau2 * jnp.sum(count / spread)
    noise = standard_normal(key, (count.shape[0] + 1,), dtype)
    mean = tau2 * jnp.sum(total / spread) / shrink
    mean = mean + jnp.sqrt(tau2 / shrink) * noise[0]
    column = (sigma2 * mean + variance * total) / spread
    column = column + jnp.sqrt(sigma2 * variance / spread) * noise[1:]
    born, place = dish >= 0, jnp.maximum(dish, 0)
    zero = jnp.zeros_like(place)
    offset = room.dishes.offset
    before = lax.dynamic_slice(offset, (zero, place), (offset.shape[0], 1))[:, 0]
    offset = lax.dynamic_update_slice(
        offset, jnp.where(born, column, before)[:, None], (zero, place)
    )
    slots = jnp.arange(offset.shape[1], dtype=jnp.int32)
    means = jnp.where(slots == dish, mean, room.dishes.mean)
    return room._replace(dishes=room.dishes._replace(offset=offset, mean=means))


class _Tables(NamedTuple):
    """The tables in use, row by row, and the ratings in their order."""

    row: Array  # shape (M,), M at least the number of tables
    slot: Array  # table within its row, shape (M,)
    sums: TableSums  # each of shape (M,)
    start: Array  # place of the table's first rating, shape (M,)
    number: Array  # of tables, scalar
    y: Array  # of the ratings in the order of tables, shape (N,)
    other: Array
    of_rating: Array  # index of the table, M for padding


def _list_tables(numbers: Franchise, ratings: _Ratings, room: _Room) -> _Tables:
    rows, max_tables = room.customers.shape
    (size,) = ratings.y.shape
    room_for = -(-min(size, rows * max_tables) // TABLES) * TABLES
    used = (room.customers > 0).reshape(-1)
    index = jnp.cumsum(used, dtype=jnp.int32) - 1
    (places,) = jnp.nonzero(used, size=room_for, fill_value=0)
    places = places.astype(jnp.int32)
    number = index[-1] + 1
    listed = jnp.arange(room_for, dtype=jnp.int32) < number
    valid = jnp.arange(size, dtype=jnp.int32) < ratings.number
    of_rating = index.reshape(rows, max_tables)[ratings.row, room.table]
    of_rating = jnp.where(valid, of_rating, room_for)
    order = jnp.argsort(of_rating, stable=True)
    of_rating, other = of_rating[order], ratings.other[order]
    y = jnp.where(valid, ratings.y[order], 0)
    # Cells: the ratings of one table and one other row stand together.
    first = (of_rating != jnp.roll(of_rating, 1)) | (other != jnp.roll(other, 1))
    first = first | (jnp.arange(size, dtype=jnp.int32) == 0)
    cell = jnp.cumsum(first, dtype=jnp.int32) - 1

    def sums(values, where, bins):
        return sum_by_cell(values, where, jnp.zeros_like(where), (bins, 1))[:, 0]

    in_cell = sums(valid.astype(jnp.int32), cell, size)
    count, total = in_cell.astype(y.dtype), sums(y, cell, size)
    table_of_cell = jnp.full(size, room_for, jnp.int32).at[cell].set(of_rating)

    def of_table(values):
        return sums(values, table_of_cell, room_for)

    # As if every cell held one rating, and then what repeated pairs change: thousands
    # of equal terms, added one by one in float32, would be rounded the same way.
    sigma2, variance = numbers.rating_variance, numbers.bias_variance
    ratio = variance / sigma2
    excess = 1 / (sigma2 + count * variance) - 1 / (sigma2 + variance)
    excess = jnp.where(in_cell > 1, excess, 0)
    log_excess = jnp.log1p(count * ratio) - count * jnp.log1p(ratio)
    log_excess = jnp.where(in_cell > 1, log_excess, 0)
    customers = jnp.where(listed, room.customers.reshape(-1)[places], 0)
    number_of, sum_of = customers.astype(y.dtype), of_table(total)
    return _Tables(
        row=places // max_tables,
        slot=places % max_tables,
        sums=TableSums(
            count=customers,
            total=sum_of,
            weight=number_of / (sigma2 + variance) + of_table(count * excess),
            pull=sum_of / (sigma2 + variance) + of_table(total * excess),
            gain=0.5 * ratio / (sigma2 + variance) * of_table(total**2)
            + 0.5 * ratio * of_table(total**2 * excess)
            - 0.5 * (number_of * jnp.log1p(ratio) + of_table(log_excess)),
        ),
        start=jnp.cumsum(customers, dtype=jnp.int32) - customers,
        number=number,
        y=y,
        other=other,
        of_rating=of_rating,
    )


def _dish_step(
    key: Array,
    likelihood: str,
    numbers: Franchise,
    ratings: _Ratings,
    room: _Room,
    chunk: int,
) -> _Room:
    """Draw the dish of each table, given all others."""
    noise_key, birth_key = jax.random.split(key)
    conditional = likelihood == "conditional"
    tables = _list_tables(numbers, ratings, room)
    num_topics = room.dishes.tables.shape[0]
    dtype = ratings.y.dtype
    nobody = jnp.full((), -1, jnp.int32)
    places = jnp.arange(chunk, dtype=jnp.int32)

    def over_ratings(start, stop, add, total):
        """Go through the ratings start .. stop - 1, a chunk at a time."""

        def body(c, total):
            begin = c * chunk

            def part(x):
                return lax.dynamic_slice(x, (begin,), (chunk,))

            inside = (begin + places >= start) & (begin + places < stop)
            return add(
                total,
                inside,
                part(tables.y),
                part(tables.other),
                part(tables.of_rating),
            )

        return lax.fori_loop(start // chunk, (stop + chunk - 1) // chunk, body, total)

    def gains(offset, first):
        """Log density ratio of each table of a block under each dish, (TABLES, K)."""

        def add(total, inside, y, other, table):
            e = offset[other]
            gain = e * (y[:, None] - 0.5 * e) / numbers.rating_variance
            local = jnp.where(inside, table - first, TABLES)
            return total.at[local].add(gain, mode="drop")

        last = first + TABLES - 1
        return over_ratings(
            tables.start[first],
            tables.start[last] + tables.sums.count[last],
            add,
            jnp.zeros((TABLES, num_topics), dtype),
        )

    def serve(carry, gain, noise, first):
        i, room, _ = carry
        row, slot = tables.row[i], tables.slot[i]
        sums = TableSums(*[values[i] for values in tables.sums])
        dish = _row_of(room.dish, row)
        dishes = _move(room.dishes, dish[slot], -1, 1, sums.count, sums.total)
        log_weights = conditional_dish(
            likelihood,
            numbers,
            dishes,
            sums,
            _row_of(gain, i - first) if conditional else None,
        )
        race = log_weights + _row_of(noise, i - first)
        choice = jnp.argmax(race).astype(jnp.int32)
        born = choice == num_topics
        served = jnp.where(born, _free(dishes.tables), choice)
        full = born & jnp.all(dishes.tables > 0)
        here = jnp.arange(dish.shape[0], dtype=jnp.int32) == slot
        room = room._replace(
            dish=_put_row(room.dish, row, jnp.where(here, served, dish)),
            dishes=_move(dishes, served, 1, 1, sums.count, sums.total),
            births=room.births + born.astype(jnp.int32),
            overflow=jnp.where(full, NO_DISH_FREE, 0).astype(jnp.int32),
        )
        return i + 1, room, jnp.where(born, served, nobody)

    def until_birth(carry, noise, first, stop):
        i, room = carry
        # A birth changes the biases, so that the block's sums are taken anew.
        gain = gains(room.dishes.offset, first) if conditional else None
        i, room, born = lax.while_loop(
            lambda c: (c[0] < stop) & (c[2] < 0) & (c[1].overflow == 0),
            lambda c: serve(c, gain, noise, first),
            (i, room, nobody),
        )
        if conditional:
            last = jnp.maximum(i - 1, 0)
            rows = room.dishes.offset.shape[0]

            def add(found, inside, y, other, table):
                nowhere = jnp.zeros_like(other)
                count, total = found
                return (
                    count + count_by_cell(inside, other, nowhere, (rows, 1))[:, 0],
                    total
                    + sum_by_cell(jnp.where(inside, y, 0), other, nowhere, (rows, 1))[
                        :, 0
                    ],
                )

            start = tables.start[last]
            count, total = over_ratings(
                start,
                jnp.where(born >= 0, start + tables.sums.count[last], start),
                add,
                (jnp.zeros(rows, jnp.int32), jnp.zeros(rows, dtype)),
            )
            room = _give_birth(
                jax.random.fold_in(birth_key, room.births),
                numbers,
                room,
                born,
                count.astype(dtype),
                total,
            )
        return i, room

    def one_block(b, room):
        first = b * TABLES
        stop = jnp.minimum(first + TABLES, tables.number)
        noise = _noise(jax.random.fold_in(noise_key, b), 0, num_topics, TABLES, dtype)
        return lax.while_loop(
            lambda carry: (carry[0] < stop) & (carry[1].overflow == 0),
            lambda carry: until_birth(carry, noise, first, stop),
            (first, room),
        )[1]

    blocks = (tables.number + TABLES - 1) // TABLES
    room = room._replace(births=jnp.zeros((), jnp.int32))
    return lax.fori_loop(0, blocks, one_block, room)
