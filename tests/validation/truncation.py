"""The truncated HDP against the exact Chinese restaurant franchise on the same data.

Hundreds of independent chains of each sampler on sixteen ratings; a chain gives one
average of every quantity, so that errors need no effective sample size.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import stats

from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.model.topic_prior import CRF, HDP
from tests.quick import quick_jit
from tests.validation import crf_prior, members
from tests.validation.statistics import PAIRS

__all__ = ["SAMPLERS", "TRUNCATIONS", "averages", "compare"]

# The weak limit has the process's law but for terms of order 1 / K: its difference
# halves with each doubling, and is compared where it is below the Monte Carlo error,
# too. Sticks leave out beta / (1 + beta) to the power K - 1 of the mass, nothing at 10.
TRUNCATIONS = {"weak_limit": (10, 20, 40, 320), "stick_breaking": (10, 20, 40)}
DISH, TABLE = (1.0, 1.4), (2.0, 3.0)  # concentrations of users and of items
ROOM = members.NUM_RATINGS + 2
CHAINS, WARMUP, SWEEPS = 250, 100, 400
SEED = 11


def _spec(make):
    topics = [make(dish, table) for dish, table in zip(DISH, TABLE, strict=True)]
    return members.make_spec(*topics)


SAMPLERS = {"franchise": _spec(lambda b, g: CRF("conditional", b, g, ROOM, 10))} | {
    f"{construction}, {number}": _spec(
        lambda b, g, n=number, c=construction: HDP(n, c, b, g)
    )
    for construction, numbers in TRUNCATIONS.items()
    for number in numbers
}


def _quantities(state, data):
    """Label-invariant scalars whose posterior means are compared."""
    number = members.NUM_RATINGS
    found = {
        "rating variance": state.rating_variance,
        "rating variance, squared": state.rating_variance**2,
    }
    for side in ("user", "item"):
        topic = getattr(state, f"{side}_topic_of_rating")[:number]
        size = getattr(state, f"{side}_topic_weights").log_global_weights.shape[0]
        used = jnp.zeros(size, jnp.int32).at[topic].set(1)
        occupied = jnp.sum(used, dtype=jnp.int32)
        for count in (1, 2, 3, 4):
            found[f"{side} topics: {count} occupied"] = occupied == count
        found[f"{side} topics occupied"] = occupied
        for first, second in PAIRS:
            name = f"{side} topic, ratings {first} and {second} together"
            found[name] = topic[first] == topic[second]
    # Expected ratings of a rated pair, and of pairs never rated.
    for user, item in ((0, 0), (1, 2), (3, 0), (3, 2)):
        mean = state.global_bias + state.user_factors[user] @ state.item_factors[item]
        for bias, weights, row, other in (
            (state.user_bias, state.item_topic_weights, user, item),
            (state.item_bias, state.user_topic_weights, item, user),
        ):
            mean += bias[row] @ jnp.exp(weights.log_row_weights[other])
        # Not its square: the franchise's weights are expectations given the seating,
        # whose square has another mean than that of weights that are drawn.
        found[f"prediction of ({user}, {item})"] = mean
    return {n: x.astype(data.rating.dtype) for n, x in found.items()}


def averages(name):
    """Average of every quantity over the kept sweeps of each chain: (CHAINS,) each."""
    spec = SAMPLERS[name]
    data = members.make_data()
    _, ratings = crf_prior.draw_state(SEED, SAMPLERS["franchise"], data)
    data = dataclasses.replace(data, rating=ratings)
    start = quick_jit(partial(init_state.__wrapped__, start_topics=3))(
        jax.random.key(SEED), spec, data
    )

    @jax.jit
    def run(key, spec, data, start):
        def one_chain(key):
            def advance(t, carry):
                state, total = carry
                state, _ = gibbs_sweep(jax.random.fold_in(key, t), state, spec, data)
                kept = (t >= WARMUP).astype(data.rating.dtype) / SWEEPS
                new = _quantities(state, data)
                return state, {n: total[n] + kept * new[n] for n in new}

            none = jax.tree.map(jnp.zeros_like, _quantities(start, data))
            return lax.fori_loop(0, WARMUP + SWEEPS, advance, (start, none))[1]

        return jax.vmap(one_chain)(jax.random.split(key, CHAINS))

    return jax.device_get(run(jax.random.key(SEED + 1), spec, data, start))


def compare(found, failure):
    """Compare each truncated sampler with the franchise.

    Parameters
    ----------
    found
        Name of a sampler: its `averages`.
    failure
        Chance that right samplers differ by more than allowed at the last truncations.

    Returns
    -------
    list of dict
        For each truncated sampler `differences` by quantity: (of the franchise, of the
        sampler, Monte Carlo error of their difference), and the `largest` of them in
        errors, with the `limit` of what is chance.
    """

    def moments(values):
        values = np.float64(values)
        return values.mean(), values.var(ddof=1) / len(values)

    exact = {n: moments(v) for n, v in found["franchise"].items()}
    limit = stats.norm.isf(0.5 * failure / (2 * len(exact)))
    rows = []
    for name, values in found.items():
        if name == "franchise":
            continue
        differences = {}
        for quantity, (mean, square) in exact.items():
            other, other_square = moments(values[quantity])
            error = float(np.sqrt(square + other_square))
            differences[quantity] = (mean, other, error)
        scores = {
            n: abs(b - a) / error if error else 0.0
            for n, (a, b, error) in differences.items()
        }
        worst = max(scores, key=scores.get)
        rows.append(
            {
                "sampler": name,
                "differences": differences,
                "largest": scores[worst],
                "where": worst,
                "limit": float(limit),
            }
        )
    return rows
