"""The generative process in plain JAX: draws from the prior of any member.

`draw_prior` is written from the model's statement, and from nothing that the sampler
uses: no kernel, no random-number routine and no density of ours, so that the one can
be held against the other. `sample_prior` is its public face.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from im3f_jax.data.persons import check_pairs, of_persons
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.times import TimeColumns
from im3f_jax.errors import InputError
from im3f_jax.model.bias_prior import SharedNormal
from im3f_jax.model.factor_prior import MultiplicativeGamma, NormalWishart
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import LEAST_PRECISION, GammaNoise
from im3f_jax.model.reciprocal import is_reciprocal, is_unordered
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import ModelSpec, resolve, validate
from im3f_jax.model.time_effects import NoTime, read_times, reads_times
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import HDP, FiniteDirichlet, NoTopics
from im3f_jax.numerics.random import log_gamma as quick_log_gamma

__all__ = ["PriorRows", "check_floor", "draw_prior", "prior_rows", "sample_prior"]

SIDES = ("user", "item")


class PriorRows(NamedTuple):
    """A resolved spec, and the pairs of some ratings by row."""

    spec: ModelSpec
    user: np.ndarray  # row of each rating's user, int32, shape (N,)
    item: np.ndarray
    num_users: int  # with at least one rating
    num_items: int
    times: TimeColumns | None = None  # where the model reads times


def prior_rows(spec: ModelSpec, ratings: Ratings) -> PriorRows:
    """Resolve a spec from ratings and number their rows, as `fit` does.

    Rows stand in the order of the index; users and items without a rating have none.
    Persons of a reciprocal model have one row for both roles.

    Raises
    ------
    InputError
        For a spec without meaning, no ratings, or topics that have no generative
        process here (the exact franchise has no truncation); for ratings without
        timestamps where the model reads them.
    """
    validate(spec)
    if not isinstance(ratings, Ratings):
        raise InputError(
            f"ratings is of type {type(ratings).__name__}: make Ratings of it first, "
            "by Ratings.from_dataframe, Ratings.from_arrays or load_ratings."
        )
    if len(ratings) == 0:
        raise InputError("There are no ratings.")
    for side in SIDES:
        prior = getattr(spec, f"{side}_topic_prior")
        if not isinstance(prior, NoTopics | FiniteDirichlet | HDP):
            raise InputError(
                f"The {side} topics follow a {type(prior).__name__}, which has no "
                "finite weights to draw: use topics='weak_limit' or 'stick_breaking'."
            )
    if is_reciprocal(spec):
        (ratings,) = of_persons(is_unordered(spec), ratings)
        check_pairs(ratings, None, is_unordered(spec))
        both = np.append(ratings.user, ratings.item)
        users, rows = np.unique(both, return_inverse=True)
        items, (user, item) = users, np.split(rows, 2)
    else:
        users, user = np.unique(ratings.user, return_inverse=True)
        items, item = np.unique(ratings.item, return_inverse=True)
    spec = resolve(
        spec,
        ratings.mean,
        float(np.var(ratings.rating)),
        ratings.step,
        ratings.levels.tolist(),
    )
    times = None
    if reads_times(spec):
        _, times = read_times(spec, ratings, user, len(users))
    return PriorRows(
        spec,
        user.astype(np.int32),
        item.astype(np.int32),
        len(users),
        len(items),
        times,
    )


def sample_prior(
    key: Array, spec: ModelSpec, ratings: Ratings, num_draws: int | None = None
) -> dict[str, Array]:
    """Draw every unknown, and ratings of the given pairs, from the prior.

    Parameters
    ----------
    key
        A key, as of `jax.random.key`.
    spec
        The model; what it leaves open (None) is resolved from the ratings as `fit`
        does.
    ratings
        Whose pairs are rated anew. Their values serve for the defaults only.
    num_draws
        Number of draws, along a new first axis; None is one draw without it.

    Returns
    -------
    dict of str to Array
        As `draw_prior`: rows are the users and items with a rating, in the order of
        the index; `ratings` and topics stand in the order of the given ratings.

    Raises
    ------
    InputError
        As `prior_rows`, and for a number of draws below 1.

    Examples
    --------
    >>> draws = im3f.sample_prior(jax.random.key(0), im3f.IM3F(), train, num_draws=100)
    >>> draws["ratings"].std(axis=1)
    """
    if num_draws is not None and not num_draws >= 1:
        raise InputError(f"num_draws is {num_draws!r}, but must be at least 1.")
    rows = prior_rows(spec, ratings)
    check_floor(rows.spec)
    return _sample(key, *rows, num_draws)


def check_floor(spec: ModelSpec) -> None:
    """Refuse a prior of sigma^2 that can hardly be drawn above its floor.

    Raises
    ------
    InputError
        Where less than 1e-4 of it lies there.
    """
    prior, floor = spec.likelihood.variance, spec.likelihood.variance_floor
    if isinstance(prior, InverseGamma) and floor > 0:
        mass = float(jax.scipy.special.gammainc(prior.shape, prior.scale / floor))
        if mass < 1e-4:
            raise InputError(
                f"Only {mass:.1g} of the prior of rating_variance lies above its "
                f"floor, {floor:.4g}."
            )


@partial(jax.jit, static_argnames=("num_users", "num_items", "num_draws"))
def _sample(key, spec, user, item, num_users, num_items, times, num_draws):
    def draw(key):
        return draw_prior(
            key,
            spec,
            user,
            item,
            num_users,
            num_items,
            log_gamma=quick_log_gamma,
            times=times,
        )

    if num_draws is None:
        return draw(key)
    return lax.map(draw, jax.random.split(key, num_draws))


def draw_prior(
    key: Array,
    spec: ModelSpec,
    user: Array,
    item: Array,
    num_users: int,
    num_items: int,
    dtype=jnp.float32,
    log_gamma: Callable[[Array, Array], Array] = jax.random.loggamma,
    times: TimeColumns | None = None,
) -> dict[str, Array]:
    """Draw every unknown and the ratings of the given pairs from the prior.

    Parameters
    ----------
    key
        A typed key.
    spec
        A resolved spec: no number is None.
    user, item
        Rows of the pairs, integers, shape (N,).
    num_users, num_items
        Numbers of rows, static.
    dtype
        Of what is not an integer.
    log_gamma
        Called as log_gamma(key, shape); draws the row weights. JAX's own is
        independent of the sampler, and takes ten times as long on a CPU.
    times
        Of the pairs, where the model reads them.

    Returns
    -------
    dict of str to Array
        By name, for each `side` in user, item: `{side}_factor_mean` (D,),
        `{side}_factor_precision` (D, D), `{side}_factors` (rows, D); with topics
        `{side}_topic_of_rating` (N,), int32, and `log_{side}_row_weights` (rows, K),
        the rows being the other side's under `own_topics`;
        under the HDP `log_{side}_global_weights` (K,), `{side}_dish_concentration`,
        `{side}_table_concentration`; and, of the topics of the OTHER side,
        `{side}_bias` (rows, K), `{side}_topic_mean` (K,), `{side}_bias_variance` and
        `{side}_topic_mean_variance`: `user_topic_mean` holds the means of user_bias,
        one for each item topic; under a `SharedNormal` also `{side}_shared_bias`
        (rows,), which `{side}_bias` contains, and `{side}_shared_bias_variance`. Then
        `rating_variance`; where the noise is not constant, relative precisions
        `{side}_precision` (rows,) and `rating_precision` (N,), and their
        `{side}_noise_shape` and `rating_noise_shape`; `mean` (N,) and `ratings` (N,),
        rating scale. Under a
        `MultiplicativeGamma` also `column_increments` (D,), delta. Where the model
        reads times also `item_time_bias` (rows, bins), `user_drift` (rows,) and their
        `{side}_time_variance`. With topic factors also `{side}_topic_factors` (rows,
        topics of the other side, dim), `{side}_topic_factor_mean` (dim,) and
        `{side}_topic_factor_precision` (dim, dim). Under the ordinal
        likelihood also `cut_points` (L - 1,), on the scale of the latent
        ratings, as is `mean`. What the sides of a reciprocal model share has the names
        of both.
    """
    rows = {"user": num_users, "item": num_items}
    row_of = {"user": jnp.asarray(user), "item": jnp.asarray(item)}
    other = {"user": "item", "item": "user"}
    topic_prior = {"user": spec.user_topic_prior, "item": spec.item_topic_prior}
    # Whose weights the topics are drawn from: the same side's, or the other's.
    whose = {side: other[side] if spec.own_topics else side for side in SIDES}
    bias_prior = {"user": spec.user_bias_prior, "item": spec.item_bias_prior}
    keys = iter(jax.random.split(key, 64))
    draw: dict[str, Array] = {}

    columns = None
    if isinstance(spec.factor_prior, MultiplicativeGamma):
        draw["column_increments"] = _increments(next(keys), spec, dtype)
        # One precision a column, for both sides.
        precision = jnp.cumprod(draw["column_increments"])
        columns = jnp.sqrt(precision)
    tables = SIDES[:1] if is_unordered(spec) else SIDES  # of factors and of biases
    franchises = SIDES[:1] if is_reciprocal(spec) else SIDES

    def share(names):
        for name in names:
            draw[name.replace("user", "item")] = draw[name]

    for side in tables:
        if columns is None:
            prior, dim = spec.factor_prior, spec.latent_dim
            centre, root = _factor_prior(next(keys), prior, dim, dtype)
        else:
            kappa = jnp.asarray(spec.factor_prior.mean_precision, dtype)
            noise = jax.random.normal(next(keys), columns.shape, dtype)
            centre, root = noise / jnp.sqrt(kappa) / columns, jnp.diag(columns)
        draw |= {
            f"{side}_factor_mean": centre,
            f"{side}_factor_precision": jnp.matmul(root, root.T, precision="highest"),
            f"{side}_factors": _factors(next(keys), centre, root, rows[side]),
        }
    if is_unordered(spec):
        share([name for name in draw if name.startswith("user_factor")])
    for side in SIDES:
        prior = topic_prior[side]
        if not prior.num_topics:
            continue
        if side in franchises:
            found = _weights(keys, side, prior, rows[whose[side]], dtype, log_gamma)
            draw |= found
        if is_reciprocal(spec):
            share(found)
        draw[f"{side}_topic_of_rating"] = _categorical(
            next(keys), draw[f"log_{side}_row_weights"], row_of[whose[side]]
        )

    mean = jnp.asarray(spec.global_bias, dtype) + jnp.sum(
        draw["user_factors"][user] * draw["item_factors"][item], axis=1
    )
    for side in tables:
        num_topics = topic_prior[other[side]].num_topics
        if not num_topics:
            continue
        prior = bias_prior[side]
        variance = _positive(next(keys), prior.variance, dtype)
        spread = _positive(next(keys), prior.topic_mean_variance, dtype)
        centre = prior.topic_mean + jnp.sqrt(spread) * jax.random.normal(
            next(keys), (num_topics,), dtype
        )
        bias = centre[None] + jnp.sqrt(variance) * jax.random.normal(
            next(keys), (rows[side], num_topics), dtype
        )
        if isinstance(prior, SharedNormal):
            common = _positive(next(keys), prior.shared_variance, dtype)
            shared = jnp.sqrt(common) * jax.random.normal(
                next(keys), (rows[side],), dtype
            )
            bias = bias + shared[:, None]
            draw |= {
                f"{side}_shared_bias": shared,
                f"{side}_shared_bias_variance": common,
            }
        draw |= {
            f"{side}_bias_variance": variance,
            f"{side}_topic_mean_variance": spread,
            f"{side}_topic_mean": centre.astype(dtype),
            f"{side}_bias": bias.astype(dtype),
        }
    if is_unordered(spec) and spec.num_user_topics:
        biases = ("bias", "topic_mean", "bias_variance", "topic_mean_variance")
        share([f"user_{name}" for name in biases])
    for side in SIDES:
        if topic_prior[other[side]].num_topics:
            topic = draw[f"{other[side]}_topic_of_rating"]
            mean += draw[f"{side}_bias"][row_of[side], topic]

    if isinstance(spec.topic_factors, TopicFactors):
        part, selected = spec.topic_factors, jnp.ones((1, 1), dtype)
        for side in SIDES:
            number = topic_prior[other[side]].num_topics
            centre, root = _factor_prior(next(keys), part.prior, part.dim, dtype)
            vectors = _factors(next(keys), centre, root, rows[side] * number)
            vectors = vectors.reshape(rows[side], number, part.dim)
            draw |= {
                f"{side}_topic_factor_mean": centre,
                f"{side}_topic_factor_precision": jnp.matmul(
                    root, root.T, precision="highest"
                ),
                f"{side}_topic_factors": vectors,
            }
            topic = draw[f"{other[side]}_topic_of_rating"]
            selected = selected * vectors[row_of[side], topic]
        mean += jnp.sum(selected, axis=1)

    for side, prior, name in (
        ("item", spec.item_time, "item_time_bias"),
        ("user", spec.user_time, "user_drift"),
    ):
        if isinstance(prior, NoTime):
            continue
        variance = _positive(next(keys), prior.variance, dtype)
        shape = (num_items, prior.num_bins) if side == "item" else (num_users,)
        effect = jnp.sqrt(variance) * jax.random.normal(next(keys), shape, dtype)
        draw |= {f"{side}_time_variance": variance, name: effect}
        if side == "item":
            mean += effect[row_of[side], jnp.asarray(times.bin)]
        else:
            mean += effect[row_of[side]] * jnp.asarray(times.drift, dtype)

    draw["rating_variance"] = _rating_variance(next(keys), spec.likelihood, dtype)
    noise = jax.random.normal(next(keys), mean.shape, dtype)
    for name, prior, number, of_rating in (
        ("user", spec.user_noise, num_users, row_of["user"]),
        ("item", spec.item_noise, num_items, row_of["item"]),
        ("rating", spec.rating_noise, len(mean), slice(None)),
    ):
        if not isinstance(prior, GammaNoise):
            continue
        shape = _positive(next(keys), prior.shape, dtype)
        gammas = jax.random.gamma(next(keys), shape, (number,), dtype)
        precision = jnp.maximum(gammas / shape, LEAST_PRECISION)
        draw[f"{name}_precision"] = precision
        draw[f"{name}_noise_shape"] = shape
        noise = noise / jnp.sqrt(precision[of_rating])
    draw["mean"] = mean.astype(dtype)
    draw["ratings"] = draw["mean"] + jnp.sqrt(draw["rating_variance"]) * noise
    if isinstance(spec.likelihood, Ordinal):
        # The latent ratings fall between cut points: the order statistics of normals.
        levels = jnp.asarray(spec.likelihood.levels, dtype)
        normal = jax.random.normal(next(keys), (len(levels) - 1,), dtype)
        draw["cut_points"] = jnp.sort(spec.likelihood.cut_scale * normal)
        draw["ratings"] = levels[jnp.searchsorted(draw["cut_points"], draw["ratings"])]
    return draw


def _positive(key: Array, prior, dtype) -> Array:
    """Draw a positive number: itself where it is fixed."""
    match prior:
        case InverseGamma(shape, scale):
            return (scale / jax.random.gamma(key, shape, dtype=dtype)).astype(dtype)
        case Gamma(shape, rate):
            return (jax.random.gamma(key, shape, dtype=dtype) / rate).astype(dtype)
        case _:
            return jnp.asarray(prior, dtype)


def _rating_variance(key: Array, likelihood, dtype) -> Array:
    """Draw sigma^2 until it lies above the floor, which cuts the prior off."""
    if not isinstance(likelihood.variance, InverseGamma):
        return jnp.asarray(likelihood.variance, dtype)

    def again(carry):
        key, _ = carry
        key, draw_key = jax.random.split(key)
        return key, _positive(draw_key, likelihood.variance, dtype)

    start = again((key, jnp.zeros((), dtype)))
    return lax.while_loop(lambda c: c[1] < likelihood.variance_floor, again, start)[1]


def _factor_prior(key: Array, prior, dim: int, dtype) -> tuple[Array, Array]:
    """Draw mu and the lower triangular root of Lambda.

    Lambda itself is not factored again: at nu_0 = D one in a hundred is too close to
    singular for a Cholesky in float32.
    """
    if not isinstance(prior, NormalWishart):
        root = jnp.sqrt(jnp.asarray(prior.precision, dtype)) * jnp.eye(dim, dtype=dtype)
        return jnp.zeros(dim, dtype), root
    chi_key, normal_key, mean_key = jax.random.split(key, 3)
    # Bartlett: Lambda = W_0^(1/2) T T' W_0^(1/2)', T lower triangular, T_ii^2
    # chi-squared with nu_0 - i degrees of freedom, the rest standard normal.
    freedom = jnp.asarray(prior.degrees_of_freedom, dtype) - jnp.arange(
        dim, dtype=dtype
    )
    diagonal = jnp.sqrt(2 * jax.random.gamma(chi_key, freedom / 2, dtype=dtype))
    below = jnp.tril(jax.random.normal(normal_key, (dim, dim), dtype), -1)
    root = jnp.sqrt(jnp.asarray(prior.scale, dtype)) * (below + jnp.diag(diagonal))
    mean = prior.mean + jax.scipy.linalg.solve_triangular(
        root.T, jax.random.normal(mean_key, (dim,), dtype), lower=False
    ) / jnp.sqrt(jnp.asarray(prior.mean_precision, dtype))
    return mean, root


def _increments(key: Array, spec: ModelSpec, dtype) -> Array:
    """Draw delta_1, and the others."""
    prior, dim = spec.factor_prior, spec.latent_dim
    first_key, key = jax.random.split(key)
    first = jax.random.gamma(first_key, prior.first_shape, (1,), dtype) / prior.rate
    others = jax.random.gamma(key, prior.shape, (dim - 1,), dtype)
    return jnp.concatenate([first, others]).astype(dtype)


def _factors(key: Array, mean: Array, root: Array, rows: int) -> Array:
    noise = jax.random.normal(key, (rows, mean.shape[0]), mean.dtype)
    offset = jax.scipy.linalg.solve_triangular(root.T, noise.T, lower=False).T
    return mean[None] + offset


def _categorical(key: Array, log_weights: Array, row: Array) -> Array:
    """Draw a topic for each rating from the weights of its row, int32, shape (N,).

    The number of running totals that a uniform reaches, by bisection.
    """
    running = jnp.cumsum(jnp.exp(log_weights), axis=1)
    number = running.shape[1]
    target = jax.random.uniform(key, row.shape, running.dtype) * running[row, -1]
    reached = jnp.zeros(row.shape, jnp.int32)
    for bit in reversed(range(number.bit_length())):
        more = reached + (1 << bit)
        total = running[row, jnp.minimum(more, number) - 1]
        reached = jnp.where((more < number) & (total <= target), more, reached)
    return reached


def _weights(keys, side: str, prior, rows: int, dtype, log_gamma) -> dict[str, Array]:
    def log_dirichlet(alpha):
        gammas = log_gamma(next(keys), alpha.astype(dtype))
        return jax.nn.log_softmax(gammas, axis=-1)

    count = prior.num_topics
    if isinstance(prior, FiniteDirichlet):
        alpha = jnp.full((rows, count), prior.concentration / count, dtype)
        return {f"log_{side}_row_weights": log_dirichlet(alpha)}
    assert isinstance(prior, HDP)
    dish = _positive(next(keys), prior.dish_concentration, dtype)
    table = _positive(next(keys), prior.table_concentration, dtype)
    if prior.construction == "weak_limit":
        alpha = jnp.full(count, 1 / count, dtype) * dish
        log_pi = log_dirichlet(alpha)
    else:
        # v ~ Beta(1, beta): 1 - v is a uniform to the power 1 / beta.
        uniform = jax.random.uniform(
            next(keys), (count - 1,), dtype, minval=jnp.finfo(dtype).tiny
        )
        log_rest = jnp.log(uniform) / dish
        zero = jnp.zeros(1, dtype)
        log_v = jnp.append(jnp.log(-jnp.expm1(log_rest)), zero)
        before = jnp.append(zero, jnp.cumsum(log_rest))
        log_pi = log_v + before
    alpha = jnp.broadcast_to(table * jnp.exp(log_pi), (rows, count))
    # Below this no float32 gamma is told from 0.
    alpha = jnp.maximum(alpha, 1e-30)
    return {
        f"{side}_dish_concentration": dish,
        f"{side}_table_concentration": table,
        f"log_{side}_global_weights": log_pi.astype(dtype),
        f"log_{side}_row_weights": log_dirichlet(alpha),
    }
