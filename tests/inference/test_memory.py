"""Bytes told before the start, against what is then held."""

import dataclasses
import re

import jax
import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax import api
from im3f_jax.data.layout import CPU_BLOCKS, GPU_BLOCKS, BlockSizes, lay_out
from im3f_jax.inference.devices import device_memory, machine_memory
from im3f_jax.inference.memory import (
    FEWEST,
    blocks_within,
    estimate_draw_bytes,
    estimate_memory,
    expected_sizes,
    format_bytes,
    sizes_of,
)
from tests import fits

pytestmark = pytest.mark.relaxed

NUM_USERS, NUM_ITEMS = 59, 39  # of the trained rows of fits.data()


@pytest.mark.parametrize("name", list(fits.MODELS))
def test_the_estimate_of_a_draw_is_its_size(name):
    posterior = fits.posterior(name)
    each = estimate_draw_bytes(posterior.spec, NUM_USERS, NUM_ITEMS)
    assert fits.held(posterior) == each * posterior.num_kept


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


def test_blocks_are_cut_to_a_device():
    # 3 x 4 bytes x 65,536 rows x 128^2 are 12.9 GB: more than an eighth of 80 GB.
    bpmf = im3f.BPMF(128)
    assert blocks_within(GPU_BLOCKS, im3f.BPMF(40), 80 * 10**9) == GPU_BLOCKS
    assert blocks_within(GPU_BLOCKS, bpmf, None) == GPU_BLOCKS
    assert blocks_within(GPU_BLOCKS, bpmf, 80 * 10**9).rows == GPU_BLOCKS.rows // 2
    # A group's ratings take 0.4 GB, and 2,048 rows as much.
    small = blocks_within(GPU_BLOCKS, bpmf, 8 * 10**9)
    assert small == dataclasses.replace(GPU_BLOCKS, rows=2048)
    least = blocks_within(GPU_BLOCKS, bpmf, 1)
    assert (least.rows, least.group, least.chunk) == (FEWEST, FEWEST, FEWEST)
    # 3 x 4 bytes x 262,144 ratings x (40 + 500 + 500) are 3.3 GB.
    many = im3f.IM3F(40, max_user_topics=500, max_item_topics=500)
    assert blocks_within(GPU_BLOCKS, many, 80 * 10**9) == GPU_BLOCKS
    cut = blocks_within(GPU_BLOCKS, many, 8 * 10**9)
    assert cut.chunk == GPU_BLOCKS.chunk // 4
    # The estimate follows: what is cut is what the factor block would take.
    spec = dataclasses.replace(fits.posterior("IM3F").spec, latent_dim=128)
    work = [
        estimate_memory(spec, expected_sizes(200_000, 20_000, 10**6, sizes))
        for sizes in (GPU_BLOCKS, small)
    ]
    assert work[0]["factor work"] > 10**9 > work[1]["factor work"]


@pytest.mark.parametrize(
    "sizes",
    [CPU_BLOCKS, GPU_BLOCKS, BlockSizes(block=4, group=8, rows=64, chunk=256)],
    ids=["cpu", "gpu", "small"],
)
@pytest.mark.parametrize("rows", [(60, 40, 1010), (700, 300, 900), (5, 2000, 9000)])
def test_sizes_from_numbers_are_those_of_the_layout_and_bound_its_blocks(sizes, rows):
    users, items, number = rows
    rng = np.random.default_rng(0)
    # Everybody rates once, then a few rows take nearly all.
    user, item = (
        np.append(np.arange(n), np.minimum(rng.geometric(0.1, number - n) - 1, n - 1))
        for n in (users, items)
    )
    user, item = np.unique(np.stack([user, item]), axis=1)  # a pair once
    number = len(user)
    layout, _ = lay_out(user, item, np.ones(number), users, items, sizes)
    found, guess = sizes_of(layout), expected_sizes(users, items, number, sizes)
    for name in ("num_ratings", "user_rows", "item_rows", "chunk", "word"):
        assert getattr(found, name) == getattr(guess, name), name
    for exact, most in zip(found.blocks, guess.blocks, strict=True):
        assert (exact.block, exact.batch_rows) == (most.block, most.batch_rows)
        slots, at_most = exact.groups * exact.group, most.groups * most.group
        assert slots <= at_most
    spec = fits.posterior("IM3F").spec
    assert estimate_memory(spec, found) == estimate_memory(spec, layout)
    assert (
        estimate_memory(spec, layout)["total"] <= estimate_memory(spec, guess)["total"]
    )


def test_sizes_of_fewer_ratings_than_rows_are_refused():
    with pytest.raises(im3f.InputError, match="99 ratings are too few for 100 users"):
        expected_sizes(100, 20, 99, CPU_BLOCKS)


def test_a_fit_beyond_the_memory_of_its_device_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(api, "device_memory", lambda device: 50_000)
    with pytest.raises(im3f.InputError) as refused:
        fits.fit(fits.MODELS["IM3F"], num_chains=4, chain_method="vectorized")
    said = str(refused.value)
    assert said.count(". ") == 0 and said.endswith(".")
    for part in ("more than the 50 kB of cpu", "chunk work", "chain_method", "latent"):
        assert part in said
    assert "topics" in said and "store='summary'" in said
    with pytest.raises(im3f.InputError) as refused:
        fits.fit(fits.MODELS["BPMF"], store="summary")
    for part in ("chain_method", "topics", "summary"):  # would change nothing
        assert part not in str(refused.value)


def test_kept_draws_count_where_the_device_is_the_host(monkeypatch):
    model, said = fits.MODELS["BPMF"], []
    for limit in (None, 10**12):  # one that tells nothing refuses nothing
        monkeypatch.setattr(api, "device_memory", lambda device, limit=limit: limit)
        assert fits.fit(model).num_kept
    for store in ("all", "summary"):
        monkeypatch.setattr(api, "device_memory", lambda device: 0)
        with pytest.raises(im3f.InputError) as refused:
            fits.fit(model, store=store)
        said.append("kept draws" in str(refused.value))
    assert not any(said)  # few and small: not among the three largest
    with pytest.raises(im3f.InputError, match="kept draws"):
        fits.fit(model, num_samples=4000, thinning=1, memory_limit=10**9)


def test_the_memory_of_a_device():
    assert device_memory(jax.devices("cpu")[0]) == machine_memory() > 1e8

    class Card:
        platform = "gpu"
        stats = {"bytes_limit": 60_000, "bytes_in_use": 1}

        def memory_stats(self):
            return self.stats

    assert device_memory(Card()) == 60_000
    Card.stats = None
    assert device_memory(Card()) is None


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
