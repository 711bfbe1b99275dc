"""The short form of the validation: right samplers pass, wrong ones do not.

A test rejects where its least p-value of m is below FAILURE / m. One program holds the
right sampler and all of its mutants, so that it is compiled once.
"""

import pytest

from tests.validation import members
from tests.validation.checks import MUTANT, SHORT, TESTS, run_test
from tests.validation.mutants import MUTANTS, patch_of

# Chance that one test of a right sampler rejects it. A key is never changed.
FAILURE = 2e-5

# The member with most blocks; the others take a minute each to compile.
QUICK = "iM3F both"
slow = pytest.mark.slow


def mark(name):
    return () if name == QUICK else slow


def rejects(outcome):
    """Whether a test rejects the sampler."""
    return outcome.least[0] < FAILURE / len(outcome.chances)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=mark(name)) for name in members.MEMBERS]
)
@pytest.mark.parametrize("test", TESTS)
def test_the_sampler_draws_from_its_model(name, test):
    patched = any(mutant.member == name for mutant in MUTANTS)
    outcome = run_test(test, name, SHORT, patch_of(name) if patched else None)
    assert len(outcome.chances) > 20
    assert not rejects(outcome), outcome.least


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=f"{m.block}: {m.name}", marks=mark(m.member))
        for number, m in enumerate(MUTANTS, 1)
    ],
)
def test_a_wrong_sampler_is_found(number):
    mutant = MUTANTS[number - 1]
    test = "own start" if mutant.left_out else "geweke"
    outcome = run_test(test, mutant.member, MUTANT, patch_of(mutant.member), number)
    assert rejects(outcome), outcome.least


def test_every_block_has_a_mutant():
    assert {
        "factor prior",
        "factors",
        "topics",
        "table counts",
        "global weights",
        "row weights",
        "concentrations",
        "topic means",
        "biases",
        "rating variance",
    } <= {mutant.block for mutant in MUTANTS}
