"""Precisions by id where every user and item has a training rating."""

import numpy as np

import im3f_jax as im3f
from im3f_jax.inference.run import Draws
from im3f_jax.posterior.posterior import Posterior


def test_every_id_may_be_trained():
    ratings = im3f.Ratings.from_arrays(["a", "b"], ["x", "y"], [1.0, 2.0])
    # Two ids a side and the row of a new one; the columns: a, p, 0 and b, 0, q.
    users = np.float32([[[[0, 2, 0], [0, 3, 0], [0, 1, 0]]]])
    items = np.float32([[[[0, 0, 4], [0, 0, 5], [0, 0, 1]]]])
    one = np.ones((1, 1))
    rows = np.array([0, 1, 2])
    posterior = Posterior(
        spec=im3f.BPMF(1, user_noise_shape=2.0, item_noise_shape=2.0),
        users=ratings.users,
        items=ratings.items,
        user_row=rows,
        item_row=rows,
        draws=Draws(users, items, one, one, np.zeros((1, 1, 0))),
        trace={},
        levels=np.array([1.0, 2.0]),
        is_discrete=True,
        num_warmup=0,
        num_samples=1,
        thinning=1,
        seed=0,
        device="cpu",
        versions={},
        seconds={},
    )
    assert posterior.user_precision.to_dict() == {"a": 2, "b": 3}
    assert posterior.item_precision.to_dict() == {"x": 4, "y": 5}
