"""The blocks of a sweep against the floor that the machine allows.

    python -m bench.kernels
    python -m bench.kernels --data ml-1m --latent-dim 40 --max-topics 128 --device gpu
    python -m bench.kernels --quick

The ceilings are measured on the same device in the same run: float32 operations of a
large matrix product at the highest precision, bytes of a triad, exponentials in
registers. Against them stands what a block has to do at least, whatever its form, for N
ratings, U users, M items, factors of length D, and topics K_u of users, K_m of items
(per rating or row; s is the number of rows of a side, o of the other side):

    block           bytes from memory         operations           exponentials
    factor priors   4 s D, both sides         s D^2
    factors         12 N + 4 D (2 s + o)      N (D^2 + 3 D) +
                                              s (D^3 / 3 + 2 D^2)
    inner products  12 N + 4 D (U + M)        2 N D
    topics          16 N + 4 K (s + o)        7 N K                N K
    tables          20 N + 4 K o              4 N K
    counts          8 N + 4 K s, both sides   N
    weights         8 s K, both sides         4 s K                5 s K
    biases          12 N + 8 s K, both sides  2 N + 10 s K         s K
    variance        4 N                       2 N

Gram products count half of their symmetric matrices; a gamma takes four logarithms and
an exponential (its proposal, its test, its boost, its scale; the normalisation), a
normal one; random bits and the sorting of tables count nothing. Memory counts each
rating once and each table once, as if tables stayed in the cache. What is gathered
from them, 4 D bytes a rating for factors, 8 D for inner products, 8 K for topics, 4 K
for tables, is told apart and added to what moves. The floor is the largest of the three
quotients, work by ceiling; a ratio of 1 cannot be beaten. Ceilings, rates and ratios
are those of the fastest call, from which other jobs take least; medians stand beside
them. A time holds the latency of a call, on a GPU much of that of a small block.

Beside the blocks: draws of many Gaussians at several D, in both forms of
numerics/linalg.py; gammas against JAX's; on a GPU the topics by both kernels.
"""

import argparse
import math
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import im3f_jax as im3f
from bench import machine, throughput
from bench.timing import race
from im3f_jax import InputError
from im3f_jax.data.layout import GPU_BLOCKS, lay_out
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.gibbs.topic_room import with_topics_as
from im3f_jax.gibbs.topics import resample_topics
from im3f_jax.inference.devices import block_sizes, choose_device, describe_device
from im3f_jax.model.spec import resolve
from im3f_jax.numerics.categories import draw_categories
from im3f_jax.numerics.linalg import (
    draw_gaussians_across_rows,
    draw_gaussians_by_library,
)
from im3f_jax.numerics.random import log_gamma, standard_uniform

__all__ = [
    "Ceilings",
    "Sizes",
    "Work",
    "judge",
    "main",
    "measure_ceilings",
    "work_of_blocks",
    "work_of_gaussians",
]

DIMENSIONS = (10, 16, 32, 40, 64, 128)
GAMMA_TOPICS = (32, 128)
# By platform: width of the matrices and length of the vectors that measure the
# ceilings, and rows of Gaussians.
SIZES = {"cpu": (2_048, 1 << 24, 1_024), "gpu": (8_192, 1 << 27, 8_192)}


class Sizes(NamedTuple):
    """What the work of a block depends on."""

    ratings: int
    users: int
    items: int
    latent_dim: int
    user_topics: int
    item_topics: int


class Work(NamedTuple):
    """What has to be done at least."""

    bytes: float  # from memory and to it
    operations: float  # float32, an addition or a multiplication each
    exponentials: float = 0.0  # and logarithms
    gathered: float = 0.0  # bytes read from tables that a cache may hold


class Ceilings(NamedTuple):
    """What a device reaches, per second."""

    bytes: float
    operations: float
    exponentials: float


def work_of_gaussians(rows, dim):
    """Return the work of drawing `rows` Gaussians of dimension `dim`."""
    return Work(4 * rows * (dim**2 + 3 * dim), rows * (dim**3 / 3 + 2 * dim**2))


def work_of_blocks(sizes):
    """Return the least work of each block, by the table above.

    Parameters
    ----------
    sizes : Sizes
        Real ratings and rows, without padding.

    Returns
    -------
    dict of str to Work
        By the names that `bench.throughput.blocks_of` gives.
    """
    n, users, items, d, user_topics, item_topics = sizes
    rows = users + items

    def factors(own, other):
        draws = work_of_gaussians(own, d)
        return Work(
            12 * n + 4 * d * (2 * own + other),
            n * (d**2 + 3 * d) + draws.operations,
            gathered=4 * n * d,
        )

    def topics(k):
        return Work(16 * n + 4 * k * rows, 7 * n * k, n * k, gathered=8 * n * k)

    def tables(k, other):
        return Work(20 * n + 4 * k * other, 4 * n * k, gathered=4 * n * k)

    weights = users * user_topics + items * item_topics
    biases = users * item_topics + items * user_topics
    return {
        "factor priors": Work(4 * rows * d, rows * d**2),
        "user factors": factors(users, items),
        "item factors": factors(items, users),
        "inner products": Work(12 * n + 4 * d * rows, 2 * n * d, gathered=8 * n * d),
        "item topics": topics(item_topics),
        "item tables": tables(item_topics, users),
        "user topics": topics(user_topics),
        "user tables": tables(user_topics, items),
        "counts": Work(16 * n + 4 * weights, 2 * n),
        "weights": Work(8 * weights, 4 * weights, 5 * weights),
        "biases": Work(24 * n + 8 * biases, 4 * n + 10 * biases, biases),
        "rating variance": Work(4 * n, 2 * n),
    }


def judge(seconds, work, ceilings):
    """Hold a time against the floor.

    Parameters
    ----------
    seconds : float
        What was measured.
    work : Work
        What had to be done.
    ceilings : Ceilings
        What the device reaches.

    Returns
    -------
    dict
        "bytes_per_second" (with what is gathered), "operations_per_second", "floor" in
        seconds, "bound" (what sets it) and "ratio" of the time to the floor.
    """
    least = {
        name: getattr(work, name) / getattr(ceilings, name) for name in Ceilings._fields
    }
    bound = max(least, key=least.get)
    return {
        "bytes_per_second": (work.bytes + work.gathered) / seconds,
        "operations_per_second": work.operations / seconds,
        "floor": least[bound],
        "bound": bound,
        "ratio": seconds / least[bound],
    }


def measure_ceilings(width, length, rounds):
    """Measure what the default device reaches.

    Parameters
    ----------
    width : int
        Of the square matrices that are multiplied.
    length : int
        Numbers in each vector of the triad: more than the caches hold.
    rounds : int
        Calls of each; the fastest counts.
    """
    repeats = 16

    def product(a, b):
        return jnp.matmul(a, b, precision="highest")

    def triad(a, b):  # again and again in place: the memory of a result is not new
        return jax.lax.fori_loop(0, repeats, lambda _, a: 0.5 * a + b, a)

    def exponentials(a, b):  # independent of one another
        return sum(jnp.exp(-(k + 1) * a) for k in range(4 * repeats)) + b

    def least(function, shape):
        given = (jnp.full(shape, 0.5), jnp.full(shape, 0.25))
        return race({"": function}, given, rounds)[""]["least"]

    some = length // 4
    return Ceilings(
        bytes=12 * length * repeats / least(triad, (length,)),
        operations=2 * width**3 / least(product, (width, width)),
        exponentials=4 * repeats * some / least(exponentials, (some,)),
    )


def _set_up(name, latent_dim, truncation, device, sweeps):
    """Return the spec, the sizes, and what the blocks are called with."""
    columns = throughput.load(name)
    rating, num_users, num_items = columns.rating, columns.num_users, columns.num_items
    model = (
        im3f.IM3F(latent_dim, max_user_topics=truncation, max_item_topics=truncation)
        if truncation
        else im3f.BPMF(latent_dim)
    )
    blocks = block_sizes(device, model)
    layout, _ = lay_out(
        columns.user, columns.item, rating, num_users, num_items, blocks
    )
    # All topics are stored, so that K is the truncation.
    spec = resolve(model, float(rating.mean()), float(rating.var()), 1.0)
    data = jax.device_put(layout, device)
    key = jax.random.key(0)
    state = init_state(key, spec, data)
    for t in range(sweeps):  # away from the start, where all ratings have one topic
        state, _ = gibbs_sweep(jax.random.fold_in(key, t), state, spec, data)
    state = with_topics_as(state, jnp.int32)  # as a sweep hands them on
    extra = throughput.between_blocks(state, data)
    sizes = Sizes(
        len(rating), num_users, num_items, latent_dim,
        spec.num_user_topics, spec.num_item_topics,
    )  # fmt: skip
    return spec, sizes, (key, state, data, extra)


def measure_blocks(name, latent_dim, truncation, device, ceilings, rounds, sweeps):
    """Time the blocks of a sweep, after some sweeps, in alternation.

    Returns
    -------
    dict
        "sizes" and "blocks": seconds a block, with what `judge` says of those in
        `work_of_blocks`, and "ratings_per_second".
    """
    spec, sizes, arguments = _set_up(name, latent_dim, truncation, device, sweeps)
    work = work_of_blocks(sizes)
    found = race(throughput.blocks_of(spec), arguments, rounds)
    for block, seconds in found.items():
        seconds["ratings_per_second"] = sizes.ratings / seconds["least"]
        if block in work:
            seconds |= judge(seconds["least"], work[block], ceilings)
    return {"data": name, "sizes": sizes._asdict(), "blocks": found}


def race_topics(sizes, chunk, rounds, tiles=(1024, 2048, 4096)):
    """Race the forms that draw topics: chunks by XLA, and a kernel of several tiles."""
    users, items, k = sizes.users, sizes.items, sizes.item_topics
    chunk = min(chunk, sizes.ratings)
    n = sizes.ratings // chunk * chunk
    rng = np.random.default_rng(0)
    given = (
        jax.random.key(0),
        jnp.asarray(rng.normal(size=n).astype(np.float32)),
        jnp.asarray(rng.integers(items, size=n).astype(np.int32)),
        jnp.asarray(np.sort(rng.integers(users, size=n)).astype(np.int32)),
        jnp.asarray(np.log(rng.dirichlet(np.ones(k), items)).astype(np.float32)),
        jnp.asarray(rng.normal(size=(users, k)).astype(np.float32)),
    )

    def by_xla(*given):
        return resample_topics(*given, jnp.asarray(0.7), chunk)

    def by_kernel(tile):
        def draw(key, x, *tables):
            uniform = standard_uniform(key, x.shape, x.dtype)
            half = jnp.full(x.shape, 0.5 / 0.7)
            return draw_categories(uniform, x, half, *tables, tile)

        return draw

    kernels = {f"pallas, tile {tile}": by_kernel(tile) for tile in tiles}
    return race({"xla": by_xla} | kernels, given, rounds)


def race_gaussians(dims, rows, ceilings, rounds):
    """Race both forms of the draw of many Gaussians: dimension -> form -> seconds."""
    forms = {
        "across rows": draw_gaussians_across_rows,
        "by library": draw_gaussians_by_library,
    }
    results = {}
    for dim in dims:
        rng = np.random.default_rng(dim)
        root = rng.normal(size=(rows, dim, dim + 4)).astype(np.float32)
        given = (
            jnp.asarray(root @ root.transpose(0, 2, 1) / dim),
            *map(jnp.asarray, rng.normal(size=(2, rows, dim)).astype(np.float32)),
        )
        found = race(forms, given, rounds, slow=20)
        for seconds in found.values():
            work = work_of_gaussians(rows, dim)
            seconds |= judge(seconds["least"], work, ceilings)
        results[str(dim)] = {"rows": rows, **found}
    return results


def race_gammas(shapes, rounds):
    """Race gammas in log space with JAX's: "rows x K" -> form -> seconds."""
    results = {}
    for shape in shapes:
        drawn = np.random.default_rng(0).uniform(-3, 2, size=shape)
        given = (jax.random.key(0), jnp.asarray(10.0**drawn, jnp.float32))
        forms = {"log_gamma": log_gamma, "jax": jax.random.loggamma}
        found = race(forms, given, rounds, slow=20)
        for seconds in found.values():
            seconds["gammas_per_second"] = math.prod(shape) / seconds["least"]
        results["{} x {}".format(*shape)] = found
    return results


def measure(name, latent_dim, truncation, device, rounds, sweeps, quick=False):
    """Measure everything on one device; what `main` prints and writes."""
    chosen = choose_device(device)
    width, length, rows = SIZES[chosen.platform]
    with jax.default_device(chosen):
        ceilings = measure_ceilings(width, length, rounds)
        found = measure_blocks(
            name, latent_dim, truncation, chosen, ceilings, rounds, sweeps
        )
        sizes = Sizes(**found["sizes"])
        found |= {"device": describe_device(chosen), "ceilings": ceilings._asdict()}
        dims = [latent_dim] if quick else DIMENSIONS
        found["gaussians"] = race_gaussians(dims, rows, ceilings, rounds)
        shapes = [(sizes.users, k) for k in GAMMA_TOPICS[: 1 if quick else None]]
        found["gammas"] = race_gammas(shapes, rounds)
        # Interpreted, as on a CPU, the kernel tells nothing.
        if truncation and chosen.platform != "cpu":
            chunk = GPU_BLOCKS.chunk
            found["topics"] = race_topics(sizes, chunk, rounds)
    return found


def _print(found):
    reached = found["ceilings"]
    print(
        f"{found['device']}: {reached['operations'] / 1e9:.0f} GFLOP/s, "
        f"{reached['bytes'] / 1e9:.1f} GB/s, {reached['exponentials'] / 1e9:.2f} G "
        f"exponentials/s\n{found['data']}: {found['sizes']}"
    )

    def line(name, seconds):
        text = (
            f"    {name:24s} {1e3 * seconds['median']:9.2f} ms, least "
            f"{1e3 * seconds['least']:9.2f}"
        )
        if "ratings_per_second" in seconds:
            text += f" {seconds['ratings_per_second'] / 1e6:8.1f} M ratings/s"
        if "floor" in seconds:
            text += (
                f" {seconds['bytes_per_second'] / 1e9:7.1f} GB/s "
                f"{seconds['operations_per_second'] / 1e9:7.1f} GFLOP/s, floor "
                f"{1e3 * seconds['floor']:7.3f} ms ({seconds['bound']}), ratio "
                f"{seconds['ratio']:.1f}"
            )
        print(text)

    for name, seconds in found["blocks"].items():
        line(name, seconds)
    for title in ("gaussians", "gammas"):
        for size, forms in found[title].items():
            for form, seconds in forms.items():
                if form != "rows":
                    line(f"{title} {size}, {form}", seconds)
    for form, seconds in found.get("topics", {}).items():
        line(f"topics, {form}", seconds)
    sys.stdout.flush()


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="6040x3706x900188")
    parser.add_argument("--latent-dim", nargs="+", type=int, default=[10, 40])
    parser.add_argument("--max-topics", type=int, default=128)
    parser.add_argument("--device", nargs="+", default=["auto"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sweeps", type=int, default=3, help="before the blocks")
    parser.add_argument(
        "--quick", action="store_true", help="the size of ML-100K, D = 10, few rounds"
    )
    parser.add_argument("--json-name", default="kernels")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.data, arguments.latent_dim = "943x1682x90000", [10]
        arguments.rounds = min(arguments.rounds, 3)
    started = machine.describe()
    results = []
    try:
        for device in arguments.device:
            for latent_dim in arguments.latent_dim:
                found = measure(
                    arguments.data,
                    latent_dim,
                    arguments.max_topics,
                    device,
                    arguments.rounds,
                    arguments.sweeps,
                    arguments.quick,
                )
                _print(found)
                results.append(found)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    path = machine.write_result(arguments.json_name, {"results": results}, started)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
