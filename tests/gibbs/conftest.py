"""What the exact tests of the blocks share: a precision and a side."""

import pytest

from tests import tiny


@pytest.fixture(params=list(tiny.PRECISIONS))
def precision(request):
    """Run in float64 and in float32, with the tolerance of each."""
    with tiny.in_precision(request.param) as precision:
        yield precision


@pytest.fixture
def float64():
    """Run in float64."""
    with tiny.in_precision("float64") as precision:
        yield precision


@pytest.fixture(params=["user", "item"])
def side(request):
    """Be each side in turn."""
    return tiny.SIDES[request.param]
