"""Pictures: each drawn without a display, with what it must show and say."""

import dataclasses
import itertools
from functools import cache

import numpy as np
import pandas as pd
import pytest

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.inference.features import topics_of_features
from tests import fits

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.colors import to_rgb  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

plots = im3f.plots

pytestmark = [
    pytest.mark.relaxed,  # fits start by optax
    # matplotlib reads names that its dependencies deprecate.
    pytest.mark.filterwarnings("default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::PendingDeprecationWarning"),
]

GRID = pd.DataFrame(
    [
        {
            "dish_concentration": dish,
            "table_concentration": table,
            "num_user_topics": 2 * dish + table,
            "num_item_topics": dish + table,
        }
        for dish, table in itertools.product([0.1, 1, 10], repeat=2)
    ]
)
SPEED = pd.DataFrame(
    {
        "device": ["cpu", "cpu", "gpu", "gpu"],
        "num_ratings": [10**5, 10**6, 10**5, 10**6],
        "seconds": [0.1, 1.0, 0.01, 0.05],
    }
)
SCALING = pd.DataFrame(
    {
        "kind": ["strong", "strong", "weak", "weak"],
        "devices": [1, 2, 1, 2],
        "num_ratings": [1e6, 1e6, 5e5, 1e6],
        "seconds_a_sweep": [1.0, 0.6, 0.5, 0.6],
    }
)


def fit():
    return fits.posterior("IM3F")


@cache
def compared():
    other = dataclasses.replace(fit(), seed=1)
    return im3f.compare({"one": fit(), "other": other}, fits.data()[1])


def one_rating():
    train, test = fits.data()
    row = np.flatnonzero(fit().is_known(test.user_ids, test.item_ids))[0]
    user, item, rating = test.user_ids[row], test.item_ids[row], test.rating[row]
    return {"user": user, "item": item, "rating": rating, "train": train}


TITLES = {1: "Costs $5 or $6 <b>", 2: "Long " * 20}

# name -> draws on the axes that it is given
PLOTS = {
    "trace": lambda ax: plots.plot_trace(fit(), "log_joint", ax=ax),
    "rmse": lambda ax: plots.plot_trace(fit(), "test_rmse", ax=ax),
    "numbers": lambda ax: plots.plot_num_topics(fit(), ax=ax),
    "user topics": lambda ax: plots.plot_topics(fit(), ax=ax),
    "item topics": lambda ax: plots.plot_topics(fit(), "item", ax=ax),
    "moods": lambda ax: plots.plot_moods(fit(), 3, ax=ax),
    "contexts": lambda ax: plots.plot_contexts(fit(), 1, titles=TITLES, ax=ax),
    "napoleon": lambda ax: plots.plot_napoleon_dynamite(
        fit(), TITLES, train=fits.data()[0], min_ratings=1, num_items=60, ax=ax
    ),
    "prediction": lambda ax: plots.plot_prediction(fit(), **one_rating(), ax=ax),
    "calibration": lambda ax: plots.plot_calibration(fit(), fits.data()[1], ax=ax),
    "coverage": lambda ax: plots.plot_coverage(fit(), fits.data()[1], ax=ax),
    "comparison": lambda ax: plots.plot_comparison(compared(), ax=ax),
    "grid": lambda ax: plots.plot_topic_grid(GRID, ax=ax),
    "throughput": lambda ax: plots.plot_throughput(SPEED, ax=ax),
    "scaling": lambda ax: plots.plot_scaling(SCALING, ax=ax),
}


@cache
def drawn(name):
    """Draw a plot on axes of its own; the figure is drawn too."""
    given = Figure(layout="constrained").add_subplot()
    ax = PLOTS[name](given)
    assert ax is given
    ax.figure.canvas.draw()
    return ax


def caption(ax):
    found = [t.get_text() for t in ax.texts if t.get_gid() == "caption"]
    return " ".join(" ".join(found).split())


every = pytest.mark.parametrize("name", PLOTS)


@every
def test_axes_are_labelled_and_captioned(name):
    ax = drawn(name)
    assert ax.get_xlabel()
    assert ax.get_ylabel() or len(ax.get_yticklabels()) > 1
    assert ax.get_title(loc="left") and len(caption(ax)) > 5
    assert ax.has_data()


def look(handle):
    """Give what tells a handle of a legend apart where all is grey."""
    kind = type(handle).__name__
    if kind == "Line2D":
        face = handle.get_markerfacecolor()
        color = handle.get_color() if face == "none" else face
        shape = handle.get_linestyle(), handle.get_marker()
    else:
        faces = np.atleast_2d(handle.get_facecolor())
        color = faces[0] if len(faces) and faces.size else handle.get_edgecolor()[0]
        shape = (handle.get_hatch(),)
    grey = np.dot(to_rgb(color), [0.3, 0.6, 0.1])
    return kind, *shape, round(2 * grey)


@every
def test_what_the_legend_names_differs_in_grey(name):
    handles, labels = drawn(name).get_legend_handles_labels()
    handles = [getattr(h, "patches", [h])[0] for h in handles]
    looks = [look(handle) for handle in handles]
    assert len(set(looks)) == len(labels), list(zip(labels, looks, strict=True))


def test_one_draw_is_named_where_topics_are_shown():
    chain, draw = fit().representative_draw
    for name in ("user topics", "item topics", "prediction"):
        assert f"Chain {chain}, kept draw {draw}" in caption(drawn(name))
        assert "nearest the mean" in caption(drawn(name))
    named = plots.plot_topics(fit(), draw=(0, 1), ax=Figure())
    assert "Chain 0, kept draw 1." in caption(named)
    for name in ("moods", "contexts"):
        assert "labels switch" in caption(drawn(name))


def test_traces():
    axes = plots.plot_trace(fit(), ["log_joint", "rating_variance"], ax=Figure())
    assert len(axes) == 2
    lines = [line for line in axes[1].lines if line.get_label() == "chain 0"]
    np.testing.assert_array_equal(
        lines[0].get_ydata(), fit().trace["rating_variance"][0]
    )
    default = fit().plot_trace(ax=Figure())
    titles = [ax.get_title(loc="left") for ax in default]
    assert titles[:2] == ["Test RMSE", "Log joint"]
    running = drawn("rmse").lines[-1].get_ydata()
    assert running[-1] == pytest.approx(fit().evaluate(fits.data()[1])["rmse"], 1e-5)
    with pytest.raises(InputError, match="no 'loss'"):
        plots.plot_trace(fit(), "loss")
    with pytest.raises(InputError, match="ax holds 1 axes, but the plot has 2"):
        plots.plot_trace(fit(), ["log_joint", "test_rmse"], ax=Figure().add_subplot())


def test_numbers_of_topics():
    ax = drawn("numbers")
    for bars, side in zip(ax.containers, ("user", "item"), strict=True):
        number = getattr(fit(), f"num_{side}_topics")
        heights = [bar.get_height() for bar in bars]
        assert sum(heights) == pytest.approx(1)
        assert np.dot(np.arange(len(heights)), heights) == pytest.approx(number.mean())
    labels = ax.get_legend_handles_labels()[1]
    assert any("truncation 4 (user)" in label for label in labels)
    assert any("truncation 5 (item)" in label for label in labels)


def test_napoleon_dynamite():
    ax = drawn("napoleon")
    table = plots.napoleon_table(fit(), train=fits.data()[0], min_ratings=1)
    assert table["mean"].is_monotonic_decreasing
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_array_equal(dots.get_xdata(), table["mean"])
    counts = pd.Series(fits.data()[0].item_ids).value_counts()
    assert (table["ratings"] == counts.reindex(table.index)).all()
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[list(table.index).index(1)].startswith("Costs $5 or $6 <b> [")
    assert f"item 3 [{counts[3]}]" in names
    assert max(map(len, names)) < 50
    first = plots.plot_napoleon_dynamite(fit(), rank_by="low", num_items=3, ax=Figure())
    low = plots.napoleon_table(fit(), rank_by="low").index[:3]
    assert [t.get_text() for t in first.get_yticklabels()] == [f"item {i}" for i in low]
    with pytest.raises(InputError, match="No item has 5000 ratings"):
        plots.napoleon_table(fit(), train=fits.data()[0], min_ratings=5000)
    with pytest.raises(InputError, match="rank_by is 'high'"):
        plots.napoleon_table(fit(), rank_by="high")
    with pytest.raises(InputError, match="num_items is 0"):
        plots.plot_napoleon_dynamite(fit(), num_items=0, ax=Figure())


def test_titles_of_every_kind():
    frame = pd.DataFrame({"title": TITLES.values()}, index=TITLES)
    for titles in (frame, frame["title"], TITLES):
        assert plots.title_of(1, titles) == TITLES[1]
        assert plots.title_of(7, titles) is None
    with pytest.raises(InputError, match="no column 'title'"):
        plots.title_of(1, frame[[]])


def test_a_prediction():
    ax, given = drawn("prediction"), one_rating()
    bars = [bar.get_height() for bar in ax.containers[0]]
    proba = fit().predict_proba([given["user"]], [given["item"]])[0]
    np.testing.assert_allclose(bars, proba, rtol=1e-6)
    train = given["train"]
    others = train.rating[train.item_ids == given["item"]]
    marks = next(line for line in ax.lines if line.get_marker() == "D")
    expected = [np.mean(others == level) for level in fit().levels]
    np.testing.assert_allclose(marks.get_ydata(), expected)
    # Of one draw: the parts of the mixture, put together by hand.
    place = fit().representative_draw
    draws, spec = fit().draws, fit().spec
    features = draws.user_features[place], draws.item_features[place]
    theta_u, d = topics_of_features(*features, spec, "user")
    theta_m, c = topics_of_features(*features, spec, "item")
    u = fit().user_row[fit().users.lookup([given["user"]])[0]]
    j = fit().item_row[fit().items.lookup([given["item"]])[0]]
    base = draws.global_bias[place] + features[0][u, :2] @ features[1][j, :2]
    parts = [
        (base + c[u, k] + d[j, i], theta_m[j, k] * theta_u[u, i])
        for k in range(5)
        for i in range(4)
    ]
    expected = sorted(part for part in parts if part[1] > 0.01)
    assert 1 < len(expected)
    circles = sorted(map(tuple, ax.collections[-1].get_offsets()))
    np.testing.assert_allclose(circles, expected, rtol=1e-4)


def test_a_prediction_on_a_continuous_scale():
    continuous = dataclasses.replace(fit(), is_discrete=False)
    ax = plots.plot_prediction(continuous, **one_rating(), ax=Figure())
    x, y = ax.lines[0].get_data()
    assert np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) == pytest.approx(1, abs=1e-3)
    plots.plot_coverage(continuous, fits.data()[1], ax=Figure())


def test_a_prior_check_draws_itself():
    class Check:
        def plot(self, axes):
            return axes

    assert plots.plot_prior_check(Check(), ax="axes") == "axes"


def test_without_axes_pyplot_makes_them():
    import matplotlib.pyplot as plt

    ax = plots.plot_num_topics(fit())
    assert isinstance(ax, Axes) and ax.figure is plt.gcf()
    plt.close("all")


def test_what_is_not_there_is_said():
    plain = dataclasses.replace(fit(), spec=im3f.BPMF(2))
    for plot in (plots.plot_num_topics, plots.plot_topics):
        with pytest.raises(InputError, match=r"no (user )?topics"):
            plot(plain, ax=Figure())
    summary = dataclasses.replace(fit(), draws=None)
    user, item = one_rating()["user"], one_rating()["item"]
    for plot in (
        lambda: plots.plot_topics(summary),
        lambda: plots.plot_moods(summary, user),
        lambda: plots.plot_prediction(summary, user, item),
        lambda: plots.plot_coverage(summary, fits.data()[1]),
    ):
        with pytest.raises(InputError, match="kept no draws"):
            plot()
    with pytest.raises(InputError, match="no differences of 'rmse'"):
        plots.plot_comparison(compared()[:1])
    with pytest.raises(InputError, match="no column 'device'"):
        plots.plot_throughput(SCALING)
