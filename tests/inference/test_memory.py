"""Bytes told before the start, against what is then held."""

import re

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.data.layout import lay_out
from im3f_jax.inference.memory import (
    estimate_draw_bytes,
    estimate_memory,
    format_bytes,
)
from tests import fits

pytestmark = pytest.mark.relaxed

NUM_USERS, NUM_ITEMS = 59, 39  # of the trained rows of fits.data()


@pytest.mark.parametrize("name", list(fits.MODELS))
def test_the_estimate_of_a_draw_is_its_size(name):
    posterior = fits.posterior(name)
    held = posterior.draws.user_features.nbytes + posterior.draws.item_features.nbytes
    each = estimate_draw_bytes(posterior.spec, NUM_USERS, NUM_ITEMS)
    assert held == each * posterior.num_kept


def test_the_estimate_of_the_device_is_of_the_order_of_what_is_live():
    live = []

    def measure(sweep, elapsed, metrics):
        live.append(sum(array.nbytes for array in jax.live_arrays()))

    before = sum(array.nbytes for array in jax.live_arrays())
    fits.fit(fits.MODELS["IM3F"], callback=measure)
    held = max(live) - before
    train, test = fits.data()
    layout, _ = lay_out(train.user, train.item, train.rating, 60, 40)
    parts = estimate_memory(fits.posterior("IM3F").spec, layout, 1024)
    assert parts["total"] == sum(parts.values()) - parts["total"]
    # Between sweeps there is one copy of the state and none of the work.
    assert parts["total"] / 20 < held < parts["total"]
    kept = parts["ratings"] + parts["blocks"] + parts["predictions"]
    assert kept / 3 < held


def test_what_grows_with_the_chains_and_what_does_not():
    spec, train = fits.posterior("IM3F").spec, fits.data()[0]
    layout, _ = lay_out(train.user, train.item, train.rating, 60, 40)
    one, four = (estimate_memory(spec, layout, 0, chains) for chains in (1, 4))
    same = {name for name in one if four[name] == one[name]}
    assert same == {"ratings", "blocks"}
    assert all(four[name] == 4 * one[name] for name in one.keys() - same - {"total"})


def test_over_the_limit_a_thinning_is_named_that_then_fits():
    model = fits.MODELS["BPMF"]
    each = estimate_draw_bytes(fits.posterior("BPMF").spec, NUM_USERS, NUM_ITEMS)
    limit = 3 * each + 10  # 13 sweeps after the warm-up
    with pytest.raises(im3f.InputError, match="store='summary'") as refused:
        fits.fit(model, thinning=1, memory_limit=limit)
    (thinning,) = re.findall(r"thinning=(\d+) fits", str(refused.value))
    assert format_bytes(13 * each) in str(refused.value)
    posterior = fits.fit(model, thinning=int(thinning), memory_limit=limit)
    assert posterior.num_kept == 13 // int(thinning) <= 3
    # And it is the least that fits.
    with pytest.raises(im3f.InputError, match="fits"):
        fits.fit(model, thinning=int(thinning) - 1, memory_limit=limit)


def test_where_no_thinning_fits_that_is_said():
    with pytest.raises(im3f.InputError, match="no thinning fits.*'summary'"):
        fits.fit(fits.MODELS["BPMF"], memory_limit=100)
    assert fits.fit(fits.MODELS["BPMF"], memory_limit=100, store="summary").num_kept


def test_chains_count_in_the_limit():
    each = estimate_draw_bytes(fits.posterior("BPMF").spec, NUM_USERS, NUM_ITEMS)
    fits.fit(fits.MODELS["BPMF"], memory_limit=3 * each)
    with pytest.raises(im3f.InputError, match="host memory"):
        fits.fit(fits.MODELS["BPMF"], num_chains=2, memory_limit=3 * each)


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (5e9, "5 GB"), (2e13, "20 TB")],
)
def test_bytes_for_a_reader(count, text):
    assert format_bytes(count) == text


def test_kept_draws_are_stored_once():
    draws = fits.posterior("BPMF").draws
    assert np.isfinite(draws.user_features).all()
    base = draws.user_features.base
    assert base is None or base.nbytes == draws.user_features.nbytes
