"""The parts of a prediction, and the topics that give them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from im3f_jax.errors import InputError
from im3f_jax.inference.features import parts_of_product
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.plain import plain
from im3f_jax.model.time_effects import reads_times
from im3f_jax.posterior.score import time_of_pairs

if TYPE_CHECKING:
    from im3f_jax.posterior.posterior import Posterior

__all__ = ["Explanation", "explain", "nearest_draw"]

PAIRS = 4096  # by which draws are compared
_SHOWN = 3  # topics a side in the repr


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The parts of one prediction.

    Attributes
    ----------
    user, item
        The ids asked for.
    prediction
        What `predict` says, rating scale.
    scale
        What the parts are in: "rating", or "latent" under the ordinal likelihood, where
        their sum is the mean of the latent rating.
    parts
        `mean` of each part over the kept draws, and its `std` over them. The means sum
        to the prediction, or to the latent mean. Labels of topics switch from draw to
        draw; these sums over topics do not.
    draw
        (chain, kept draw), from 0, that the lists below are of: labels mean something
        within one draw only, the same in every explanation from it.
    contexts
        Of each item topic in that draw the item's `weight`, the user's `bias` under it,
        and their product, the `contribution`; largest weight first.
    moods
        Of each user topic the user's weight, the item's bias under it, and their
        product. (Of topics of the rows' own, `SeparateDP`, weights are those of the row
        whose bias they select.)
    topic_factors
        `contribution` of each pair (context, mood), theta_M[j, k] theta_U[u, i]
        v_u[k] . w_j[i], where the model has topic factors, else None.
    """

    user: Any
    item: Any
    prediction: float
    scale: str
    parts: pd.DataFrame
    draw: tuple[int, int]
    contexts: pd.DataFrame
    moods: pd.DataFrame
    topic_factors: pd.DataFrame | None

    def __repr__(self) -> str:
        user, item = plain(self.user), plain(self.item)
        lines = [f"{user!r} and {item!r}: predicted {self.prediction:.3f}"]
        total = self.parts["mean"].sum()
        where = "" if self.scale == "rating" else " of the latent rating"
        lines += [f"parts of the mean{where}, {total:.3f}, and their std over draws"]
        lines += [
            f"  {name:<14}{part['mean']:+8.3f} ({part['std']:.3f})"
            for name, part in self.parts.iterrows()
        ]
        for name, whose in (("contexts", "user"), ("moods", "item")):
            topics = getattr(self, name)[:_SHOWN]
            if len(topics):
                lines.append(f"{name} in draw {self.draw}: weight, {whose}'s bias")
                lines += [
                    f"  {topic:<14}{row['weight']:8.2f}  {row['bias']:+.3f}"
                    for topic, row in topics.iterrows()
                ]
        return "\n".join(lines)


def explain(
    posterior: "Posterior",
    user: Any,
    item: Any,
    *,
    time: Any | None,
    draw: tuple[int, int] | None,
    unknown: str,
) -> Explanation:
    """Take a prediction apart; see `Posterior.explain`."""
    draws, spec = posterior.draws, posterior.spec
    if draws is None:
        raise InputError(
            "This fit kept no draws (store='summary'): fit with store='factors' to get "
            "explanations."
        )
    if unknown not in ("raise", "prior"):
        raise InputError(f"unknown is {unknown!r}, but must be 'raise' or 'prior'.")
    times = None if time is None else [time]
    (prediction,) = posterior.predict([user], [item], times=times, unknown=unknown)
    how = "raise" if unknown == "raise" else "mark"
    # In the order given, of an unordered pair too: parts are the user's or the item's.
    user_row = posterior._rows(posterior.users.lookup([user], how), posterior.user_row)
    item_row = posterior._rows(posterior.items.lookup([item], how), posterior.item_row)
    found = parts_of_product(
        draws.user_features[:, :, user_row[0]].astype(np.float64),
        draws.item_features[:, :, item_row[0]].astype(np.float64),
        spec,
    )
    parts = {"global bias": draws.global_bias, "factors": found["factors"]}
    if spec.num_item_topics:
        parts["user bias"] = (found["item_weight"] * found["user_bias"]).sum(-1)
    if spec.num_user_topics:
        parts["item bias"] = (found["user_weight"] * found["item_bias"]).sum(-1)
    if "topic_factors" in found:
        parts["topic factors"] = found["topic_factors"].sum((-2, -1))
    if reads_times(spec):
        given = posterior._times(times, np.full(1, True))
        columns = posterior._time_columns(given, user_row)
        for name, other in (("item time", "user_drift"), ("user drift", "item_time")):
            alone = draws._replace(**{other: None})
            if alone.item_time is not None or alone.user_drift is not None:
                parts[name] = _time_part(alone, user_row, item_row, columns)
    place = _draw(posterior, draw)
    return Explanation(
        user,
        item,
        float(prediction),
        "latent" if isinstance(spec.likelihood, Ordinal) else "rating",
        pd.DataFrame(
            [(np.mean(x), np.std(x)) for x in parts.values()],
            index=pd.Index(parts, name="part"),
            columns=["mean", "std"],
        ),
        place,
        _topics("context", found["item_weight"][place], found["user_bias"][place]),
        _topics("mood", found["user_weight"][place], found["item_bias"][place]),
        _pairs(found["topic_factors"][place]) if "topic_factors" in found else None,
    )


def _time_part(draws, user_row, item_row, columns) -> np.ndarray:
    """Give what one of the parts of time adds in each draw, (chain, draw)."""
    found = np.zeros(draws.global_bias.shape)
    for place in np.ndindex(found.shape):
        part = time_of_pairs(draws, place, user_row, item_row, columns)
        found[place] = 0.0 if part is None else part[0]
    return found


def _draw(posterior: "Posterior", draw: tuple[int, int] | None) -> tuple[int, int]:
    """Chain and place of a draw: the one given, or a representative one."""
    if draw is None:
        return posterior.representative_draw
    shape = posterior.draws.global_bias.shape
    try:
        chain, place = draw
        fits = 0 <= chain < shape[0] and 0 <= place < shape[1]
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            f"draw is {draw!r}, but must be (chain, kept draw), counted from 0: there "
            f"are {shape[0]} and {shape[1]}."
        )
    return int(chain), int(place)


def nearest_draw(draws: Draws) -> tuple[int, int]:
    """Find the draw whose products are nearest their mean; see `Posterior`.

    Not the draw of highest log joint: as rows' topics and biases spread, it falls, and
    is highest in draws that are the least like the others.
    """
    num_users, num_items = (
        max(x.shape[2] - 1, 1) for x in (draws.user_features, draws.item_features)
    )
    pair = np.arange(min(PAIRS, num_users * num_items))
    user = pair % num_users
    item = (user + pair // num_users) % num_items  # each pair once
    shape = draws.global_bias.shape
    each = np.empty((*shape, len(pair)))
    for place in np.ndindex(shape):
        vectors = draws.user_features[place][user], draws.item_features[place][item]
        each[place] = draws.global_bias[place] + np.einsum("nf,nf->n", *vectors)
    away = np.mean((each - each.mean((0, 1))) ** 2, axis=-1)
    chain, draw = np.unravel_index(np.argmin(away), shape)
    return int(chain), int(draw)


def _topics(name: str, weight: np.ndarray, bias: np.ndarray) -> pd.DataFrame:
    order = np.argsort(-weight, kind="stable")
    columns = {"weight": weight, "bias": bias, "contribution": weight * bias}
    frame = pd.DataFrame({key: value[order] for key, value in columns.items()})
    return frame.set_index(pd.Index(order, name=name))


def _pairs(contribution: np.ndarray) -> pd.DataFrame:
    contexts, moods = contribution.shape
    index = pd.MultiIndex.from_product(
        [range(contexts), range(moods)], names=["context", "mood"]
    )
    return pd.DataFrame({"contribution": contribution.ravel()}, index)
