"""The paper's experiments on made-up files: every part, resume, the t-test, tables."""

import json
import zlib

import numpy as np
import pytest
from scipy import stats

import im3f_jax as im3f
from bench import machine, reproduce_paper, rows, tables
from im3f_jax.errors import InputError

# Fits start by optax, which promotes freely.
pytestmark = pytest.mark.relaxed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write files as IM3F_DATA_DIR holds them; no user is without a second rating."""
    folder = tmp_path_factory.mktemp("data")
    ratings = im3f.planted_ratings(
        num_users=30,
        num_items=20,
        num_ratings=400,
        latent_dim=2,
        levels=[1, 2, 3, 4, 5],
    ).ratings
    last = {user: row for row, user in enumerate(ratings.user)}
    first = {user: row for row, user in reversed(list(enumerate(ratings.user)))}
    for name in ("ml-100k", "ml-1m", "dblp"):
        (folder / name).mkdir()
    arrays = {"user": ratings.user, "item": ratings.item, "rating": ratings.rating}
    stars = ratings.rating.astype(int)
    lines = zip(ratings.user, ratings.item, stars, np.zeros_like(stars), strict=True)
    text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
    (folder / "ml-100k" / "u.data").write_text(text)
    np.savez(folder / "ml-1m" / "ratings.npz", **arrays)
    for name in ("ml-100k", "ml-1m"):
        sets = {"loo_0": sorted(last.values()), "loo_1": sorted(first.values())}
        np.savez(folder / name / "test_rows.npz", **sets)
    # Authors 0 to 49, user < item; one pair beyond the scale.
    more = {"user": [0, 1], "item": [1, 2], "rating": [12, 1]}
    arrays["item"] = arrays["item"] + 30
    arrays = {k: np.r_[v, more[k]].astype(np.int64) for k, v in arrays.items()}
    np.savez(folder / "dblp" / "coauthor_ml_dm.npz", **arrays)
    return folder


@pytest.fixture
def place(folder, tmp_path, monkeypatch):
    """Let data come from the made-up files, and let results go to a folder apart."""
    monkeypatch.setenv("IM3F_DATA_DIR", str(folder))
    files = {name: (file, (None, None, None)) for name, (file, _) in rows.FILES.items()}
    monkeypatch.setattr(rows, "FILES", files)
    about = machine.describe()  # asks git and the driver: once
    monkeypatch.setattr(machine, "describe", lambda: about)
    monkeypatch.setattr(machine, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    # Programs of other tests stay compiled.
    monkeypatch.setattr(reproduce_paper.jax, "clear_caches", lambda: None)
    reproduce_paper._load.cache_clear()
    yield tmp_path
    reproduce_paper._load.cache_clear()


def run(place, *arguments):
    words = [*arguments, "--size", "tiny", "--units", str(place / "units")]
    assert reproduce_paper.main(words) == 0
    names = [part for part in arguments if part in reproduce_paper.PARTS]
    paths = [machine.RESULTS / f"reproduce_{name}.json" for name in names]
    return [json.loads(path.read_text()) for path in paths]


def fake(monkeypatch, fitted=None):
    """Put numbers in the place of fits; each unit has its own."""

    def fit_unit(unit, seed=0):
        if fitted is not None:
            fitted.append(reproduce_paper.name_of(unit))
        rng = np.random.default_rng(zlib.crc32(str(unit).encode()))
        squares = rng.uniform(0, 2, 29)  # one user has no rating
        falling = (1 + 1 / np.arange(1, unit["sweeps"] + 1)).tolist()
        return {
            "unit": unit,
            "rmse": float(np.sqrt(squares.mean())),
            "rmse_clipped": 0.9,
            "train_rmse": 0.5,
            "training_rows_rmse": 0.75,
            "num_user_topics": 3.0,
            "num_item_topics": 4.0,
            "effective_user_topics": 1.25,
            "effective_item_topics": 2.5,
            "num_train": 100,
            "num_test": 29,
            "num_cold": 0,
            "curve": {
                "test_rmse": falling,
                "train_rmse": falling,
                "num_user_topics": falling,
                "num_item_topics": falling,
            },
            "squared_errors": squares.tolist(),
            "seconds": {"start": 0.5, "compile": 10.0, "run": 0.25 * unit["sweeps"]},
            "seconds_in_all": 12.0,
            "processor_seconds": 11.0,
            "device": "cpu",
            "warnings": [],
        }

    monkeypatch.setattr(reproduce_paper, "fit_unit", fit_unit)


@pytest.mark.parametrize("size", reproduce_paper.SIZES)
def test_every_size_has_every_part_and_says_what_it_cuts(size):
    assert reproduce_paper.SIZES[size].keys() == reproduce_paper.PARTS.keys()
    for part, full in reproduce_paper.SIZES["full"].items():
        sizes = reproduce_paper.SIZES[size][part]
        assert sizes.keys() == full.keys()
        found = reproduce_paper.cut(size, part)
        assert full | {k: here for k, (here, _) in found.items()} == sizes
        assert not (found and size == "full")


def test_the_full_sizes_are_those_of_the_paper(place, monkeypatch):
    fitted, cleared = [], []
    fake(monkeypatch, fitted)
    monkeypatch.setattr(reproduce_paper.jax, "clear_caches", lambda: cleared.append(1))
    words = ["curves", "compare", "dblp", "--units", str(place / "units")]
    assert reproduce_paper.main([*words, "--resume"]) == 0
    movies = [name for name in fitted if "ml-1m" in name]
    assert len(movies) == 2 * (9 + 2)  # compare takes its two settings from curves
    assert all("latent_dim=40" in name and "sweeps=500" in name for name in movies)
    authors = [name for name in fitted if "dblp" in name]
    assert len(authors) == 3 * (6**3 + 2)
    # Compiled programs would fill the memory mappings of the process.
    assert len(cleared) == len(authors) // reproduce_paper.MOST_PROGRAMS


def check(topics, curves, compare, dblp, systems):
    """Check the results of a tiny run of every part, by what holds of any models."""
    assert (
        curves["resumed"] == 0 and compare["resumed"] == 4
    )  # two settings, two splits
    assert curves["cut"]["sweeps"] == [3, 500]
    found = topics["results"]
    assert [row["unit"]["gamma"] for row in found] == [0.1, 1.0, 0.1, 1.0]
    assert found[0]["program"] == [42, 33]  # sides under our names
    for row in [*curves["results"], *found]:
        assert row["num_test"] == 29  # one user has no rating
        assert row["curve"]["sweep"] == [1, 2, 3]
        # The score is that of the mean over all sweeps, the first one included.
        for curve, score in (("test_rmse", "rmse"), ("train_rmse", "train_rmse")):
            assert row["curve"][curve][-1] == pytest.approx(row[score], abs=1e-4)
        assert row["train_rmse"] < row["rmse"] < 3
        assert 0 < row["training_rows_rmse"] != row["train_rmse"]
        assert "squared_errors" not in row
    for row in compare["results"]:
        assert row["rmse"] == pytest.approx(row["curve"]["test_rmse"][-1], abs=1e-4)
    assert {test["rows"] for test in compare["tests"]} == {"both", "loo_0", "loo_1"}
    best, *others = dblp["results"]
    assert best["rmse"] == min(row["rmse"] for row in best["grid"])
    assert best["cost_seconds"] > max(row["seconds_in_all"] for row in best["grid"])
    assert [row["unit"]["beta"] for row in others] == [0.1, 1.0]
    names = [row["name"] for row in systems["results"]]
    assert names == list(reproduce_paper.SYSTEMS)
    for part in ("topics", "curves", "compare"):
        assert (machine.RESULTS / f"reproduce_{part}.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_a_tiny_run_of_every_part_with_cheap_models(place, monkeypatch):
    """One program serves all fits: BPMF, with a number that differs by unit."""

    def model(unit):
        return im3f.BPMF(2, rating_variance=0.4 + zlib.crc32(str(unit).encode()) / 1e10)

    cheap = dict.fromkeys(reproduce_paper.MODELS, model)
    monkeypatch.setattr(reproduce_paper, "MODELS", cheap)
    check(*run(place, *reproduce_paper.PARTS, "--resume"))


@pytest.mark.slow
def test_a_tiny_run_of_every_part(place):
    found = run(place, *reproduce_paper.PARTS, "--resume")
    check(*found)
    topics = found[0]["results"]
    assert all(row[f"num_{s}_topics"] >= 1 for row in topics for s in ("user", "item"))


def test_a_finished_unit_is_not_fitted_again(place, monkeypatch):
    fitted = []
    fake(monkeypatch, fitted)
    (whole,) = run(place, "topics")
    assert len(fitted) == len(set(fitted)) == whole["units"] == 4
    gone = sorted((place / "units").glob("*.json"))[1]
    gone.unlink()
    fitted.clear()
    (again,) = run(place, "topics", "--resume")
    assert len(fitted) == 1 and gone.name.startswith(fitted[0])
    assert (again["units"], again["resumed"]) == (4, 3)
    assert again["results"] == whole["results"]
    fitted.clear()
    run(place, "topics", "--resume", "--seed", "1")  # another seed, other fits
    run(place, "topics")  # not asked to resume
    assert len(fitted) == 8


def test_an_interrupted_fit_is_not_stored(place, monkeypatch):
    fitted = reproduce_paper.MODELS["BPMF"]

    class Interrupted:
        estimate = "posterior"

        def fit(self, train, test, **settings):
            posterior = fitted({"latent_dim": 2}).fit(train, test, **settings)
            posterior.partial = True
            return posterior

    monkeypatch.setitem(reproduce_paper.MODELS, "BPMF", lambda unit: Interrupted())
    monkeypatch.setattr(
        reproduce_paper, "SYSTEMS", {"BPMF": reproduce_paper.SYSTEMS["BPMF"]}
    )
    with pytest.raises(KeyboardInterrupt):
        run(place, "systems")
    assert not list(place.glob("units/*"))


def test_the_paired_t_test_is_that_of_scipy():
    rng = np.random.default_rng(1)
    squares = rng.uniform(0, 2, (2, 2, 40)) + np.array([0.0, 0.4])[:, None, None]
    mine, theirs = ([{"squared_errors": s.tolist()} for s in two] for two in squares)
    expected = stats.ttest_rel(squares[0].ravel(), squares[1].ravel())
    found = reproduce_paper.paired(mine, theirs)
    assert found["rmse_p"] == pytest.approx(expected.pvalue, rel=1e-3)
    statistic = found["rmse_difference"] / found["rmse_se"]
    assert statistic == pytest.approx(expected.statistic)
    assert expected.pvalue < 0.05


def test_tables_say_what_the_results_say_and_what_is_missing(place, monkeypatch):
    fake(monkeypatch)
    names = [name for name in tables.TABLES if name.startswith("reproduced")]
    text = "".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in names)
    empty = tables.render(text)
    for part in reproduce_paper.PARTS:
        assert f"`python -m bench.reproduce_paper {part}`" in empty
    run(place, *reproduce_paper.PARTS)
    full = tables.render(text)
    assert "bench.reproduce_paper" not in full
    assert "sweeps 3 for 500" in full
    (line,) = (
        x for x in full.splitlines() if x.startswith("| ml-1m loo_0, iM3F TestB")
    )
    assert "| 0.7718 | 0.8795 (47) |" in line and "| 0.7500 |" in line
    assert "| 77.5 / 64 | 3 / 4 (1.2 / 2.5) |" in line
    (line,) = (x for x in full.splitlines() if x.startswith("| PMF |"))
    assert line.endswith(" | - |")  # one point has no sweeps
    assert "42 / 33" in full and "3 / 4 (1.2 / 2.5)" in full


def test_authors_of_dblp_are_all_in_the_test_set(place):
    split = rows.load_rows("dblp-ml-dm", "cover_0")
    both = split.train, split.test
    assert sum(map(len, both)) == 401  # without the pair of 12 papers
    everyone, tested = (
        set(np.r_[tuple(np.r_[part.user_ids, part.item_ids] for part in parts)])
        for parts in (both, both[1:])
    )
    assert everyone == tested
    assert len(split.test) < len(split.train)
    with pytest.raises(InputError, match="no row set 'cover_0'"):
        rows.load_rows("ml-100k", "cover_0")


def test_missing_data_is_one_sentence(monkeypatch, capsys):
    monkeypatch.delenv("IM3F_DATA_DIR", raising=False)
    assert reproduce_paper.main(["topics", "--size", "tiny"]) == 2
    assert "set IM3F_DATA_DIR" in capsys.readouterr().err


def test_users_with_few_ratings_are_told_from_the_others():
    users, items = list("aaabbccd") + list("abcde"), list("ijkijijilkkkk")
    ratings = im3f.Ratings.from_arrays(users, items, [3.0] * 13)
    split = rows.Split(
        ratings.select(np.arange(8)), ratings.select(np.arange(8, 13)), 1
    )
    # d has one training rating and e none; a quarter of five has at most one.
    mask, most = reproduce_paper.of_few_ratings(split)
    assert mask.tolist() == [False, False, False, True, True] and most == 1
