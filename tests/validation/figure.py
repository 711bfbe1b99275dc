"""The figure of the truncated samplers against the exact franchise."""

import numpy as np

__all__ = ["draw_truncation"]

GROUPS = {
    "topics occupied": "occupied",
    "co-assignment": "together",
    "rating variance": "rating variance",
    "predictions": "prediction",
}


def draw_truncation(rows, path):
    """Draw the differences of every quantity from the franchise, with their errors.

    Parameters
    ----------
    rows
        Of `truncation.compare`.
    path
        Where the PNG goes.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["sampler"].split(", ")[0] for row in rows))
    figure, axes = pyplot.subplots(
        len(names), len(GROUPS), figsize=(11, 5), sharey="col", squeeze=False
    )
    for line, construction in zip(axes, names, strict=True):
        chosen = [r for r in rows if r["sampler"].startswith(construction)]
        for axis, (title, word) in zip(line, GROUPS.items(), strict=True):
            for k, row in enumerate(chosen):
                found = [d for n, d in row["differences"].items() if word in n]
                exact, ours, error = np.array(found).T
                at = k + np.linspace(-0.3, 0.3, len(found))
                axis.errorbar(at, ours - exact, 2 * error, fmt="o", ms=3, lw=1, c="k")
            axis.axhline(0, c="0.6", lw=0.8, zorder=0)
            numbers = [row["sampler"].split(", ")[1] for row in chosen]
            axis.set_xticks(range(len(chosen)), numbers)
            if line[0] is axes[0, 0]:
                axis.set_title(title)
            if line[0] is axes[-1, 0]:
                axis.set_xlabel("truncation")
        line[0].set_ylabel(f"{construction.replace('_', ' ')}\nminus franchise")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
