"""Random bits in one pass are those of JAX, and so is what is made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from im3f_jax.numerics import bits

LARGE = bits.ONE_PASS
SHAPES = [(), (0,), (5, 3), (LARGE - 1,), (LARGE,), (3, LARGE // 2 + 1), (2, 3, LARGE)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def keys():
    """Make keys whose words are small, large, and drawn."""
    return [
        jax.random.key(0),
        jax.random.key(2**32 - 1),
        jax.random.wrap_key_data(jnp.array([2**32 - 1, 2**31], jnp.uint32)),
        jax.random.split(jax.random.key(7))[1],
    ]


@each_shape
def test_bits_are_those_of_jax(shape):
    drawn = jax.jit(lambda key: bits.random_bits(key, shape))
    for key in keys():
        expected = jax.random.bits(key, shape, jnp.uint32)
        assert drawn(key).dtype == jnp.uint32
        np.testing.assert_array_equal(drawn(key), expected)


@each_shape
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniforms_and_normals_are_those_of_jax(shape, dtype):
    def by(module):
        def draw(key):
            bounds = -1.5, 0.5  # 2 apart: the product is exact
            wide = module.uniform(key, shape, dtype, *bounds)
            drawn = module.normal(key, shape, dtype)
            return module.uniform(key, shape, dtype), wide, drawn

        return jax.jit(draw)

    with jax.enable_x64(dtype == np.float64):
        ours, theirs = by(bits), by(jax.random)
        for key in keys():
            for found, expected in zip(ours(key), theirs(key), strict=True):
                assert found.dtype == expected.dtype == dtype
                np.testing.assert_array_equal(found, expected)


def test_keys_may_be_mapped_over():
    some = jax.random.split(jax.random.key(1), 3)
    drawn = jax.vmap(lambda key: bits.random_bits(key, (LARGE,)))(some)
    for key, row in zip(some, drawn, strict=True):
        np.testing.assert_array_equal(row, jax.random.bits(key, (LARGE,), jnp.uint32))


def test_a_shard_may_draw_by_a_key_of_its_own():
    def draw(key):
        return bits.random_bits(jax.random.fold_in(key, lax.axis_index("d")), (LARGE,))

    mesh = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1])
    drawn = jax.shard_map(draw, mesh=mesh, in_specs=P(), out_specs=P("d"))
    key = jax.random.key(2)
    expected = jax.random.bits(jax.random.fold_in(key, 0), (LARGE,), jnp.uint32)
    np.testing.assert_array_equal(jax.jit(drawn)(key), expected)


@pytest.mark.parametrize("number", [LARGE, LARGE - 1])
def test_a_key_used_twice_is_found(number):
    def twice(key):
        return bits.random_bits(key, (number,)) ^ bits.random_bits(key, (number,))

    def once(key):
        first, second = jax.random.split(key)
        return bits.random_bits(first, (number,)) ^ bits.random_bits(second, (number,))

    with jax.debug_key_reuse(True):
        jax.jit(once)(jax.random.key(0))
        with pytest.raises(jax.errors.KeyReuseError):
            jax.jit(twice)(jax.random.key(0))


def loops(shape):
    """Count the loops of a draw's program."""
    draw = jax.jit(lambda key: bits.random_bits(key, shape))
    return draw.lower(jax.random.key(0)).as_text().count("stablehlo.while")


def test_many_are_drawn_in_one_pass_on_a_cpu():
    if jax.default_backend() != "cpu":
        pytest.skip("JAX draws in one pass there by itself")
    assert loops((LARGE,)) == 0
    assert loops((LARGE - 1,)) == 1


def test_other_kinds_of_keys_have_their_own_bits():
    for impl in ("rbg", "unsafe_rbg"):
        key = jax.random.key(3, impl=impl)
        drawn = bits.random_bits(key, (LARGE,))
        np.testing.assert_array_equal(drawn, jax.random.bits(key, (LARGE,), "uint32"))


def test_bits_that_depend_on_their_number_are_left_to_jax():
    key = jax.random.key(5)
    with jax.threefry_partitionable(False):
        drawn = bits.random_bits(key, (LARGE,))
        np.testing.assert_array_equal(drawn, jax.random.bits(key, (LARGE,), "uint32"))
    assert np.any(drawn != bits.random_bits(key, (LARGE,)))


def test_high_products_are_exact():
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 2**16 - 1, 2**16, 2**31, 2**32 - 1], np.uint32)
    numbers = np.array([1, 2, 3, 2**16 - 1, 2**16, 2**16 + 1, 2**31 - 1], np.int32)
    left, right = (x.ravel() for x in np.meshgrid(edges, numbers))
    left = np.append(left, rng.integers(2**32, size=5000, dtype=np.uint32))
    right = np.append(right, rng.integers(1, 2**31, size=5000, dtype=np.int32))
    found = bits.high_product(jnp.asarray(left), jnp.asarray(right))
    assert found.dtype == jnp.int32
    expected = [int(a) * int(b) >> 32 for a, b in zip(left, right, strict=True)]
    np.testing.assert_array_equal(found, expected)
    assert np.all(found < right)
