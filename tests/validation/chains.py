"""Thousands of chains of the library's sweep at once, for all the tests of this folder.

One compiled program a member serves every test. A chain draws a truth and ratings from
the prior, starts at the truth or at the library's own start, and alternates between
fresh ratings (or none) and a sweep. It ends in numbers of its last state, and counts
how many of its kept states lie below the truth.
"""

import contextlib
import dataclasses
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from im3f_jax.gibbs import sweep
from im3f_jax.model.log_joint import mean_of_ratings
from im3f_jax.model.noise import precision_of_ratings
from tests.quick import quick_jit
from tests.validation import crf_prior, members
from tests.validation.statistics import summarise

__all__ = ["BATCH", "Plan", "draw_truths", "run_chains"]

# Chains a call: their states stay in the cache, and any number is so many calls.
BATCH = 500


class Plan(NamedTuple):
    """What the chains of one test do; numbers, so that no test compiles anew."""

    from_truth: bool  # start at the prior draw, else at the library's start
    fresh_ratings: bool  # draw the ratings anew before every sweep
    warmup: int  # sweeps before the first kept state, 0 for none at all
    kept: int = 1  # kept states
    thin: int = 0  # sweeps between them


@quick_jit
def _draw_truths(key, spec, data):
    keys = jax.random.split(key, BATCH)
    return jax.vmap(lambda key: members.prior_state(key, spec, data))(keys)


@quick_jit
def _summaries(states, ratings, spec, data):
    return jax.vmap(lambda s, r: summarise(s, r, spec, data))(states, ratings)


@lru_cache(maxsize=64)
def draw_truths(name, seed, batch):
    """Draw BATCH states with ratings of a member, and their statistics; remembered."""
    spec, data = members.MEMBERS[name], members.data_of(name)
    if name.startswith("CRF"):
        first = (1_000 * seed + batch) * BATCH
        draws = [crf_prior.draw_state(first + k, spec, data) for k in range(BATCH)]
        draws = jax.tree.map(lambda *x: np.stack(x), *draws)
    else:
        key = jax.random.fold_in(jax.random.key(seed), batch)
        draws = _draw_truths(key, spec, data)
    return *draws, _summaries(*draws, spec, data)


def run_chains(key, truths, spec, data, start, plan, patch=None, active=0, quick=True):
    """Run BATCH chains.

    Parameters
    ----------
    key
        A typed key.
    truths
        Of `draw_truths`.
    spec, data
        A member and its layout.
    start
        The state from which chains start that do not start at the truth.
    plan
        A `Plan`.
    patch
        Called with (active, state) around the sweep, it gives a context in which the
        sampler is a wrong one.
    active
        Which wrong one; 0 is the right one.
    quick
        Compile quickly and run at half the speed.

    Returns
    -------
    tuple of dict
        Statistics of the last state (with the ratings that it was drawn with), and the
        rank of the truth among the kept states.
    """
    plan = Plan(*(np.asarray(x) for x in plan))
    run = _run_quickly if quick else _run
    return run(key, truths, spec, data, start, plan, patch, np.int32(active))


def _chains(key, truths, spec, data, start, plan, patch, active):
    padding = jnp.arange(data.rating.shape[0], dtype=jnp.int32) >= data.num_ratings

    def one_chain(key, truth, ratings, summary):
        key, tie_key = jax.random.split(key)
        state = jax.tree.map(
            lambda a, b: jnp.where(plan.from_truth, a, b.astype(a.dtype)), truth, start
        )

        def advance(t, carry):
            state, ratings = carry
            rating_key, sweep_key = jax.random.split(jax.random.fold_in(key, t))
            noise = jax.random.normal(rating_key, ratings.shape, ratings.dtype)
            precision = precision_of_ratings(state.noise, data.user, data.item)
            noise = noise if precision is None else noise / jnp.sqrt(precision)
            drawn = mean_of_ratings(state, data) + noise * jnp.sqrt(
                state.rating_variance
            )
            drawn = members.rate(state, spec, drawn)
            drawn = jnp.where(padding, 0, drawn)
            ratings = jnp.where(plan.fresh_ratings, drawn, ratings)
            given = dataclasses.replace(data, rating=ratings)
            # Not the jitted sweep: its cache knows nothing of a patch.
            with patch(active, state) if patch else contextlib.nullcontext():
                state, _ = sweep.gibbs_sweep.__wrapped__(sweep_key, state, spec, given)
            return state, ratings

        def keep(i, carry):
            state, ratings, last, below, equal = carry
            end = plan.warmup + i * plan.thin
            begin = jnp.where(i == 0, 0, end - plan.thin)
            state, ratings = lax.fori_loop(begin, end, advance, (state, ratings))
            last = summarise(state, ratings, spec, data)
            below = {n: below[n] + (last[n] < summary[n]).astype(int) for n in last}
            equal = {n: equal[n] + (last[n] == summary[n]).astype(int) for n in last}
            return state, ratings, last, below, equal

        none = {n: jnp.zeros((), int) for n in summary}
        carry = (state, ratings, summary, none, none)
        _, _, last, below, equal = lax.fori_loop(0, plan.kept, keep, carry)
        # Ties are broken at random.
        uniform = jax.random.uniform(tie_key, (len(equal),))
        ranks = {}
        for k, n in enumerate(equal):
            ties = uniform[k] * (equal[n] + 1).astype(uniform.dtype)
            ranks[n] = below[n] + jnp.minimum(ties.astype(int), equal[n])
        return last, ranks

    return jax.vmap(one_chain)(jax.random.split(key, BATCH), *truths)


_run = jax.jit(_chains, static_argnames="patch")
_run_quickly = jax.jit(
    _chains,
    static_argnames="patch",
    compiler_options={"xla_backend_optimization_level": 1},
)
