"""What shards tell each other, counted in their program."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import im3f_jax as im3f
from bench import scaling
from im3f_jax.model.spec import resolve


def test_collectives_are_counted_as_often_as_they_run():
    def function(x):
        def step(total, _):
            return total + lax.psum(x, "some"), None

        total, _ = lax.scan(step, x, None, length=3)
        return total + lax.all_gather(x, "some", tiled=True)[:4]

    trace = jax.make_jaxpr(function, axis_env=[("some", 8)])
    found = scaling.count_collectives(trace(jnp.zeros(4)))
    assert found == [("psum", 16, 3), ("all_gather", 128, 1)]

    def endless(x):
        return lax.while_loop(lambda x: x < 9, lambda x: x + lax.psum(x, "some"), x)

    trace = jax.make_jaxpr(endless, axis_env=[("some", 8)])
    with pytest.raises(ValueError, match="unknown length"):
        scaling.count_collectives(trace(jnp.zeros(())))


def test_bytes_of_a_sweep():
    spec = resolve(im3f.BPMF(latent_dim=3), 3.5, 1.2, 1.0)
    found = scaling.bytes_of_a_sweep(spec, 64, 128, 2, 4)["collectives"]
    # Of each item a precision and a linear term, and factors back; calls by batch.
    assert found["reduce_scatter"] == {"calls": 4, "bytes": 128 * (9 + 3) * 4}
    assert found["all_gather"] == {"calls": 2, "bytes": 128 * 3 * 4}
    assert "ppermute" not in found
    sums = 4 * (1 + 3 + 9)  # of the users' factors: number, mean and scatter
    assert sums < found["psum"]["bytes"] < sums + 100


@pytest.mark.thorough
def test_estimate_on_paper():
    little = scaling.PAPER | {"num_ratings": 10**8, "num_users": 10**6, "devices": 4}
    found = scaling.paper_estimate(little)
    parts = dict(found["memory"])
    assert parts.pop("total") == sum(parts.values())
    seconds = found["seconds"]
    assert seconds["sweep_at_floor"] == seconds["floor"] + seconds["link"]
    more = scaling.paper_estimate(little | {"devices": 8})
    assert more["memory"]["ratings"] == pytest.approx(parts["ratings"] / 2, rel=0.05)
