"""Models side by side on the same held-out ratings."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.numerics.special import student_cdf
from im3f_jax.posterior.posterior import Clip, Posterior

__all__ = ["compare", "paired_test"]


def compare(
    posteriors: Mapping[str, Posterior],
    test: Ratings,
    *,
    clip: Clip = None,
    log_score: bool = True,
) -> pd.DataFrame:
    """Score models on the same ratings, and their differences from the first, paired.

    Differences are taken rating by rating, which removes what all models find hard; a
    paired t-test then tells them from chance. It takes the ratings as independent, and
    says nothing of the sampling error of the fits: two seeds of one model differ, too.

    Parameters
    ----------
    posteriors
        Fits by name, at least one; the first is the one that others are compared with.
    test
        Ratings that none of them was fitted to.
    clip
        As in `Posterior.predict`; it does not touch the log score.
    log_score
        Compute the log score too (it needs the kept draws).

    Returns
    -------
    DataFrame
        A row a model, with "rmse" and "mae" (rating scale) and "log_score" (mean nats a
        rating); for each of them the "..._difference" from the first model (for
        "log_score" above 0, for the errors below 0, is better), its standard error
        "..._se", and "..._p", the two-sided p-value of the paired t-test. The RMSE's
        are those of the squared errors, by the delta method. The first model's
        differences are 0, their p-values NaN.

    Raises
    ------
    InputError
        Without a model, or for log scores of different kinds (a density and a
        probability), which do not compare.
    """
    if not posteriors:
        raise InputError("There are no posteriors to compare.")
    found = {
        name: posterior.evaluate(test, clip=clip, log_score=log_score, pointwise=True)
        for name, posterior in posteriors.items()
    }
    kinds = {one.get("log_score_kind") for one in found.values()} - {None}
    if len(kinds) > 1:
        raise InputError(
            f"Their log scores are of different kinds ({', '.join(sorted(kinds))}), "
            "which do not compare: give log_score=False."
        )
    first = next(iter(found.values()))
    rows = []
    for one in found.values():
        row = {"rmse": one["rmse"], "mae": one["mae"]}
        # Of the root of a mean: its derivative, 1 / (2 rmse), half way between both.
        scale = max(one["rmse"] + first["rmse"], np.finfo(float).tiny)
        errors = one["squared_errors"] - first["squared_errors"]
        row |= paired_test("rmse", errors / scale)
        absolute = np.sqrt(one["squared_errors"]) - np.sqrt(first["squared_errors"])
        row |= paired_test("mae", absolute)
        if "log_scores" in one and "log_scores" in first:
            row["log_score"] = one["log_score"]
            row |= paired_test("log_score", one["log_scores"] - first["log_scores"])
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index(found, name="model"))


def paired_test(name: str, differences: np.ndarray) -> dict[str, float]:
    """Test paired differences, shape (n,), against none, by Student's t.

    Gives their mean as "{name}_difference", its standard error "{name}_se", and the
    two-sided p-value "{name}_p", NaN where all differences are equal.
    """
    count = len(differences)
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1) / math.sqrt(count)) if count > 1 else 0.0
    p = math.nan
    if error > 0:
        p = 2 * float(
            student_cdf(np.float32(count - 1), -abs(np.float32(mean / error)))
        )
    return {f"{name}_difference": mean, f"{name}_se": error, f"{name}_p": p}
