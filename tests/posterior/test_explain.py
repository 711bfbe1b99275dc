"""The parts of a prediction: by hand, and that they sum to it in every model."""

import dataclasses

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax import InputError
from im3f_jax.model.likelihood import Ordinal
from tests.posterior import test_time
from tests.posterior.test_recommend import CHAINS, DIM, KEPT, make_posterior


@pytest.fixture(scope="module")
def posterior():
    return make_posterior()


def check_parts(posterior, pairs, names, time=None):
    """Assert that parts have these names and sum to what is predicted.

    Of an ordinal model: to the mean that `latent` of the same draws would predict.
    """
    ordinal = isinstance(posterior.spec.likelihood, Ordinal)
    latent = posterior
    if ordinal:
        spec = dataclasses.replace(posterior.spec, likelihood=im3f.Gaussian(1.0, 0.0))
        latent = dataclasses.replace(posterior, spec=spec)
    times = None if time is None else [time]
    for user, item in pairs:
        found = posterior.explain(user, item, time=time)
        assert found.parts.index.tolist() == names
        assert found.scale == ("latent" if ordinal else "rating")
        assert found.prediction == posterior.predict([user], [item], times=times)[0]
        (expected,) = latent.predict([user], [item], times=times)
        assert found.parts["mean"].sum() == pytest.approx(expected, rel=2e-6)
        assert (found.parts["std"] >= 0).all()
        # In the one draw too: what the lists say is what the draw predicts.
        each = latent.predict([user], [item], times=times, per_draw=True)
        alone = dataclasses.replace(
            posterior,
            draws=posterior.draws._replace(
                **{
                    name: values[found.draw[0]][None, found.draw[1], None]
                    for name, values in posterior.draws._asdict().items()
                    if values is not None
                }
            ),
        ).explain(user, item, time=time, draw=(0, 0))
        total = alone.parts["mean"].sum()
        assert total == pytest.approx(each[found.draw][0], rel=2e-6)
        for part, topics in (("user bias", "contexts"), ("item bias", "moods")):
            if part in names:
                listed = getattr(found, topics)
                assert listed["contribution"].sum() == pytest.approx(
                    alone.parts.loc[part, "mean"], abs=2e-6
                )
                assert listed["weight"].sum() == pytest.approx(1, abs=1e-5)
                assert listed["weight"].is_monotonic_decreasing
        if found.topic_factors is not None:
            assert found.topic_factors["contribution"].sum() == pytest.approx(
                alone.parts.loc["topic factors", "mean"], abs=2e-6
            )


def test_parts_by_hand(posterior):
    user, item, draws = "u08", 130, posterior.draws
    u = draws.user_features[:, :, posterior.user_row[8]].astype(float)
    j = draws.item_features[:, :, posterior.item_row[13]].astype(float)
    a, c, theta_user = np.split(u, [DIM, DIM + 2], axis=-1)
    b, theta_item, d = np.split(j, [DIM, DIM + 2], axis=-1)
    each = {
        "global bias": draws.global_bias,
        "factors": np.sum(a * b, -1),
        "user bias": np.sum(theta_item * c, -1),
        "item bias": np.sum(theta_user * d, -1),
    }
    found = posterior.explain(user, item)
    for name, values in each.items():
        assert found.parts.loc[name, "mean"] == pytest.approx(values.mean())
        assert found.parts.loc[name, "std"] == pytest.approx(values.std())
    best = found.draw
    for draw in (best, (0, 1)):
        found = posterior.explain(user, item, draw=draw)
        assert found.draw == draw
        for topics, weight, bias in (
            (found.contexts, theta_item[draw], c[draw]),
            (found.moods, theta_user[draw], d[draw]),
        ):
            order = np.argsort(-weight)
            assert topics.index.tolist() == order.tolist()
            np.testing.assert_allclose(topics["weight"], weight[order])
            np.testing.assert_allclose(topics["bias"], bias[order])
            np.testing.assert_allclose(topics["contribution"], (weight * bias)[order])
    check_parts(posterior, [(user, item), ("u11", 290)], list(each))


def test_topics_are_of_the_draw_nearest_the_mean(posterior):
    users, items = (
        [x for x, row in zip(index.ids, rows, strict=True) if row < rows.max()]
        for index, rows in (
            (posterior.users, posterior.user_row),
            (posterior.items, posterior.item_row),
        )
    )
    pairs = np.repeat(users, len(items)), np.tile(items, len(users))
    each = posterior.predict(*pairs, per_draw=True)
    away = np.mean((each - posterior.predict(*pairs)) ** 2, axis=-1)
    nearest = np.unravel_index(np.argmin(away), (CHAINS, KEPT))
    assert posterior.representative_draw == tuple(nearest)
    for pair in (("u08", 130), ("u01", 20)):  # whatever the pair
        assert posterior.explain(*pair).draw == posterior.representative_draw
    # It is found again where the draws stand in another order.
    draws = posterior.draws
    turned = draws._replace(
        **{
            name: values[:, ::-1]
            for name, values in draws._asdict().items()
            if values is not None
        }
    )
    chain, place = dataclasses.replace(posterior, draws=turned).representative_draw
    assert (chain, KEPT - 1 - place) == tuple(nearest)


@pytest.mark.parametrize("kind", ["gaussian", "ordinal"])
@pytest.mark.parametrize("case", test_time.CASES)
def test_what_depends_on_time_is_a_part(kind, case):
    found = test_time.make(kind, **test_time.CASES[case])
    names = ["global bias", "factors", "user bias", "item bias"]
    names += {"both": ["item time", "user drift"], "bins": ["item time"]}.get(
        case, ["user drift"]
    )
    pairs = [("ann", 10), ("cold", 40)]
    check_parts(found, pairs, names, time=170.0)
    check_parts(found, pairs[:1], names)
    without, given = (found.explain("ann", 10, time=t).parts for t in (None, 170.0))
    assert (without["mean"][4:] == 0).all() and (given["mean"][4:] != 0).all()


def test_a_new_user_is_explained_on_request(posterior):
    with pytest.raises(InputError, match="unknown user: 'zoe'"):
        posterior.explain("zoe", 20)
    new = posterior.explain("zoe", 20, unknown="prior")
    cold = posterior.explain("u11", 20)
    assert new.parts.equals(cold.parts) and new.prediction == cold.prediction
    with pytest.raises(InputError, match="unknown is 'nan'"):
        posterior.explain("u01", 20, unknown="nan")


@pytest.mark.parametrize("draw", [(2, 0), (0, 3), (-1, 0), 1, (0,), ("a", 0)])
def test_a_draw_that_is_not_there_is_refused(posterior, draw):
    with pytest.raises(InputError, match="chain, kept draw.*there are 2 and 3"):
        posterior.explain("u01", 20, draw=draw)


def test_it_reads(posterior):
    found = posterior.explain(np.str_("u08"), np.int64(130), draw=(1, 2))
    lines = repr(found).splitlines()
    assert lines[0] == f"'u08' and 130: predicted {found.prediction:.3f}"
    numpys = posterior.explain(np.str_("u08"), np.int64(130), draw=(1, 2))
    assert repr(numpys) == repr(found)
    mean, std = found.parts.loc["factors"]
    assert f"  factors       {mean:+8.3f} ({std:.3f})" in lines
    assert "contexts in draw (1, 2): weight, user's bias" in lines
    assert len(lines) == 2 + 4 + 1 + 2 + 1 + 3 and max(map(len, lines)) <= 88
