"""The README's picture: the films of ml-latest-small that depend most on the mood.

    python -m bench.napoleon

fits M3F(2, 1) to all its ratings, and writes docs/napoleon_dynamite.png and
bench/results/napoleon_dynamite.json. Reads the data set from IM3F_DATA_DIR or the cache
folder, or downloads it. Some minutes on two cores.
"""

import argparse
import sys
from pathlib import Path

import im3f_jax as im3f
from bench import machine
from im3f_jax.posterior.plots import napoleon_table, title_of
from im3f_jax.posterior.report import convergence

NAME = "napoleon_dynamite"
DATA = "ml-latest-small"
PICTURE = Path(__file__).resolve().parent.parent / "docs" / f"{NAME}.png"
SWEEPS = {"num_warmup": 500, "num_samples": 1500, "thinning": 15, "num_chains": 2}
SHOWN = 12


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.napoleon",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    from matplotlib.figure import Figure

    started = machine.describe()
    ratings, titles = im3f.load_ratings(DATA), im3f.load_titles(DATA)
    model = im3f.M3F(user_topics=2, item_topics=1, latent_dim=10, likelihood="ordinal")
    posterior = model.fit(ratings, seed=options.seed, progress=False, **SWEEPS)
    figure = Figure(layout="constrained")
    im3f.plots.plot_napoleon_dynamite(
        posterior, titles, train=ratings, num_items=SHOWN, ax=figure
    )
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=100)
    table = napoleon_table(posterior, train=ratings)
    items = [
        {"item": int(item), "title": title_of(item, titles), **row}
        for item, row in table[:SHOWN].to_dict("index").items()
    ]
    payload = {
        "data": DATA,
        "num_ratings": len(ratings),
        "model": "M3F(2, 1), D=10, ordinal",
        "seed": options.seed,
        "sweeps": SWEEPS,
        "seconds": posterior.seconds,
        "largest_r_hat": float(convergence(posterior)["r_hat"].max()),
        "num_items": len(table),
        "median": float(table["mean"].median()),
        "items": items,
    }
    path = machine.write_result(NAME, payload, started)
    print(f"written: bench/results/{path.name}, docs/{PICTURE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
