"""Fixtures for all tests: strict JAX, and the folder of real data."""

import importlib.util
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

# The inputs that hypothesis draws are the same at every run, and no example is stored.
FUZZING = {"derandomize": True, "deadline": None, "database": None}
settings.register_profile("quick", max_examples=25, **FUZZING)
settings.register_profile("long", max_examples=1000, **FUZZING)

# A third of the 65,530 that Linux allows a process unless told otherwise
# (vm.max_map_count): the rest is room for the next file of tests.
MAX_MAPPINGS = 20_000


def pytest_configure(config):
    """Draw few inputs where the slow tests are left out, else many; keep programs.

    What a worker has compiled all read: this one again, after its programs were
    dropped, the others, and the processes that they start; the next run compiles anew.
    Given a bound of its size (bytes), JAX locks the folder, by `filelock`; else it may
    read what another process has half written.
    """
    is_quick = "not slow" in config.getoption("markexpr")
    settings.load_profile("quick" if is_quick else "long")
    if hasattr(config, "workerinput"):
        return  # the process that started it has said where
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    if importlib.util.find_spec("filelock"):
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
        os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(8 << 30)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"


def memory_mappings():
    """Count this process's memory mappings; 0 where there is no /proc."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def pytest_runtest_teardown(item, nextitem):
    """Drop compiled programs between files, before their mappings run out.

    Each takes some mappings for as long as it is cached, and XLA's compiler crashes
    when it gets no more: https://github.com/jax-ml/jax/issues/27201
    """
    if nextitem is None or nextitem.path == item.path:
        return
    if memory_mappings() > MAX_MAPPINGS:
        import jax

        jax.clear_caches()


@pytest.fixture(autouse=True)
def strict_jax(request):
    """Make JAX refuse silent promotion of types and ranks in our own code.

    Context managers, so that nothing global is left behind. Tests that call numpyro or
    optax, which promote freely, carry the marker ``relaxed``.
    """
    if request.node.get_closest_marker("relaxed"):
        yield
        return
    import jax

    with ExitStack() as stack:
        stack.enter_context(jax.numpy_dtype_promotion("strict"))
        stack.enter_context(jax.numpy_rank_promotion("raise"))
        yield


@pytest.fixture(autouse=True)
def skip_without_gpu(request):
    """Skip the tests marked ``gpu`` where JAX has none."""
    if request.node.get_closest_marker("gpu"):
        import jax

        if jax.default_backend() != "gpu":
            pytest.skip(f"needs a GPU; JAX runs on the {jax.default_backend()} here")


@pytest.fixture(scope="session")
def data_dir():
    """Return the folder of real data, or skip: it is not part of the repository."""
    name = os.environ.get("IM3F_DATA_DIR")
    if not name:
        pytest.skip("IM3F_DATA_DIR is not set: real data is not in the repository")
    folder = Path(name)
    if not folder.is_dir():
        pytest.skip(f"IM3F_DATA_DIR names no folder: {name}")
    return folder
