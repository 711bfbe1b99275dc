"""What the prior says about ratings, held against the ratings, before any fit."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax

from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.model.prior import check_floor, draw_prior, prior_rows
from im3f_jax.model.spec import ModelSpec
from im3f_jax.model.topic_prior import HDP
from im3f_jax.numerics.random import log_gamma
from im3f_jax.numerics.reductions import count_by_cell, sum_by_cell

__all__ = ["PriorCheck", "prior_check"]

SIDES = ("user", "item")
SURPRISE = 0.02  # a tail probability below this is called implausible
MOST_BINS = 21  # more levels than this are shown in equal bins, as continuous scales


@dataclass(frozen=True, eq=False, repr=False)
class PriorCheck:
    """Prior predictive statistics of ratings beside those of the data.

    Attributes
    ----------
    table
        One row for each statistic; columns "data" (NaN for topics, which the data do
        not show), "prior mean", "prior median", "prior 5%", "prior 95%" and "tail
        probability": two-sided, of a statistic as far out as that of the data.
        "share of x": ratings nearest to level x, the outermost open. Units are those
        of the rating scale, shares between 0 and 1, topics in numbers.
    warnings
        What is implausible, one sentence each.
    draws
        The statistics of every prior draw, one row each.
    """

    table: pd.DataFrame
    warnings: list[str]
    draws: pd.DataFrame

    def __repr__(self) -> str:
        shown = self.table.to_string(float_format=lambda x: f"{x:.3g}", na_rep="-")
        said = self.warnings or ["Nothing in the data is implausible under this prior."]
        lines = "\n".join(f"- {sentence}" for sentence in said)
        return f"Prior check, {len(self.draws)} draws\n{shown}\n{lines}"

    def plot(self, axes: Any = None) -> Any:
        """Plot shares of levels, spreads, and numbers of occupied topics.

        Needs matplotlib; no display. The data are black marks, the prior's 5% to 95%
        grey bars with a white line at the median.

        Parameters
        ----------
        axes
            Matplotlib axes to draw on, as many as `num_panels`, or None: a new figure.

        Returns
        -------
        ndarray of matplotlib axes
            Shape (num_panels,).

        Raises
        ------
        InputError
            For another number of axes.
        """
        topics = self._topics()
        if axes is None:
            import matplotlib.pyplot as plt

            size = (4.2 * self.num_panels, 3.4)
            _, axes = plt.subplots(1, self.num_panels, figsize=size, squeeze=False)
            axes[0, 0].figure.set_layout_engine("constrained")
        axes = np.atleast_1d(np.asarray(axes, object)).ravel()
        if len(axes) != self.num_panels:
            raise InputError(
                f"axes holds {len(axes)} axes, but the plot has {self.num_panels}."
            )
        names = list(self.table.index)
        shares = [n for n in names if n.startswith("share of ")]
        labels = [n.removeprefix("share of ") for n in shares]
        self._intervals(axes[0], shares, labels)
        axes[0].set(xlabel="rating", ylabel="share of ratings")
        axes[0].tick_params(axis="x", rotation=60 if len(labels) > 10 else 0)
        spreads = [n for n in names if n.startswith("standard deviation")]
        labels = ["ratings", "user means", "item means"]
        self._intervals(axes[1], spreads, labels)
        axes[1].set(ylabel="standard deviation (rating scale)", yscale="log")
        axes[0].legend(frameon=False)
        for ax, name in zip(axes[2:], topics, strict=True):
            most = int(self.draws[name].max())
            edges = np.arange(0.5, most + 1, max(1, most // 30))
            ax.hist(self.draws[name], bins=edges, color="0.7", edgecolor="0.3")
            ax.axvline(self.table.loc[name, "prior median"], color="black", ls="--")
            ax.set(xlabel=f"{name} (prior)", ylabel="draws")
        return axes

    @property
    def num_panels(self) -> int:
        """Panels of the plot: 2, and one for each side with several topics."""
        return 2 + len(self._topics())

    def _topics(self) -> list[str]:
        names = (f"occupied {side} topics" for side in SIDES)
        return [n for n in names if n in self.table.index and self.draws[n].max() > 1]

    def _intervals(self, ax, names, labels) -> None:
        rows, place = self.table.loc[names], np.arange(len(names))
        low, high = rows["prior 5%"], rows["prior 95%"]
        ax.bar(place, high - low, bottom=low, color="0.7", label="prior, 5% to 95%")
        median = rows["prior median"]
        ax.hlines(median, place - 0.4, place + 0.4, color="white", lw=2)
        ax.plot(place, rows["data"], "D", color="black", label="data")
        ax.set_xticks(place, labels)


def prior_check(
    spec: ModelSpec, ratings: Ratings, *, num_draws: int = 100, seed: int = 0
) -> PriorCheck:
    """Compare ratings with what a model expects of them before it sees them.

    The given pairs are rated anew from the prior, `num_draws` times. A prior that is
    vague is no fault; one that hardly allows for the data, or that puts most ratings
    far off the scale, is worth a second look. Defaults (None) are scaled by the
    ratings, so the check is of what was left to choose.

    Parameters
    ----------
    spec
        The model, with or without Nones.
    ratings
        Training ratings.
    num_draws
        Draws from the prior, at least 100 (tail probabilities are multiples of 2 %).
    seed
        Non-negative.

    Returns
    -------
    PriorCheck
        `.table`, `.warnings`, `.plot()`.

    Raises
    ------
    InputError
        For a spec without meaning, no ratings, ratings without the timestamps that
        the model reads, or too few draws.

    Examples
    --------
    >>> check = im3f.prior_check(im3f.IM3F(latent_dim=10), train)
    >>> print(check)
    """
    whole = isinstance(num_draws, int | np.integer) and not isinstance(num_draws, bool)
    if not whole or num_draws < 100:
        raise InputError(
            f"num_draws is {num_draws!r}, but must be a whole number of at least 100."
        )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed is {seed!r}, but must be a whole number of at least 0.")
    rows = prior_rows(spec, ratings)
    check_floor(rows.spec)
    labels, bounds, ends = _bins(ratings)
    user, item = jnp.asarray(rows.user), jnp.asarray(rows.item)
    sizes = {"num_users": rows.num_users, "num_items": rows.num_items}
    bounds = np.asarray(bounds, np.float32)
    ends = np.asarray(ends, np.float32)
    data = _of_data(
        jnp.asarray(ratings.rating, jnp.float32), user, item, bounds, ends, **sizes
    )
    draws = _of_draws(
        jax.random.split(jax.random.key(seed), int(num_draws)),
        rows.spec,
        user,
        item,
        bounds,
        ends,
        rows.times,
        **sizes,
    )
    data, draws = (_named(x, labels) for x in (data, draws))
    frame = pd.DataFrame(draws)
    table = pd.DataFrame(
        {
            "data": {n: float(data.get(n, np.nan)) for n in frame},
            "prior mean": frame.mean(),
            "prior median": frame.median(),
            "prior 5%": frame.quantile(0.05),
            "prior 95%": frame.quantile(0.95),
            "tail probability": {
                n: _tail(frame[n].to_numpy(), data[n]) if n in data else np.nan
                for n in frame
            },
        },
        index=list(frame),
    )
    table.index.name = "statistic"
    return PriorCheck(table, _warnings(table, rows.spec, ratings), frame)


def _bins(ratings: Ratings) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Labels of the bins, bounds between them, and both ends of the scale."""
    levels = ratings.levels
    if ratings.is_discrete and len(levels) <= MOST_BINS:
        half = ratings.step / 2
        ends = np.array([levels[0] - half, levels[-1] + half])
        return [f"{x:g}" for x in levels], (levels[1:] + levels[:-1]) / 2, ends
    edges = np.linspace(levels[0], levels[-1], 11)
    labels = [f"{a:.3g} to {b:.3g}" for a, b in zip(edges, edges[1:], strict=False)]
    return labels, edges[1:-1], edges[[0, -1]]


def _statistics(rating, user, item, bounds, ends, num_users, num_items) -> dict:
    """Compute the statistics of one set of ratings, shape (N,)."""
    number = rating.shape[0]
    one = jnp.ones((), jnp.int32)
    label = jnp.searchsorted(bounds, rating).astype(jnp.int32)
    valid, zero = jnp.ones(number, bool), jnp.zeros(number, jnp.int32)
    counts = count_by_cell(valid, zero, label, (1, len(bounds) + 1))[0]
    outside = (rating < ends[0]) | (rating > ends[1])
    found = {
        "shares": counts.astype(rating.dtype) / number,
        "mean": jnp.mean(rating),
        "spread": jnp.std(rating),
        "outside": jnp.mean(outside.astype(rating.dtype)),
    }
    centred = rating - jnp.mean(rating)
    for side, row, size in (("user", user, num_users), ("item", item, num_items)):
        total = sum_by_cell(centred, row, zero, (size, 1))[:, 0]
        count = count_by_cell(valid, row, zero, (size, 1))[:, 0]
        means = total / jnp.maximum(count, one).astype(rating.dtype)
        found[f"spread_{side}"] = jnp.std(means)
    return found


_of_data = partial(jax.jit, static_argnames=("num_users", "num_items"))(_statistics)


@partial(jax.jit, static_argnames=("num_users", "num_items"))
def _of_draws(
    keys, spec, user, item, bounds, ends, times, num_users, num_items
) -> dict:
    """Compute the statistics of prior draws, one after another."""

    def one(key):
        draw = draw_prior(
            key,
            spec,
            user,
            item,
            num_users,
            num_items,
            log_gamma=log_gamma,
            times=times,
        )
        found = _statistics(
            draw["ratings"], user, item, bounds, ends, num_users, num_items
        )
        for side in SIDES:
            if topic := getattr(spec, f"num_{side}_topics"):
                of_rating = draw[f"{side}_topic_of_rating"]
                found |= _occupied(side, of_rating, topic, draw["ratings"].dtype)
        return found

    return lax.map(one, keys)


def _occupied(side: str, topic: Array, number: int, dtype) -> dict:
    valid, zero = jnp.ones(topic.shape, bool), jnp.zeros_like(topic)
    counts = count_by_cell(valid, zero, topic, (1, number))[0]
    share = counts.astype(dtype) / topic.shape[0]
    entropy = -jnp.sum(jax.scipy.special.xlogy(share, share))
    return {
        f"occupied_{side}": jnp.sum(counts > 0, dtype=jnp.int32),
        f"effective_{side}": jnp.exp(entropy),
    }


def _named(found: dict, labels: list[str]) -> dict[str, np.ndarray]:
    """Give the statistics the names of the table, in its order."""
    shares = np.asarray(found["shares"], np.float64)
    named = {f"share of {x}": shares[..., k] for k, x in enumerate(labels)}
    names = {
        "outside": "share outside the scale",
        "mean": "mean",
        "spread": "standard deviation",
        "spread_user": "standard deviation of user means",
        "spread_item": "standard deviation of item means",
    }
    for side in SIDES:
        names[f"occupied_{side}"] = f"occupied {side} topics"
        names[f"effective_{side}"] = f"effective {side} topics"
    for key, name in names.items():
        if key in found:
            named[name] = np.asarray(found[key], np.float64)
    return named


def _tail(draws: np.ndarray, value: float) -> float:
    """Two-sided tail probability; the data count as one draw."""
    below, above = np.sum(draws <= value), np.sum(draws >= value)
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(draws)))


def _warnings(table: pd.DataFrame, spec: ModelSpec, ratings: Ratings) -> list[str]:
    said = []
    outside = "share outside the scale"
    for name, row in table.iterrows():
        if not row["tail probability"] < SURPRISE or name == outside:
            continue
        side = "above" if row["data"] > row["prior median"] else "below"
        said.append(
            f"The {name} of the data, {row['data']:.3g}, lies {side} what the prior "
            f"expects ({row['prior 5%']:.3g} to {row['prior 95%']:.3g}; tail "
            f"probability {row['tail probability']:.2g})."
        )
    if (share := table.loc[outside, "prior median"]) > 0.5:
        low, high = ratings.levels[[0, -1]]
        said.append(
            f"In half of the draws more than {share:.0%} of the ratings lie outside "
            f"the scale, {low:g} to {high:g}: the prior is very wide."
        )
    for side in SIDES:
        if not isinstance(prior := getattr(spec, f"{side}_topic_prior"), HDP):
            continue
        row = table.loc[f"occupied {side} topics"]
        if row["prior 95%"] >= 0.9 * prior.num_topics:
            said.append(
                f"The prior occupies up to {row['prior 95%']:.0f} {side} topics, close "
                f"to the truncation of {prior.num_topics}: raise max_{side}_topics or "
                "lower the concentrations."
            )
        effective = table.loc[f"effective {side} topics"]
        if effective["prior 95%"] < 1.1:
            said.append(
                f"The prior expects one {side} topic only (effective number below "
                f"{effective['prior 95%']:.2f} in 95% of the draws): raise the "
                "concentrations if you look for several."
            )
    return said
