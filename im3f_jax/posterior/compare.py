"""Models side by side on the same held-out ratings."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.model.time_effects import reads_times
from im3f_jax.numerics.special import student_cdf
from im3f_jax.posterior.posterior import Clip, Posterior

__all__ = ["calibration_error", "compare", "cross_validate", "paired_test"]

BINS = 10  # of predicted probabilities, in the calibration
INTERVAL = 0.95
RESAMPLES = 1000  # of the users


class Scores(NamedTuple):
    """What a model's fits gave held-out ratings, one after another."""

    user: np.ndarray  # code of each rating's user, int, shape (n,)
    squared_errors: np.ndarray  # squared rating scale, shape (n,)
    log_scores: np.ndarray | None  # nats, shape (n,)
    gaps: np.ndarray | None  # of the calibration, by bin, shape (BINS,)
    num_probabilities: int  # that stand in the bins


def compare(
    posteriors: Mapping[str, Posterior],
    test: Ratings,
    *,
    clip: Clip = None,
    log_score: bool = True,
    seed: int = 0,
) -> pd.DataFrame:
    """Score models on the same ratings, and their differences from the first, paired.

    Differences are taken rating by rating, which removes what all models find hard. A
    paired t-test tells them from chance, as if ratings were independent; the interval
    does not suppose that of a user's ratings: it comes from resampled users. Neither
    says anything of the sampling error of the fits: two seeds of one model differ, too.

    Parameters
    ----------
    posteriors
        Fits by name, at least one; the first is the one that others are compared with.
    test
        Ratings that none of them was fitted to.
    clip
        As in `Posterior.predict`; it does not touch the log score.
    log_score
        Compute log score and calibration too (they need the kept draws).
    seed
        Of the resamples.

    Returns
    -------
    DataFrame
        A row a model, with "rmse" and "mae" (rating scale) and "log_score" (mean nats a
        rating); for each of them the "..._difference" from the first model (for
        "log_score" above 0, for the errors below 0, is better), its standard error
        "..._se", "..._p", the two-sided p-value of the paired t-test, and "..._low" and
        "..._high", the 95 % interval of the difference by the percentiles of 1,000
        bootstrap samples of the users. Standard error and p-value of the RMSE are those
        of the squared errors, by the delta method. The first model's differences are 0,
        their p-values NaN. On a discrete scale also "calibration_error", the mean
        distance of predicted probabilities of the levels from their frequencies.

    Raises
    ------
    InputError
        Without a model, or for log scores of different kinds (a density and a
        probability), which do not compare.
    """
    if not posteriors:
        raise InputError("There are no posteriors to compare.")
    found, kinds = {}, set()
    for name, posterior in posteriors.items():
        found[name], kind = _score(posterior, test, clip, log_score)
        kinds.add(kind)
    _check_kinds(kinds)
    return pd.DataFrame(_rows(found, seed), index=pd.Index(found, name="model"))


def cross_validate(
    models: Mapping[str, Any],
    splits: Iterable[tuple[Ratings, Ratings]],
    *,
    clip: Clip = None,
    log_score: bool = True,
    seed: int = 0,
    **fit: Any,
) -> pd.DataFrame:
    """Fit models to each split, and compare them on the ratings held out.

    Parameters
    ----------
    models
        What has a `fit` as `IM3F` has, by name; the first is the one that others are
        compared with.
    splits
        Pairs of training and test ratings of one table, as `k_fold` gives them, or
        leave-one-out splits of several seeds. They are taken one by one.
    clip, log_score
        As in `compare`.
    seed
        Of the fits and of the resamples.
    **fit
        Settings of `fit`, the same for all: num_warmup, num_samples and so on.

    Returns
    -------
    DataFrame
        As that of `compare`, indexed by "model" and "fold": a row for each split,
        counted from 0, and one for "all", of all ratings held out together. Its column
        "seconds" is the time of the fits, compilation included.

    Raises
    ------
    InputError
        Without a model or a split, and as `fit` and `compare` do.
    TypeError
        For a setting that `fit` does not have.
    """
    if not models:
        raise InputError("There are no models to compare.")
    folds, kinds = [], set()
    for train, test in splits:
        fold, seconds = {}, {}
        for name, model in models.items():
            posterior = model.fit(train, test, seed=seed, **fit)
            fold[name], kind = _score(posterior, test, clip, log_score)
            seconds[name] = sum(posterior.seconds.values())
            kinds.add(kind)
            _check_kinds(kinds)
        folds.append((fold, seconds))
    if not folds:
        raise InputError("There are no splits to fit to.")
    scores, seconds = zip(*folds, strict=True)
    whole = {name: _together([fold[name] for fold in scores]) for name in models}
    total = {name: sum(fold[name] for fold in seconds) for name in models}
    parts = {}
    for number, fold, spent in zip(
        [*range(len(folds)), "all"], [*scores, whole], [*seconds, total], strict=True
    ):
        frame = pd.DataFrame(_rows(fold, seed), index=pd.Index(fold, name="model"))
        frame["seconds"] = pd.Series(spent)
        parts[number] = frame
    table = pd.concat(parts, names=["fold"]).swaplevel()
    return table.loc[[(name, number) for name in models for number in parts]]


def calibration_error(proba: np.ndarray, hit: np.ndarray) -> float:
    """Give how far predicted probabilities of levels are from frequencies.

    Of all pairs of a rating and a level, sorted into ten bins by their probability: the
    mean over bins, weighted by their size, of |mean probability - frequency|.

    Parameters
    ----------
    proba
        Probabilities of the levels, shape (n, L).
    hit
        Whether the rating is of that level, bool, shape (n, L).
    """
    return float(np.abs(_gaps(proba, hit)).sum() / hit.size)


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


def _score(
    posterior: Posterior, test: Ratings, clip: Clip, log_score: bool
) -> tuple[Scores, str | None]:
    """Score one fit; and the kind of its log score, if it has one."""
    found = posterior.evaluate(test, clip=clip, log_score=log_score, pointwise=True)
    gaps, number = None, 0
    if "log_scores" in found and posterior.is_discrete:
        proba = posterior.predict_proba(
            test.user_ids,
            test.item_ids,
            times=test.timestamp if reads_times(posterior.spec) else None,
        )
        gaps = _gaps(proba, test.rating[:, None] == posterior.levels)
        number = proba.size
    scores = Scores(
        user=test.user,
        squared_errors=found["squared_errors"],
        log_scores=found.get("log_scores"),
        gaps=gaps,
        num_probabilities=number,
    )
    return scores, found.get("log_score_kind")


def _check_kinds(kinds: set) -> None:
    kinds = kinds - {None}
    if len(kinds) > 1:
        raise InputError(
            f"Their log scores are of different kinds ({', '.join(sorted(kinds))}), "
            "which do not compare: give log_score=False."
        )


def _together(parts: list[Scores]) -> Scores:
    """Put the scores of several splits one after another."""
    fields = dict(zip(Scores._fields, zip(*parts, strict=True), strict=True))
    for name in ("user", "squared_errors", "log_scores"):
        held = fields[name]
        fields[name] = None if held[0] is None else np.concatenate(held)
    known = [gaps for gaps in fields["gaps"] if gaps is not None]
    fields["gaps"] = np.sum(known, axis=0) if known else None
    fields["num_probabilities"] = sum(fields["num_probabilities"])
    return Scores(**fields)


def _rows(found: Mapping[str, Scores], seed: int) -> list[dict[str, float]]:
    """Score each model, and compare it with the first."""
    pointwise = {
        (name, score): values
        for name, scores in found.items()
        for score, values in _pointwise(scores).items()
    }
    first = next(iter(found))
    resampled = _resample_users(found[first].user, pointwise, seed)
    rows = []
    for name, scores in found.items():
        row = {}
        for score in ("rmse", "mae", "log_score"):
            if (name, score) not in pointwise:
                continue
            mine, root = pointwise[name, score], _root_of(score)
            row[score] = float(root(mine.mean()))
            if (first, score) not in pointwise:
                continue
            other = pointwise[first, score]
            gap = mine - other
            if score == "rmse":
                # Of the root of a mean: its derivative, half way between both.
                scale = row[score] + float(root(other.mean()))
                gap = gap / max(scale, np.finfo(float).tiny)
            row |= paired_test(score, gap)
            gap = root(resampled[name, score]) - root(resampled[first, score])
            tail = (1 - INTERVAL) / 2
            low, high = np.quantile(gap, [tail, 1 - tail])
            row |= {f"{score}_low": float(low), f"{score}_high": float(high)}
        if scores.gaps is not None:
            error = np.abs(scores.gaps).sum() / scores.num_probabilities
            row["calibration_error"] = float(error)
        rows.append(row)
    return rows


def _pointwise(scores: Scores) -> dict[str, np.ndarray]:
    """Give what is averaged over ratings; of "rmse" the root is taken then."""
    found = {"rmse": scores.squared_errors, "mae": np.sqrt(scores.squared_errors)}
    if scores.log_scores is not None:
        found["log_score"] = scores.log_scores
    return found


def _root_of(score: str) -> Callable[[Any], Any]:
    return np.sqrt if score == "rmse" else np.asarray


def _resample_users(
    user: np.ndarray, values: Mapping[Any, np.ndarray], seed: int
) -> dict[Any, np.ndarray]:
    """Average each of `values`, shape (n,), in samples of users: (RESAMPLES,) each."""
    _, code = np.unique(user, return_inverse=True)
    columns = [np.bincount(code, column) for column in (None, *values.values())]
    sums = np.stack(columns, axis=1)  # ratings of each user, and what they add up to
    num_users = len(sums)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(num_users, size=num_users)
        count, *totals = np.bincount(drawn, minlength=num_users) @ sums
        means.append(np.array(totals) / count)
    return dict(zip(values, np.transpose(means), strict=True))


def _gaps(proba: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """Sum probability less frequency in each bin, shape (BINS,)."""
    place = np.minimum((proba * BINS).astype(int), BINS - 1).ravel()
    return np.bincount(place, (proba - hit).ravel(), BINS)
