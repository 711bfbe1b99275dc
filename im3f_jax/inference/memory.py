"""Bytes that a fit needs, before it starts."""

import math
from dataclasses import dataclass, replace

from im3f_jax.data.layout import (
    BlockSizes,
    RatingLayout,
    RowBlocks,
    bucket,
    row_padding,
)
from im3f_jax.errors import InputError
from im3f_jax.gibbs.table_topics import table_room
from im3f_jax.gibbs.topic_room import can_grow, kept_topic_dtypes, topic_dtype
from im3f_jax.inference.features import feature_width
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.reciprocal import is_reciprocal
from im3f_jax.model.spec import ModelSpec, weight_sides
from im3f_jax.model.time_effects import TimeBins, TimeDrift, reads_times
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CRF, NoTopics

__all__ = [
    "BlockShape",
    "LayoutSizes",
    "blocks_within",
    "check_device_memory",
    "estimate_draw_bytes",
    "estimate_memory",
    "expected_sizes",
    "format_bytes",
    "sizes_of",
]

# The part of a device's memory, one in so many, that the factor block may work in, and
# a chunk of ratings; the fewest rows, blocks and ratings that this may leave.
WORK_SHARE = 8
FEWEST = 512


@dataclass(frozen=True)
class BlockShape:
    """Shape of one side's blocks of ratings."""

    groups: int
    group: int  # blocks a group
    block: int  # ratings a block
    batch_rows: int  # rows a batch
    places: int = 0  # of rows that are sorted by length


@dataclass(frozen=True)
class LayoutSizes:
    """What the bytes of a fit follow from: the shapes of a layout, padding included."""

    num_ratings: int
    user_rows: int
    item_rows: int
    chunk: int  # ratings in one step of the rating-wise loops
    word: int  # bytes a float
    blocks: tuple[BlockShape, ...]


def sizes_of(layout: RatingLayout) -> LayoutSizes:
    """Read the sizes off a layout."""
    every = [layout.user_blocks, layout.item_blocks]
    every += [] if layout.pairs is None else [layout.pairs.blocks]

    def shape(blocks: RowBlocks) -> BlockShape:
        batches = len(blocks.batch_start) - 1
        places = 0 if blocks.place is None else len(blocks.place)
        return BlockShape(*blocks.other.shape, blocks.rows // batches, places)

    return LayoutSizes(
        layout.rating.shape[0],
        layout.user_rows,
        layout.item_rows,
        layout.chunk,
        layout.rating.dtype.itemsize,
        tuple(shape(blocks) for blocks in every),
    )


def expected_sizes(
    num_users: int, num_items: int, num_ratings: int, sizes: BlockSizes, word: int = 4
) -> LayoutSizes:
    """Sizes of the layout of ratings that nobody has yet, from their numbers alone.

    All are those that `lay_out` gives, but for the groups of blocks, which depend on
    the ratings of each row: there are at most as many as stand here, where every row's
    last block is as empty as it can be, and the longest rows have all ratings that they
    can have (a pair once).

    Parameters
    ----------
    num_users, num_items, num_ratings
        Users and items with a rating; all positive.
    sizes
        Block sizes, by device.
    word
        Bytes a float.

    Raises
    ------
    InputError
        Where there are fewer ratings than users or items.
    """
    if num_ratings < max(num_users, num_items):
        raise InputError(
            f"{num_ratings} ratings are too few for {num_users} users and {num_items} "
            "items, each of which has at least one."
        )
    padded = bucket(num_ratings + 1)
    rows_of, blocks = [], []
    for number, others in ((num_users, num_items), (num_items, num_users)):
        rows, batch_rows = row_padding(number, sizes.rows)
        most = (num_ratings + number * (sizes.block - 1)) // sizes.block
        if sizes.lanes > 1:  # the longest row of a set has fewer than any before it
            most += sizes.lanes * (others // sizes.block + 1) + sizes.lanes
        group = min(sizes.group, bucket(most, 8 * max(2, sizes.lanes)))
        groups = bucket(most // group + rows // batch_rows, 4)
        rows_of.append(rows)
        places = rows if sizes.lanes > 1 else 0
        blocks.append(BlockShape(groups, group, sizes.block, batch_rows, places))
    chunk = math.gcd(padded, sizes.chunk)
    return LayoutSizes(padded, *rows_of, chunk, word, tuple(blocks))


def estimate_memory(
    spec: ModelSpec,
    layout: RatingLayout | LayoutSizes,
    num_test: int = 0,
    num_chains: int = 1,
) -> dict[str, int]:
    """Estimate the bytes that a fit holds on its device, by array.

    Two copies of the state are counted (before and after a sweep; three where a sweep
    may have to be discarded, because topics have less room than their truncation), as
    many of what is predicted, the working set of the factor block for one batch of rows
    (Gram sums, precisions and their transposed chunks), three vectors of a user or an
    item for each rating of a chunk, the per-rating temporaries
    (four floats and four int32 a rating for topics,
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
        Training ratings laid out, or the sizes of their layout.
    num_test
        Test ratings.
    num_chains
        Chains that run at once.

    Returns
    -------
    dict
        Bytes by name, and their "total".
    """
    sizes = layout if isinstance(layout, LayoutSizes) else sizes_of(layout)
    word, num_ratings = sizes.word, sizes.num_ratings
    users, items = sizes.user_rows, sizes.item_rows
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
    batch_rows = max(shape.batch_rows for shape in sizes.blocks)
    group = max(shape.group * shape.block for shape in sizes.blocks)
    integer = topic_dtype(spec).itemsize
    tokens = (2 if is_reciprocal(spec) else 1) * num_ratings
    # Topics of a side whose ratings are seated at tables, for the larger side.
    seated = max(
        prior.num_topics
        for prior in (NoTopics(), spec.user_topic_prior, spec.item_topic_prior)
        if not isinstance(prior, CRF)
    )
    copies = 3 if can_grow(spec) else 2
    parts = {
        "ratings": num_ratings * (8 + word),
        "blocks": sum(
            shape.groups * shape.group * (8 * shape.block + 4) + 4 * shape.places
            for shape in sizes.blocks
        ),
        "state": num_chains
        * copies
        * ((by_row + topic_factors) * word + 2 * integer * num_ratings),
        "features": num_chains * copies * (users + items) * feature_width(spec) * word,
        "factor work": num_chains * _factor_work(batch_rows, group, dim, word),
        "chunk work": num_chains * _chunk_work(spec, sizes.chunk, word),
        "rating work": num_chains * tokens * (4 * word + 16 + 28 * (seated > 1)),
        "table work": num_chains * 3 * word * table_room(tokens) * seated,
        "row weight work": num_chains
        * 8
        * word
        * max(weights[0] * user_topics, weights[1] * item_topics),
        "predictions": num_chains * copies * word * (num_ratings + num_test),
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
                + 3 * word * sizes.chunk * choices
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


def _factor_work(batch_rows: int, group_ratings: int, dim: int, word: int) -> int:
    """Bytes of the factor block's sums and precisions for one batch of rows."""
    return 3 * word * (batch_rows * dim**2 + group_ratings * dim)


def _chunk_work(spec: ModelSpec, chunk: int, word: int) -> int:
    """Bytes of a chunk of ratings: both vectors of each, or its topics' weights."""
    return 3 * word * chunk * feature_width(spec)


def blocks_within(sizes: BlockSizes, spec: ModelSpec, limit: int | None) -> BlockSizes:
    """Fit a batch of rows, and a chunk of ratings, into a device's memory.

    Rows a batch, then blocks a group, are halved while the factor block would take more
    than an eighth of the limit, or until they are few; so are ratings a chunk.

    Parameters
    ----------
    sizes
        What suits a device with memory to spare.
    spec
        The model.
    limit
        Bytes that there are; None where the device does not tell, which halves nothing.
        It is that of the device, not what happens to be free: sizes change the order
        of sums, and one card must give one seed's draws again.
    """
    if limit is None:
        return sizes

    def factors(sizes):
        return _factor_work(sizes.rows, sizes.group * sizes.block, spec.latent_dim, 4)

    def chunk(sizes):
        return _chunk_work(spec, sizes.chunk, 4)

    for name, work in (("rows", factors), ("group", factors), ("chunk", chunk)):
        while getattr(sizes, name) > FEWEST and work(sizes) > limit // WORK_SHARE:
            sizes = replace(sizes, **{name: getattr(sizes, name) // 2})
    return sizes


def _time_cells(spec: ModelSpec, users: int, items: int) -> int:
    """Numbers that depend on time: of each item in each bin, and of each user."""
    bins = spec.item_time.num_bins if isinstance(spec.item_time, TimeBins) else 0
    return items * bins + users * isinstance(spec.user_time, TimeDrift)


def estimate_draw_bytes(
    spec: ModelSpec, num_users: int, num_items: int, num_ratings: int = 0
) -> int:
    """Bytes of one kept draw on the host: float32 vectors of all users and items.

    4 (num_users + num_items + 2) (latent_dim + item topics + user topics, with topic
    factors item topics x user topics x dim more, and 2 more where the noise differs
    between users or items), what depends on time, and the precision of both sides'
    factors, 2 latent_dim^2. To that the topics of so many ratings, where they are kept:
    1 byte a rating and side up to 128 topics, then 2 (4 in a `CRF`).
    """
    width = feature_width(spec)
    timed = _time_cells(spec, num_users + 1, num_items + 1)
    population = 2 * spec.latent_dim**2
    topics = num_ratings * sum(x.itemsize for x in kept_topic_dtypes(spec).values())
    return 4 * ((num_users + num_items + 2) * width + timed + population) + topics


def check_device_memory(
    parts: dict[str, int], limit: int | None, where: str, advice: list[str]
) -> None:
    """Refuse a fit that its device cannot hold.

    Parameters
    ----------
    parts
        Bytes by name and their "total", as `estimate_memory` gives them.
    limit
        Bytes that there are; None where the device does not tell, which refuses
        nothing.
    where
        The device, for the reader.
    advice
        What would make the fit smaller.

    Raises
    ------
    InputError
        Where the total exceeds the limit.
    """
    if limit is None or parts["total"] <= limit:
        return
    names = sorted(parts.keys() - {"total"}, key=parts.__getitem__, reverse=True)
    named = ", ".join(f"{name} {format_bytes(parts[name])}" for name in names[:3])
    raise InputError(
        f"The fit would take about {format_bytes(parts['total'])} of memory ({named}), "
        f"more than the {format_bytes(limit)} of {where}: try {', '.join(advice)}."
    )


def format_bytes(count: float) -> str:
    """Bytes for a reader: "3.2 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
