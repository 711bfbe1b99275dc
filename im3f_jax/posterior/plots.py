"""Pictures of a posterior, drawn by matplotlib.

Every function takes matplotlib axes to draw on, `ax`, and returns them; without, it
makes a figure by pyplot, as a notebook shows it. Nothing needs a display. What is told
apart by colour is told apart by dashes, marks or hatches too. Labels of topics switch
from draw to draw: what is shown by topic is of one draw, which the caption names; all
else does not depend on labels.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.inference.features import largest_weights, mixture_of_pairs
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.topic_prior import HDP
from im3f_jax.posterior.calibration import coverage, place_in_prediction, reliability
from im3f_jax.posterior.moods import (
    bias_spread,
    named_draw,
    sorted_weights,
    topic_side,
    topic_table,
)
from im3f_jax.posterior.posterior import Posterior
from im3f_jax.posterior.prior_check import PriorCheck
from im3f_jax.posterior.score import log_score, time_of_pairs

__all__ = [
    "SCALARS",
    "plot_calibration",
    "plot_comparison",
    "plot_contexts",
    "plot_coverage",
    "plot_moods",
    "plot_napoleon_dynamite",
    "plot_num_topics",
    "plot_prediction",
    "plot_prior_check",
    "plot_scaling",
    "plot_throughput",
    "plot_topic_grid",
    "plot_topics",
    "plot_trace",
]

Titles = Mapping[Any, str] | pd.Series | pd.DataFrame | None

# What `plot_trace` shows where it varies, and in which unit.
SCALARS = {
    "test_rmse": "test RMSE (rating scale)",
    "log_joint": "log joint (nats)",
    "rating_variance": "rating variance (squared scale)",
    "effective_user_topics": "effective user topics",
    "effective_item_topics": "effective item topics",
}
DASHES = ("-", "--", ":", "-.")
MARKS = "os^vDP"
MODEL, DATA, PALE = "#1f5f99", "black", "0.75"  # of a model, of data, of what is less
LONGEST = 36  # letters of a title
LEAST = 0.001  # weight of a topic that is shown
CALLED = {"user": "moods", "item": "contexts"}


def plot_trace(
    posterior: Posterior, scalars: Sequence[str] | str | None = None, *, ax: Any = None
) -> Any:
    """Plot label-free scalars by sweep, a line a chain; the warm-up is shaded.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    scalars
        Names in `posterior.trace`, a panel each; or one name. By default those of
        `SCALARS` that vary. Of "test_rmse" the line is that of the mean over kept draws
        so far, and pale lines are the RMSE of each draw alone.
    ax
        Matplotlib axes, as many as scalars.

    Returns
    -------
    matplotlib axes, or for several scalars an ndarray of them

    Raises
    ------
    InputError
        For a name that is not in the trace, or another number of axes.
    """
    if scalars is None:
        scalars = [name for name in SCALARS if varies(posterior.trace.get(name))]
    names = [scalars] if isinstance(scalars, str) else list(scalars)
    for name in names:
        if name not in posterior.trace:
            raise InputError(
                f"The trace has no {name!r}; it has {', '.join(posterior.trace)}."
            )
    if not names:
        raise InputError("Nothing in the trace varies: name the scalars to show.")
    axes = _many(ax, len(names))
    for one, name in zip(axes, names, strict=True):
        _trace(posterior, name, one)
    return axes[0] if isinstance(scalars, str) else axes


def varies(values: np.ndarray | None) -> bool:
    """Tell whether a trace has different finite values."""
    found = () if values is None else values[np.isfinite(values)]
    return len(found) > 0 and np.ptp(found) > 0


def _trace(posterior: Posterior, name: str, ax) -> None:
    values = posterior.trace[name]
    sweep = np.arange(values.shape[1])
    if posterior.num_warmup:
        end = posterior.num_warmup - 0.5
        ax.axvspan(-0.5, end, color="0.93", lw=0, zorder=0)
    caption = "each sweep" + (", shaded: warm-up" if posterior.num_warmup else "")
    if name == "test_rmse":
        caption = "mean over kept draws so far; pale: each draw alone"
        for draw in posterior.trace["test_rmse_draw"]:
            ax.plot(sweep, draw, color=PALE, lw=0.8, zorder=1)
    for chain, line in enumerate(values):
        style = {"ls": DASHES[chain % 4], "color": MODEL if chain % 8 < 4 else DATA}
        ax.plot(sweep, line, lw=1.3, label=f"chain {chain}", **style)
    label = SCALARS.get(name, name.replace("_", " "))
    ax.set(xlabel="sweep", ylabel=label, xlim=(-0.5, len(sweep) - 0.5))
    if len(values) > 1:
        ax.legend(frameon=False, fontsize="small")
    title = label.split(" (")[0]
    _entitle(ax, title[0].upper() + title[1:], caption)


def plot_num_topics(posterior: Posterior, *, ax: Any = None) -> Any:
    """Plot the posterior of the numbers of topics in use, against the truncation.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For a model without topics.
    """
    spec = posterior.spec
    sides = ["user"] if is_reciprocal(spec) else ["user", "item"]
    sides = [side for side in sides if getattr(spec, f"num_{side}_topics")]
    if not sides:
        raise InputError("This model has no topics.")
    ax = _one(ax)
    numbers = {s: getattr(posterior, f"num_{s}_topics").ravel() for s in sides}
    most = max(int(values.max(initial=1)) for values in numbers.values())
    looks = (
        {"color": MODEL, "edgecolor": DATA},
        {"color": "white", "edgecolor": DATA, "hatch": "////"},
    )
    width = 0.8 / len(sides)
    for place, (side, values) in enumerate(numbers.items()):
        name = "topics" if is_reciprocal(spec) else f"{side} topics ({CALLED[side]})"
        share = np.bincount(values, minlength=most + 1) / max(len(values), 1)
        middle = np.arange(most + 1) + (place - (len(sides) - 1) / 2) * width
        ax.bar(middle, share, width, label=name, **looks[place])
    limits = {
        side: getattr(spec, f"{side}_topic_prior").num_topics
        for side in sides
        if isinstance(getattr(spec, f"{side}_topic_prior"), HDP)
    }
    last = 1.6 * most + 2
    for limit, dashes in zip(sorted(set(limits.values())), ("--", ":"), strict=False):
        whose = " and ".join(s for s, number in limits.items() if number == limit)
        text = f"truncation {limit}" + (f" ({whose})" if len(sides) > 1 else "")
        if limit <= last:
            ax.axvline(limit, color=DATA, ls=dashes, label=text)
        else:
            ax.plot([], [], " ", label=f"{text}: off to the right")
    ax.set_xlim(0.4, max([most, *(n for n in limits.values() if n <= last)]) + 0.6)
    ax.set(xlabel="topics with at least one rating", ylabel="share of kept draws")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_ylim(0, 1.35 * ax.dataLim.y1)
    ax.legend(frameon=False, fontsize="small")
    what = "" if limits else "; the model has no truncation"
    _entitle(ax, "How many topics", f"{values.size} kept draws of all chains{what}")
    return ax


def plot_topics(
    posterior: Posterior,
    side: str = "user",
    *,
    draw: tuple[int, int] | None = None,
    num_topics: int = 12,
    ax: Any = None,
) -> Any:
    """Plot size and biases of one draw's largest topics.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    side, draw
        As in `topic_table`: by default the moods of `Posterior.representative_draw`.
    num_topics
        Show at most so many.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        Without topics on this side, or without kept draws.
    """
    whose = named_draw(posterior, draw)
    table = topic_table(posterior, side, draw=whose)
    table = table[table["weight"] >= LEAST][: _whole("num_topics", num_topics)]
    ax = _one(ax, (6.4, 1.9 + 0.28 * len(table)))
    place = np.arange(len(table))
    ax.axvline(0, color=PALE, lw=1, zorder=0)
    ax.hlines(place, table["low"], table["high"], color=MODEL, lw=2)
    size = 20 + 280 * table["weight"]
    ax.scatter(table["mean"], place, size, color=MODEL, edgecolor=DATA, zorder=3)
    ax.set_yticks(place, [f"{weight:.1%}" for weight in table["weight"]])
    ax.set_ylim(len(table) - 0.4, -0.6)
    others = "items" if side == "user" else "users"
    ax.set(xlabel=f"bias of {others} ({unit(posterior)})", ylabel="weight")
    _entitle(
        ax,
        f"{CALLED[side].capitalize()} ({side} topics) of one draw",
        f"{_of_draw(whose, draw is None)}. Topics of at least {LEAST:.1%}; marks: mean "
        f"over {others}, lines: 90 % of the {others}",
    )
    return ax


def plot_moods(posterior: Posterior, user: Any, *, ax: Any = None) -> Any:
    """Plot a user's topic weights in falling order, over the draws.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    user
        The caller's own id.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For an unknown id, without topics on this side, or without kept draws.
    """
    return _weights(posterior, "user", user, None, ax)


def plot_contexts(
    posterior: Posterior, item: Any, *, titles: Titles = None, ax: Any = None
) -> Any:
    """Plot an item's topic weights in falling order, over the draws.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    item
        The caller's own id.
    titles
        As in `plot_napoleon_dynamite`.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        As `plot_moods`.
    """
    return _weights(posterior, "item", item, titles, ax)


def _weights(posterior: Posterior, side: str, label, titles: Titles, ax) -> Any:
    weights = sorted_weights(posterior, side, label)
    weights = weights.reshape(-1, weights.shape[-1])
    low, middle, high = np.quantile(weights, [0.05, 0.5, 0.95], axis=0)
    shown = max(2, int(np.sum(high >= 0.01)))
    low, middle, high = (x[:shown] for x in (low, middle, high))
    ax = _one(ax)
    place = np.arange(1, len(low) + 1)
    ax.bar(place, weights.mean(axis=0)[:shown], 0.7, color=PALE, label="mean")
    ax.vlines(place, low, high, color=MODEL, lw=2, label="90 % of the draws")
    ax.plot(place, middle, "o", color=MODEL, mec=DATA, label="median")
    name = f"user {label}" if side == "user" else _name(label, titles)
    what = CALLED[topic_side(posterior, side)]
    ax.set(xlabel=f"{what} of each draw, the largest first", ylabel="weight")
    ax.set_ylim(0, 1.02)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=False, fontsize="small")
    _entitle(
        ax,
        f"{what.capitalize()} of {name}",
        f"{len(weights)} kept draws; labels switch between draws, so the weights are "
        "sorted in each",
    )
    return ax


def plot_napoleon_dynamite(
    posterior: Posterior,
    titles: Titles = None,
    *,
    train: Ratings | None = None,
    min_ratings: int = 20,
    num_items: int = 15,
    rank_by: str = "mean",
    ax: Any = None,
) -> Any:
    """Plot the items that depend most on the mood (`bias_spread`).

    Named after the film that was said to be the hardest to predict in the Netflix prize
    (Thompson, New York Times Magazine, 21 November 2008).

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    titles
        Of items, by id: a mapping, a Series, or what `load_titles` gives. Items that
        are not in it are named by their ids.
    train
        The training ratings; with them only items of at least `min_ratings` are shown,
        and their numbers of ratings too. An item of few ratings keeps the spread that
        the prior expects.
    min_ratings
        Least number of training ratings of an item, where `train` is given.
    num_items
        Show so many.
    rank_by
        "mean", or "low": the 5 % quantile, which asks for certainty.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        Without user topics, without kept draws, or where no item has enough ratings.
    """
    table = napoleon_table(
        posterior, train=train, min_ratings=min_ratings, rank_by=rank_by
    )
    usual = table["mean"].median()
    table = table[: _whole("num_items", num_items)]
    ax = _one(ax, (7.6, 1.4 + 0.28 * len(table)))
    place = np.arange(len(table))
    ax.axvline(usual, color=DATA, ls="--", lw=1)
    ax.hlines(place, table["low"], table["high"], color=MODEL, lw=2)
    ax.plot(table["mean"], place, "o", color=MODEL, mec=DATA)
    names = [_name(item, titles) for item in table.index]
    if train is not None:
        names = [f"{a} [{n:,}]" for a, n in zip(names, table["ratings"], strict=True)]
    ax.set_yticks(place, names, parse_math=False)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    ax.set_xlabel(f"sd of the bias over moods\n({unit(posterior)})")
    whose = "items"
    if train is not None:
        whose = f"items of {min_ratings} ratings or more [their number]"
    _entitle(
        ax,
        "Loved or hated, by mood",
        "Beyond what the mood does to all items. Marks: mean, lines: 90 % of the "
        f"{_draws(posterior)} kept draws, dashed: median of all {whose}",
        letters=72,
    )
    return ax


def napoleon_table(
    posterior: Posterior,
    *,
    train: Ratings | None = None,
    min_ratings: int = 20,
    rank_by: str = "mean",
) -> pd.DataFrame:
    """Give what `plot_napoleon_dynamite` shows: `bias_spread` of items, ranked."""
    if rank_by not in ("mean", "low"):
        raise InputError(f"rank_by is {rank_by!r}, but must be 'mean' or 'low'.")
    table = bias_spread(posterior)
    if train is not None:
        codes = posterior.items.lookup(train.items.ids, "mark")
        counts = np.bincount(train.item, minlength=len(train.items))
        every = np.bincount(
            codes[codes >= 0], counts[codes >= 0], len(posterior.items)
        ).astype(int)
        table["ratings"] = every[posterior.items.lookup(table.index)]
        table = table[table["ratings"] >= min_ratings]
        if table.empty:
            raise InputError(f"No item has {min_ratings} ratings: lower min_ratings.")
    return table.sort_values(rank_by, ascending=False, kind="stable")


def plot_prediction(
    posterior: Posterior,
    user: Any,
    item: Any,
    *,
    train: Ratings | None = None,
    rating: float | None = None,
    time: Any = None,
    titles: Titles = None,
    draw: tuple[int, int] | None = None,
    ax: Any = None,
) -> Any:
    """Plot what one rating may be, beside what others gave to the item.

    The predictive distribution is the mean over kept draws; of one draw, the parts of
    the mixture are shown: a circle for each pair of mood and context, at the rating
    that they lead to, as high as their weight.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    user, item
        The caller's own ids.
    train
        Ratings, of which those of the item by other users are shown.
    rating
        The rating itself, where it is known.
    time
        Of the rating, for a model that depends on time.
    titles
        As in `plot_napoleon_dynamite`.
    draw
        Chain and kept draw of the mixture; by default
        `Posterior.representative_draw`.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For an unknown id, or without kept draws.
    """
    whose = named_draw(posterior, draw)
    times = None if time is None else [time]
    ax = _one(ax)
    others = None
    if train is not None:
        of_item = (train.item_ids == item) & (train.user_ids != user)
        others = train.rating[np.asarray(of_item, bool)]
    if posterior.is_discrete:
        proba = posterior.predict_proba([user], [item], times=times, per_draw=True)
        proba = proba.reshape(-1, len(posterior.levels))
        levels = posterior.levels
        width = 0.8 * np.diff(levels).min(initial=1.0)
        ax.bar(levels, proba.mean(axis=0), width, color=PALE, label="predicted")
        low, high = np.quantile(proba, [0.05, 0.95], axis=0)
        ax.vlines(levels, low, high, color=MODEL, lw=2, label="90 % of the draws")
        ax.set_ylabel("probability")
        if others is not None and len(others):
            share = [np.mean(others == level) for level in levels]
            text = f"{len(others):,} others gave"
            ax.plot(levels, share, "D", color=DATA, label=text)
        if len(levels) <= 21:
            ax.set_xticks(levels, [f"{level:g}" for level in levels])
    else:
        grid, density = _density(posterior, user, item, times)
        ax.plot(grid, density, color=MODEL, label="predicted density")
        ax.set_ylabel("density")
        if others is not None and len(others):
            text = f"{len(others):,} others gave"
            ax.hist(others, 20, density=True, color=PALE, label=text, zorder=0)
    value, weight = _parts(posterior, user, item, times, whose)
    if len(value) > 1:
        text = "moods x contexts of one draw: weight"
        ax.scatter(value, weight, 40, "none", edgecolor=DATA, label=text, zorder=4)
    if rating is not None:
        ax.axvline(rating, color=DATA, ls="--", label=f"the rating: {rating:g}")
    ax.set_xlabel("rating")
    top = ax.get_ylim()[1]
    ax.set_ylim(0, 1.4 * top)
    ax.set_yticks([tick for tick in ax.get_yticks() if tick <= top])
    ax.legend(
        fontsize="small", ncols=2, loc="upper left", framealpha=1, edgecolor="none"
    )
    caption = f"mean over {_draws(posterior)} kept draws"
    if len(value) > 1:
        caption += f"; of one draw the circles. {_of_draw(whose, draw is None)}"
    _entitle(ax, f"User {user}: {_name(item, titles)}", caption)
    return ax


def _density(posterior: Posterior, user, item, times):
    """Predictive density on a grid of ratings."""
    middle = posterior.predict([user], [item], times=times)[0]
    spread = 5 * np.sqrt(posterior.rating_variance.max())
    grid = np.linspace(middle - spread, middle + spread, 200)
    rows, columns = _rows(posterior, user, item, times, len(grid))
    found = log_score(posterior.draws, posterior.spec, *rows, grid, None, columns)
    return grid, np.exp(found.log_score)


def _rows(posterior: Posterior, user, item, times, number: int = 1):
    """Rows and times of one pair, repeated."""
    user, item, _ = posterior._pairs([user], [item], "raise")
    user = np.repeat(posterior._rows(user, posterior.user_row), number)
    item = np.repeat(posterior._rows(item, posterior.item_row), number)
    if times is not None:
        times = np.repeat(posterior._times(times, np.full(1, True)), number)
    return (user, item), posterior._time_columns(times, user)


def _parts(posterior: Posterior, user, item, times, draw):
    """Give the mixture of one pair in a draw: ratings that its parts expect, weights.

    Of the topics of largest weight, those pairs above 1 %.
    """
    (user, item), columns = _rows(posterior, user, item, times)
    draws, spec = posterior.draws, posterior.spec
    features = draws.user_features[draw], draws.item_features[draw]
    bias = np.full(1, draws.global_bias[draw], np.float32)
    part = time_of_pairs(draws, draw, user, item, columns)
    if part is not None:
        bias = bias + part.astype(np.float32)
    mean, weight = mixture_of_pairs(
        *features, largest_weights(*features, spec), spec, bias, user, item
    )
    if isinstance(spec.likelihood, Ordinal):
        cut_points = draws.cut_points[draw].astype(np.float32)
        mean = spec.likelihood.expected_rating(mean, cut_points)
    mean, weight = np.broadcast_arrays(mean, weight)
    shown = weight > 0.01
    return mean[shown], weight[shown]


def plot_calibration(posterior: Posterior, test: Ratings, *, ax: Any = None) -> Any:
    """Plot predicted probabilities of the scale's levels against how often they came.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    test
        Held-out ratings.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        As `Posterior.predict_proba`: without kept draws, or on a continuous scale (see
        `plot_coverage`).
    """
    table = reliability(posterior, test)
    ax = _one(ax, (4.8, 4.4))
    ax.plot([0, 1], [0, 1], ls="--", color=DATA, lw=1, label="as predicted")
    place, observed, pairs = table["predicted"], table["observed"], table["pairs"]
    # Wilson's interval of a share, at 2 standard errors.
    middle = (observed * pairs + 2) / (pairs + 4)
    half = 2 * np.sqrt(observed * (1 - observed) * pairs + 1) / (pairs + 4)
    ax.vlines(place, middle - half, middle + half, color=MODEL, lw=2)
    ax.plot(place, observed, "o-", color=MODEL, mec=DATA, label="held-out ratings")
    ax.set(xlabel="predicted probability of a level", ylabel="how often it came")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    _entitle(
        ax,
        "Calibration",
        f"{len(test):,} held-out ratings x {len(posterior.levels)} levels, ten bins; "
        "lines: 95 % intervals, as if pairs were independent",
    )
    return ax


def plot_coverage(posterior: Posterior, test: Ratings, *, ax: Any = None) -> Any:
    """Plot how many held-out ratings lie in central predictive intervals.

    Parameters
    ----------
    posterior
        What `fit` or `load` gave.
    test
        Held-out ratings.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        Without ratings or without kept draws.
    """
    nominal = np.linspace(0, 1, 41)
    found = coverage(*place_in_prediction(posterior, test), nominal)
    ax = _one(ax)
    error = 200 * np.sqrt(nominal * (1 - nominal) / len(test))
    ax.fill_between(nominal, -error, error, color="0.88", lw=0, label="by chance")
    ax.axhline(0, ls="--", color=DATA, lw=1, label="as claimed")
    ax.plot(nominal, 100 * (found - nominal), color=MODEL, label="held-out ratings")
    ax.set_xlabel("probability that the interval claims")
    ax.set_ylabel("share inside, less claimed\n(percentage points)")
    most = max(5.0, 1.1 * np.abs(ax.get_ylim()).max())
    ax.set(xlim=(0, 1), ylim=(-most, most))
    ax.legend(frameon=False, fontsize="small")
    how = "levels cut by the interval count in part; " if posterior.is_discrete else ""
    _entitle(
        ax,
        "Coverage of central intervals",
        f"{len(test):,} held-out ratings; {how}band: 2 standard errors",
    )
    return ax


def plot_comparison(table: pd.DataFrame, score: str = "rmse", *, ax: Any = None) -> Any:
    """Plot the differences of models from the first, as `compare` gives them.

    Parameters
    ----------
    table
        What `compare` gives: a row a model.
    score
        "rmse", "mae" or "log_score".
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For a table without this score, or of one model.
    """
    if f"{score}_low" not in table or len(table) < 2:
        raise InputError(
            f"The table has no differences of {score!r} between models: give what "
            "compare gives for two models and more."
        )
    ax = _one(ax, (6.4, 1.6 + 0.35 * len(table)))
    place = np.arange(len(table))
    ax.axvline(0, color=DATA, ls="--", lw=1)
    low, high = table[f"{score}_low"], table[f"{score}_high"]
    ax.hlines(place, low, high, color=MODEL, lw=2)
    ax.plot(table[f"{score}_difference"], place, "o", color=MODEL, mec=DATA)
    names = [f"{name}: {value:.4f}" for name, value in table[score].items()]
    ax.set_yticks(place, names, parse_math=False)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.locator_params(axis="x", nbins=5)
    what = "log score (nats a rating)" if score == "log_score" else score.upper()
    better = "right" if score == "log_score" else "left"
    ax.set_xlabel(f"difference of {what} from {table.index[0]}")
    _entitle(
        ax,
        f"Models on the same held-out ratings: {better} is better",
        "lines: 95 % intervals from resampled users",
    )
    return ax


def plot_prior_check(check: PriorCheck, *, ax: Any = None) -> Any:
    """Plot a prior check, as `PriorCheck.plot` does.

    Parameters
    ----------
    check
        What `prior_check` gave.
    ax
        Matplotlib axes, as many as it has panels.

    Returns
    -------
    ndarray of matplotlib axes
    """
    return check.plot(ax)


def plot_topic_grid(
    table: pd.DataFrame,
    side: str = "user",
    *,
    x: str = "table_concentration",
    lines: str = "dish_concentration",
    title: str | None = None,
    ax: Any = None,
) -> Any:
    """Plot the topics that fits found over a grid of concentrations (a figure in Saluja
    et al. 2013).

    Parameters
    ----------
    table
        A row a fit, with "num_user_topics" and "num_item_topics" (means over draws).
    side
        "user" or "item".
    x
        Column of the horizontal axis, on a log scale.
    lines
        Column of which each value makes a line.
    title
        Of the axes, where not the usual one.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For a missing column.
    """  # noqa: D205
    count = f"num_{side}_topics"
    _columns(table, [x, lines, count])
    ax = _one(ax)
    for number, (name, rows) in enumerate(table.groupby(lines, sort=False)):
        rows = rows.sort_values(x)
        if not isinstance(name, str):
            name = f"{lines.replace('_', ' ')} {name:g}"
        ax.plot(rows[x], rows[count], **_look(number), label=name)
    ax.set(xscale="log", yscale="log")
    ax.set(xlabel=x.replace("_", " "), ylabel=f"{side} topics")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.legend(frameon=False, fontsize="small")
    title = title or f"{side.capitalize()} topics in use"
    _entitle(ax, title, f"{side} topics with a rating; a mark a fit")
    return ax


def plot_throughput(
    table: pd.DataFrame, *, title: str = "Time of a sweep", ax: Any = None
) -> Any:
    """Plot seconds a sweep against ratings, a line a device, on log scales.

    Parameters
    ----------
    table
        A row a measurement, with "device", "num_ratings" and "seconds" (a sweep).
    title
        Of the axes.
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For a missing column.
    """
    _columns(table, ["device", "num_ratings", "seconds"])
    ax = _one(ax)
    for number, (device, rows) in enumerate(table.groupby("device", sort=False)):
        rows = rows.sort_values("num_ratings")
        ax.plot(rows["num_ratings"], rows["seconds"], **_look(number), label=device)
    ax.set(xscale="log", yscale="log", xlabel="ratings", ylabel="seconds a sweep")
    ax.grid(color="0.9")
    ax.legend(frameon=False)
    _entitle(ax, title, "medians, without compilation")
    return ax


def plot_scaling(table: pd.DataFrame, *, ax: Any = None) -> Any:
    """Plot how many ratings a second several devices sweep.

    Parameters
    ----------
    table
        A row a measurement, with "kind" ("strong": the same ratings on more devices,
        "weak": as many more ratings as devices), "devices", "num_ratings" and
        "seconds_a_sweep".
    ax
        Matplotlib axes.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InputError
        For a missing column.
    """
    _columns(table, ["kind", "devices", "num_ratings", "seconds_a_sweep"])
    ax = _one(ax)
    rate = table["num_ratings"] / table["seconds_a_sweep"] / 1e6
    devices = np.unique(table["devices"])
    for number, (kind, rows) in enumerate(rate.groupby(table["kind"], sort=False)):
        found = table["devices"][rows.index]
        ax.plot(found, rows, **_look(number), label=kind)
        if number == 0:
            ideal = rows.iloc[found.argmin()] * devices / devices[0]
            ax.plot(devices, ideal, ":", color=DATA, label="in proportion")
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(devices, [f"{n:g}" for n in devices], minor=False)
    ax.xaxis.minorticks_off()
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="devices", ylabel="million ratings a second")
    ax.grid(color="0.9")
    ax.legend(frameon=False)
    said = "strong: the same ratings on all; weak: ratings in proportion to devices"
    _entitle(ax, "Sweeps on several devices", said)
    return ax


# --- what they share --------------------------------------------------------------


def _pyplot():
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise InputError(
            "Plots need matplotlib: pip install 'im3f-jax[plots]'."
        ) from None
    return plt


def _one(ax, size=(6.4, 4.0)):
    """Axes to draw on: those given, or of a new figure of `size`, inches.

    An empty figure in their place gets this size, and axes.
    """
    if ax is None:
        ax = _pyplot().figure(layout="constrained")
    if hasattr(ax, "add_subplot"):
        ax.set_size_inches(size)
        ax = ax.add_subplot()
    return ax


def _many(ax, number: int) -> np.ndarray:
    """Axes for panels, shape (number,); `ax` as in `_one`."""
    if ax is None:
        ax = _pyplot().figure(layout="constrained")
    if hasattr(ax, "add_subplot"):
        wide, high = min(number, 2), -(-number // 2)
        ax.set_size_inches(5.2 * wide, 3.2 * high)
        ax = [ax.add_subplot(high, wide, n + 1) for n in range(number)]
    axes = np.atleast_1d(np.asarray(ax, object)).ravel()
    if len(axes) != number:
        raise InputError(f"ax holds {len(axes)} axes, but the plot has {number}.")
    return axes


def _entitle(ax, title: str, caption: str, letters: int | None = None) -> None:
    """Put a title on the left and a smaller caption below it, in lines that fit.

    `letters` a line, by default as many as the axes are wide.
    """
    inches = ax.get_position().width * ax.figure.get_size_inches()[0]
    lines = textwrap.wrap(caption, letters or max(30, int(14 * inches)))
    ax.annotate(
        "\n".join(lines),
        (0, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8,
        color="0.25",
        va="bottom",
        gid="caption",
        parse_math=False,
    )
    pad = 6 + 10.5 * len(lines)
    ax.set_title(
        title, loc="left", pad=pad, fontsize=10.5, weight="bold", parse_math=False
    )


def _look(number: int) -> dict:
    """Give how the line of a number looks, grey or not."""
    return {
        "color": (MODEL, DATA, "0.5")[number % 3],
        "ls": DASHES[number % 4],
        "marker": MARKS[number % len(MARKS)],
        "mfc": "white" if number % 2 else None,
    }


def title_of(item, titles: Titles) -> str | None:
    """Find an item's title, where it has one."""
    if isinstance(titles, pd.DataFrame):
        if "title" not in titles:
            raise InputError("titles has no column 'title'.")
        titles = titles["title"]
    title = None if titles is None else titles.get(item)
    return title if isinstance(title, str) and title.strip() else None


def _name(item, titles: Titles) -> str:
    """Give an item's title, shortened, or its id."""
    title = title_of(item, titles)
    if title is None:
        return f"item {item}"
    return textwrap.shorten(title, LONGEST, placeholder=" …")


def unit(posterior: Posterior) -> str:
    """Name the scale that biases are on."""
    ordinal = isinstance(posterior.spec.likelihood, Ordinal)
    return "latent scale, noise sd 1" if ordinal else "rating scale"


def _draws(posterior: Posterior) -> int:
    return posterior.draws.global_bias.size


def _of_draw(draw: tuple[int, int], chosen: bool) -> str:
    why = ", whose predictions are nearest the mean" if chosen else ""
    return f"Chain {draw[0]}, kept draw {draw[1]}{why}"


def _columns(table: pd.DataFrame, names: list[str]) -> None:
    missing = [name for name in names if name not in table]
    if missing:
        raise InputError(f"The table has no column {missing[0]!r}.")


def _whole(name: str, value) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 1:
        raise InputError(f"{name} is {value!r}, but must be a whole number above 0.")
    return value
