"""The library at work: what was planted in ratings, and what is found again.

Ratings are drawn from the model itself, with moods (user topics) and contexts (item
topics) in them. A model without topics has to call both noise, or spend factors on
them; iM3F should predict better, find a rating variance near the planted one, and say
how many topics there are.
"""

import time
from dataclasses import dataclass

import numpy as np

import im3f_jax
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.synthetic import PlantedTruth

__all__ = ["DemoRow", "run_demo"]

# What is planted, and how long each model samples.
SIZES = {
    "num_users": 500,
    "num_items": 250,
    "num_ratings": 50_000,
    "latent_dim": 3,
    "user_topics": 4,
    "item_topics": 3,
    "bias_scale": 0.7,
    "topic_mean_scale": 0.3,
    # A row mostly has one topic, and sometimes another.
    "user_topic_concentration": 0.4,
    "item_topic_concentration": 0.4,
}
SWEEPS = {"num_warmup": 150, "num_samples": 200}
QUICK_SIZES = {**SIZES, "num_users": 150, "num_items": 100, "num_ratings": 5_000}
QUICK_SWEEPS = {"num_warmup": 20, "num_samples": 20}
LONGER_WARMUP = 3

_HEADER = (
    f"{'':12}{'test RMSE':>10}{'log density':>13}{'rating variance':>17}"
    f"{'moods':>12}{'contexts':>12}{'seconds':>9}"
)


@dataclass(frozen=True)
class DemoRow:
    """One line of the demo's table; of the models, means over the kept draws."""

    name: str
    rmse: float  # of the held-out ratings, rating scale
    log_density: float  # of the held-out ratings, nats a rating
    rating_variance: float
    user_topics: float  # moods in use; 0 for a model without
    item_topics: float  # contexts in use
    effective_user_topics: float  # exp(entropy of the shares of the ratings)
    effective_item_topics: float
    seconds: float


def run_demo(*, seed: int = 0, quick: bool = False, show=print) -> list[DemoRow]:
    """Plant ratings, fit three models, and show what they find.

    Parameters
    ----------
    seed : int
        Of the planted ratings, the split and the chains.
    quick : bool
        Less data and fewer sweeps: for a look, and for tests.
    show : callable
        Called with each line.

    Returns
    -------
    list of DemoRow
        First what the planted parameters themselves would predict, which no model can
        be expected to beat, then BPMF, BPMF with a factor more for each planted topic,
        and iM3F.
    """
    sizes, sweeps = (QUICK_SIZES, QUICK_SWEEPS) if quick else (SIZES, SWEEPS)
    planted = im3f_jax.planted_ratings(**sizes, seed=seed)
    train, test = im3f_jax.random_split(planted.ratings, test_fraction=0.1, seed=seed)
    latent_dim = sizes["latent_dim"]
    more = latent_dim + sizes["user_topics"] + sizes["item_topics"]
    show(
        f"Planted: {len(planted.ratings):,} ratings, {sizes['num_users']} users, "
        f"{sizes['num_items']} items, {latent_dim} latent dimensions,\n"
        f"{sizes['user_topics']} moods (user topics) and {sizes['item_topics']} "
        f"contexts (item topics). {len(test):,} ratings are held out.\n"
    )
    models = {
        f"BPMF({latent_dim})": im3f_jax.BPMF(latent_dim=latent_dim),
        f"BPMF({more})": im3f_jax.BPMF(latent_dim=more),
        f"iM3F({latent_dim})": im3f_jax.IM3F(
            latent_dim=latent_dim,
            max_user_topics=12,
            max_item_topics=12,
            user_table_concentration=1.0,
            item_table_concentration=1.0,
        ),
    }
    rows = [_truth_row(planted.truth, test)]
    show(f"{_HEADER}\n{_line(rows[0])}")
    for name, model in models.items():
        started = time.perf_counter()
        options = dict(sweeps)
        if model.num_user_topics:
            options["num_warmup"] *= LONGER_WARMUP
        posterior = model.fit(
            train, test=test, seed=seed, progress=False, track_train=False, **options
        )
        rows.append(_model_row(name, posterior, test, time.perf_counter() - started))
        show(_line(rows[-1]))
    show(
        "\nLower RMSE and higher log density (nats a rating) are better. Moods and "
        "contexts:\ntopics in use, and in brackets their effective number."
    )
    ours, rivals = rows[-1], rows[1:-1]
    error = min(row.rmse for row in rivals) - ours.rmse
    density = ours.log_density - max(row.log_density for row in rivals)
    off = ours.rating_variance / planted.truth.rating_variance - 1
    show(
        f"iM3F against the better BPMF: RMSE lower by {error:.4f}, log density higher "
        f"by\n{density:.4f} nats a rating. Its rating variance is off by {off:+.1%}."
    )
    return rows


def _truth_row(truth: PlantedTruth, test: Ratings) -> DemoRow:
    """Judge the planted parameters; the topics of a held-out rating stay unknown."""
    user, item = test.user, test.item
    # n rating, k item topic (of the user's bias), i user topic (of the item's)
    weight = np.einsum("nk,ni->nki", truth.item_weights[item], truth.user_weights[user])
    mean = (
        truth.global_bias
        + np.einsum("nd,nd->n", truth.user_factors[user], truth.item_factors[item])[
            :, None, None
        ]
        + truth.user_bias[user][:, :, None]
        + truth.item_bias[item][:, None, :]
    )
    variance = truth.rating_variance
    error = test.rating - np.einsum("nki,nki->n", weight, mean)
    squared = (test.rating[:, None, None] - mean) ** 2
    density = np.exp(-0.5 * squared / variance) / np.sqrt(2 * np.pi * variance)
    return DemoRow(
        name="the truth",
        rmse=float(np.sqrt(np.mean(error**2))),
        log_density=float(np.log(np.einsum("nki,nki->n", weight, density)).mean()),
        rating_variance=variance,
        user_topics=truth.user_weights.shape[1],
        item_topics=truth.item_weights.shape[1],
        effective_user_topics=_effective(truth.user_topic_of_rating),
        effective_item_topics=_effective(truth.item_topic_of_rating),
        seconds=0.0,
    )


def _effective(topic_of_rating: np.ndarray) -> float:
    share = np.bincount(topic_of_rating) / len(topic_of_rating)
    share = share[share > 0]
    return float(np.exp(-np.sum(share * np.log(share))))


def _model_row(name: str, posterior, test: Ratings, seconds: float) -> DemoRow:
    scores = posterior.evaluate(test)
    return DemoRow(
        name=name,
        rmse=scores["rmse"],
        log_density=scores["log_score"],
        rating_variance=float(posterior.rating_variance.mean()),
        user_topics=float(np.mean(posterior.num_user_topics)),
        item_topics=float(np.mean(posterior.num_item_topics)),
        effective_user_topics=float(np.mean(posterior.effective_user_topics)),
        effective_item_topics=float(np.mean(posterior.effective_item_topics)),
        seconds=seconds,
    )


def _line(row: DemoRow) -> str:
    moods = _topics(row.user_topics, row.effective_user_topics)
    contexts = _topics(row.item_topics, row.effective_item_topics)
    seconds = f"{row.seconds:.1f}" if row.seconds else ""
    return (
        f"{row.name:12}{row.rmse:10.4f}{row.log_density:13.4f}"
        f"{row.rating_variance:17.3f}{moods:>12}{contexts:>12}{seconds:>9}"
    )


def _topics(number: float, effective: float) -> str:
    return f"{number:.1f} ({effective:.1f})" if number else "-"
