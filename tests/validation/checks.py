"""The tests themselves: what each runs, and the p-value of every statistic.

- ``geweke``: Geweke's joint-distribution test in the exact form of Gandy and Scott
  (2021, "Unit testing for MCMC and other Monte Carlo methods"). Chains start at joint
  draws of state and ratings; each alternates fresh ratings given the state with a sweep
  given the ratings. A right sampler leaves the joint exactly as it is, after however
  few sweeps, and the chains are independent: no autocorrelation enters the p-values.
- ``own start``: the same from the library's own start, after many sweeps. A block that
  is left out leaves the joint as it is too; only this shows that the sampler also gets
  there.
- ``no data``: from the library's own start without any rating, posterior = prior.
- ``calibration``: simulation-based calibration (Talts et al. 2018): ranks of the truth
  among kept draws of a chain from the library's own start, thinned until draws are
  nearly independent, are uniform.
"""

import dataclasses
from functools import cache, lru_cache
from typing import NamedTuple

import jax
import numpy as np
from scipy import stats

from im3f_jax.gibbs.init import init_state
from tests.quick import quick_jit
from tests.validation import members, room, shards
from tests.validation.chains import BATCH, Plan, draw_truths, run_chains
from tests.validation.statistics import two_sample

__all__ = [
    "MUTANT",
    "SHORT",
    "TESTS",
    "Outcome",
    "Sizes",
    "run_test",
    "sizes_of",
    "tests_of",
]

TESTS = ("geweke", "own start", "no data", "calibration")


def tests_of(name):
    """Name the tests that a member must pass."""
    return TESTS[:1] if name == "CRF apart" else TESTS


class Sizes(NamedTuple):
    """Chains and sweeps of each test."""

    prior: int  # fresh prior draws
    chains: int  # of Geweke's test
    steps: int
    own_chains: int  # of those from the library's start
    own_steps: int
    data_sets: int  # of the calibration
    warmup: int
    thin: int
    kept: int = 15
    quick: bool = True  # compile quickly, run at half the speed


SHORT = Sizes(8_000, 4_000, 5, 500, 50, 500, 50, 10)
MUTANT = SHORT._replace(chains=2_000)
LONG = Sizes(30_000, 10_000, 5, 500, 150, 500, 150, 15, quick=False)
# Persons' means are felt twice in every rating, so that chains with fresh ratings take
# longer: from their own start, after 50, 150 and 450 sweeps, the least p-value of 87
# statistics was 7e-8, 8e-4 and 0.05 (unordered), and calibration 3.5e-6 after 150 and
# 0.004 after 450 (directed).
RECIPROCAL = LONG._replace(own_steps=450, warmup=450, thin=45)
# The franchise sits down one after another: a sweep of many chains waits for the last.
# Its chains mix slowly: of 150 sweeps and then every eighth, calibration gave 2.9e-9
# ("marginal": ranks of item factors at one end), of 450 and every fortieth 0.05.
FRANCHISE = Sizes(8_000, 4_000, 5, 500, 50, 500, 450, 40, quick=False)


def sizes_of(name):
    """Sizes of the long form."""
    if name in ("iM3F unordered", "iM3F directed"):
        return RECIPROCAL
    return FRANCHISE if name.startswith("CRF") else LONG


class Outcome(NamedTuple):
    """What a test found."""

    member: str
    test: str
    chances: dict  # statistic: p-value
    draws: int  # chains, or data sets
    sweeps: int  # of each
    ranks: dict = {}  # calibration only: statistic: histogram of ranks

    @property
    def least(self):
        """The least p-value and its statistic."""
        return min((p, name) for name, p in self.chances.items())


# Statistics of what exists without ratings: names without these words.
OF_RATINGS = (
    "ratings",
    "residual",
    "selected",
    "squared error",
    "likelihood",
    "log joint",
    "inner product",
    "topic,",
    "topics occupied",
    "topics, squares",
    "of the topics",
)


# What the ratings alone fix. Truth and chain share them, and two compiled programs may
# round them differently: their ranks tell nothing.
FIXED_BY_RATINGS = ("mean of ratings", "variance of ratings")


@lru_cache(maxsize=8)
def prior_statistics(name, draws):
    """Draw from the prior, for all tests of a member: dict of arrays, (draws,)."""
    seed = 50_000 + list(members.MEMBERS).index(name)
    parts = [
        jax.device_get(draw_truths.__wrapped__(name, seed, batch)[2])
        for batch in range(draws // BATCH)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


@cache
def start_of(name):
    """Start as a user's fit starts without a MAP fit, on ratings that are usual.

    Of five hundred data sets of the prior the one whose mean rating is the median.
    """
    spec, data = members.MEMBERS[name], members.data_of(name)
    ratings = np.asarray(draw_truths(name, 40_000, 0)[1])
    means = ratings[:, : members.NUM_RATINGS].mean(axis=1)
    usual = ratings[np.argsort(means)[BATCH // 2]]
    data = dataclasses.replace(data, rating=usual)
    return quick_jit(init_state.__wrapped__)(jax.random.key(1), spec, data)


def run_test(test, name, sizes, patch=None, active=0):
    """Run one test of one member, or of one of its mutants."""
    spec, data = members.MEMBERS[name], members.data_of(name)
    start = start_of(name)
    if patch is None and name == room.MEMBER:
        patch = room.patch
    if patch is None and name in shards.MEMBERS:
        patch = shards.patch
    if patch is None and name == shards.IN_LITTLE_ROOM:
        patch = shards.patch_in_little_room
    # One stream of keys for each member and test; those of the prior stand apart.
    seed = 100 * list(members.MEMBERS).index(name) + TESTS.index(test)
    keys = jax.random.key(seed)

    def run(data, plan, chains):
        """Run so many chains: statistics of their truths and last states, and ranks."""
        how = spec, data, start, plan, patch, active, sizes.quick
        parts = []
        for batch in range(chains // BATCH):
            truths = draw_truths(name, seed, batch)
            key = jax.random.fold_in(keys, batch)
            last, ranks = run_chains(key, truths, *how)
            parts.append(jax.device_get((truths[2], last, ranks)))
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    if test == "calibration":
        plan = Plan(False, False, sizes.warmup, sizes.kept, sizes.thin)
        truth, _, ranks = run(data, plan, sizes.data_sets)
        chances, histograms = {}, {}
        for statistic, rank in ranks.items():
            if np.ptp(truth[statistic]) == 0 or statistic in FIXED_BY_RATINGS:
                continue
            # A number of one label mixes only as fast as labels change places.
            if statistic.endswith("weights, first"):
                continue
            histograms[statistic] = np.bincount(rank, minlength=sizes.kept + 1)
            chances[statistic] = float(stats.chisquare(histograms[statistic]).pvalue)
        sweeps = sizes.warmup + (sizes.kept - 1) * sizes.thin
        return Outcome(name, test, chances, sizes.data_sets, sweeps, histograms)

    if test == "geweke":
        plan, chains = Plan(True, True, sizes.steps), sizes.chains
    else:
        plan = Plan(False, test == "own start", sizes.own_steps)
        chains = sizes.own_chains
    given = members.without_ratings(data) if test == "no data" else data
    last = run(given, plan, chains)[1]
    prior = prior_statistics(name, sizes.prior)
    chances = {n: two_sample(prior[n], last[n]) for n in last}
    if test == "no data":
        chances = {
            n: p for n, p in chances.items() if not any(w in n for w in OF_RATINGS)
        }
    chances = {n: p for n, p in chances.items() if p is not None}
    return Outcome(name, test, chances, chains, plan.warmup)
