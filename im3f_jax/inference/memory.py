"""Bytes that a fit needs, before it starts."""

from im3f_jax.data.layout import RatingLayout
from im3f_jax.gibbs.table_topics import table_room
from im3f_jax.inference.features import feature_width
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.spec import ModelSpec, weight_sides
from im3f_jax.model.time_effects import TimeBins, TimeDrift, reads_times
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CRF, NoTopics

__all__ = ["estimate_draw_bytes", "estimate_memory", "format_bytes"]


def estimate_memory(
    spec: ModelSpec, layout: RatingLayout, num_test: int = 0, num_chains: int = 1
) -> dict[str, int]:
    """Estimate the bytes that a fit holds on its device, by array.

    Two copies of the state are counted (before and after a sweep), the working set of
    the factor block for one batch of rows (Gram sums, precisions and their transposed
    chunks), the per-rating temporaries (four floats and four int32 a rating for topics,
    residuals, table counts; seven more numbers for the seats), three numbers for each
    topic of each table that is moved, and the gammas of the row weights (eight copies).
    A Chinese
    restaurant franchise adds its seats (customers and dish of each table, before,
    during and after), eight numbers a rating for its orders and sums, and the noise of
    a chunk; it is estimated in the room that it starts with. The ordinal likelihood
    adds twelve floats a rating: bounds, probabilities and what is summed of them; noise
    that differs adds six: precisions, their roots, and what they multiply. Parts that
    depend on time add their effects, before, during (mean and variance) and after a
    sweep, two numbers a rating and a test rating (bin and drift), and four more a
    rating. A reciprocal model seats two halves of each rating, of which it holds five
    numbers each, beside both roles' biases in one table.

    Parameters
    ----------
    spec
        The model.
    layout
        Training ratings.
    num_test
        Test ratings.
    num_chains
        Chains that run at once.

    Returns
    -------
    dict
        Bytes by name, and their "total".
    """
    word = layout.rating.dtype.itemsize
    num_ratings = layout.rating.shape[0]
    users, items = layout.user_rows, layout.item_rows
    dim, user_topics, item_topics = (
        spec.latent_dim,
        spec.num_user_topics,
        spec.num_item_topics,
    )
    by_row = (users + items) * (dim + item_topics + user_topics)
    weights = weight_sides(spec, users, items)
    if spec.own_topics:
        by_row = users * (dim + 2 * item_topics) + items * (dim + 2 * user_topics)
    part = spec.topic_factors
    extra = part.dim if isinstance(part, TopicFactors) else 0
    topic_factors = extra * (users * item_topics + items * user_topics)
    every = [layout.user_blocks, layout.item_blocks]
    every += [] if layout.pairs is None else [layout.pairs.blocks]
    batch_rows = max(blocks.rows // (len(blocks.batch_start) - 1) for blocks in every)
    group = max(blocks.other[0].size for blocks in every)
    tokens = (2 if is_reciprocal(spec) else 1) * num_ratings
    # Topics of a side whose ratings are seated at tables, for the larger side.
    seated = max(
        prior.num_topics
        for prior in (NoTopics(), spec.user_topic_prior, spec.item_topic_prior)
        if not isinstance(prior, CRF)
    )
    parts = {
        "ratings": num_ratings * (8 + word),
        "blocks": sum(8 * blocks.other.size + 4 * blocks.row.size for blocks in every),
        "state": num_chains * 2 * ((by_row + topic_factors) * word + 8 * num_ratings),
        "features": num_chains * 2 * (users + items) * feature_width(spec) * word,
        "factor work": num_chains * word * (3 * batch_rows * dim**2 + 3 * group * dim),
        "rating work": num_chains * tokens * (4 * word + 16 + 28 * (seated > 1)),
        "table work": num_chains * 3 * word * table_room(tokens) * seated,
        "row weight work": num_chains
        * 8
        * word
        * max(weights[0] * user_topics, weights[1] * item_topics),
        "predictions": num_chains * 2 * word * (num_ratings + num_test),
    }
    for side, prior, rows in (
        ("user", spec.user_topic_prior, users),
        ("item", spec.item_topic_prior, items),
    ):
        if isinstance(prior, CRF):
            choices = prior.max_tables + prior.num_topics + 1
            parts[f"{side} franchise"] = num_chains * (
                3 * 8 * rows * prior.max_tables
                + 8 * word * num_ratings
                + 3 * word * layout.chunk * choices
            )
    if extra:  # of one topic at a time: a mask, rows read, and the products selected
        parts["topic factor work"] = num_chains * word * (6 * num_ratings)
        parts["topic factor work"] += num_chains * word * topic_factors
    if is_reciprocal(spec):
        parts["halves"] = num_chains * word * (5 * tokens + 2 * users * user_topics)
    noises = spec.user_noise, spec.item_noise, spec.rating_noise
    if any(isinstance(noise, GammaNoise) for noise in noises):
        parts["noise"] = num_chains * 6 * word * num_ratings
    if reads_times(spec):
        cells = _time_cells(spec, users, items)
        parts["times"] = (4 + word) * (num_ratings + num_test)
        parts["time work"] = num_chains * word * (4 * cells + 4 * num_ratings)
    if isinstance(spec.likelihood, Ordinal):
        parts["latent ratings"] = num_chains * num_ratings * 12 * word
    return parts | {"total": sum(parts.values())}


def _time_cells(spec: ModelSpec, users: int, items: int) -> int:
    """Numbers that depend on time: of each item in each bin, and of each user."""
    bins = spec.item_time.num_bins if isinstance(spec.item_time, TimeBins) else 0
    return items * bins + users * isinstance(spec.user_time, TimeDrift)


def estimate_draw_bytes(spec: ModelSpec, num_users: int, num_items: int) -> int:
    """Bytes of one kept draw on the host: float32 vectors of all users and items.

    4 (num_users + num_items + 2) (latent_dim + item topics + user topics, with topic
    factors item topics x user topics x dim more, and 2 more where the noise differs
    between users or items), and what depends on time.
    """
    width = feature_width(spec)
    timed = _time_cells(spec, num_users + 1, num_items + 1)
    return 4 * ((num_users + num_items + 2) * width + timed)


def format_bytes(count: float) -> str:
    """Bytes for a reader: "3.2 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
