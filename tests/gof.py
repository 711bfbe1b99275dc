"""Goodness of fit: draws against what they should be, at a stated rate of failure.

Every test fixes its key and passes with probability 1 - FAILURE if the draws are right
(numpyro's test/test_gof.py uses the same rate). A test of several numbers shares that
rate among them. A key is never changed to make a test pass.
"""

import numpy as np
from scipy import stats

__all__ = [
    "FAILURE",
    "assert_frequencies",
    "assert_ks",
    "assert_ks_2samp",
    "assert_mean",
]

FAILURE = 2e-5


def assert_ks(draws, cdf, *, where=None, grain=0.0, share=1):
    """Kolmogorov-Smirnov: draws have the distribution function `cdf`.

    `where` keeps the comparison to some of the draws, which only makes it milder;
    `grain` is the largest probability of one step of the draws' number format; `share`
    is the number of such comparisons in one test.
    """
    draws = np.sort(np.asarray(draws, np.float64).reshape(-1))
    assert np.all(np.isfinite(draws))
    number = len(draws)
    expected = np.asarray(cdf(draws))
    below, upto = np.arange(number) / number, np.arange(1, number + 1) / number
    distance = np.maximum(upto - expected, expected - below)
    if where is not None:
        distance = distance[where(draws)]
    worst = np.max(distance, initial=0.0) - grain
    chance = stats.kstwo.sf(worst, number)
    assert chance > FAILURE / share, (
        f"distance {worst:.4g} of {number} draws, chance {chance:.3g}"
    )


def assert_ks_2samp(first, second, *, share=1):
    """Two samples have one distribution."""
    chance = stats.ks_2samp(np.ravel(first), np.ravel(second), method="asymp").pvalue
    assert chance > FAILURE / share, f"chance {chance:.3g}"


def assert_mean(draws, mean):
    """Means over the first axis are `mean`; their errors are estimated from the draws.

    The rate of failure is shared among all the numbers of a draw.
    """
    draws = np.asarray(draws, np.float64)
    number = len(draws)
    error = np.std(draws, axis=0, ddof=1) / np.sqrt(number)
    score = np.abs(np.mean(draws, axis=0) - mean) / error
    limit = stats.norm.isf(0.5 * FAILURE / score.size)
    assert np.all(score < limit), f"{np.max(score):.1f} standard errors off"


def assert_frequencies(counts, probabilities):
    """Chi-squared test of counts; categories that expect less than 10 are pooled."""
    counts = np.asarray(counts, np.float64)
    expected = np.asarray(probabilities) * counts.sum()
    assert np.all(counts[expected == 0] == 0), "an impossible category was drawn"
    rare = expected < 10
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        if expected[-1] < 10:
            order = np.argmin(expected[:-1])
            counts[order] += counts[-1]
            expected[order] += expected[-1]
            counts, expected = counts[:-1], expected[:-1]
    if len(counts) == 1:  # nothing is random
        return
    statistic = np.sum((counts - expected) ** 2 / expected)
    chance = stats.chi2.sf(statistic, len(counts) - 1)
    assert chance > FAILURE, f"chi-squared {statistic:.1f}, chance {chance:.3g}"
