"""Recommendations against predictions of all pairs, and items that are alike."""

import dataclasses
import resource
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.data.ids import IdIndex
from im3f_jax.data.seen import SeenItems
from im3f_jax.inference.run import Draws
from im3f_jax.model.spec import resolve
from im3f_jax.posterior import recommend
from im3f_jax.posterior.posterior import Posterior
from tests.posterior import test_time

# No two sizes are equal. The users last in row order and some items are cold.
USERS, ITEMS, CHAINS, KEPT, DIM = 37, 45, 2, 3, 2
COLD_USER, COLD_ITEMS = 11, (0, 29)


def rows_of(size, cold):
    """Rows of the trained, shuffled; the cold share the last."""
    rows = np.empty(size, int)
    trained = np.setdiff1d(np.arange(size), cold)
    rows[trained] = np.random.default_rng(9).permutation(len(trained))
    rows[list(cold)] = len(trained)
    return rows


def make_posterior(**more):
    """Make a posterior of known draws; ids of users are text, of items numbers."""
    rng = np.random.default_rng(1)
    spec = resolve(im3f.M3F(3, 2, DIM), 3.0, 1.0, 1.0)

    def side(rows, weights, biases, weights_first):
        shape = CHAINS, KEPT, rows
        factors = rng.normal(size=(*shape, DIM))
        theta = rng.dirichlet(np.full(weights, 0.7), shape)
        bias = rng.normal(size=(*shape, biases))
        parts = (theta, bias) if weights_first else (bias, theta)
        return np.concatenate([factors, *parts], axis=-1).astype(np.float32)

    rated = rng.random((USERS, ITEMS)) < 0.3
    rated[COLD_USER], rated[:, COLD_ITEMS] = False, False
    names = [f"u{k:02}" for k in range(USERS)]
    given = {
        "spec": spec,
        "users": IdIndex.from_values(pd.Series(names), "user")[0],
        "items": IdIndex.from_values(10 * np.arange(ITEMS), "item")[0],
        "user_row": rows_of(USERS, [COLD_USER]),
        "item_row": rows_of(ITEMS, COLD_ITEMS),
        "draws": Draws(
            user_features=side(USERS, 3, 2, False),
            item_features=side(ITEMS - 1, 2, 3, True),
            global_bias=rng.normal(3, 0.5, (CHAINS, KEPT)),
            rating_variance=np.ones((CHAINS, KEPT)),
            cut_points=np.zeros((CHAINS, KEPT, 0)),
        ),
        "trace": {
            name: rng.random((CHAINS, KEPT))
            for name in ("rating_variance", "log_joint")
        },
        "levels": np.arange(1.0, 6.0),
        "is_discrete": True,
        "num_warmup": 0,
        "num_samples": KEPT,
        "thinning": 1,
        "seed": 0,
        "device": "cpu",
        "versions": {},
        "seconds": {},
        "seen": SeenItems.of(*np.nonzero(rated), USERS, ITEMS),
    }
    return Posterior(**given | more)


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


def check_against_all_pairs(
    posterior, seen, *, n, rank_by="mean", level=0.9, times=None, users=None, **given
):
    """Hold the lists of all users against predictions of every pair with each draw.

    `seen` are pairs of ids not to be recommended; `times` one for each user.
    """
    asked = posterior.users.ids if users is None else users
    candidates = [
        j
        for j, row in zip(posterior.items.ids, posterior.item_row, strict=False)
        if row < posterior.item_row.max()
    ]
    found = posterior.recommend(
        users, n, rank_by=rank_by, level=level, times=times, **given
    )
    sign = {"mean": 0, "lower": -1, "upper": 1}[rank_by]
    quantile = {0.9: 1.2815516, 0.75: 0.6744898}[level]
    columns = ["user", "rank", "item", "mean", "std_of_mean"]
    assert list(found) == columns + [rank_by] * (rank_by != "mean")
    assert found["user"].unique().tolist() == list(asked)
    for place, user in enumerate(asked):
        rows = found[found["user"] == user]
        time = None if times is None else np.full(len(candidates), times[place])
        each = posterior.predict(
            [user] * len(candidates), candidates, times=time, per_draw=True
        )
        mean, std = each.mean((0, 1)), each.std((0, 1))
        key = mean + sign * quantile * std
        order = [k for k in np.argsort(-key) if (user, candidates[k]) not in seen][:n]
        assert rows["item"].tolist() == [candidates[k] for k in order]
        assert rows["rank"].tolist() == list(range(1, len(order) + 1))
        np.testing.assert_allclose(rows["mean"], mean[order], rtol=1e-6)
        np.testing.assert_allclose(rows["std_of_mean"], std[order], rtol=1e-4)
        if rank_by != "mean":
            np.testing.assert_allclose(rows[rank_by], key[order], rtol=1e-4, atol=1e-5)
    return found


def seen_by_id(posterior):
    place, item = posterior.seen.pairs(np.arange(len(posterior.users)))
    users = posterior.users.ids[place].tolist()
    return set(zip(users, posterior.items.ids[item].tolist(), strict=True))


@pytest.fixture
def small_blocks(monkeypatch):
    """Make the last block of users and of items a part, and draws come one by one.

    Without a margin, so that it is the scores of blocks that choose.
    """
    monkeypatch.setattr(recommend, "USERS", 8)
    monkeypatch.setattr(recommend, "PAIRS", 8 * 8 * 3)
    monkeypatch.setattr(recommend, "MARGIN", 0)
    monkeypatch.setattr(recommend, "PAIRS_OF_MIXTURES", 8 * 4)
    monkeypatch.setattr(recommend, "USERS_OF_MIXTURES", 4)


@pytest.mark.parametrize("rank_by", ["mean", "lower", "upper"])
def test_blocks_give_the_best_of_all_pairs(posterior, small_blocks, rank_by):
    seen = seen_by_id(posterior)
    found = check_against_all_pairs(posterior, seen, n=7, rank_by=rank_by)
    assert len(found) == 7 * USERS
    blocks = list(posterior.recommend_in_blocks(n=7, rank_by=rank_by))
    assert len(blocks) == 5 and max(map(len, blocks)) == 7 * 8
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), found)
    if rank_by == "mean":
        assert not found["mean"].equals(
            posterior.recommend(n=7, exclude_seen=False)["mean"]
        )
        check_against_all_pairs(posterior, set(), n=7, exclude_seen=False)


@pytest.mark.parametrize("users", [None, "u03"])
def test_no_more_pairs_than_a_block_are_held(
    posterior, small_blocks, monkeypatch, users
):
    merge, shapes = recommend._merge, set()

    def watched(best, scores, *given):
        shapes.add(scores.shape)
        return merge(best, scores, *given)

    monkeypatch.setattr(recommend, "_merge", watched)
    posterior.recommend(users, n=7)
    (shape,) = shapes  # one, so that nothing is compiled for the last block
    assert shape[0] * shape[1] <= recommend.PAIRS < 37 * 43
    assert shape == ((8, 24) if users is None else (1, 64))


def test_the_level_moves_the_bound(posterior):
    seen = seen_by_id(posterior)
    check_against_all_pairs(posterior, seen, n=5, rank_by="lower", level=0.75)
    median = posterior.recommend("u03", rank_by="upper", level=0.5)
    assert median["upper"].tolist() == median["mean"].tolist()


def test_more_than_there_is_gives_all(posterior, small_blocks):
    seen = seen_by_id(posterior)
    found = check_against_all_pairs(posterior, seen, n=ITEMS + 5)
    assert len(found) == USERS * (ITEMS - 2) - len(seen)
    # Who has seen all that is left gets an empty list, of the same columns.
    user, item = next(iter(seen))
    none = posterior.recommend(user, items=[item])
    assert len(none) == 0
    assert none.dtypes.equals(posterior.recommend(user).dtypes)


def test_equal_items_come_in_the_order_of_the_index(
    posterior, small_blocks, monkeypatch
):
    """Twins in several blocks, whose products may differ in the last digit."""
    monkeypatch.setattr(recommend, "MARGIN", 8)
    row = posterior.item_row[[4, 9, 14, 17, 22, 31, 40, 44]]
    features = posterior.draws.item_features.copy()
    features[:, :, row] = features[:, :, row[:1]] + 0
    features[:, :, row, DIM + 2 :] += 5  # biases: the best of all
    twins = dataclasses.replace(
        posterior, draws=posterior.draws._replace(item_features=features)
    )
    for n in (3, 6, 8):
        found = twins.recommend(n=n, exclude_seen=False)
        lists = found.groupby("user")["item"].agg(list)
        assert (lists.map(len) == n).all()
        assert {tuple(x) for x in lists} == {(40, 90, 140, 170, 220, 310, 400, 440)[:n]}
    assert twins.recommend("u02", 3, exclude_seen=False)["item"].tolist() == [
        40,
        90,
        140,
    ]
    assert twins.similar_items(140, 3)["item"].tolist() == [40, 90, 170]
    np.testing.assert_allclose(twins.similar_items(140, 3)["similarity"], 1)


def test_ids_come_back_as_they_are(posterior):
    one = posterior.recommend("u05", n=np.int64(2))
    assert one["user"].tolist() == ["u05"] * 2
    assert one["user"].dtype == pd.Series(["u05"]).dtype  # text as pandas has it
    assert one["item"].dtype == np.int64 and one["rank"].tolist() == [1, 2]
    asked = ["u09", "u02", "u09"]
    for users in (asked, tuple(asked), pd.Series(asked, index=[5, 5, 5]), iter(asked)):
        found = posterior.recommend(users, n=1)
        assert found["user"].tolist() == asked
        assert found["item"][0] == found["item"][2]
    assert len(posterior.recommend([])) == 0
    index, _ = IdIndex.from_values(pd.Series(range(USERS), dtype="Int64"), "user")
    numbered = dataclasses.replace(posterior, users=index)
    assert str(numbered.recommend(n=1)["user"].dtype) == "Int64"
    with pytest.raises(InputError, match="unknown user: '5'.*known as 5"):
        numbered.recommend("5")


def test_new_and_cold_users_get_the_list_of_the_prior(posterior):
    with pytest.raises(InputError, match="unknown user: 'zoe'"):
        posterior.recommend(["u01", "zoe"])
    found = posterior.recommend(["u01", "zoe", 7], 4, unknown="prior")
    assert found["user"].tolist() == ["u01"] * 4 + ["zoe"] * 4 + [7] * 4
    cold = posterior.recommend(posterior.users.ids[COLD_USER], 4)
    columns = ["rank", "item", "mean", "std_of_mean"]
    for user in ("zoe", 7):
        rows = found[found["user"] == user][columns].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, cold[columns])
    new = posterior.predict(["zoe"] * 4, cold["item"], unknown="prior")
    np.testing.assert_allclose(cold["mean"], new, rtol=1e-6)


def test_items_to_choose_from_may_be_named(posterior):
    cold = [10 * j for j in COLD_ITEMS]
    everything = posterior.recommend("u03", ITEMS, exclude_seen=False)
    assert not set(cold) & set(everything["item"])
    named = [70, *cold, 20, 70]
    found = posterior.recommend("u03", items=named, exclude_seen=False)
    assert sorted(found["item"]) == [0, 20, 70, 290]
    of_cold = found.loc[found["item"].isin(cold), "mean"].tolist()
    assert of_cold[0] == of_cold[1]  # and the first of the index is first:
    assert found["item"].tolist().index(0) < found["item"].tolist().index(290)
    with pytest.raises(InputError, match="unknown item: 71"):
        posterior.recommend("u03", items=[71])


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"n": 0}, "n is 0"),
        ({"n": 2.0}, "n is 2.0"),
        ({"n": True}, "n is True"),
        ({"rank_by": "median"}, "rank_by is 'median'"),
        ({"level": 0.4}, "level is 0.4"),
        ({"level": 1}, "level is 1"),
        ({"level": "0.9"}, "level is '0.9'"),
        ({"unknown": "nan"}, "unknown is 'nan'"),
        ({"times": 3.0}, "reads no times"),
    ],
)
def test_a_setting_without_meaning_is_refused_at_once(posterior, settings, words):
    with pytest.raises(InputError, match=words) as refused:
        posterior.recommend_in_blocks("u01", **settings)
    assert "\n" not in str(refused.value)


def test_a_posterior_that_cannot_recommend_says_why(posterior, tmp_path):
    summary = dataclasses.replace(posterior, draws=None)
    for call in (
        lambda: summary.recommend("u01"),
        lambda: summary.similar_items(10),
        lambda: summary.explain("u01", 10),
        lambda: summary.representative_draw,
    ):
        with pytest.raises(InputError, match="store='summary'.*store='factors'"):
            call()
    old = dataclasses.replace(posterior, seen=None)
    old.save(tmp_path / "old.npz")
    for one in (old, im3f.load(tmp_path / "old.npz")):
        assert one.seen is None
        with pytest.raises(InputError, match="older version.*exclude_seen=False"):
            one.recommend("u01")
        assert len(one.recommend("u01", 3, exclude_seen=False)) == 3


def test_a_saved_posterior_needs_no_training_data(posterior, tmp_path):
    posterior.save(tmp_path / "fit.npz")
    again = im3f.load(tmp_path / "fit.npz")
    pd.testing.assert_frame_equal(
        again.recommend(n=3), posterior.recommend(n=3), check_dtype=False
    )


@pytest.mark.parametrize("kind", ["gaussian", "ordinal"])
@pytest.mark.parametrize("rank_by", ["mean", "lower"])
def test_times_of_users_count(kind, rank_by, small_blocks):
    found = test_time.make(kind)
    times = np.array([60.0, 100.0, 150.0, 260.0, 170.0, 90.0])
    given = {"n": 2, "exclude_seen": False, "rank_by": rank_by}
    frame = check_against_all_pairs(found, set(), times=times, **given)
    once = found.recommend(times=150.0, **given)
    rows = [list(part["mean"]) for part in (frame, once)]
    third = slice(4, 6)
    assert rows[0][third] == rows[1][third] and rows[0] != rows[1]
    check_against_all_pairs(found, set(), **given)
    moment = found.recommend("ann", times=np.datetime64(150, "s"), **given)
    assert (
        moment["mean"].tolist()
        == found.recommend("ann", times=150, **given)["mean"].tolist()
    )
    with pytest.raises(InputError, match="6 users and 2 times"):
        found.recommend(times=[1.0, 2.0], **given)


BIG = """
import resource
import numpy as np
from im3f_jax.data.ids import IdIndex
from im3f_jax.data.seen import SeenItems
from tests.posterior.test_recommend import make_posterior
users, items, ratings = 200_000, 20_000, 1_000_000
rng = np.random.default_rng(0)
def side(rows):
    return rng.normal(size=(1, 2, rows + 1, 7)).astype(np.float32)
given = make_posterior()
found = make_posterior(
    users=IdIndex(np.arange(users), "user"), user_row=np.arange(users + 1),
    items=IdIndex(np.arange(items), "item"), item_row=np.arange(items + 1),
    draws=given.draws._replace(
        user_features=side(users), item_features=side(items),
        **{name: getattr(given.draws, name)[:1, :2] for name in
           ("global_bias", "rating_variance", "cut_points")},
    ),
    seen=SeenItems.of(
        rng.integers(users, size=ratings), rng.integers(items, size=ratings),
        users, items,
    ),
).recommend(n=10)
assert len(found) == 10 * users
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="ru_maxrss has another unit")
def test_lists_of_all_users_take_little_memory():
    """USERS.md: 200,000 users x 20,000 items, 1M ratings, within 4 GB."""
    assert hasattr(resource, "getrusage")
    done = subprocess.run(
        [sys.executable, "-c", BIG], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**30  # of 4 allowed: 16 GB is all pairs in float32


# --- what is alike ----------------------------------------------------------------


def correlations(posterior, side, one):
    """Correlation of predictions over the trained of the other side, in each draw."""
    users, items = (
        [
            x
            for x, row in zip(index.ids.tolist(), rows, strict=False)
            if row < rows.max()
        ]
        for index, rows in (
            (posterior.users, posterior.user_row),
            (posterior.items, posterior.item_row),
        )
    )
    pairs = np.repeat(users, len(items)), np.tile(items, len(users))
    each = posterior.predict(*pairs, per_draw=True).reshape(-1, len(users), len(items))
    ids = items if side == "item" else users
    if side == "user":
        each = each.swapaxes(1, 2)
    place = ids.index(one)
    return ids, np.array([np.corrcoef(draw.T)[place] for draw in each])


@pytest.mark.parametrize("side, one", [("item", 130), ("user", "u20")])
def test_similarity_is_the_correlation_of_predictions(posterior, side, one):
    ids, each = correlations(posterior, side, one)
    mean, std = each.mean(0), each.std(0)
    order = [k for k in np.argsort(-mean) if ids[k] != one]
    found = getattr(posterior, f"similar_{side}s")(one, n=6)
    assert list(found) == ["rank", side, "similarity", "std"]
    assert found[side].tolist() == [ids[k] for k in order[:6]]
    assert found["rank"].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(found["similarity"], mean[order[:6]], rtol=1e-4)
    np.testing.assert_allclose(found["std"], std[order[:6]], rtol=1e-3)
    everyone = getattr(posterior, f"similar_{side}s")(one, n=10**6)
    assert len(everyone) == len(ids) - 1


def test_labels_and_rotations_do_not_matter(posterior):
    rng = np.random.default_rng(3)
    draws = posterior.draws
    users, items = draws.user_features.copy(), draws.item_features.copy()
    for place in np.ndindex(CHAINS, KEPT):
        turn = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0].astype(np.float32)
        contexts, moods = DIM + rng.permutation(2), DIM + 2 + rng.permutation(3)
        for features in (users, items):
            old = features[place].copy()
            features[place][:, :DIM] = old[:, :DIM] @ turn
            features[place][:, DIM:] = old[:, np.append(contexts, moods)]
    turned = dataclasses.replace(
        posterior, draws=draws._replace(user_features=users, item_features=items)
    )
    assert not np.allclose(users.mean((0, 1)), draws.user_features.mean((0, 1)))
    for name, one in (("similar_items", 50), ("similar_users", "u07")):
        found, expected = (getattr(p, name)(one, n=20) for p in (turned, posterior))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-4, atol=1e-6)


def test_an_item_that_is_all_the_same_is_like_none(posterior):
    features = posterior.draws.item_features.copy()
    features[:, :, posterior.item_row[6]] = 0
    flat = dataclasses.replace(
        posterior, draws=posterior.draws._replace(item_features=features)
    )
    found = flat.similar_items(60, n=100)
    assert (found["similarity"] == 0).all()
    assert found["item"].is_monotonic_increasing  # ties in the order of the index


def test_an_id_of_which_nothing_is_known_is_refused(posterior):
    with pytest.raises(InputError, match="item 290 has no training rating"):
        posterior.similar_items(290)
    with pytest.raises(InputError, match="unknown user: 'zoe'"):
        posterior.similar_users("zoe")
    with pytest.raises(InputError, match="n is 0"):
        posterior.similar_items(10, n=0)
