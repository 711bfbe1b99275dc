"""The generative process in plain JAX: draws from the prior of any member of the family.

Written from the model's statement, and from nothing that the sampler uses: no kernel,
no random-number routine and no density of ours, so that the one can be held against the
other.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from im3f_jax.model.factor_prior import NormalWishart
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.topic_prior import HDP, FiniteDirichlet

__all__ = ["draw_prior"]

SIDES = ("user", "item")


def draw_prior(
    key: Array,
    spec: ModelSpec,
    user: Array,
    item: Array,
    num_users: int,
    num_items: int,
    dtype=jnp.float32,
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

    Returns
    -------
    dict of str to Array
        By name, for each `side` in user, item: `{side}_factor_mean` (D,),
        `{side}_factor_precision` (D, D), `{side}_factors` (rows, D); with topics
        `{side}_topic_of_rating` (N,), int32, and `log_{side}_row_weights` (rows, K);
        under the HDP `log_{side}_global_weights` (K,), `{side}_dish_concentration`,
        `{side}_table_concentration`; and, of the topics of the OTHER side,
        `{side}_bias` (rows, K), `{side}_topic_mean` (K,), `{side}_bias_variance` and
        `{side}_topic_mean_variance`: `user_topic_mean` holds the means of user_bias,
        one for each item topic. Then `rating_variance`, `mean` (N,) and `ratings` (N,),
        rating scale.
    """
    rows = {"user": num_users, "item": num_items}
    row_of = {"user": jnp.asarray(user), "item": jnp.asarray(item)}
    topic_prior = {"user": spec.user_topic_prior, "item": spec.item_topic_prior}
    bias_prior = {"user": spec.user_bias_prior, "item": spec.item_bias_prior}
    other = {"user": "item", "item": "user"}
    keys = iter(jax.random.split(key, 64))
    draw: dict[str, Array] = {}

    for side in SIDES:
        draw |= {
            f"{side}_factor_{name}": value
            for name, value in _factor_prior(next(keys), spec, dtype).items()
        }
        draw[f"{side}_factors"] = _factors(
            next(keys),
            draw[f"{side}_factor_mean"],
            draw[f"{side}_factor_precision"],
            rows[side],
        )
    for side in SIDES:
        prior = topic_prior[side]
        if not prior.num_topics:
            continue
        draw |= _weights(keys, side, prior, rows[side], dtype)
        draw[f"{side}_topic_of_rating"] = jax.random.categorical(
            next(keys), draw[f"log_{side}_row_weights"][row_of[side]]
        ).astype(jnp.int32)

    mean = jnp.asarray(spec.global_bias, dtype) + jnp.sum(
        draw["user_factors"][user] * draw["item_factors"][item], axis=1
    )
    for side in SIDES:
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
        draw |= {
            f"{side}_bias_variance": variance,
            f"{side}_topic_mean_variance": spread,
            f"{side}_topic_mean": centre.astype(dtype),
            f"{side}_bias": bias.astype(dtype),
        }
        mean += bias[row_of[side], draw[f"{other[side]}_topic_of_rating"]]

    draw["rating_variance"] = _rating_variance(next(keys), spec.likelihood, dtype)
    noise = jax.random.normal(next(keys), mean.shape, dtype)
    draw["mean"] = mean.astype(dtype)
    draw["ratings"] = draw["mean"] + jnp.sqrt(draw["rating_variance"]) * noise
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


def _factor_prior(key: Array, spec: ModelSpec, dtype) -> dict[str, Array]:
    dim, prior = spec.latent_dim, spec.factor_prior
    if not isinstance(prior, NormalWishart):
        return {
            "mean": jnp.zeros(dim, dtype),
            "precision": (prior.precision * jnp.eye(dim)).astype(dtype),
        }
    chi_key, normal_key, mean_key = jax.random.split(key, 3)
    # Bartlett: Lambda = W_0^(1/2) T T' W_0^(1/2)', T lower triangular, T_ii^2 chi-squared
    # with nu_0 - i degrees of freedom, the rest standard normal.
    freedom = jnp.asarray(prior.degrees_of_freedom, dtype) - jnp.arange(dim)
    diagonal = jnp.sqrt(2 * jax.random.gamma(chi_key, freedom / 2, dtype=dtype))
    below = jnp.tril(jax.random.normal(normal_key, (dim, dim), dtype), -1)
    root = jnp.sqrt(jnp.asarray(prior.scale, dtype)) * (below + jnp.diag(diagonal))
    precision = jnp.matmul(root, root.T, precision="highest")
    mean = prior.mean + jax.scipy.linalg.solve_triangular(
        root.T, jax.random.normal(mean_key, (dim,), dtype), lower=False
    ) / jnp.sqrt(jnp.asarray(prior.mean_precision, dtype))
    return {"mean": mean, "precision": precision}


def _factors(key: Array, mean: Array, precision: Array, rows: int) -> Array:
    noise = jax.random.normal(key, (rows, mean.shape[0]), mean.dtype)
    root = jnp.linalg.cholesky(precision)
    return mean + jax.scipy.linalg.solve_triangular(root.T, noise.T, lower=False).T


def _log_dirichlet(key: Array, alpha: Array, dtype) -> Array:
    """Log weights of Dirichlet draws over the last axis."""
    gammas = jax.random.loggamma(key, alpha.astype(dtype))
    return jax.nn.log_softmax(gammas, axis=-1)


def _weights(keys, side: str, prior, rows: int, dtype) -> dict[str, Array]:
    count = prior.num_topics
    if isinstance(prior, FiniteDirichlet):
        alpha = jnp.full((rows, count), prior.concentration / count, dtype)
        return {f"log_{side}_row_weights": _log_dirichlet(next(keys), alpha, dtype)}
    assert isinstance(prior, HDP)
    dish = _positive(next(keys), prior.dish_concentration, dtype)
    table = _positive(next(keys), prior.table_concentration, dtype)
    if prior.construction == "weak_limit":
        alpha = jnp.full(count, 1 / count, dtype) * dish
        log_pi = _log_dirichlet(next(keys), alpha, dtype)
    else:
        # v ~ Beta(1, beta): 1 - v is a uniform to the power 1 / beta.
        log_rest = (
            jnp.log1p(-jax.random.uniform(next(keys), (count - 1,), dtype)) / dish
        )
        log_v = jnp.append(jnp.log(-jnp.expm1(log_rest)), 0)
        before = jnp.append(0, jnp.cumsum(log_rest))
        log_pi = log_v + before
    alpha = jnp.broadcast_to(table * jnp.exp(log_pi), (rows, count))
    # Below this no float32 gamma is told from 0.
    alpha = jnp.maximum(alpha, 1e-30)
    return {
        f"{side}_dish_concentration": dish,
        f"{side}_table_concentration": table,
        f"log_{side}_global_weights": log_pi.astype(dtype),
        f"log_{side}_row_weights": _log_dirichlet(next(keys), alpha, dtype),
    }
