"""Which device a fit runs on, said aloud."""

import os

import jax

from im3f_jax.data.layout import CPU_BLOCKS, GPU_BLOCKS, BlockSizes
from im3f_jax.errors import InputError
from im3f_jax.inference.memory import blocks_within

__all__ = [
    "block_sizes",
    "choose_device",
    "describe_device",
    "device_memory",
    "machine_memory",
]


def choose_device(device: "str | jax.Device") -> jax.Device:
    """Find a device by name.

    Parameters
    ----------
    device
        "auto" (JAX's default), "cpu", "gpu", or a JAX device.

    Raises
    ------
    InputError
        If there is no such device.
    """
    if isinstance(device, jax.Device):
        return device
    if device == "auto":
        return jax.local_devices()[0]
    if device not in ("cpu", "gpu"):
        raise InputError(f"device is {device!r}, but must be 'auto', 'cpu' or 'gpu'.")
    try:
        return jax.local_devices(backend=device)[0]
    except RuntimeError:
        raise InputError(
            f"device={device!r} was asked for, but JAX {jax.__version__} sees only: "
            f"{', '.join(sorted({d.platform for d in jax.devices()}))}. For NVIDIA "
            "GPUs install the extra cuda12 or cuda13."
        ) from None


def describe_device(device: jax.Device) -> str:
    """Platform and kind of a device, as in "gpu (NVIDIA H100)"."""
    return f"{device.platform} ({device.device_kind})"


def block_sizes(device: jax.Device, latent_dim: int) -> BlockSizes:
    """Sizes of the work that suit a device, and its memory."""
    if device.platform == "cpu":
        return CPU_BLOCKS
    return blocks_within(GPU_BLOCKS, latent_dim, device_memory(device))


def device_memory(device: jax.Device) -> int | None:
    """Bytes that JAX may take on a device; None where the device does not tell.

    On a GPU what its allocator may grow to (by default 3/4 of the card), on a CPU the
    memory of the machine.
    """
    if device.platform == "cpu":
        return machine_memory()
    return (device.memory_stats() or {}).get("bytes_limit")


def machine_memory() -> int:
    """Bytes of this machine's memory, whoever uses them."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
