"""Devices by name."""

import jax
import pytest

import im3f_jax as im3f
from im3f_jax.data.layout import CPU_BLOCKS, GPU_BLOCKS
from im3f_jax.inference.devices import block_sizes, choose_device, describe_device


def test_auto_is_the_default_of_jax():
    assert choose_device("auto") == jax.devices()[0]


def test_a_device_is_itself():
    device = jax.devices("cpu")[-1]
    assert choose_device(device) is device
    assert choose_device("cpu").platform == "cpu"


@pytest.mark.parametrize("name", ["tpu", "cuda", "", None, 0])
def test_other_names_are_refused(name):
    with pytest.raises(im3f.InputError, match="^device is .*'auto', 'cpu' or 'gpu'"):
        choose_device(name)


def test_a_gpu_that_is_not_there_is_refused_aloud():
    if any(device.platform != "cpu" for device in jax.devices()):
        pytest.skip("there is a GPU")
    with pytest.raises(im3f.InputError, match="device='gpu'.*sees only: cpu.*cuda12"):
        choose_device("gpu")


@pytest.mark.gpu
def test_a_gpu_is_found():
    assert choose_device("gpu").platform == "gpu"
    assert block_sizes(choose_device("gpu"), im3f.BPMF(10)) == GPU_BLOCKS


def test_the_description_names_platform_and_kind():
    device = jax.devices("cpu")[0]
    assert describe_device(device) == f"cpu ({device.device_kind})"
    assert block_sizes(device, im3f.BPMF(40)) == CPU_BLOCKS
