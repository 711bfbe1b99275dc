"""What shards tell one another, with all shards on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from im3f_jax.numerics import collectives

AXIS = "some"


def on_shards(function, *values):
    """Run a function on every shard, as many as the arrays have rows."""
    return jax.vmap(function, axis_name=AXIS)(*values)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
def test_sums(number):
    rng = np.random.default_rng(number)
    values = rng.integers(0, 9, (number, 3)).astype(np.int32)
    sums = on_shards(lambda x: collectives.sum_across(x, AXIS), values)
    np.testing.assert_array_equal(sums, np.broadcast_to(values.sum(0), values.shape))
    before = on_shards(lambda x: collectives.sums_before(x, AXIS), values)
    np.testing.assert_array_equal(before, np.cumsum(values, 0) - values)
    some = values > 4
    found = on_shards(lambda x: collectives.any_across(x, AXIS), some)
    np.testing.assert_array_equal(found, np.broadcast_to(some.any(0), some.shape))
    counted = on_shards(lambda x: x + collectives.num_shards(AXIS), values)
    np.testing.assert_array_equal(counted, values + number)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_rows(number):
    rng = np.random.default_rng(number)
    values = rng.normal(size=(number, 2 * number, 4))
    own = on_shards(lambda x: collectives.sum_of_own_rows(x, AXIS), values)
    np.testing.assert_allclose(own.reshape(-1, 4), values.sum(0), rtol=1e-6)
    whole = on_shards(lambda x: collectives.all_rows(x, AXIS), own)
    for one in whole:
        np.testing.assert_array_equal(one, own.reshape(-1, 4))
    taken = on_shards(lambda x: collectives.own_rows(x, AXIS), whole)
    np.testing.assert_array_equal(taken, own)


def test_keys_differ_by_shard():
    key = jax.random.key(0)
    keys = on_shards(lambda _: collectives.own_key(key, AXIS), jnp.zeros(4))
    assert len(np.unique(jax.random.key_data(keys), axis=0)) == 4


def test_without_shards_nothing_happens():
    key, values = jax.random.key(0), jnp.arange(6.0).reshape(3, 2)
    assert collectives.own_key(key, None) is key
    assert collectives.num_shards(None) == 1
    for function in (
        collectives.sum_across,
        collectives.any_across,
        collectives.own_rows,
        collectives.sum_of_own_rows,
        collectives.all_rows,
    ):
        assert function(values, None) is values
    assert not np.any(collectives.sums_before(values, None))
