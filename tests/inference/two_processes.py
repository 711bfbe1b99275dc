"""One of two processes that share a fit, with clocks of their own: test_sharding."""

import json
import os
import signal
import sys

import jax
import numpy as np

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.inference import run


def main():
    """Fit as the command line says, and describe what came out."""
    port, number, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, number)
    seed = number if how == "other settings" else 0
    # Paces differ: 1 sweep a chunk in one, 64 in the other.
    run.CHUNK_SECONDS = (1e-9, 1e9)[number]
    drawn = im3f.planted_ratings(num_users=40, num_items=20, num_ratings=400, seed=0)
    ratings = drawn.ratings
    seen = []

    def note(sweep, elapsed, metrics):
        seen.append(sweep)
        if how == "interrupted" and number == 1 and sweep == 30:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        posterior = im3f.BPMF(latent_dim=2).fit(
            ratings,
            num_warmup=20,
            num_samples=40,
            init="prior",
            seed=seed,
            progress=False,
            devices="all",
            store="summary",
            callback=note,
        )
    except InputError as error:
        print(json.dumps({"refused": str(error)}))
        return
    found = {
        "device": posterior.device,
        "partial": posterior.partial,
        "sweeps": seen,
        "trace": np.asarray(posterior.trace["rating_variance"][0], float).tolist(),
        "rmse": posterior.evaluate(ratings)["rmse"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
