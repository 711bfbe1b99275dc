"""Which device a fit runs on, said aloud."""

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jax
import jaxlib

from im3f_jax.data.layout import CPU_BLOCKS, GPU_BLOCKS, BlockSizes
from im3f_jax.errors import InputError
from im3f_jax.inference.memory import blocks_within
from im3f_jax.model.spec import ModelSpec

__all__ = [
    "DeviceReport",
    "block_sizes",
    "choose_device",
    "describe_device",
    "device_memory",
    "device_report",
    "machine_memory",
    "num_threads",
    "settings_of_thread",
]

logger = logging.getLogger(__name__)


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
        found = jax.local_devices()[0]
        if found.platform == "cpu" and not jax.config.jax_platforms:
            for sentence in _why_no_gpu():
                logger.warning("%s", sentence)
        return found
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


def block_sizes(device: jax.Device, spec: ModelSpec) -> BlockSizes:
    """Sizes of the work of a model that suit a device, and its memory."""
    if device.platform == "cpu":
        return CPU_BLOCKS
    return blocks_within(GPU_BLOCKS, spec, device_memory(device))


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


def num_threads() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def settings_of_thread(device: jax.Device | None = None) -> Callable:
    """Give a context with this thread's settings of JAX, for another thread.

    Set by `with`, they hold in their own thread only, and a program is compiled anew
    under others. A `device` stands in for the one that is set.
    """
    kept = (
        (jax.enable_x64, jax.config.jax_enable_x64),
        (jax.numpy_dtype_promotion, jax.config.jax_numpy_dtype_promotion),
        (jax.numpy_rank_promotion, jax.config.jax_numpy_rank_promotion),
        (jax.default_matmul_precision, jax.config.jax_default_matmul_precision),
        (jax.threefry_partitionable, jax.config.jax_threefry_partitionable),
        (jax.debug_nans, jax.config.jax_debug_nans),
        (jax.debug_infs, jax.config.jax_debug_infs),
        (jax.debug_key_reuse, jax.config.jax_debug_key_reuse),
        (jax.default_device, device or jax.config.jax_default_device),
    )

    @contextmanager
    def settings():
        with ExitStack() as stack:
            for setting, value in kept:
                stack.enter_context(setting(value))
            yield

    return settings


@dataclass(frozen=True, repr=False)
class DeviceReport:
    """What JAX runs on here; printed, it is a text.

    Attributes
    ----------
    jax_version, jaxlib_version
        Installed versions.
    default
        Platform and kind of the device that `device="auto"` takes.
    devices
        Platform and kind of each device of this process, and the bytes that JAX may
        take there, None where the device does not tell.
    x64
        Whether JAX computes in float64 where asked; a fit's floats are float32.
    nvidia_gpus
        NVIDIA GPUs that the driver of this machine shows, whether JAX uses them or not.
    advice
        What may not be as wanted, a sentence each.
    """

    jax_version: str
    jaxlib_version: str
    default: str
    devices: list[tuple[str, int | None]]
    x64: bool
    nvidia_gpus: list[str]
    advice: list[str]

    def __repr__(self) -> str:
        rows = [
            f"JAX {self.jax_version}, jaxlib {self.jaxlib_version}, "
            f"x64 {'on' if self.x64 else 'off'}",
            f"runs on: {self.default}",
        ]
        for name, memory in self.devices:
            size = "" if memory is None else f", {memory / 1e9:.3g} GB"
            rows.append(f"device: {name}{size}")
        rows += [f"NVIDIA GPU: {name}" for name in self.nvidia_gpus]
        return "\n".join([*rows, *self.advice])


def device_report() -> DeviceReport:
    """Tell which devices JAX sees, and why it runs where it does.

    Starts JAX's backends, which on a GPU takes memory; changes no setting.

    Returns
    -------
    DeviceReport
        To be printed; its fields hold the same.

    Examples
    --------
    >>> print(im3f.device_report())
    """
    found = jax.local_devices()
    default = found[0]
    if default.platform != "cpu" and not jax.config.jax_platforms:
        found = [*found, *jax.local_devices(backend="cpu")]
    return DeviceReport(
        jax_version=jax.__version__,
        jaxlib_version=jaxlib.__version__,
        default=describe_device(default),
        devices=[(describe_device(one), device_memory(one)) for one in found],
        x64=bool(jax.config.jax_enable_x64),
        nvidia_gpus=_nvidia_gpus(),
        advice=_why_no_gpu() if default.platform == "cpu" else [],
    )


def _nvidia_gpus() -> list[str]:
    """Name the NVIDIA GPUs that the driver shows (on Linux), without CUDA."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = (line.partition(":") for line in path.read_text().splitlines())
        named = [value.strip() for key, _, value in lines if key == "Model"]
        names += named or [path.parent.name]
    return names or [str(x) for x in sorted(Path("/dev").glob("nvidia[0-9]*"))]


def _why_no_gpu() -> list[str]:
    """Say why JAX, which runs on the CPU, leaves an NVIDIA GPU unused; [] without."""
    if not _nvidia_gpus():
        return []
    platforms, visible = jax.config.jax_platforms, "CUDA_VISIBLE_DEVICES"
    if platforms:
        why = f"JAX was told to use {platforms!r} only (JAX_PLATFORMS)."
    elif os.environ.get(visible, "0") in ("", "-1"):
        why = f"{visible} hides it."
    elif not any(find_spec(f"jax_cuda{number}_plugin") for number in (12, 13)):
        why = "JAX has no CUDA: install the extra cuda13 of im3f-jax, or cuda12."
    else:
        why = "CUDA finds none: look at its driver, by nvidia-smi."
    return [f"JAX runs on the CPU although there is an NVIDIA GPU: {why}"]
