"""Fits that go on, on other numbers of devices: run by test_checkpoint."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np

import im3f_jax as im3f
from im3f_jax.errors import Im3fWarning


class Killed(BaseException):
    """Stands for the death of the process."""


def main():
    """Break fits off and go on with them; what holds, as JSON."""
    drawn = im3f.planted_ratings(
        num_users=60, num_items=40, num_ratings=1_000, latent_dim=2, seed=0
    )
    train, test = im3f.random_split(drawn.ratings, seed=0)
    model = im3f.IM3F(2, max_user_topics=3, max_item_topics=4)

    def fit(devices, folder=None, callback=None):
        return model.fit(
            train,
            test,
            num_warmup=6,
            num_samples=12,
            thinning=2,
            num_chains=2,
            init="prior",
            progress=False,
            devices=devices,
            device="cpu",
            checkpoint_dir=folder,
            checkpoint_every=4,
            callback=callback,
        )

    def killed(sweep, elapsed, metrics):
        if metrics["chain"] == 1 and sweep >= 10:
            raise Killed

    found, whole_fits = {}, {}
    for before, after in ((2, 2), (2, 1), (1, 3)):
        folder = Path(sys.argv[1]) / f"{before} {after}"
        try:
            fit(before, folder, killed)
        except Killed:
            pass
        if before not in whole_fits:
            whole_fits[before] = fit(before)
        unbroken = whole_fits[before]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", Im3fWarning)
            result = fit(after, folder)
        said = any("need not be those" in str(one.message) for one in told)
        # The chain that was done, and the sweeps up to the checkpoint, are kept.
        same = [
            np.array_equal(result.trace[name][0], values[0], equal_nan=True)
            and np.array_equal(result.trace[name][1, :8], values[1, :8], equal_nan=True)
            for name, values in unbroken.trace.items()
        ]
        whole = [*result.draws[:3], *result.trace.values(), result.test_predictions]
        as_ever = [*unbroken.draws[:3], *unbroken.trace.values()]
        as_ever += [unbroken.test_predictions]
        equal = all(
            np.array_equal(a, b, equal_nan=True)
            for a, b in zip(whole, as_ever, strict=True)
        )
        # The first sweep on other devices starts from the very same state.
        near = abs(result.trace["residual_rmse"][1, 8:12].mean())
        near /= abs(unbroken.trace["residual_rmse"][1, 8:12].mean())
        predicted = result.predict(test.user_ids, test.item_ids)
        sums = np.allclose(predicted, result.test_predictions, rtol=1e-4)
        good = all(same) and sums and 0.9 < near < 1.1
        good = good and (equal and not said if before == after else said)
        found[f"{before} to {after}"] = bool(good)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
