"""Fits on the numbers of devices given, a line of JSON each: run by test_sharding."""

import json
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import im3f_jax as im3f
from im3f_jax.inference import run, sharding
from tests.fits import residual_rmse

NUM_WARMUP, NUM_SAMPLES = 100, 400


def mean_and_error(values):
    """Mean of correlated draws, and its error by batches."""
    batches = values[: len(values) // 20 * 20].reshape(20, -1).mean(axis=1)
    return float(values.mean()), float(batches.std(ddof=1) / np.sqrt(20))


def fit(train, test, number, num_samples=NUM_SAMPLES):
    model = im3f.M3F(2, 2, latent_dim=2, user_topic_concentration=4.0)
    return model.fit(
        train,
        test,
        num_warmup=NUM_WARMUP,
        num_samples=num_samples,
        init="prior",
        seed=number,
        progress=False,
        devices=number,
        device="cpu",
        store="all",
    )


def found_to_differ(state, mesh):
    """Names of what `differing` finds once the last device has another bit of each."""
    copies = NamedSharding(mesh, PartitionSpec())

    def spoilt(part):
        parts = [np.array(shard.data) for shard in part.addressable_shards]
        parts[-1].reshape(-1).view(np.uint8)[0] ^= 1
        devices = mesh.devices.flat
        parts = [jax.device_put(x, d) for x, d in zip(parts, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(part.shape, copies, parts)

    names = []
    for name in ("rating_variance", "item_factors", "item_bias_prior"):
        bad = jax.tree.map(spoilt, getattr(state, name))
        differs = sharding.differing(state._replace(**{name: bad}), mesh)
        names.append([key for key, differ in sharding.fetch(differs).items() if differ])
    return names


def main():
    """Fit, and describe what came out."""
    seen = []

    def watched(*given):
        seen[:] = [given]
        return sharding.differing(*given)

    run.differing = watched
    drawn = im3f.planted_ratings(
        num_users=60, num_items=40, num_ratings=1_500, latent_dim=2, seed=0
    )
    train, test = im3f.random_split(drawn.ratings, seed=0)
    for number in map(int, sys.argv[1:]):
        posterior = fit(train, test, number)
        pairs = test.users.column(test.user), test.items.column(test.item)
        predicted = np.asarray(posterior.predict(*pairs))
        gap = np.abs(predicted - posterior.test_predictions)
        names = ("rating_variance", "residual_rmse", "log_joint", "user_bias_variance")
        kept = slice(-NUM_SAMPLES, None)
        again = fit(train, test, number, 2)
        same = np.array_equal(
            posterior.draws.user_features[:, :2], again.draws.user_features
        )
        found = {
            "device": posterior.device,
            "again": bool(same),
            "predicts": float(gap.max()),
            "differ": found_to_differ(*seen[0]) if number > 1 else [],
            "topics": float(
                np.abs(
                    residual_rmse(posterior, train) - posterior._kept("residual_rmse")
                ).max()
            ),
            "rmse": posterior.evaluate(test)["rmse"],
            "means": {
                name: mean_and_error(posterior.trace[name][0, kept]) for name in names
            },
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
