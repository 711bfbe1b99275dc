"""The validation in short, on the member that has every block; all: make validate."""

import numpy as np
import pytest
from scipy import stats

from tests.validation import checks, members, mutants
from tests.validation.statistics import two_sample

NAME = "iM3F both"  # weak limit on one side, sticks on the other, everything sampled

# The four tests of this file fail by chance with this probability, all together; a
# mutant is caught at the same limit.
FAILURE = 1e-4
LIMIT = FAILURE / 300

# One mutant for most blocks; the others are in the long form.
CAUGHT = (
    "W_0 for its inverse",
    "sign of the residual",
    "weight n / sigma^2: biases not summed out",
    "prior mean c_0 for mu_k",
    "the item's read a stale residual",
    "theta left out",
    "gamma for gamma pi",
    "off by one: a/(a + i), i = 1..n",
    "sticks without the sum of the tail",
    "gamma/K for gamma pi",
    "Escobar and West with the number of dishes",
    "shape n for n/2",
)


def run(test, sizes, active=0):
    """Run a test by the one program that holds the mutants of NAME, too."""
    return checks.run_test(test, NAME, sizes, mutants.patch_of(NAME), active)


@pytest.mark.thorough
@pytest.mark.parametrize("test", checks.TESTS)
def test_the_sampler_passes(test):
    outcome = run(test, checks.SHORT)
    assert len(outcome.chances) > 40
    least = outcome.least
    assert least[0] > LIMIT, f"{least[1]}: p = {least[0]:.2g}"


@pytest.mark.thorough
@pytest.mark.parametrize("name", CAUGHT)
def test_a_mutant_is_caught(name):
    (number,) = (
        n for n in mutants.numbers_of(NAME) if mutants.MUTANTS[n - 1].name == name
    )
    assert run("geweke", checks.MUTANT, number).least[0] < LIMIT


@pytest.mark.thorough
@pytest.mark.parametrize("block", ["rating variance", "topics"])
def test_a_block_left_out_is_caught(block):
    # The joint stays as it is: only chains that start elsewhere can tell.
    (number,) = (
        n
        for n in mutants.numbers_of(NAME)
        if mutants.MUTANTS[n - 1].left_out and mutants.MUTANTS[n - 1].block == block
    )
    assert run("own start", checks.MUTANT, number).least[0] < LIMIT


def test_every_mutant_changes_a_function_that_is_there():
    for mutant in mutants.MUTANTS:
        places = [(mutant.module, mutant.function), mutant.skipped or (None, "__doc__")]
        for module, function, *_ in places:
            assert hasattr(module, function), f"{mutant.member}: {mutant.name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in members.MEMBERS if n != NAME])
def test_every_member_leaves_the_joint_as_it_is(name):
    outcome = checks.run_test("geweke", name, checks.SHORT)
    assert outcome.least[0] > FAILURE / (len(outcome.chances) * len(members.MEMBERS))


@pytest.mark.slow
@pytest.mark.parametrize("number", mutants.numbers_of("BPMF shrinkage"))
def test_a_mutant_of_the_column_precisions_is_caught(number):
    name, mutant = "BPMF shrinkage", mutants.MUTANTS[number - 1]
    test = "own start" if mutant.left_out else "geweke"
    sizes = mutants.sizes_of(mutant)
    outcome = checks.run_test(test, name, sizes, mutants.patch_of(name), number)
    assert outcome.least[0] < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, number",
    [
        (name, number)
        for name in (
            "BPMF time",
            "M3F ordinal time",
            "iM3F directed",
            "iM3F unordered",
        )
        for number in mutants.numbers_of(name)
    ],
)
def test_a_mutant_of_time_or_of_persons_is_caught(name, number):
    mutant = mutants.MUTANTS[number - 1]
    test = "own start" if mutant.left_out else "geweke"
    sizes = mutants.sizes_of(mutant)
    outcome = checks.run_test(test, name, sizes, mutants.patch_of(name), number)
    assert outcome.least[0] < LIMIT


def test_two_samples():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 4_000))
    assert two_sample(first, second) > 1e-3
    assert two_sample(first, second + 0.2) < 1e-9
    counts = rng.poisson(2, size=(2, 4_000))
    assert two_sample(*counts) > 1e-3
    assert two_sample(counts[0], rng.poisson(2.3, size=4_000)) < 1e-6
    assert two_sample(first, np.where(first > 3, np.nan, first)) == 0
    assert two_sample(np.ones(9), np.ones(9)) is None


def test_p_values_of_counts_are_uniform():
    rng = np.random.default_rng(1)
    chances = [two_sample(*rng.poisson(2, size=(2, 500))) for _ in range(400)]
    assert stats.kstest(chances, "uniform").pvalue > 1e-4


def test_every_block_has_a_mutant():
    blocks = {mutant.block for mutant in mutants.MUTANTS}
    assert blocks >= {
        "factor prior",
        "column precisions",
        "factors",
        "topic means",
        "biases",
        "shared biases",
        "topics",
        "table topics",
        "table counts",
        "global weights",
        "row weights",
        "concentrations",
        "rating variance",
        "franchise",
        "cut points",
        "latent ratings",
        "noise",
        "time",
        "topic factors",
        "reciprocal",
    }
