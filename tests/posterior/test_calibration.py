"""Calibration: against closed forms, and against the densities themselves."""

import dataclasses

import numpy as np
import pytest

from im3f_jax.errors import InputError
from im3f_jax.posterior.calibration import (
    coverage,
    place_in_prediction,
    reliability,
)
from im3f_jax.posterior.compare import calibration_error
from im3f_jax.posterior.score import log_below, log_score
from tests import fits

pytestmark = pytest.mark.relaxed  # fits start by optax

NOMINAL = np.linspace(0, 1, 21)


def test_right_predictions_are_covered_as_they_claim():
    place = (np.arange(1000) + 0.5) / 1000
    np.testing.assert_allclose(coverage(place, place, NOMINAL), NOMINAL, atol=2e-3)
    # Of levels with probabilities 0.1 to 0.4, which come as often as that.
    upto = np.array([0, 0.1, 0.3, 0.6, 1.0])
    level = np.repeat(np.arange(4), [1, 2, 3, 4])
    found = coverage(upto[level], upto[level + 1], NOMINAL)
    np.testing.assert_allclose(found, NOMINAL, atol=1e-12)


def test_too_sure_predictions_cover_less():
    place = np.repeat([0.01, 0.99], 5)
    np.testing.assert_array_equal(coverage(place, place, np.array([0.5, 0.97])), 0)
    assert coverage(place, place, np.array([0.985]))[0] == 1


def test_the_bins_are_those_of_the_calibration_error():
    posterior, (_, test) = fits.posterior("IM3F"), fits.data()
    table = reliability(posterior, test)
    proba = posterior.predict_proba(test.user_ids, test.item_ids)
    hit = test.rating[:, None] == posterior.levels
    gap = np.abs(table["predicted"] - table["observed"]) * table["pairs"]
    assert table["pairs"].sum() == hit.size
    assert gap.sum() / hit.size == pytest.approx(calibration_error(proba, hit))
    assert (table["observed"] * table["pairs"]).sum() == pytest.approx(len(test))


def test_places_on_a_scale_of_levels():
    posterior, (_, test) = fits.posterior("IM3F"), fits.data()
    low, high = place_in_prediction(posterior, test)
    proba = posterior.predict_proba(test.user_ids, test.item_ids)
    for n in range(20):
        level = list(posterior.levels).index(test.rating[n])
        assert low[n] == pytest.approx(proba[n, :level].sum(), abs=1e-12)
        assert high[n] == pytest.approx(proba[n, : level + 1].sum(), abs=1e-12)


def test_places_on_a_continuous_scale_are_integrals_of_the_density():
    posterior = fits.posterior("IM3F")
    grid = np.linspace(-12, 18, 2001)
    rows = np.full(len(grid), 3), np.full(len(grid), 4)
    given = posterior.draws, posterior.spec, *rows, grid
    below = np.exp(log_below(*given).log_score)
    density = np.exp(log_score(*given, None).log_score)
    steps = np.diff(grid) * (density[1:] + density[:-1]) / 2
    np.testing.assert_allclose(below[1:], np.cumsum(steps), atol=1e-4)
    test = fits.data()[1]
    continuous = dataclasses.replace(posterior, is_discrete=False)
    low, high = place_in_prediction(continuous, test)
    np.testing.assert_array_equal(low, high)
    levels_low, levels_high = place_in_prediction(posterior, test)
    assert np.all((levels_low < low) & (low < levels_high))


def test_what_is_not_there_is_said():
    posterior, (_, test) = fits.posterior("IM3F"), fits.data()
    with pytest.raises(InputError, match="no ratings"):
        reliability(posterior, test.select(np.arange(0)))
    for discrete in (True, False):
        less = dataclasses.replace(posterior, draws=None, is_discrete=discrete)
        with pytest.raises(InputError, match="kept no draws"):
            place_in_prediction(less, test)
