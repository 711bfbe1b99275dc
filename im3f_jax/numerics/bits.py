"""Random bits, uniforms and normals of `jax.random`, sooner on a CPU.

JAX hashes a CPU's counters in five passes over memory, so that little is compiled. For
many numbers one pass is several times as fast. The bits are the same, whatever the
device.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

__all__ = ["high_product", "normal", "random_bits", "uniform"]

# From so many numbers on a draw is made in one pass. A sweep has some eighty draws,
# most of them small: all in one pass they would compile for a third longer.
ONE_PASS = 1 << 14

# Of Threefry-2x32, 20 rounds: by how many bits each round turns, and the key's parity.
TURNS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA


def random_bits(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw random bits, those of `jax.random.bits`.

    Parameters
    ----------
    key
        A typed key.
    shape
        Static.

    Returns
    -------
    Array
        uint32, in the shape given.
    """

    def by_jax(key):
        return jax.random.bits(key, shape, jnp.uint32)

    size = math.prod(shape)
    is_threefry = jax.random.key_impl(key) == "threefry2x32"
    if not ONE_PASS <= size < 2**32 or not is_threefry:
        return by_jax(key)
    if not jax.config.jax_threefry_partitionable:
        return by_jax(key)  # other bits
    return lax.platform_dependent(
        key, cpu=lambda key: _threefry(key, size).reshape(shape), default=by_jax
    )


@partial(jax.jit, static_argnums=1)  # traced once
def _threefry(key: Array, size: int) -> Array:
    """Hash the counters 0 .. size - 1 (Salmon et al. 2011, section 4.2, 20 rounds)."""
    first, second = jax.random.key_data(key)
    words = first, second, first ^ second ^ np.uint32(PARITY)
    x = jnp.broadcast_to(words[0], (size,))
    y = lax.iota(jnp.uint32, size) + words[1]
    for group in range(1, 6):
        for turn in TURNS[(group - 1) % 2]:
            x = x + y
            y = (y << np.uint32(turn)) | (y >> np.uint32(32 - turn))
            y = x ^ y
        x = x + words[group % 3]
        y = y + words[(group + 1) % 3] + np.uint32(group)
    return x ^ y


def uniform(
    key: Array, shape: tuple[int, ...], dtype, least: float = 0.0, most: float = 1.0
) -> Array:
    """Draw uniforms on [least, most), those of `jax.random.uniform`.

    To the last bit where most - least is a power of two; else a program may round their
    product and its sum with `least` once or twice, here as there.

    Parameters
    ----------
    key
        A typed key.
    shape
        Static.
    dtype
        Of the result, floating.
    least, most
        Bounds; numbers that are exact in `dtype`.

    Returns
    -------
    Array
        In the shape and dtype given; 2^23 steps in float32.
    """
    if dtype != jnp.float32:
        return jax.random.uniform(key, shape, dtype, least, most)
    bits = random_bits(key, shape)
    # The leading 23 bits are the mantissa of a number in [1, 2).
    mantissa = (bits >> np.uint32(9)) | np.float32(1).view(np.uint32)
    unit = lax.bitcast_convert_type(mantissa, dtype) - np.float32(1)
    least, most = np.float32(least), np.float32(most)
    return jnp.maximum(least, unit * (most - least) + least)


def normal(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Draw standard normals, those of `jax.random.normal`.

    Parameters
    ----------
    key
        A typed key.
    shape
        Static.
    dtype
        Of the result, floating.

    Returns
    -------
    Array
        In the shape and dtype given.
    """
    least = np.nextafter(np.asarray(-1, dtype), np.asarray(0, dtype))
    drawn = uniform(key, shape, dtype, least, 1)
    return np.asarray(math.sqrt(2), dtype) * lax.erf_inv(drawn)


def high_product(bits: Array, number: Array) -> Array:
    """Take the high 32 bits of the product of random bits and a number.

    A draw of 0 .. number - 1, each with a probability that differs from 1 / number by
    less than 2^-32 (Lemire 2019). In halves of 16 bits: JAX has 64 only if asked to.

    Parameters
    ----------
    bits
        uint32, any shape.
    number
        int32, positive, in the same shape.

    Returns
    -------
    Array
        int32, in that shape.
    """
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    number = number.astype(jnp.uint32)
    low, high = bits & mask, bits >> half
    first, second = number & mask, number >> half
    # No sum exceeds 32 bits: (2^16 - 1)^2 + 2 (2^16 - 1) = 2^32 - 1.
    middle = high * first + (low * first >> half)
    rest = low * second + (middle & mask)
    product = high * second + (middle >> half) + (rest >> half)
    return product.astype(jnp.int32)
