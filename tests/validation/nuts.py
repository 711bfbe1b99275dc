"""Our Gibbs sampler against NUTS on the NumPyro model with its topics summed out.

Two programs that share no line of a conditional, a draw or a density: what they agree
on is the model. On five users, four items and twelve ratings, every number sampled.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.model.bias_prior import TopicNormal
from im3f_jax.model.factor_prior import NormalWishart
from im3f_jax.model.likelihood import Gaussian, Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.topic_prior import HDP, FiniteDirichlet
from tests import tiny

__all__ = ["SPECS", "Row", "nuts_against_gibbs", "sites_of_state"]


class Row(NamedTuple):
    """One number by both samplers."""

    name: str
    gibbs: float
    nuts: float
    error: float  # standard error of the difference, by effective sample sizes
    z: float


def _spec(user_topics, item_topics) -> ModelSpec:
    # Priors with finite moments (nu_0 >= D + 4, shapes of 5 and more), away from the
    # funnels in which a Hamiltonian sampler is stuck.
    return ModelSpec(
        latent_dim=2,
        likelihood=Gaussian(InverseGamma(5.0, 4.0), 0.083),
        factor_prior=NormalWishart(0.4, 7.0, 0.2, 3.0),
        user_bias_prior=TopicNormal(
            InverseGamma(6.0, 2.0), InverseGamma(6.0, 3.0), -0.3
        ),
        item_bias_prior=TopicNormal(
            InverseGamma(7.0, 3.0), InverseGamma(6.0, 4.0), 0.4
        ),
        user_topic_prior=user_topics,
        item_topic_prior=item_topics,
        global_bias=2.9,
    )


SPECS = {
    "iM3F": _spec(
        HDP(3, "weak_limit", Gamma(8.0, 1.5), Gamma(12.0, 2.0)),
        HDP(3, "stick_breaking", Gamma(8.0, 4.0), Gamma(12.0, 1.5)),
    ),
    "M3F": _spec(FiniteDirichlet(3, 4.0), FiniteDirichlet(2, 3.0)),
    "M3F ordinal": replace(
        _spec(FiniteDirichlet(3, 4.0), FiniteDirichlet(2, 3.0)),
        likelihood=Ordinal((1.0, 2, 3, 4, 5), 2.0),
        global_bias=0.0,
    ),
    "M3F noise": replace(
        _spec(FiniteDirichlet(3, 4.0), FiniteDirichlet(2, 3.0)),
        user_noise=GammaNoise(Gamma(8.0, 2.0)),
        rating_noise=GammaNoise(3.0),
    ),
}

# Pairs whose expected rating is compared: user 3 has no rating, (4, 1) has two.
PAIRS = (np.array([0, 3, 4, 2]), np.array([0, 1, 1, 3]))


def sites_of_state(state, spec, data) -> dict:
    """The values of the NumPyro model's sampled sites at a state of ours."""
    users, items = int(data.num_users), int(data.num_items)
    sites = {"rating_variance": state.rating_variance}
    if state.cut_points.shape[0]:
        sites["cut_points"] = state.cut_points
    for kind, number in (
        ("user", users),
        ("item", items),
        ("rating", tiny.NUM_RATINGS),
    ):
        precision = getattr(state.noise, kind)
        if precision is not None:
            sites[f"{kind}_precision"] = precision[:number]
        shape = getattr(state.noise, f"{kind}_shape", None)
        if shape is not None:
            sites[f"{kind}_noise_shape"] = shape
    for kind, name, number in (
        ("user", "user_drift", users),
        ("item", "item_time_bias", items),
    ):
        effect = getattr(state.time, kind)
        if effect is not None:
            sites[name] = effect[:number]
            sites[f"{kind}_time_variance"] = getattr(state.time, f"{kind}_variance")
    if state.topic_factors is not None:
        for side, number in (("user", users), ("item", items)):
            prior = getattr(state.topic_factors, f"{side}_prior")
            name = f"{side}_topic_factor"
            sites |= {
                f"{name}s": getattr(state.topic_factors, side)[:number],
                f"{name}_mean": prior.mean,
                f"{name}_precision_root": jnp.linalg.cholesky(prior.precision),
            }
    if state.column_increments is not None:
        sites["column_increments"] = state.column_increments
    for side, number in (("user", users), ("item", items)):
        of = tiny.SIDES[side].of
        prior, weights = of(state, "factor_prior"), of(state, "topic_weights")
        bias, topics = of(state, "bias_prior"), of(spec, "topic_prior")
        sites |= {
            f"{side}_factors": of(state, "factors")[:number],
            f"{side}_factor_mean": prior.mean,
            f"{side}_factor_precision_root": jnp.linalg.cholesky(prior.precision),
        }
        if of(state, "bias").shape[1]:
            sites |= {
                f"{side}_bias": of(state, "bias")[:number],
                f"{side}_topic_mean": bias.topic_mean,
                f"{side}_bias_variance": bias.variance,
                f"{side}_topic_mean_variance": bias.topic_mean_variance,
            }
        if bias.shared is not None:
            sites |= {
                f"{side}_shared_bias": bias.shared[:number],
                f"{side}_shared_bias_variance": bias.shared_variance,
            }
        if topics.num_topics:
            rows = {"user": users, "item": items}[
                tiny.weights_of(tiny.SIDES[side], spec).name
            ]
            sites[f"log_{side}_row_weights"] = weights.log_row_weights[:rows]
        if isinstance(topics, HDP):
            sites[f"{side}_dish_concentration"] = weights.dish_concentration
            sites[f"{side}_table_concentration"] = weights.table_concentration
            log_pi = weights.log_global_weights
            if topics.construction == "weak_limit":
                sites[f"log_{side}_global_weights"] = log_pi
            else:
                # 1 - v_k = R_{k+1} / R_k with R_k = sum over l >= k of pi_l.
                rest = jax.lax.cumlogsumexp(log_pi, reverse=True)
                sites[f"{side}_stick_decay"] = rest[:-1] - rest[1:]
    return sites


def _quantities(sites, model, spec, rating) -> dict:
    """Label-free scalars of one draw of either sampler."""
    from numpyro.infer.util import log_density

    found = {
        name: value
        for name, value in sites.items()
        if name.endswith(("variance", "concentration", "noise_shape"))
    }
    for kind in ("user", "rating"):
        if f"{kind}_precision" in sites:
            log = jnp.log(sites[f"{kind}_precision"])
            found[f"{kind} precisions, mean log"] = jnp.mean(log)
            found[f"{kind} precisions, least log"] = jnp.min(log)
    expected = spec.global_bias + jnp.sum(
        sites["user_factors"][PAIRS[0]] * sites["item_factors"][PAIRS[1]], axis=1
    )
    for bias, row, weights, other in (
        ("user_bias", PAIRS[0], "log_item_row_weights", PAIRS[1]),
        ("item_bias", PAIRS[1], "log_user_row_weights", PAIRS[0]),
    ):
        expected += jnp.sum(sites[bias][row] * jnp.exp(sites[weights][other]), axis=1)
    for pair, value in zip(zip(*PAIRS, strict=True), expected, strict=True):
        found[f"expected rating of ({pair[0]}, {pair[1]})"] = value
    found["log joint"], trace = log_density(model, (rating,), {}, sites)
    name = "level_of_rating" if "level_of_rating" in trace else "ratings"
    log_likelihood = trace[name]["fn"].log_prob(trace[name]["value"])
    found["log likelihood"] = jnp.sum(log_likelihood)
    for k, value in enumerate(sites.get("cut_points", ())):
        found[f"cut point {k + 1}"] = value
    return found


def _model(name: str):
    """Make the spec, the NumPyro model, the layout and the ratings of a name."""
    from im3f_jax.model.generative import model_of_rows

    data, count = tiny.make_data(np.float32), tiny.NUM_RATINGS
    rows = (data.user[:count], data.item[:count], tiny.NUM_USERS, tiny.NUM_ITEMS)
    model = model_of_rows(SPECS[name], *rows, topics="marginal")
    return SPECS[name], model, data, data.rating[:count]


def gibbs_draws(name, num_sweeps, num_warmup, seed, sweep=gibbs_sweep):
    """Draw the quantities by our sampler, each of shape (num_sweeps,)."""
    spec, model, data, rating = _model(name)

    @jax.jit
    def run(key, spec):
        init_key, key = jax.random.split(key)
        state = init_state(init_key, spec, data)

        def step(state, t):
            state, _ = sweep(jax.random.fold_in(key, t), state, spec, data)
            return state, _quantities(
                sites_of_state(state, spec, data), model, spec, rating
            )

        return jax.lax.scan(step, state, jnp.arange(num_warmup + num_sweeps))[1]

    # Numbers of the spec are arrays, as in a fit.
    arrays = jax.tree.map(lambda x: np.asarray(x, np.float32), spec)
    draws = run(jax.random.key(seed), arrays)
    return {k: np.float64(v[num_warmup:]) for k, v in draws.items()}


@cache
def nuts_draws(name, num_samples, num_warmup, seed):
    """Draw the quantities by NUTS, each of shape (num_samples,); count divergences."""
    from numpyro.infer import MCMC, NUTS

    spec, model, _, rating = _model(name)
    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.9),
        num_warmup=num_warmup,
        num_samples=num_samples,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), rating)
    draws = jax.jit(
        lambda samples: jax.lax.map(
            lambda one: _quantities(one, model, spec, rating), samples
        )
    )(mcmc.get_samples())
    diverging = int(mcmc.get_extra_fields()["diverging"].sum())
    return {k: np.float64(v) for k, v in draws.items()}, diverging


def _compare(name, gibbs, nuts) -> Row:
    from numpyro.diagnostics import effective_sample_size

    means, squares = [], []
    for draws in (gibbs, nuts):
        size = float(effective_sample_size(draws.reshape(4, -1)))
        means.append(draws.mean())
        squares.append(draws.var() / size)
    error = float(np.sqrt(sum(squares)))
    return Row(name, *means, error, (means[0] - means[1]) / error)


def nuts_against_gibbs(
    name: str = "iM3F",
    *,
    num_sweeps: int = 12_000,
    num_samples: int = 3_000,
    num_warmup: int = 500,
    seed: int = 0,
    sweep=gibbs_sweep,
) -> list[Row]:
    """Compare means and spreads of label-free quantities by both samplers.

    Parameters
    ----------
    name
        Of a model of SPECS.
    num_sweeps, num_samples
        Kept draws of Gibbs (which warms up for 1,000 sweeps) and of NUTS.
    num_warmup
        Warm-up of NUTS.
    sweep
        A sampler that is to be tested, called as `gibbs_sweep`.

    Returns
    -------
    list of Row
        "x" compares the means of x; "x, spread" those of abs(x - c), c the mean by
        NUTS.
    """
    gibbs = gibbs_draws(name, num_sweeps, 1_000, seed, sweep)
    nuts, diverging = nuts_draws(name, num_samples, num_warmup, seed + 1)
    assert diverging <= 0.002 * num_samples, f"{diverging} divergent transitions"
    rows = []
    for key in nuts:
        if key not in gibbs:  # a number that is fixed, which NumPyro reports too
            assert np.ptp(nuts[key]) == 0, key
            continue
        rows.append(_compare(key, gibbs[key], nuts[key]))
        centre = nuts[key].mean()
        spreads = (np.abs(x[key] - centre) for x in (gibbs, nuts))
        rows.append(_compare(f"{key}, spread", *spreads))
    return rows
