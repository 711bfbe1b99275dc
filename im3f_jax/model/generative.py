"""The generative process as a NumPyro program, for every member of the family.

Written from the model's statement with NumPyro's own distributions, and imported only
on demand: nothing that samples depends on NumPyro. Where theirs would round in float32
at settings that are ordinary here (weights at concentrations near 0, a Wishart of D
degrees of freedom), the distributions at the end of this module stand in.
"""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammainc, gammaln, log_ndtr
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform, ZeroSumTransform, biject_to
from numpyro.distributions.util import validate_sample

from im3f_jax.data.ratings import Ratings
from im3f_jax.data.times import TimeColumns
from im3f_jax.errors import InputError
from im3f_jax.model.bias_prior import SharedNormal
from im3f_jax.model.factor_prior import MultiplicativeGamma, NormalWishart
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.prior import prior_rows
from im3f_jax.model.reciprocal import is_reciprocal, is_unordered
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import ModelSpec, weight_sides
from im3f_jax.model.time_effects import TimeBins, TimeDrift, TimeEffect
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CONCENTRATION_FLOOR, HDP, FiniteDirichlet

__all__ = [
    "FlooredInverseGamma",
    "LogDirichlet",
    "NormalByRoot",
    "SortedNormals",
    "generative_model",
    "model_of_rows",
]


def generative_model(
    spec: ModelSpec, ratings: Ratings, *, topics: str = "explicit"
) -> Callable[..., None]:
    """Write the model of some ratings as a NumPyro model.

    Parameters
    ----------
    spec
        The model; what it leaves open (None) is resolved from the ratings as `fit`
        does.
    ratings
        Their pairs are the model's; their values are conditioned on only where they
        are given to the model.
    topics
        "explicit": every rating has its topics, as discrete sites (annotated for
        parallel enumeration, which needs funsor). "marginal": they are summed out
        exactly, a mixture over the user topics x item topics pairs of each rating, so
        that NUTS works; N x K_U x K_M numbers are held, so it is for small data.

    Returns
    -------
    Callable
        ``model(rating=None)``. Without an argument the ratings are drawn (prior
        predictive checks); given values, shape (N,), they are observed. The names of
        its sites are those of `draw_prior`; fixed numbers, and biases whose variance
        is 0, are deterministic sites. Three things are sampled by another name:
        `{side}_factor_precision_root`, the lower triangular L of Lambda = L L',
        `{side}_stick_decay`, -log(1 - v_k) of the K - 1 sticks, and, in the marginal
        mode, the ratings directly, without `mean` and topics. Under the ordinal
        likelihood, its latents summed out, the sampled site is `level_of_rating`, from
        0, and `ratings` follows from it; `cut_points` are sampled. What the sides of a
        reciprocal model share has the users' names alone. Plates: users, items,
        user_topics, item_topics and rows_of_ratings.

    Raises
    ------
    InputError
        For a spec without meaning, no ratings, another word for `topics`, or topic
        priors that have no finite weights.

    Notes
    -----
    The density is with respect to log theta and log pi (log-ratio coordinates, see
    `LogDirichlet`), L and the decays; `log_joint` is with respect to log theta, log pi,
    Lambda and the sticks. NumPyro promotes types freely: it does not run under
    ``jax.numpy_dtype_promotion("strict")``.

    Examples
    --------
    >>> model = im3f.generative_model(im3f.IM3F(2, max_user_topics=4), train)
    >>> prior = numpyro.infer.Predictive(model, num_samples=100)(jax.random.key(0))
    >>> model = im3f.generative_model(im3f.M3F(2, 2, 2), train, topics="marginal")
    >>> mcmc = numpyro.infer.MCMC(NUTS(model), num_warmup=500, num_samples=500)
    >>> mcmc.run(jax.random.key(0), train.rating)
    """
    rows = prior_rows(spec, ratings)
    return model_of_rows(*rows, topics=topics)


def model_of_rows(
    spec: ModelSpec,
    user: Array,
    item: Array,
    num_users: int,
    num_items: int,
    times: TimeColumns | None = None,
    *,
    topics: str = "explicit",
) -> Callable[..., None]:
    """Write the model of pairs given by row; `generative_model` for a resolved spec.

    Parameters
    ----------
    spec
        No number is None.
    user, item
        Rows of the pairs, integers, shape (N,).
    num_users, num_items
        Numbers of rows.
    times
        Of the pairs, where the model reads them.
    topics
        "explicit" or "marginal".
    """
    if topics not in ("explicit", "marginal"):
        raise InputError(f"topics is {topics!r}, but must be 'explicit' or 'marginal'.")
    user, item = jnp.asarray(user), jnp.asarray(item)

    def model(rating: Array | None = None) -> None:
        users = numpyro.plate("users", num_users)
        items = numpyro.plate("items", num_items)
        columns = _columns(spec)
        shared, one_table = is_reciprocal(spec), is_unordered(spec)
        user_factors = item_factors = _factors("user", spec, users, columns)
        if not one_table:
            item_factors = _factors("item", spec, items, columns)
        of_user_topics, of_item_topics = weight_sides(
            spec, (users, user), (items, item)
        )
        log_user_weights = _weights("user", spec.user_topic_prior, of_user_topics[0])
        log_item_weights = log_user_weights
        if not shared:
            log_item_weights = _weights(
                "item", spec.item_topic_prior, of_item_topics[0]
            )
        # Biases of a side are indexed by the topics of the other.
        user_bias = item_bias = _biases(
            "user", "item", spec.user_bias_prior, spec.num_item_topics, users
        )
        if not one_table:
            item_bias = _biases(
                "item", "user", spec.item_bias_prior, spec.num_user_topics, items
            )
        v = w = None
        if isinstance(spec.topic_factors, TopicFactors):
            part = spec.topic_factors
            v = _topic_factors("user", part, spec.num_item_topics, users)
            w = _topic_factors("item", part, spec.num_user_topics, items)
        by_user = _precisions("user", spec.user_noise, users)
        by_item = _precisions("item", spec.item_noise, items)
        mean = spec.global_bias + jnp.sum(
            user_factors[user] * item_factors[item], axis=-1
        )
        if isinstance(spec.item_time, TimeBins):
            by_bin = _effects("item", "item_time_bias", spec.item_time, items)
            mean = mean + by_bin[item, jnp.asarray(times.bin)]
        if isinstance(spec.user_time, TimeDrift):
            drift = _effects("user", "user_drift", spec.user_time, users)
            mean = mean + drift[user] * jnp.asarray(times.drift, float)
        # A plate and a site must not share a name.
        pairs = numpyro.plate("rows_of_ratings", len(user))
        precision = jnp.ones(len(user))
        for part in (
            None if by_user is None else by_user[user],
            None if by_item is None else by_item[item],
            _precisions("rating", spec.rating_noise, pairs),
        ):
            precision = precision if part is None else precision * part
        respond = _response(spec.likelihood, jnp.sqrt(precision))
        with pairs:
            if topics == "marginal":
                likelihood = _mixture(
                    mean,
                    None if user_bias is None else user_bias[user],
                    None if item_bias is None else item_bias[item],
                    None if user_bias is None else log_item_weights[of_item_topics[1]],
                    None if item_bias is None else log_user_weights[of_user_topics[1]],
                    respond,
                    None if v is None else jnp.einsum("nkd,nid->nik", v[user], w[item]),
                )
            else:
                if item_bias is not None:
                    user_topic = _topic("user", log_user_weights[of_user_topics[1]])
                    mean = mean + item_bias[item, user_topic]
                if user_bias is not None:
                    item_topic = _topic("item", log_item_weights[of_item_topics[1]])
                    mean = mean + user_bias[user, item_topic]
                if v is not None:
                    product = v[user, item_topic] * w[item, user_topic]
                    mean = mean + jnp.sum(product, axis=-1)
                mean = numpyro.deterministic("mean", mean)
                likelihood = respond(mean)
            if not isinstance(spec.likelihood, Ordinal):
                numpyro.sample("ratings", likelihood, obs=rating)
                return
            levels = jnp.asarray(spec.likelihood.levels, float)
            level = None
            if rating is not None:
                distance = jnp.abs(jnp.asarray(rating)[:, None] - levels)
                level = jnp.argmin(distance, axis=1)
            level = numpyro.sample("level_of_rating", likelihood, obs=level)
            numpyro.deterministic("ratings", levels[level])

    return model


def _number(name: str, prior) -> Array:
    """Give a positive number: drawn from its prior, or fixed."""
    match prior:
        case InverseGamma(shape, scale):
            return numpyro.sample(name, dist.InverseGamma(shape, scale))
        case Gamma(shape, rate):
            return numpyro.sample(name, dist.Gamma(shape, rate))
        case _:
            return numpyro.deterministic(name, jnp.asarray(prior, float))


def _precisions(side: str, prior, rows) -> Array | None:
    """Draw relative precisions, mean 1, shape (rows,); None where they are constant."""
    if not isinstance(prior, GammaNoise):
        return None
    shape = _number(f"{side}_noise_shape", prior.shape)
    with rows:
        return jnp.asarray(
            numpyro.sample(f"{side}_precision", dist.Gamma(shape, shape))
        )


def _effects(side: str, name: str, prior: TimeEffect, rows) -> Array:
    """Draw what depends on time, shape (rows,), or (rows, bins) of items."""
    spread = jnp.sqrt(_number(f"{side}_time_variance", prior.variance))
    law = dist.Normal(0, spread)
    if isinstance(prior, TimeBins):
        law = law.expand([prior.num_bins]).to_event(1)
    with rows:
        return jnp.asarray(numpyro.sample(name, law))


def _response(likelihood, root: Array) -> Callable[[Array], dist.Distribution]:
    """Draw what all ratings share; give the distribution of ratings by their means.

    `root` are square roots of relative precisions, shape (N,); means may have one more
    axis.
    """
    spread = jnp.sqrt(_rating_variance(likelihood))

    def like(mean):
        return root.reshape(root.shape + (1,) * (mean.ndim - 1))

    if not isinstance(likelihood, Ordinal):
        return lambda mean: dist.Normal(mean, spread / like(mean))
    cuts = numpyro.sample(
        "cut_points", SortedNormals(likelihood.cut_scale, len(likelihood.levels) - 1)
    )
    return lambda mean: dist.Categorical(
        logits=_log_levels((cuts - mean[..., None]) * like(mean)[..., None])
    )


def _log_levels(bounds: Array) -> Array:
    """Log probabilities of the levels between bounds: (..., L - 1) to (..., L).

    From the tail in which an interval lies: log Phi(b) + log(1 - Phi(a) / Phi(b)).
    """
    a, b = bounds[..., :-1], bounds[..., 1:]
    flip = a + b > 0
    a, b = jnp.where(flip, -b, a), jnp.where(flip, -a, b)
    upper = log_ndtr(b)
    between = upper + jnp.log(-jnp.expm1(log_ndtr(a) - upper))
    return jnp.concatenate(
        [log_ndtr(bounds[..., :1]), between, log_ndtr(-bounds[..., -1:])], axis=-1
    )


def _rating_variance(likelihood) -> Array:
    prior, floor = likelihood.variance, likelihood.variance_floor
    if not isinstance(prior, InverseGamma) or floor == 0:
        return _number("rating_variance", prior)
    return numpyro.sample(
        "rating_variance", FlooredInverseGamma(prior.shape, prior.scale, floor)
    )


def _columns(spec: ModelSpec) -> Array | None:
    """Draw delta of a `MultiplicativeGamma`: the root of both sides' precision."""
    prior = spec.factor_prior
    if not isinstance(prior, MultiplicativeGamma):
        return None
    shapes = jnp.full(spec.latent_dim, prior.shape, float).at[0].set(prior.first_shape)
    rates = jnp.ones(spec.latent_dim).at[0].set(prior.rate)
    law = dist.Gamma(shapes, rates).to_event(1)
    increments = numpyro.sample("column_increments", law)
    return jnp.diag(jnp.sqrt(jnp.cumprod(increments)))


def _factors(side: str, spec: ModelSpec, rows, columns: Array | None) -> Array:
    """Draw Lambda ~ Wishart(W_0, nu_0), mu ~ N(mu_0, (lambda_0 Lambda)^-1), rows.

    Lambda is given where both sides share it, by the root `columns`, and mu_0 is 0.
    """
    prior, dim = spec.factor_prior, spec.latent_dim
    if isinstance(prior, NormalWishart):
        mean, root = _normal_wishart(f"{side}_factor", prior, dim)
    elif isinstance(prior, MultiplicativeGamma):
        root = columns
        spread = 1 / (jnp.sqrt(prior.mean_precision) * jnp.diagonal(root))
        mean = numpyro.sample(f"{side}_factor_mean", dist.Normal(0, spread).to_event(1))
    else:
        root = jnp.sqrt(jnp.asarray(prior.precision, float)) * jnp.eye(dim)
        mean = numpyro.deterministic(f"{side}_factor_mean", jnp.zeros(dim))
    numpyro.deterministic(
        f"{side}_factor_precision", jnp.matmul(root, root.T, precision="highest")
    )
    with rows:
        factors = numpyro.sample(f"{side}_factors", NormalByRoot(mean, root))
    return jnp.asarray(factors)  # numpy's, where a caller substitutes them


def _normal_wishart(name: str, prior: NormalWishart, dim: int) -> tuple[Array, Array]:
    """Draw mu and the lower triangular root of Lambda."""
    scale = jnp.sqrt(jnp.asarray(prior.scale, float)) * jnp.eye(dim)
    root = numpyro.sample(
        f"{name}_precision_root",
        dist.WishartCholesky(prior.degrees_of_freedom, scale_tril=scale),
    )
    about = root * jnp.sqrt(prior.mean_precision)
    centre = jnp.full(dim, prior.mean, float)
    return numpyro.sample(f"{name}_mean", NormalByRoot(centre, about)), root


def _topic_factors(side: str, part: TopicFactors, count: int, rows) -> Array:
    """Draw the vectors that the other side's topics select, (rows, count, dim)."""
    name = f"{side}_topic_factor"
    mean, root = _normal_wishart(name, part.prior, part.dim)
    numpyro.deterministic(
        f"{name}_precision", jnp.matmul(root, root.T, precision="highest")
    )
    law = NormalByRoot(mean, root).expand([count]).to_event(1)
    with rows:
        return jnp.asarray(numpyro.sample(f"{name}s", law))


def _weights(side: str, prior, rows) -> Array | None:
    """Draw log theta, shape (rows, K), after the HDP's global weights."""
    count = prior.num_topics
    if not count:
        return None
    if isinstance(prior, FiniteDirichlet):
        alpha = jnp.full(count, prior.concentration / count, float)
    else:
        dish = _number(f"{side}_dish_concentration", prior.dish_concentration)
        table = _number(f"{side}_table_concentration", prior.table_concentration)
        log_pi = _global_weights(side, prior, dish)
        # The named floor of the model: exp(log pi) is 0 in float32 below e^-104.
        alpha = jnp.maximum(table * jnp.exp(log_pi), CONCENTRATION_FLOOR)
    with rows:
        weights = numpyro.sample(f"log_{side}_row_weights", LogDirichlet(alpha))
    return jnp.asarray(weights)


def _global_weights(side: str, prior: HDP, dish: Array) -> Array:
    name, count = f"log_{side}_global_weights", prior.num_topics
    if prior.construction == "weak_limit":
        share = jnp.broadcast_to(dish / count, (count,))
        return numpyro.sample(name, LogDirichlet(share))
    # v ~ Beta(1, beta): the decay -log(1 - v) ~ Exponential(beta), which does not
    # round where v is close to 1.
    decay = numpyro.sample(
        f"{side}_stick_decay", dist.Exponential(dish).expand([count - 1]).to_event(1)
    )
    before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(decay)])
    stick = jnp.concatenate([jnp.log(-jnp.expm1(-decay)), jnp.zeros(1)])
    return numpyro.deterministic(name, stick - before)


def _biases(side: str, other: str, prior, count: int, rows) -> Array | None:
    """Draw topic means, then the biases of the rows about them, shape (rows, count)."""
    if not count:
        return None
    variance = _number(f"{side}_bias_variance", prior.variance)
    spread = _number(f"{side}_topic_mean_variance", prior.topic_mean_variance)
    with numpyro.plate(f"{other}_topics", count):
        if _is_zero(prior.topic_mean_variance):
            centre = jnp.full(count, prior.topic_mean, float)
            centre = numpyro.deterministic(f"{side}_topic_mean", centre)
        else:
            centre = numpyro.sample(
                f"{side}_topic_mean", dist.Normal(prior.topic_mean, jnp.sqrt(spread))
            )
    if isinstance(prior, SharedNormal):
        centre = centre + _shared(side, prior.shared_variance, rows)[:, None]
    with rows:
        if _is_zero(prior.variance):
            bias = jnp.broadcast_to(centre, (rows.size, count))
            return numpyro.deterministic(f"{side}_bias", bias)
        about = dist.Normal(centre, jnp.sqrt(variance)).to_event(1)
        return jnp.asarray(numpyro.sample(f"{side}_bias", about))


def _shared(side: str, prior, rows) -> Array:
    """Draw the part of each row's biases common to all topics, shape (rows,)."""
    name = f"{side}_shared_bias"
    variance = _number(f"{name}_variance", prior)
    with rows:
        if _is_zero(prior):
            return numpyro.deterministic(name, jnp.zeros(rows.size))
        return jnp.asarray(numpyro.sample(name, dist.Normal(0, jnp.sqrt(variance))))


def _is_zero(prior) -> bool:
    return not isinstance(prior, InverseGamma) and float(prior) == 0


def _topic(side: str, log_weights: Array) -> Array:
    return numpyro.sample(
        f"{side}_topic_of_rating",
        dist.Categorical(logits=log_weights),
        infer={"enumerate": "parallel"},
    )


def _mixture(mean, user_bias, item_bias, log_item, log_user, respond, product=None):
    """Sum both topics of a rating out, batch shape (N,).

    Each bias and the log weights of the topics that select it have shape (N, K), or
    are None; what both select together, (N, user topics, item topics), or None.
    """
    if user_bias is None and item_bias is None:
        return respond(mean)
    means, logits = mean[:, None, None], jnp.zeros((1, 1, 1))
    if item_bias is not None:
        means, logits = means + item_bias[:, :, None], logits + log_user[:, :, None]
    if user_bias is not None:
        means, logits = means + user_bias[:, None, :], logits + log_item[:, None, :]
    if product is not None:
        means = means + product
    means, logits = (x.reshape(len(mean), -1) for x in (means, logits))
    each = respond(means)
    if isinstance(each, dist.Normal):
        return dist.MixtureSameFamily(dist.Categorical(logits=logits), each)
    # A mixture of categoricals is one.
    log_weights = jax.nn.log_softmax(logits, axis=-1)[..., None]
    log_levels = jax.nn.log_softmax(each.logits, axis=-1)
    return dist.Categorical(logits=jax.nn.logsumexp(log_weights + log_levels, axis=1))


# --- distributions that stay finite in float32 ------------------------------------


class _LogSimplex(constraints.Constraint):
    """Vectors whose exponentials sum to 1."""

    event_dim = 1

    def __call__(self, x):
        return jnp.abs(jax.nn.logsumexp(x, axis=-1)) < 1e-4

    def feasible_like(self, prototype):
        return jnp.full_like(prototype, -jnp.log(prototype.shape[-1]))

    def tree_flatten(self):
        return (), ((), {})

    def __eq__(self, other):
        return isinstance(other, _LogSimplex)

    def __hash__(self):
        return hash(_LogSimplex)


class _LogSimplexTransform(Transform):
    """From K - 1 reals to log weights: an orthonormal basis of sum 0, normalised."""

    domain = constraints.real_vector
    codomain = _LogSimplex()

    def __call__(self, x):
        return jax.nn.log_softmax(ZeroSumTransform(1)(x), axis=-1)

    def _inverse(self, y):
        return ZeroSumTransform(1).inv(y - jnp.mean(y, axis=-1, keepdims=True))

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        # To the log ratios y_k - y_K, in which `LogDirichlet` has its density.
        return jnp.full(x.shape[:-1], 0.5 * jnp.log(y.shape[-1]))

    def forward_shape(self, shape):
        return ZeroSumTransform(1).forward_shape(shape)

    def inverse_shape(self, shape):
        return ZeroSumTransform(1).inverse_shape(shape)

    def tree_flatten(self):
        return (), ((), {})

    def __eq__(self, other):
        return isinstance(other, _LogSimplexTransform)


@biject_to.register(_LogSimplex)
def _(constraint):
    return _LogSimplexTransform()


class LogDirichlet(dist.Distribution):
    """Log of Dirichlet weights, finite at concentrations at which weights underflow.

    The density is with respect to the log ratios log x_k - log x_K: that of the
    Dirichlet times the product of all weights. (At concentration 0.1 and K = 100,
    `numpyro.distributions.Dirichlet` gives most weights as the smallest float32.)

    Parameters
    ----------
    concentration
        Positive, shape (..., K).
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.independent(constraints.positive, 1)
    }
    support = _LogSimplex()

    def __init__(self, concentration, *, validate_args=None):
        self.concentration = concentration
        *batch, count = jnp.shape(concentration)
        super().__init__(tuple(batch), (count,), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draw log weights."""
        alpha = jnp.broadcast_to(self.concentration, self.shape(sample_shape))
        return jax.nn.log_softmax(jax.random.loggamma(key, alpha), axis=-1)

    @validate_sample
    def log_prob(self, value):
        """Log density with respect to the log ratios, in nats."""
        alpha = self.concentration
        constant = gammaln(jnp.sum(alpha, -1)) - jnp.sum(gammaln(alpha), -1)
        return constant + jnp.sum(alpha * value, -1)


class NormalByRoot(dist.Distribution):
    """Normal(loc, (L L')^-1) by the lower triangular L, which is never factored again.

    Parameters
    ----------
    loc
        Shape (D,).
    root
        L, shape (D, D).
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "root": constraints.lower_cholesky,
    }
    support = constraints.real_vector

    def __init__(self, loc, root, *, validate_args=None):
        self.loc, self.root = loc, root
        super().__init__((), jnp.shape(loc), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draw vectors."""
        noise = jax.random.normal(key, (*sample_shape, *self.event_shape))
        flat = noise.reshape(-1, noise.shape[-1])
        return self.loc + solve_triangular(self.root.T, flat.T).T.reshape(noise.shape)

    @validate_sample
    def log_prob(self, value):
        """Log density, in nats."""
        z = jnp.matmul(value - self.loc, self.root, precision="highest")
        log_det = jnp.sum(jnp.log(jnp.diagonal(self.root)))
        dim = z.shape[-1]
        return log_det - 0.5 * (dim * jnp.log(2 * jnp.pi) + jnp.sum(z**2, -1))


class SortedNormals(dist.Distribution):
    """Order statistics of `size` draws from Normal(0, scale^2): increasing.

    Parameters
    ----------
    scale
        Positive.
    size
        Static.
    """

    arg_constraints: ClassVar = {"scale": constraints.positive}
    support = constraints.ordered_vector

    def __init__(self, scale, size, *, validate_args=None):
        self.scale = jnp.asarray(scale, float)
        super().__init__((), (size,), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draw and sort."""
        normal = jax.random.normal(key, (*sample_shape, *self.event_shape))
        return jnp.sort(self.scale * normal, axis=-1)

    @validate_sample
    def log_prob(self, value):
        """Log density, in nats: size! times that of the draws in any order."""
        orders = gammaln(self.event_shape[0] + 1.0)
        return orders + jnp.sum(dist.Normal(0, self.scale).log_prob(value), axis=-1)


class FlooredInverseGamma(dist.Distribution):
    """Inverse gamma cut off below a floor; NumPyro truncates location families only.

    Parameters
    ----------
    shape, scale
        Of the inverse gamma: x^(-shape-1) exp(-scale/x).
    floor
        Positive.
    """

    arg_constraints: ClassVar = {
        "concentration": constraints.positive,
        "scale": constraints.positive,
        "floor": constraints.positive,
    }

    def __init__(self, shape, scale, floor, *, validate_args=None):
        self.concentration, self.scale, self.floor = (
            jnp.asarray(x, float) for x in (shape, scale, floor)
        )
        super().__init__((), (), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self):
        """Values from the floor on."""
        return constraints.greater_than(self.floor)

    def sample(self, key, sample_shape=()):
        """Draw by bisection for scale / x, a gamma cut off above scale / floor."""
        most = self.scale / self.floor
        target = gammainc(self.concentration, most) * (
            1 - jax.random.uniform(key, sample_shape)
        )

        def halve(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            below = gammainc(self.concentration, middle) < target
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        zero = jnp.zeros(sample_shape)
        low, high = lax.fori_loop(0, 60, halve, (zero, zero + most))
        return self.scale / (0.5 * (low + high))

    @validate_sample
    def log_prob(self, value):
        """Log density, in nats."""
        whole = dist.InverseGamma(self.concentration, self.scale).log_prob(value)
        return whole - jnp.log(gammainc(self.concentration, self.scale / self.floor))
