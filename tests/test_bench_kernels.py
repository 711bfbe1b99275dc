"""The blocks of a sweep against their floor: work by hand, and the command."""

import json

import pytest

import im3f_jax as im3f
from bench import kernels, machine, throughput
from bench.kernels import Ceilings, Sizes, Work
from im3f_jax.model.spec import resolve

SIZES = Sizes(10, users=3, items=2, latent_dim=4, user_topics=2, item_topics=5)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Let files of results go to a folder of the test."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_work_by_hand():
    work = kernels.work_of_blocks(SIZES)
    # 10 ratings: 4 x 5 / 2 products of a symmetric matrix, an addition each, and 2 x 4
    # for the linear term; 3 rows: Cholesky 64 / 3, two triangular solves of 16 each.
    assert work["user factors"].operations == pytest.approx(
        10 * (20 + 8) + 3 * (64 / 3 + 32)
    )
    # Row, place and residual of a rating; own factors and noise, the other side's.
    assert work["user factors"].bytes == 10 * 12 + 4 * 4 * (3 + 3 + 2)
    assert work["user factors"].gathered == 10 * 4 * 4
    assert work["item factors"].bytes == 10 * 12 + 4 * 4 * (2 + 2 + 3)
    # Residual, two rows, a topic; weights of 2 items and biases of 3 users.
    assert work["item topics"] == Work(
        bytes=10 * 16 + 4 * 5 * (2 + 3),
        operations=7 * 10 * 5,
        exponentials=10 * 5,
        gathered=10 * 5 * 8,
    )
    assert work["user tables"].bytes == 10 * 20 + 4 * 2 * 2
    assert work["counts"].bytes == 2 * 10 * 8 + 4 * (3 * 2 + 2 * 5)
    assert work["weights"].exponentials == 5 * (3 * 2 + 2 * 5)
    assert work["biases"].bytes == 2 * 10 * 12 + 8 * (3 * 5 + 2 * 2)
    assert kernels.work_of_gaussians(7, 3) == Work(7 * 4 * 18, 7 * (9 + 18))


def test_every_block_has_its_work():
    spec = resolve(im3f.IM3F(3, max_user_topics=4, max_item_topics=4), 3.5, 1.0, 1.0)
    assert set(throughput.blocks_of(spec)) <= set(kernels.work_of_blocks(SIZES))


def test_the_floor_is_the_largest_of_three():
    ceilings = Ceilings(bytes=100.0, operations=1_000.0, exponentials=10.0)
    found = kernels.judge(8.0, Work(100, 3_000, 20, gathered=60), ceilings)
    assert found == {
        "bytes_per_second": 20.0,
        "operations_per_second": 375.0,
        "floor": 3.0,
        "bound": "operations",
        "ratio": pytest.approx(8 / 3),
    }
    assert kernels.judge(8.0, Work(100, 0, 20), ceilings)["bound"] == "exponentials"


def test_forms_of_the_draw_of_topics_are_raced():
    found = kernels.race_topics(SIZES._replace(ratings=100), 32, 1, tiles=(64, 128))
    assert list(found) == ["xla", "pallas, tile 64", "pallas, tile 128"]


@pytest.mark.thorough
def test_the_command_writes_blocks_and_ceilings(results, monkeypatch, capsys):
    monkeypatch.setattr(kernels, "SIZES", {"cpu": (64, 1_000, 8)})
    monkeypatch.setattr(kernels, "DIMENSIONS", (3,))
    monkeypatch.setattr(kernels, "GAMMA_TOPICS", (4,))
    blocks_of = throughput.blocks_of
    some = ("inner products", "item topics", "counts")
    monkeypatch.setattr(
        throughput, "blocks_of", lambda spec: {n: blocks_of(spec)[n] for n in some}
    )
    command = "--data 12x9x60 --latent-dim 2 --max-topics 3 --rounds 1 --sweeps 0"
    assert (
        kernels.main([*command.split(), "--device", "cpu", "--json-name", "try"]) == 0
    )
    (found,) = json.loads((results / "try.json").read_text())["results"]
    assert set(found["ceilings"]) == set(Ceilings._fields)
    assert found["sizes"]["ratings"] == 60 and found["sizes"]["item_topics"] == 3
    assert set(found["blocks"]) == set(some)
    for seconds in found["blocks"].values():
        assert seconds["ratio"] == pytest.approx(seconds["least"] / seconds["floor"])
    assert set(found["gaussians"]["3"]) == {"rows", "across rows", "by library"}
    (gammas,) = found["gammas"].values()
    assert set(gammas) == {"log_gamma", "jax"}
    assert "exponentials/s" in capsys.readouterr().out
