"""Cells of a notebook's script, and a run of them as a notebook would run them.

    python -m tests.notebooks notebooks/01_quickstart.py notebooks/02_prior_checks.py

runs the cells of each script, shows what ends a cell as a notebook would, draws every
figure, and prints how many there are and the seconds. Scripts of one command share
nothing but what JAX has compiled. It needs neither Jupyter nor a display.
"""

import ast
import sys
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["DRAWS", "Cell", "cells_of", "run"]

# What a cell holds that draws: the notebooks' own words for it.
DRAWS = ("plots.plot_", ".plot_trace(", "plt.subplots(")


class Cell(NamedTuple):
    """A cell: "code" or "markdown", and its text."""

    kind: str
    source: str


def cells_of(path):
    """Read the cells of a script in jupytext's percent format."""
    cells = []
    for block in ("\n" + Path(path).read_text("utf-8")).split("\n# %%")[1:]:
        mark, _, text = block.partition("\n")
        lines = text.strip("\n").split("\n")
        if mark.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        kind = "markdown" if mark.strip() == "[markdown]" else "code"
        cells.append(Cell(kind, "\n".join(lines)))
    return cells


def run(path):
    """Run the cells of a script one after another; return the number of figures."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(path)):
        if cell.kind != "code":
            continue
        where = f"{Path(path).name}, cell {number}"
        body = ast.parse(cell.source, where).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), where, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if value is not None:
                print(value)
    figures = plt.get_fignums()
    for figure in figures:
        plt.figure(figure).canvas.draw()
    plt.close("all")
    return len(figures)


if __name__ == "__main__":
    for script in sys.argv[1:]:
        begin = time.perf_counter()
        print("figures:", run(script))
        print(f"{script}: {time.perf_counter() - begin:.0f} s", file=sys.stderr)
