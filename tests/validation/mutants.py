"""Wrong versions of the sampler, at least one a block, that the harness must catch.

All wrong versions of a program are compiled together: wherever a mutant differs, both
results are there and a traced number chooses. So a hundred mutants compile once, and
number 0, the right sampler, is run by the same program.
"""

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp

from im3f_jax.gibbs import (
    biases,
    column_precisions,
    concentrations,
    crf,
    cut_points,
    factor_prior,
    factors,
    global_weights,
    halves,
    latent_ratings,
    noise,
    rating_variance,
    reciprocal,
    response,
    row_weights,
    sweep,
    table_counts,
    table_topics,
    time_effects,
    topic_weights,
)
from im3f_jax.model.log_joint import mean_of_ratings
from im3f_jax.model.time_effects import time_of_ratings
from im3f_jax.numerics import collectives, random
from im3f_jax.numerics.reductions import count_by_cell
from tests.validation import checks, room, shards
from tests.validation.members import (
    ITEM_TOPICS,
    NUM_ITEMS,
    NUM_RATINGS,
    NUM_USERS,
    SAMPLED,
    USER_TOPICS,
    data_of,
    make_data,
)

__all__ = ["MUTANTS", "Mutant", "numbers_of", "patch_of", "sizes_of"]


class Call(NamedTuple):
    """What a wrong version may look at."""

    args: tuple  # of this call
    state: object  # before the sweep
    history: dict  # name of a function: its results so far in this sweep
    turn: int  # calls of this function before


class Mutant(NamedTuple):
    """One mistake: other arguments for a function, or another result."""

    block: str
    name: str
    module: object
    function: str
    args: Callable | None = None  # Call -> arguments
    result: Callable | None = None  # result, Call -> result
    member: str = "iM3F both"  # the first of the members that has this block
    left_out: bool = False  # only a chain that starts elsewhere can tell
    chains: int = checks.MUTANT.chains  # more where the mistake is faint
    # A step that is skipped beside it, which else puts right what the mistake did:
    # module, function, and the argument that it leaves as it is.
    skipped: tuple | None = None


def _arg(index, wrong):
    """Change one argument: wrong(argument, call)."""

    def args(call):
        given = list(call.args)
        given[index] = wrong(given[index], call)
        return tuple(given)

    return args


def _field(name, wrong):
    """Change one field of a result: wrong(field, call)."""

    def result(value, call):
        return value._replace(**{name: wrong(getattr(value, name), call)})

    return result


def _center(count):
    """Find c_0 of the side with so many columns."""
    return SAMPLED[0 if count.shape[1] == ITEM_TOPICS else 1].topic_mean


# --- factor prior -----------------------------------------------------------------


def _with_mean_of_other_count(value, call):
    """1/U where 1/M belongs: b-bar = (1/U) sum_j b_j, as the paper prints it."""
    prior, rows, number = call.args
    other = (NUM_USERS + NUM_ITEMS - number).astype(rows.dtype)
    count = number.astype(rows.dtype)
    mean = jnp.sum(rows, axis=0) / other
    valid = (jnp.arange(rows.shape[0], dtype=jnp.int32) < number)[:, None]
    centred = jnp.where(valid, rows - mean[None], 0)
    shift = prior.mean - mean
    shrink = prior.mean_precision * count / (prior.mean_precision + count)
    return value._replace(
        mean=(prior.mean_precision * prior.mean + count * mean)
        / (prior.mean_precision + count),
        inverse_scale=jnp.eye(rows.shape[1]) / prior.scale
        + centred.T @ centred
        + shrink * shift[:, None] * shift[None],
    )


def _without_mean_term(inverse_scale, call):
    prior, rows, number = call.args
    count = number.astype(rows.dtype)
    shift = prior.mean - jnp.sum(rows, axis=0) / count
    shrink = prior.mean_precision * count / (prior.mean_precision + count)
    return inverse_scale - shrink * shift[:, None] * shift[None]


def _scale_for_its_inverse(inverse_scale, call):
    scale = call.args[0].scale
    return inverse_scale + (scale - 1 / scale) * jnp.eye(inverse_scale.shape[0])


_prior = (factor_prior, "conditional_factor_prior")
_parts = (factors, "_batch_parameters")

FACTORS = [
    Mutant(
        "factor prior",
        "W_0 for its inverse",
        *_prior,
        result=_field("inverse_scale", _scale_for_its_inverse),
    ),
    Mutant("factor prior", "1/U for 1/M", *_prior, result=_with_mean_of_other_count),
    Mutant(
        "factor prior",
        "the term of the mean left out of W",
        *_prior,
        result=_field("inverse_scale", _without_mean_term),
    ),
    Mutant(
        "factor prior",
        "degrees of freedom without the rows",
        *_prior,
        result=_field(
            "degrees_of_freedom", lambda nu, c: nu - c.args[2].astype(nu.dtype)
        ),
    ),
    Mutant("factors", "sign of the residual", *_parts, args=_arg(1, lambda x, c: -x)),
    Mutant(
        "factors",
        "1/sigma^2 left out",
        *_parts,
        args=_arg(3, lambda x, c: jnp.ones_like(x)),
    ),
    Mutant(
        "factors",
        "prior's pull left out",
        *_parts,
        result=_field(
            "linear", lambda x, c: x - (c.args[0].precision @ c.args[0].mean)
        ),
    ),
    Mutant(
        "factors",
        "the other side's factors one sweep old",
        sweep,
        "resample_factors",
        args=_arg(
            3,
            lambda other, c: c.state.user_factors if c.turn else other,
        ),
    ),
]

# --- biases -----------------------------------------------------------------------

BIASES = [
    Mutant(
        "topic means",
        "weight n / sigma^2: biases not summed out",
        biases,
        "conditional_topic_means",
        args=_arg(1, lambda variance, c: jnp.zeros_like(variance)),
    ),
    Mutant(
        "topic means",
        "prior mean 0 for c_0",
        biases,
        "conditional_topic_means",
        args=_arg(3, lambda center, c: jnp.zeros_like(center)),
    ),
    Mutant(
        "biases",
        "sigma_0^2 left out",
        biases,
        "conditional_biases",
        args=_arg(2, lambda variance, c: jnp.ones_like(variance)),
    ),
    Mutant(
        "biases",
        "prior mean c_0 for mu_k",
        biases,
        "conditional_biases",
        args=_arg(1, lambda mean, c: jnp.full_like(mean, _center(c.args[0].count))),
    ),
    Mutant(
        "biases",
        "sum of squares about 0 for mu_k",
        biases,
        "conditional_bias_variance",
        args=_arg(2, lambda mean, c: jnp.zeros_like(mean)),
    ),
    Mutant(
        "biases",
        "shape of the variance counts ratings, not cells",
        biases,
        "conditional_bias_variance",
        result=_field(
            "shape",
            lambda shape, c: (
                c.args[0].shape + 0.5 * jnp.sum(c.args[3].count).astype(shape.dtype)
            ),
        ),
    ),
    Mutant(
        "topic means",
        "shape of their variance counts all, squares occupied ones",
        biases,
        "conditional_topic_mean_variance",
        result=_field("shape", lambda shape, c: c.args[0].shape + 0.5 * c.args[1].size),
    ),
    Mutant(
        "biases",
        "the item's read a stale residual",
        sweep,
        "bias_of_ratings",
        # Calls: user, item (start), user, item (new topics), user, item (new biases).
        result=lambda value, c: (
            c.history["bias_of_ratings"][2] if c.turn == 4 else value
        ),
    ),
    Mutant(
        "biases",
        "M3F: sigma_0^2 left out",
        biases,
        "conditional_biases",
        args=_arg(2, lambda variance, c: jnp.ones_like(variance)),
        member="M3F",
    ),
    Mutant(
        "topic means",
        "no bias variance: sign of the residuals",
        biases,
        "conditional_topic_means",
        args=_arg(0, lambda s, c: s._replace(total=-s.total)),
        member="M3F, biases equal to means",
    ),
]

# --- biases whose rows have a part in common ----------------------------------------


def _of_old(call):
    """Find the prior of before the sweep of the side that is being drawn."""
    first = call.history["resample_biases"] == []
    return call.state.user_bias_prior if first else call.state.item_bias_prior


def _parts_by_topic_kept(value, call):
    """Keep e_u, though s_u was drawn with it summed out."""
    new, (_, _, old, before, *_) = value[1], call.args
    own = before - old.topic_mean - old.shared[:, None]
    return new.topic_mean + new.shared[:, None] + own, new


def _parts_by_topic_given_old(value, call):
    """Draw e_u given the shared parts of before the sweep."""
    (bias, new), (_, _, old, _, statistics, rating_variance) = value, call.args
    spread = statistics.count * new.variance
    pull = spread / (spread + rating_variance)
    return bias + pull * (new.shared - old.shared)[:, None], new


def _shared_parts_put_back(value, call):
    # Item topics, which index the user's biases, come first.
    priors = call.state.user_bias_prior, call.state.item_bias_prior
    return *value[:3], value[3]._replace(shared=priors[call.turn].shared)


def _keep_shared_variance(value, call):
    # Calls of a side: of the parts by topic, of the topic means, of the shared parts.
    return value if call.turn % 3 < 2 else _of_old(call).shared_variance


def _shared(name, function, *, module=biases, **wrong):
    member = "iM3F shared biases"
    return Mutant("shared biases", name, module, function, member=member, **wrong)


SHARED = [
    _shared(
        "weight n / sigma^2: parts by topic not summed out",
        "conditional_shared",
        args=_arg(2, lambda variance, c: 0 * variance),
    ),
    _shared(
        "mu_k left in the residual",
        "conditional_shared",
        args=_arg(1, lambda mean, c: 0 * mean),
    ),
    _shared(
        "sign of the residuals",
        "conditional_shared",
        args=_arg(0, lambda s, c: s._replace(total=-s.total)),
    ),
    _shared(
        "shape of omega^2 counts cells, not rows",
        "conditional_shared_variance",
        result=_field(
            "shape",
            lambda shape, c: c.args[0].shape + 0.5 * jnp.sum(c.args[2].count > 0),
        ),
    ),
    _shared(
        "topic means: shared parts not summed out",
        "conditional_shared_topic_means",
        args=_arg(2, lambda variance, c: 0 * variance),
    ),
    _shared(
        "topic means: independent of one another",
        "conditional_shared_topic_means",
        result=_field("precision", lambda p, c: jnp.diag(jnp.diagonal(p))),
    ),
    _shared(
        "sigma_0^2: shared parts left in",
        "conditional_bias_variance",
        args=_arg(1, lambda own, c: own + _of_old(c).shared[:, None]),
    ),
    _shared(
        "parts by topic, summed out, then kept",
        "resample_biases",
        module=sweep,
        result=_parts_by_topic_kept,
    ),
    _shared(
        "parts by topic given the shared parts of old",
        "resample_biases",
        module=sweep,
        result=_parts_by_topic_given_old,
    ),
    _shared(
        "not added to the biases",
        "resample_biases",
        module=sweep,
        result=lambda value, c: (value[0] - value[1].shared[:, None], value[1]),
    ),
    Mutant(
        "shared biases",
        "franchise: a new dish's biases without the shared parts",
        sweep,
        "resample_franchise",
        args=_arg(4, lambda prior, c: prior._replace(shared=0 * prior.shared)),
        result=_shared_parts_put_back,
        member="CRF shared biases",
    ),
    _shared(
        "omega^2 left out",
        "_draw_variance",
        result=_keep_shared_variance,
        left_out=True,
    ),
]

# --- topics and their weights -----------------------------------------------------


def _other_bias_left_in(residual, call):
    """Put the other side's bias, as the sweep has it at this call, back."""
    parts = call.history["bias_of_ratings"]
    return residual + parts[call.turn + 1]


def _count_the_other_topic(call):
    valid, row, column, shape = call.args
    if call.turn:
        return call.args
    return valid, row, call.history["resample_topics"][0] % shape[1], shape


TOPICS = [
    Mutant(
        "topics",
        "theta left out",
        sweep,
        "resample_topics",
        args=_arg(4, lambda x, c: jnp.zeros_like(x)),
    ),
    Mutant(
        "topics",
        "other side's bias not subtracted",
        sweep,
        "resample_topics",
        args=_arg(1, _other_bias_left_in),
        chains=20_000,
    ),
    Mutant(
        "topics",
        "index of the bias off by one",
        sweep,
        "resample_topics",
        args=_arg(5, lambda bias, c: jnp.roll(bias, 1, axis=1)),
        chains=6_000,
    ),
    Mutant(
        "topics",
        "1/sigma^2 for 1/(2 sigma^2)",
        sweep,
        "resample_topics",
        args=_arg(6, lambda variance, c: 0.5 * variance),
        chains=6_000,
    ),
    Mutant(
        "table topics",
        "pi left out",
        table_topics,
        "conditional_table_topics",
        args=_arg(1, lambda log_pi, c: jnp.zeros_like(log_pi)),
    ),
    Mutant(
        "table topics",
        "1/sigma^2 for 1/(2 sigma^2)",
        table_topics,
        "conditional_table_topics",
        args=_arg(2, lambda variance, c: 0.5 * variance),
    ),
    Mutant(
        "table topics",
        "gamma for gamma pi",
        table_topics,
        "row_concentration",
        result=lambda value, c: jnp.full_like(value, jnp.sum(value)),
    ),
    Mutant(
        "table topics",
        "other side's bias not subtracted",
        sweep,
        "resample_table_topics",
        args=_arg(1, _other_bias_left_in),
    ),
    Mutant(
        "table counts",
        "off by one: a/(a + i), i = 1..n",
        random,
        "ranks_within_bins",
        result=lambda value, c: (value[0], value[1] + 1),
    ),
    Mutant(
        "table counts",
        "one table a customer",
        table_counts,
        "chinese_restaurant_tables",
        result=lambda value, c: jnp.sum(c.args[1], axis=0, dtype=jnp.int32),
    ),
    Mutant(
        "table counts",
        "one table a cell",
        table_counts,
        "chinese_restaurant_tables",
        result=lambda value, c: jnp.sum(c.args[1] > 0, axis=0, dtype=jnp.int32),
    ),
    Mutant(
        "global weights",
        "weak limit: beta for beta/K",
        global_weights,
        "conditional_weak_limit",
        result=lambda value, c: value + c.args[1] * (1 - 1 / value.shape[0]),
    ),
    Mutant(
        "global weights",
        "sticks without the sum of the tail",
        global_weights,
        "conditional_sticks",
        result=lambda value, c: (value[0], jnp.broadcast_to(c.args[1], value[1].shape)),
    ),
    Mutant(
        "row weights",
        "gamma/K for gamma pi",
        row_weights,
        "conditional_row_weights",
        args=_arg(0, lambda a, c: jnp.broadcast_to(jnp.mean(a), a.shape)),
    ),
    Mutant(
        "row weights",
        "without gamma pi",
        row_weights,
        "conditional_row_weights",
        args=_arg(0, lambda a, c: jnp.full_like(a, 0.05)),
    ),
    Mutant(
        "row weights",
        "counts left out",
        row_weights,
        "conditional_row_weights",
        args=_arg(1, lambda counts, c: jnp.zeros_like(counts)),
    ),
    Mutant(
        "row weights",
        "counts of the other side's topics",
        sweep,
        "count_by_cell",
        args=_count_the_other_topic,
    ),
    Mutant(
        "row weights",
        "M3F: alpha for alpha/K",
        row_weights,
        "conditional_row_weights",
        args=_arg(0, lambda a, c: a * a.shape[0]),
        member="M3F",
    ),
]

# --- concentrations and the rating variance ---------------------------------------

_variance = (rating_variance, "conditional_rating_variance")

SCALARS = [
    Mutant(
        "concentrations",
        "Escobar and West with the number of dishes",
        concentrations,
        "chinese_restaurant_tables",
        result=lambda value, c: jnp.minimum(value, 1),
    ),
    Mutant(
        "concentrations",
        "dish, weak limit: eta's term left out",
        concentrations,
        "conditional_dish_concentration_of_weak_limit",
        args=_arg(2, lambda log_eta, c: jnp.zeros_like(log_eta)),
    ),
    Mutant(
        "concentrations",
        "dish, sticks: K for K - 1",
        concentrations,
        "conditional_dish_concentration_of_sticks",
        result=_field("shape", lambda shape, c: shape + 1),
    ),
    Mutant(
        "concentrations",
        "dish, sticks: sign of the rate's term",
        concentrations,
        "conditional_dish_concentration_of_sticks",
        result=_field("rate", lambda rate, c: rate + c.args[1][-1]),
    ),
    Mutant(
        "concentrations",
        "table: the rate's term left out",
        concentrations,
        "conditional_table_concentration",
        args=_arg(2, lambda log_w, c: jnp.zeros_like(log_w)),
    ),
    Mutant(
        "concentrations",
        "table: rows without ratings counted",
        concentrations,
        "conditional_table_concentration",
        args=_arg(2, lambda log_w, c: jnp.where(log_w == 0, -1, log_w)),
    ),
    Mutant(
        "rating variance",
        "shape n for n/2",
        *_variance,
        result=_field("shape", lambda shape, c: 2 * shape - c.args[0].variance.shape),
    ),
    Mutant(
        "rating variance",
        "floor ignored",
        *_variance,
        result=_field("floor", lambda floor, c: jnp.full_like(floor, 1e-6)),
    ),
    Mutant(
        "rating variance",
        "scale without the half",
        *_variance,
        result=_field("scale", lambda scale, c: scale + 0.5 * c.args[1]),
    ),
    Mutant(
        "rating variance",
        "BPMF: shape n for n/2",
        *_variance,
        result=_field("shape", lambda shape, c: 2 * shape - c.args[0].variance.shape),
        member="BPMF",
    ),
]

# --- blocks left out: the joint stays as it is, only an own start can tell ----------


def _old(*names):
    """Give back the state's own values, in the order in which the calls come."""

    def result(value, call):
        return getattr(call.state, names[call.turn])

    return result


LEFT_OUT = [
    Mutant(block, "left out", sweep, function, result=wrong, left_out=True)
    for block, function, wrong in (
        (
            "factor prior",
            "resample_factor_prior",
            _old("user_factor_prior", "item_factor_prior"),
        ),
        ("factors", "resample_factors", _old("user_factors", "item_factors")),
        (
            "topics",
            "resample_table_topics",  # and with it what was drawn rating by rating
            _old("item_topic_of_rating", "user_topic_of_rating"),
        ),
        ("biases", "resample_biases", lambda value, c: (c.args[3], c.args[2])),
        ("topic weights", "resample_topic_weights", lambda value, c: c.args[2]),
        ("rating variance", "resample_rating_variance", lambda value, c: c.args[2]),
    )
]

# --- the exact franchise ------------------------------------------------------------


def _without(name):
    return _arg(1, lambda numbers, c: numbers._replace(**{name: 1e-6 + 0 * numbers[0]}))


def _one_table_more(dishes, call):
    return dishes._replace(tables=dishes.tables + (dishes.tables > 0))


_tables = (crf, "conditional_tables")
_dish = (crf, "conditional_dish")
_dish_step = (crf, "_dish_step", 4)

FRANCHISE = [
    Mutant(
        "franchise",
        "tables: new dish without tau^2",
        *_tables,
        args=_without("topic_mean_variance"),
        member="CRF apart",
        chains=20_000,
        skipped=_dish_step,
    ),
    Mutant(
        "franchise",
        "tables: one table too many a dish",
        *_tables,
        args=_arg(4, _one_table_more),
        member="CRF apart",
        skipped=_dish_step,
    ),
    Mutant(
        "franchise",
        "tables: sign of the offset",
        *_tables,
        args=_arg(6, lambda offset, c: -offset),
        member="CRF conditional",
    ),
    Mutant(
        "franchise",
        "dishes: new dish without tau^2",
        *_dish,
        args=_without("topic_mean_variance"),
        member="CRF apart",
        chains=6_000,
    ),
    Mutant(
        "franchise",
        "dishes: the table itself counted",
        *_dish,
        args=_arg(2, _one_table_more),
        member="CRF conditional",
    ),
    Mutant(
        "franchise",
        "dishes: data left out",
        *_dish,
        args=_arg(4, lambda gain, c: 0 * gain),
        member="CRF conditional",
    ),
    Mutant(
        "franchise",
        "a new dish keeps the slot's old biases",
        crf,
        "_give_birth",
        result=lambda value, c: c.args[2],
        member="CRF conditional",
    ),
    Mutant(
        "franchise",
        "a new dish's biases from the prior",
        crf,
        "_give_birth",
        args=_arg(4, lambda count, c: 0 * count),
        member="CRF conditional",
    ),
    Mutant(
        "concentrations",
        "dish, franchise: eta's term left out",
        concentrations,
        "conditional_dish_concentration_of_franchise",
        args=_arg(2, lambda log_eta, c: 0 * log_eta),
        member="CRF conditional",
    ),
    Mutant(
        "franchise",
        "table step skipped",
        crf,
        "_table_step",
        result=lambda value, c: c.args[4],
        member="CRF conditional",
        left_out=True,
    ),
    Mutant(
        "franchise",
        "marginal: variance of the mean left out",
        crf,
        "_integrated",
        args=_arg(2, lambda variance, c: 1e-6 * variance),
        member="CRF marginal",
    ),
]

# --- the ordinal likelihood ---------------------------------------------------------


def _wider(scale):
    """Draw latent ratings of another variance, within their bounds."""
    return {
        "args": lambda c: (c.args[0], c.args[1] / scale, c.args[2] / scale),
        "result": lambda value, c: value * scale,
    }


def _without_reverse(value, call):
    """Leave the reverse proposal out of the ratio: it comes first, then the other."""
    return 0 * value if call.turn == 0 else value


_latents = {"member": "BPMF ordinal"}
ORDINAL = [
    Mutant(
        "latent ratings",
        "sign of the bounds",
        latent_ratings,
        "conditional_latent_ratings",
        result=lambda value, c: value._replace(low=-value.high, high=-value.low),
        **_latents,
    ),
    Mutant(
        "latent ratings",
        "mean left out",
        latent_ratings,
        "conditional_latent_ratings",
        args=_arg(1, lambda mean, c: 0 * mean),
        **_latents,
    ),
    Mutant(
        "latent ratings",
        "variance other than 1",
        latent_ratings,
        "truncated_normal",
        **_wider(1.3),
        **_latents,
    ),
    Mutant(
        "latent ratings",
        "given the cut points of the start, for ever",
        response,
        "resample_latent_ratings",
        args=_arg(3, lambda cuts, c: jnp.array([-0.8, 0.0, 0.8], cuts.dtype)),
        **_latents,
    ),
    Mutant(
        "cut points",
        "prior left out",
        response,
        "resample_cut_points",
        args=_arg(1, lambda x, c: dataclasses.replace(x, cut_scale=100 * x.cut_scale)),
        **_latents,
    ),
    Mutant(
        "cut points",
        "reverse density left out of the ratio",
        cut_points,
        "_log_t",
        result=_without_reverse,
        chains=20_000,
        **_latents,
    ),
    Mutant(
        "cut points",
        "every proposal accepted",
        cut_points,
        "_accept",
        result=lambda value, c: jnp.full_like(value, True),
        **_latents,
    ),
    Mutant(
        "cut points",
        "half of the means",
        response,
        "resample_cut_points",
        args=_arg(4, lambda mean, c: 0.5 * mean),
        **_latents,
    ),
    Mutant(
        "cut points",
        "left out",
        response,
        "resample_cut_points",
        result=lambda value, c: (c.state.cut_points, value[1]),
        left_out=True,
        **_latents,
    ),
    Mutant(
        "latent ratings",
        "their means in their place",
        response,
        "resample_latent_ratings",
        result=lambda value, c: c.args[2],
        member="iM3F ordinal",
    ),
]

# --- noise that differs -------------------------------------------------------------


def _noise(name, module, function, *, block="noise", member="BPMF noise", **wrong):
    return Mutant(block, name, module, function, member=member, **wrong)


def _noise_of_topics(block, function, index, **wrong):
    """Let a block of the ordinal member forget the precisions."""
    wrong = wrong or {"args": _arg(index, lambda p, c: jnp.ones_like(p))}
    member = "iM3F ordinal noise"
    name = "relative precisions forgotten"
    module = response if hasattr(response, function) else sweep
    return _noise(name, module, function, block=block, member=member, **wrong)


def _stale_squares(squares, call):
    """Squares of residuals from the means of before the sweep."""
    data = call.args[3]
    valid = jnp.arange(data.rating.shape[0]) < data.num_ratings
    return jnp.where(valid, (data.rating - mean_of_ratings(call.state, data)) ** 2, 0)


def _nothing_of_others(value, call):
    # Calls: of all three; then without the users', without the items'; of all again.
    return jnp.ones_like(value) if call.turn in (1, 2) else value


_precisions = (noise, "conditional_precisions")
_shape = (noise, "conditional_shape")

NOISE = [
    _noise("n for n/2", *_precisions, args=_arg(1, lambda n, c: 2 * n)),
    _noise("squares not halved", *_precisions, args=_arg(2, lambda s, c: 2 * s)),
    _noise(
        "1/sigma^2 left out", *_precisions, args=_arg(3, lambda v, c: jnp.ones_like(v))
    ),
    _noise(
        "prior's rate halved",
        *_precisions,
        result=_field("rate", lambda rate, c: rate - 0.5 * c.args[0]),
    ),
    _noise(
        "other side's precisions forgotten",
        sweep,
        "precision_of_ratings",
        result=_nothing_of_others,
    ),
    _noise(
        "given a stale residual",
        sweep,
        "_resample_noise",
        args=_arg(4, _stale_squares),
    ),
    _noise(
        "shape: every proposal accepted",
        noise,
        "_accept",
        result=lambda value, c: jnp.full_like(value, True),
        chains=20_000,
    ),
    _noise(
        "shape: the proposal's density left out of the ratio",
        noise,
        "_log_t",
        result=lambda value, c: 0 * value,
    ),
    _noise(
        "shape: one row too many",
        *_shape,
        args=_arg(2, lambda s, c: s._replace(count=s.count + 1)),
    ),
    _noise(
        "shape: prior's rate left out",
        *_shape,
        args=_arg(0, lambda prior, c: dataclasses.replace(prior, rate=0 * prior.rate)),
    ),
    _noise(
        "left out",
        sweep,
        "_resample_noise",
        result=lambda value, c: c.state.noise,
        left_out=True,
    ),
    _noise(
        "relative precisions forgotten",
        sweep,
        "resample_factors",
        block="factors",
        args=_arg(7, lambda p, c: jnp.ones_like(p)),
    ),
    # Forgotten there, the tables, which know the precisions, put it nearly right.
    _noise_of_topics(
        "topics", "resample_topics", 8, args=_arg(8, lambda p, c: 1 / p)
    )._replace(name="inverse of the relative precisions", chains=6_000),
    _noise_of_topics("table topics", "resample_table_topics", 11),
    _noise_of_topics("biases", "bias_statistics", 5),
    _noise_of_topics("cut points", "resample_cut_points", 6),
    _noise_of_topics("latent ratings", "resample_latent_ratings", 4),
    _noise_of_topics(
        "rating variance",
        "_resample_noise",
        0,
        args=_arg(5, lambda variance, c: 2 * variance),
    )._replace(block="noise", name="variance other than 1"),
    _noise(
        "of single ratings: n for n/2",
        sweep,
        "resample_precisions",
        member="iM3F ordinal noise",
        args=_arg(2, lambda n, c: (1 + c.turn) * n),  # users come first
    ),
]

# --- columns that are shrunk --------------------------------------------------------


def _rates(call):
    """Rates of delta's prior, and what the columns add to them."""
    prior, delta, squares, _ = call.args
    rates = jnp.ones_like(delta).at[0].set(prior.rate)
    return rates, jnp.cumprod(delta) * squares, delta


def _own_product_left_in(rate, call):
    rates, _, delta = _rates(call)
    return rates + (rate - rates) * delta


def _own_column_only(rate, call):
    rates, weighted, delta = _rates(call)
    return rates + 0.5 * weighted / delta


def _earlier_columns(rate, call):
    rates, weighted, delta = _rates(call)
    return rates + 0.5 * jnp.cumsum(weighted) / delta


def _product_before(prior, call):
    """Precision of a column without its own increment, from the second on."""
    delta = call.args[0]
    before = jnp.append(delta[:1], jnp.cumprod(delta)[:-1])
    return prior._replace(precision=jnp.diag(before))


_delta = (column_precisions, "conditional_increments")
_means = (column_precisions, "conditional_column_means")
_shrinks = {"member": "BPMF shrinkage"}
COLUMNS = [
    Mutant("column precisions", name, *_delta, **_shrinks, **wrong)
    for name, wrong in (
        ("rows of the users only", {"args": _arg(3, lambda n, c: n - NUM_ITEMS)}),
        (
            "the prior's shape alone",
            {
                "result": _field(
                    "shape", lambda a, c: c.args[0].parameters(3, a.dtype)[0]
                )
            },
        ),
        (
            "columns D - h for D - h + 1",
            {"result": _field("shape", lambda a, c: a - 0.5 * c.args[3])},
        ),
        ("its own delta left in", {"result": _field("rate", _own_product_left_in)}),
        ("later columns left out", {"result": _field("rate", _own_column_only)}),
        ("earlier columns for later", {"result": _field("rate", _earlier_columns)}),
        (
            "sign of the rate's term",
            {"result": _field("rate", lambda b, c: jnp.abs(2 * _rates(c)[0] - b))},
        ),
        (
            "rate of delta_1 left out",
            {"result": _field("rate", lambda b, c: b + 1 - _rates(c)[0])},
        ),
        (
            "half of the squares left out",
            {"result": _field("rate", lambda b, c: 2 * b - _rates(c)[0])},
        ),
        (
            "all given the old ones",
            {
                "args": _arg(1, lambda x, c: c.state.column_increments),
                "chains": 40_000,
            },
        ),
    )
]
COLUMNS += [
    Mutant(
        "column precisions",
        "squares of the users only",
        column_precisions,
        "column_squares",
        result=lambda squares, c: (1 - c.turn) * squares,
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "squares about the mean",
        column_precisions,
        "column_squares",
        args=_arg(0, lambda prior, c: dataclasses.replace(prior, mean_precision=0.0)),
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "squares about 0",
        column_precisions,
        "column_squares",
        args=_arg(0, lambda prior, c: dataclasses.replace(prior, mean_precision=1e6)),
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "means: kappa left out",
        *_means,
        args=_arg(0, lambda prior, c: dataclasses.replace(prior, mean_precision=0.0)),
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "means: tau left out",
        *_means,
        args=_arg(1, lambda delta, c: jnp.ones_like(delta)),
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "means: sign",
        *_means,
        result=_field("mean", lambda m, c: -m),
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "product off by one",
        column_precisions,
        "spread_increments",
        result=_product_before,
        **_shrinks,
    ),
    Mutant(
        "column precisions",
        "left out",
        sweep,
        "resample_column_precisions",
        result=lambda value, c: (
            c.state.column_increments,
            c.state.user_factor_prior,
            c.state.item_factor_prior,
        ),
        left_out=True,
        **_shrinks,
    ),
]

# --- what depends on time -----------------------------------------------------------


def _time_part(state):
    """Parts of the means that depend on time, as before the sweep."""
    data = make_data()
    return time_of_ratings(state.time, data.user, data.item, data.times)


def _old_effect_left_in(residual, call):
    _, _, row, column, _, covariate, _ = call.args
    effect = call.state.time.item if call.turn == 0 else call.state.time.user[:, None]
    part = effect[row, column]
    return residual - (part if covariate is None else covariate * part)


def _items_old(residual, call):
    """Residuals of the users' turn, given the items' effects of before."""
    if call.turn == 0:
        return residual
    data = make_data()
    cell = data.item, data.times.bin
    new = call.history["resample_effects"][0][0]
    return residual + new[cell] - call.state.time.item[cell]


def _uninformed_kept(value, call):
    effect, statistics = call.args[2], call.args[4]
    return jnp.where(statistics.information > 0, value[0], effect), value[1]


def _timed(name, module, function, *, block="time", member="BPMF time", **wrong):
    return Mutant(block, name, module, function, member=member, **wrong)


_effects = (time_effects, "conditional_effects")
_spread = (time_effects, "conditional_effect_variance")
_sums = (sweep, "effect_statistics")

TIME = [
    _timed(
        "sign of the residuals",
        *_effects,
        args=_arg(0, lambda s, c: s._replace(total=-s.total)),
    ),
    _timed("omega^2 left out", *_effects, args=_arg(1, lambda v, c: jnp.ones_like(v))),
    _timed(
        "1/sigma^2 left out", *_effects, args=_arg(2, lambda v, c: jnp.ones_like(v))
    ),
    _timed(
        "x for x^2",
        *_sums,
        result=lambda s, c: (
            s if c.turn == 0 else s._replace(information=jnp.sqrt(s.information))
        ),
    ),
    _timed(
        "drift without its sign",
        *_sums,
        args=_arg(5, lambda x, c: x if x is None else jnp.abs(x)),
    ),
    _timed(
        "relative precisions forgotten",
        *_sums,
        args=_arg(6, lambda p, c: jnp.ones_like(p)),
    ),
    _timed("old effects left in", *_sums, args=_arg(0, _old_effect_left_in)),
    _timed("users' given the items' old ones", *_sums, args=_arg(0, _items_old)),
    _timed(
        "variance: shape counts all cells",
        *_spread,
        result=_field("shape", lambda a, c: c.args[0].shape + 0.5 * c.args[1].size),
    ),
    _timed(
        "variance: squares not halved",
        *_spread,
        result=_field("scale", lambda b, c: 2 * b - c.args[0].scale),
    ),
    _timed(
        "variance: prior's scale left out",
        *_spread,
        result=_field("scale", lambda b, c: b - c.args[0].scale),
    ),
    _timed(  # few of the cells, and their size is right: Geweke's test hardly tells
        "cells without a rating never drawn",
        sweep,
        "resample_effects",
        result=_uninformed_kept,
        left_out=True,
    ),
    _timed(
        "residuals of before their draw",
        sweep,
        "_resample_time",
        result=lambda value, c: (c.args[4], value[1]),
    ),
    _timed(
        "left out",
        sweep,
        "_resample_time",
        result=lambda value, c: (c.args[4], c.state.time),
        left_out=True,
    ),
    _timed(
        "time left in the residuals",
        sweep,
        "resample_factors",
        block="factors",
        args=_arg(2, lambda x, c: x + _time_part(c.state)),
    ),
]
# Of topics that read the wrong residuals this member tells too little: what they are
# given is checked in tests/gibbs/test_sweep.py.
TIME += [
    _timed(name, sweep, function, block=block, member="M3F ordinal time", args=args)
    for block, name, function, args in (
        (
            "biases",
            "time left in the residuals",
            "bias_statistics",
            _arg(0, lambda x, c: x + _time_part(c.state)),
        ),
        (
            "latent ratings",
            "time left out of their means",
            "resample_response",
            _arg(5, lambda parts, c: parts - _time_part(c.state)),
        ),
    )
]

# --- factors that topics select -----------------------------------------------------


def _later(index, wrong):
    """Change an argument of the calls for topic factors: those after the factors'."""
    change = _arg(index, wrong)
    return lambda call: call.args if call.turn < 2 else change(call)


def _first_vectors(row, call):
    number = USER_TOPICS if call.turn == 2 else ITEM_TOPICS
    return row // number * number


def _all_topics(precision, call):
    real = jnp.arange(precision.shape[0]) < NUM_RATINGS
    return jnp.where(real, 1, 0) + 0 * precision


def _items_given_old(vectors, call):
    """Users' vectors of before, of which the items' were to read the new ones."""
    old = call.state.topic_factors.user
    return vectors if call.turn < 3 else old.reshape(-1, old.shape[-1])


def _selecting(name, function, *, module=sweep, block="topic factors", **wrong):
    member = "M3F topic factors"
    return Mutant(block, name, module, function, member=member, **wrong)


TOPIC_FACTORS = [
    _selecting(
        "sign of the residuals", "resample_factors", args=_later(2, lambda x, c: -x)
    ),
    _selecting(
        "1/sigma^2 left out",
        "resample_factors",
        args=_later(4, lambda v, c: jnp.ones_like(v)),
    ),
    _selecting(
        "ratings of all topics", "resample_factors", args=_later(7, _all_topics)
    ),
    _selecting(
        "the other side's first vectors",
        "resample_factors",
        args=_later(8, _first_vectors),
    ),
    _selecting(
        "the users' old ones",
        "resample_factors",
        args=_later(3, _items_given_old),
        chains=40_000,
    ),
    _selecting(
        "prior: rows of one topic counted",
        "resample_factor_prior",
        args=_later(3, lambda n, c: n // (ITEM_TOPICS if c.turn == 2 else USER_TOPICS)),
    ),
    _selecting(
        "topics: products left out",
        "resample_topics",
        args=_arg(9, lambda f, c: f._replace(own=0 * f.own)),
        block="topics",
    ),
    _selecting(
        "topics: the other topic's old vectors",
        "resample_topics",
        args=_arg(
            9,
            lambda f, c: f._replace(
                other=c.state.topic_factors.item
                if c.turn == 0
                else c.state.topic_factors.user
            ),
        ),
        block="topics",
    ),
    _selecting(
        "biases: products left in the residuals",
        "topic_factors_of_ratings",
        result=lambda value, c: value if c.turn == 0 else 0 * value,
    ),
    _selecting(
        "factors: products left in the residuals",
        "topic_factors_of_ratings",
        result=lambda value, c: 0 * value if c.turn == 0 else value,
        block="factors",
    ),
    _selecting(
        "left out",
        "_resample_topic_factors",
        result=lambda value, c: c.state.topic_factors,
        left_out=True,
    ),
]

# --- topics of each row's own ---------------------------------------------------------


def _separate(name, function, index, rows, block="topics", **more):
    """Read the weights of the side whose weights the paper's model reads."""

    def wrong(row, call):
        return jnp.asarray(getattr(make_data(), rows[call.turn % 2]))

    args = _arg(index, wrong)
    return Mutant(block, name, sweep, function, args=args, member="separate", **more)


SIDES = "item", "user"  # in the order of the draws of topics
OWN = [
    _separate("own topics: weights of the other side", "resample_topics", 2, SIDES),
    _separate(
        "own topics: tables of the other side", "resample_table_topics", 2, SIDES
    ),
    _separate(
        "own topics: counts of the other side",
        "count_by_cell",
        1,
        SIDES[::-1],
        "row weights",
    ),
]

# --- persons on both sides ----------------------------------------------------------


def _other_role(values, call):
    """Exchange what both roles of each rating have."""
    return values.reshape(-1, 2)[:, ::-1].reshape(-1)


def _without_second_role(blocks, call):
    """Leave pairs to the person who is named first."""
    user = jnp.asarray(data_of("iM3F unordered").user)
    second = user[blocks.position] == blocks.other
    empty = call.args[2].shape[0] - 1  # a row of padding
    return dataclasses.replace(blocks, other=jnp.where(second, empty, blocks.other))


def _of_one_role(counts, call):
    valid, data, _, item_topic, shape = call.args
    return counts - count_by_cell(valid, data.item, item_topic, shape)


def _persons(name, function, *, module=reciprocal, member="iM3F unordered", **wrong):
    return Mutant("reciprocal", name, module, function, member=member, **wrong)


_tables = "resample_table_topics"

RECIPROCAL = [
    _persons(
        "halves: sigma for sigma / 2",
        "conditional_halves",
        module=halves,
        result=_field("variance", lambda v, c: 4 * v),
    ),
    _persons(
        "halves: nothing of the noise to the first",
        "conditional_halves",
        module=halves,
        result=_field("mean", lambda m, c: c.args[1]),
    ),
    _persons(
        "tables: sigma^2 for sigma^2 / 2",
        _tables,
        args=_arg(7, lambda v, c: 2 * v),
    ),
    _persons("tables: of the other person", _tables, args=_arg(2, _other_role)),
    _persons("tables: the other role's half", _tables, args=_arg(1, _other_role)),
    _persons(
        "biases: sigma^2 for sigma^2 / 2",
        "resample_biases",
        args=_arg(5, lambda v, c: 2 * v),
    ),
    _persons(
        "biases: the wrong person's", "bias_statistics", args=_arg(2, _other_role)
    ),
    _persons("biases: the wrong topic's", "bias_statistics", args=_arg(3, _other_role)),
    _persons(
        "factors: two neighbours at once",
        "_batch_parameters",
        module=factors,
        args=_arg(2, lambda old, c: c.state.user_factors),
    ),
    _persons(
        "factors: pairs of one role only",
        "_batch_parameters",
        module=factors,
        args=_arg(4, _without_second_role),
    ),
    _persons(
        "factor prior: persons counted in both roles",
        "resample_factor_prior",
        args=_arg(3, lambda number, c: 2 * number),
    ),
    _persons("counts of one role only", "counts_of_persons", result=_of_one_role),
    _persons(
        "topics: theta for one role only",
        "resample_topics",
        args=_arg(4, lambda theta, c: theta if c.turn else 0 * theta),
    ),
    _persons(
        "directed: counts of one role only",
        "counts_of_persons",
        result=_of_one_role,
        member="iM3F directed",
    ),
    _persons(
        "directed: tables read the other role's biases",
        _tables,
        args=_arg(6, lambda bias, c: jnp.roll(bias, bias.shape[0] // 2, axis=0)),
        member="iM3F directed",
    ),
    _persons(
        "directed: the users' factors one sweep old",
        "resample_factors",
        args=_arg(3, lambda other, c: c.state.user_factors if c.turn else other),
        member="iM3F directed",
    ),
    _persons(
        "biases left out",
        "resample_one_table",
        result=lambda value, c: (c.state.user_bias, c.state.user_bias_prior),
        left_out=True,
    ),
    _persons(
        "factors left out",
        "resample_pair_factors",
        result=lambda value, c: c.args[3],
        left_out=True,
    ),
]


def _roomy(name, module, function, **wrong):
    name = f"little room: {name}"
    return Mutant("topics", name, module, function, member=room.MEMBER, **wrong)


ROOM = [
    _roomy(
        "topics out of reach are left",
        sweep,
        "stay",
        result=lambda drawn, c: c.args[0],
    ),
    _roomy(
        "what is in reach beyond the columns is not looked at",
        topic_weights,
        "needs_room",
        result=lambda lacks, c: jnp.zeros_like(lacks),
        chains=20_000,
    ),
    _roomy(
        "weights of topics in use sorted too",
        topic_weights,
        "largest_empty_first",
        args=_arg(1, lambda tables, c: 0 * tables),
    ),
]


def _sharded(name, module, function, member="iM3F in shards", **wrong):
    name = f"shards: {name}"
    return Mutant("shards", name, module, function, member=member, **wrong)


SHARDS = [
    _sharded(
        "all draw the same noise", sweep, "own_key", result=lambda key, c: c.args[0]
    ),
    _sharded(
        "an item's factors know one shard's ratings",
        factors,
        "sum_of_own_rows",
        result=lambda sums, c: collectives.own_rows(*c.args),
    ),
    _sharded(
        "the prior of the users' factors knows one shard's",
        factor_prior,
        "sum_across",
        result=lambda sums, c: c.args[0],
    ),
    _sharded(
        "topic means know one shard's biases",
        biases,
        "sum_across",
        result=lambda sums, c: c.args[0],
    ),
    _sharded(
        "an item's biases know one shard's ratings",
        sweep,
        "sum_across",
        result=lambda sums, c: c.args[0],
    ),
    _sharded(
        "the tables of others are not part of the prior",
        table_topics,
        "sum_across",
        result=lambda sums, c: c.args[0],
    ),
    _sharded(
        "all move their ratings of a row at once",
        table_topics,
        "rows_in_turn",
        result=lambda turn, c: jnp.ones_like(turn),
        chains=20_000,
    ),
    _sharded(
        "tables are counted as if no shard came before",
        topic_weights,
        "sums_before",
        result=lambda sums, c: jnp.zeros_like(sums),
    ),
    _sharded(
        "tables of topics are counted as if no shard came before",
        concentrations,
        "sums_before",
        result=lambda sums, c: jnp.zeros_like(sums),
        chains=20_000,
    ),
    _sharded(
        "an item's weights know one shard's ratings",
        topic_weights,
        "sum_across",
        result=lambda sums, c: c.args[0],
    ),
    _sharded(
        "cut points know one shard's ratings",
        cut_points,
        "sum_across",
        member="M3F ordinal shared in shards",
        result=lambda sums, c: c.args[0],
    ),
]

MUTANTS = [*FRANCHISE, *FACTORS, *BIASES, *TOPICS, *SCALARS, *LEFT_OUT]
MUTANTS += [*ORDINAL, *SHARED, *NOISE, *COLUMNS, *TIME, *TOPIC_FACTORS, *OWN]
MUTANTS += [*RECIPROCAL, *ROOM, *SHARDS]


def sizes_of(mutant):
    """Sizes that tell a mutant; None is the right sampler."""
    if mutant is None or mutant.chains == checks.MUTANT.chains:
        return checks.MUTANT
    return checks.MUTANT._replace(chains=mutant.chains, steps=10)


def numbers_of(member):
    """List the numbers of a member's mutants."""
    return [n for n, m in enumerate(MUTANTS, start=1) if m.member == member]


@cache
def patch_of(member):
    """Get the patch of a member's sampler, for `run_chains`; one object a member."""
    return partial(_patch, member)


def _patch(member, active, state):
    """Make the sampler wrong in the way number `active` (from 1; 0 is right) says.

    A context for one trace of one sweep.
    """
    history = defaultdict(list)
    places = defaultdict(list)
    for number, mutant in enumerate(MUTANTS, start=1):
        if mutant.member == member:
            places[mutant.module, mutant.function].append((number, mutant))
            if mutant.skipped:
                module, function, index = mutant.skipped
                skip = Mutant(
                    *mutant[:2],
                    module,
                    function,
                    result=lambda value, c, index=index: c.args[index],
                )
                places[module, function].append((number, skip))
    stack = contextlib.ExitStack()
    if member == room.MEMBER:
        stack.enter_context(room.little_room())
    if member in shards.MEMBERS:
        stack.enter_context(shards.in_shards())
    for (module, name), mutants in places.items():
        right = getattr(module, name)
        wrong = _mutated(right, name, mutants, active, state, history)
        stack.enter_context(mock.patch.object(module, name, wrong))
    return stack


@contextlib.contextmanager
def easy():
    """Allow promotion: the mistakes are written in short."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _mutated(right, name, mutants, active, state, history):
    def choose(number, wrong, value):
        if wrong is value:
            return value
        return jax.tree.map(
            lambda a, b: a if a is b else jnp.where(active == number, a, b),
            wrong,
            value,
        )

    def function(*args, **options):
        turn = len(history[name])
        for number, mutant in mutants:
            if mutant.args:
                with easy():
                    changed = mutant.args(Call(args, state, history, turn))
                args = tuple(
                    old if new is old else choose(number, new, old)
                    for new, old in zip(changed, args, strict=True)
                )
        value = right(*args, **options)
        for number, mutant in mutants:
            if mutant.result:
                with easy():
                    changed = mutant.result(value, Call(args, state, history, turn))
                value = choose(number, changed, value)
        history[name].append(value)
        return value

    return function
