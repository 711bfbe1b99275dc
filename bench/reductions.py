"""The strategies of indexed sums, raced on each device at the shapes of the data.

    python -m bench.reductions
    python -m bench.reductions --device cpu gpu --quick

Sums and counts by cell, with ratings in the order of their rows, as users' are, and
not, as items' are, by rows of very different numbers of ratings (Zipf's law, as films
and topics have them) and of like ones; then sums of vectors by row, and sums into few
bins. Strategies are timed in alternation; medians are printed. The winner is that of
the fastest calls, from which other jobs take least, and so is the bandwidth, which
counts what must move: each value with its indices once, the table once.
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bench import machine
from bench.timing import race
from im3f_jax import InputError
from im3f_jax.inference.devices import choose_device, describe_device
from im3f_jax.numerics import reductions

__all__ = ["draw_cells", "main", "measure"]

# name -> ratings and rows, those of a side.
SIZES = {
    "ml-100k": (90_000, 1_682),
    "ml-1m": (900_189, 3_706),
    "ml-10m": (9_000_000, 10_677),
}
COLUMNS = (4, 32, 128)
# How ratings fall on rows, and whether they come in the order of rows.
ROWS = {
    "skewed, in order": (1.0, True),
    "skewed": (1.0, False),
    "uniform": (0.0, False),
}


def draw_cells(number, shape, skew, in_order, seed=0):
    """Draw the cells of values, those of row or column k in proportion to k^-skew.

    Returns
    -------
    tuple of numpy.ndarray
        Row and column, int32, shape (number,); rows and columns are numbered anew, so
        that the large ones do not lie side by side.
    """
    rng = np.random.default_rng(seed)

    def draw(size):
        share = np.arange(1, size + 1) ** -float(skew)
        drawn = rng.choice(size, size=number, p=share / share.sum())
        return rng.permutation(size)[drawn].astype(np.int32)

    row, column = draw(shape[0]), draw(shape[1])
    return (np.sort(row) if in_order else row), column


def _by_cell(number, shape):
    """Race counts and sums by cell: kind -> (functions, bytes)."""
    strategies = reductions.STRATEGIES

    def count(strategy):
        def call(valid, values, row, column):
            return reductions.count_by_cell(valid, row, column, shape, strategy)

        return call

    def total(strategy):
        def call(valid, values, row, column):
            return reductions.sum_by_cell(values, row, column, shape, strategy)

        return call

    table = 4 * shape[0] * shape[1]
    return {
        "count_by_cell": ({s: count(s) for s in strategies}, number * 9 + table),
        "sum_by_cell": ({s: total(s) for s in strategies}, number * 12 + table),
    }


def _by_row_or_bin(number, rows, columns):
    """Race sums of vectors by row, and sums into few bins."""
    bins = min(columns, 10)

    def by_row(vectors, row, values, bin_of):
        return reductions.add_by_row(jnp.zeros((rows, columns)), vectors, row)

    def by_sorted_row(vectors, row, values, bin_of):
        row, order = lax.sort_key_val(row, jnp.arange(row.shape[0], dtype=row.dtype))
        total = jnp.zeros((rows, columns))
        return total.at[row].add(vectors[order], mode="drop", indices_are_sorted=True)

    def by_bin(vectors, row, values, bin_of):
        return reductions.sums_by_bin(values, bin_of, bins)

    def by_scatter(vectors, row, values, bin_of):
        return jnp.zeros((3, bins)).at[:, bin_of].add(values, mode="drop")

    def by_comparison(vectors, row, values, bin_of):
        return jnp.stack(
            [jnp.sum(jnp.where(bin_of == k, values, 0), axis=1) for k in range(bins)],
            axis=1,
        )

    return {
        "add_by_row": (
            {"scatter": by_row, "sort": by_sorted_row},
            4 * (number * (columns + 1) + rows * columns),
        ),
        "sums_by_bin": (
            {"product": by_bin, "scatter": by_scatter, "compare": by_comparison},
            16 * number,
        ),
    }


def _settle(races, arguments, rounds, setting):
    """Run some races and tell, of each, who won and at what bandwidth."""
    results = []
    for kind, (functions, moved) in races.items():
        found = race(functions, arguments, rounds, slow=20)
        for seconds in found.values():
            seconds["gigabytes_per_second"] = moved / seconds["least"] / 1e9
        winner = min(found, key=lambda name: found[name]["least"])
        results.append({"sum": kind, **setting, "winner": winner, "strategies": found})
        _print(results[-1])
    return results


def measure(device, sizes, columns, kinds, rounds):
    """Race all strategies on one device.

    Parameters
    ----------
    device : str
        As in `fit`.
    sizes : dict
        Name -> (number of ratings, rows).
    columns : sequence of int
        Columns of the tables.
    kinds : sequence of str
        Of `ROWS`.
    rounds : int
        Calls of each.

    Returns
    -------
    list of dict
        A setting each: "sum", "data", "shape", "rows", "device", "winner", and in
        "strategies" seconds, with "gigabytes_per_second".
    """
    chosen = choose_device(device)
    results = []
    with jax.default_device(chosen):
        for name, (number, rows) in sizes.items():
            rng = np.random.default_rng(1)
            values = jnp.asarray(rng.normal(size=number).astype(np.float32))
            for width in columns:
                for kind in kinds:
                    cells = draw_cells(number, (rows, width), *ROWS[kind])
                    row, column = map(jnp.asarray, cells)
                    given = (jnp.ones(number, bool), values, row, column)
                    setting = {
                        "data": name,
                        "shape": [number, rows, width],
                        "rows": kind,
                        "device": describe_device(chosen),
                    }
                    races = _by_cell(number, (rows, width))
                    results += _settle(races, given, rounds, setting)
                # As many vectors as a step of the tables' topics takes.
                part = min(number, 1 << 16)
                cells = draw_cells(part, (rows, width), 1.0, False)
                row, column = map(jnp.asarray, cells)
                vectors = rng.normal(size=(part, width)).astype(np.float32)
                given = (
                    jnp.asarray(vectors),
                    row,
                    jnp.broadcast_to(values[:part], (3, part)),
                    column % min(width, 10),
                )
                setting |= {"shape": [part, rows, width], "rows": "skewed"}
                races = _by_row_or_bin(part, rows, width)
                results += _settle(races, given, rounds, setting)
    return results


def _print(found):
    number, rows, columns = found["shape"]
    told = ", ".join(
        f"{name} {1e3 * s['median']:.2f} ms ({s['gigabytes_per_second']:.2g} GB/s)"
        for name, s in found["strategies"].items()
    )
    print(
        f"{found['sum']:14s} {number:9,} -> {rows:6,} x {columns:3d}, "
        f"{found['rows']:16s}: {found['winner']:8s} of {told}"
    )
    sys.stdout.flush()


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.reductions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--columns", nargs="+", type=int, default=COLUMNS)
    parser.add_argument("--device", nargs="+", default=["auto"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--quick", action="store_true", help="the first size, few rounds, few columns"
    )
    parser.add_argument("--json-name", default="reductions")
    arguments = parser.parse_args(argv)
    sizes = {name: SIZES[name] for name in arguments.data}
    columns, rounds = arguments.columns, arguments.rounds
    if arguments.quick:
        sizes = dict(list(sizes.items())[:1])
        columns, rounds = (columns[0], columns[-1]), min(rounds, 3)
    started = machine.describe()
    results = []
    try:
        for device in arguments.device:
            results += measure(device, sizes, columns, list(ROWS), rounds)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    path = machine.write_result(arguments.json_name, {"results": results}, started)
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
