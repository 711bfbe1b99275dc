"""The report: a page that needs nothing beside it, as a parser and a browser see it."""

import base64
import dataclasses
import io
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest

import im3f_jax as im3f
from im3f_jax.errors import InputError
from im3f_jax.model.topic_prior import NoTopics
from im3f_jax.posterior.report import _error, convergence
from tests import fits
from tests.browser import find_browser, open_page

pytest.importorskip("matplotlib")
from PIL import Image  # noqa: E402, which matplotlib needs

pytestmark = [
    pytest.mark.relaxed,  # fits start by optax; numpyro's diagnostics
    pytest.mark.filterwarnings("default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::PendingDeprecationWarning"),
]

EVIL = "<script>alert('1')</script> & \"2\" <b>"
TITLES = dict.fromkeys(range(40), EVIL)


class Reader(HTMLParser):
    """Collect what a page holds."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.words, self.headings = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(self.words)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Write a whole report once; returns its path."""
    posterior, (train, test) = fits.posterior("IM3F"), fits.data()
    return posterior.report(
        tmp_path_factory.mktemp("report") / "report.html",
        test=test,
        train=train,
        titles=TITLES,
        baselines={EVIL: dataclasses.replace(posterior, seed=5)},
        command=f"im3f fit {EVIL}",
        heading=EVIL,
    )


@cache
def read(path):
    return Reader(path.read_text(encoding="utf-8"))


def test_it_needs_nothing_beside_it(page):
    found = read(page)
    assert found.open == []
    assert not {"script", "link", "iframe", "object", "base"} & {
        t for t, _ in found.tags
    }
    for _, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes)
        source = attributes.get("src")
        assert source is None or source.startswith("data:image/png;base64,")
        assert attributes.get("href", "#").startswith("#")
        assert "url(" not in attributes.get("style", "")
    assert "url(" not in page.read_text() and "@import" not in page.read_text()
    assert page.stat().st_size < 2_000_000
    assert not list(page.parent.glob("*.partial"))


def test_every_picture_decodes_and_says_what_it_shows(page):
    images = read(page).of("img")
    assert len(images) == 10
    for image in images:
        data = base64.b64decode(image["src"].partition(",")[2])
        picture = Image.open(io.BytesIO(data))
        picture.load()
        assert picture.width > 300 and picture.height > 150
        assert picture.convert("L").getextrema()[0] < 100  # something is drawn
        assert len(image["alt"]) > 20
        ratio = int(image["width"]) / int(image["height"])
        assert ratio == pytest.approx(picture.width / picture.height, rel=0.02)


def test_it_can_be_read_without_seeing_it(page):
    found = read(page)
    assert found.of("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"][1:] for attributes in found.of("a")]
    assert links == ids  # every section, in its order
    assert all(attributes["scope"] in ("row", "col") for attributes in found.of("th"))
    assert len(found.of("table")) == len(found.of("caption"))
    assert found.headings[1:] == [
        "The data",
        "The model",
        "Convergence",
        "Error",
        "Topics",
        "Loved or hated, by mood",
        "One rating",
        "Calibration",
        "How to reproduce it",
    ]


def test_words_of_others_are_no_markup(page):
    found = read(page)
    assert found.headings[0] == EVIL
    assert not found.of("b")
    # The title, the heading, a title of an item, a name of a model, the command.
    assert found.words.count(EVIL) >= 4
    assert f"im3f fit {EVIL}" in found.words


def test_the_numbers_are_those_of_the_fit(page):
    posterior, (train, test) = fits.posterior("IM3F"), fits.data()
    text = read(page).text
    scores = posterior.evaluate(test)
    assert f"{scores['rmse']:.4f}" in text and f"{scores['log_score']:.4f}" in text
    assert f"{len(train):,}" in text and f"{len(test):,}" in text
    assert "1 users, 1 items" in text  # cold
    assert posterior.versions["jax"] in text and posterior.device in text
    table = im3f.plots.napoleon_table(posterior, train=train)
    assert f"{table['mean'].iloc[0]:.3f}" in text
    usual, shown = np.median(table["mean"]), min(len(table), 15)
    sure = sum(low > usual for low in table["low"][:shown])
    said = f"Of the {shown} in the table {sure or 'none'} lie"
    assert said in text
    assert f"the median of items of 20 ratings or more, {usual:.3f}, in 95 %" in text
    assert ("the rank of the others may be chance" in text) == (sure < shown)
    assert "up to 4 user topics (moods) by the HDP" in text
    assert f"{posterior.spec.likelihood.variance_floor:.6g}" in text


def test_what_is_missing_is_said(tmp_path):
    summary = dataclasses.replace(fits.posterior("IM3F"), draws=None)
    path = summary.report(tmp_path / "less.html")
    found = read(path)
    assert "No held-out ratings were given" in found.text
    assert "kept no draws" in found.text
    assert "BPMF and M3F were not fitted beside it" in found.text
    assert "--baselines --overwrite" in found.text  # this page is there by then
    assert "num_samples=13" in found.text
    with pytest.raises(InputError, match="give `test`"):
        summary.report(path, baselines={"one": summary})


def test_the_code_it_names_fits_baselines_of_its_likelihood():
    posterior = fits.posterior("IM3F")
    stars = im3f.Ordinal(levels=(1.0, 2.0, 3.0))
    spec = dataclasses.replace(posterior.spec, likelihood=stars)
    ordinal = dataclasses.replace(posterior, spec=spec)
    told = [" ".join(_error(fit, None, None, None)) for fit in (posterior, ordinal)]
    assert ["ordinal" in text for text in told] == [False, True]


def test_a_model_without_topics(tmp_path):
    posterior, (_, test) = fits.posterior("IM3F"), fits.data()
    none = {"user_topic_prior": NoTopics(), "item_topic_prior": NoTopics()}
    spec = dataclasses.replace(posterior.spec, **none)
    posterior = dataclasses.replace(posterior, spec=spec)
    table = im3f.compare({"one": posterior, "two": posterior}, test)
    found = read(posterior.report(tmp_path / "p.html", test=test, baselines=table))
    assert "This model has no topics." in found.text
    assert "no user topics (moods)" in found.text
    assert "two" in found.words
    assert "item" not in " ".join(h for h in found.headings)


def test_a_report_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("before")

    def broken(*arguments, **more):
        raise RuntimeError("no ink")

    monkeypatch.setattr(im3f.plots, "plot_trace", broken)
    with pytest.raises(RuntimeError, match="no ink"):
        fits.posterior("IM3F").report(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_convergence_is_that_of_split_chains():
    posterior = fits.posterior("IM3F")
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, 44)) + [[0], [1.5]]
    trace = {"rating_variance": values, "log_joint": np.ones((2, 44))}
    posterior = dataclasses.replace(
        posterior, trace=trace, num_warmup=4, num_samples=40, thinning=1
    )
    table = convergence(posterior)
    assert list(table.index) == ["rating_variance"]  # the other stands still
    halves = values[:, 4:].reshape(4, 20)
    within = halves.var(axis=1, ddof=1).mean()
    whole = within * 19 / 20 + halves.mean(axis=1).var(ddof=1)
    row = table.loc["rating_variance"]
    assert row["r_hat"] == pytest.approx(np.sqrt(whole / within), rel=1e-6)
    assert row["mean"] == pytest.approx(values[:, 4:].mean())
    assert 0 < row["ess"] < 30


def test_a_browser_shows_it_all(page):
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium or Chrome is installed here")
    found = open_page(
        browser,
        page,
        "[...document.images].map(image => image.complete && image.naturalWidth)",
    )
    assert found.errors == []
    assert all(address.startswith("data:") for address in found.requests)
    assert len(found.value) == 10 and all(width > 300 for width in found.value)


def test_the_browser_tells_what_is_wrong(tmp_path):
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium or Chrome is installed here")
    path = tmp_path / "bad.html"
    path.write_text(
        "<img src='data:image/png;base64,AAAA'><img src='missing.png'>"
        "<script>console.error('so it is said'); throw Error('and thrown')</script>"
    )
    found = open_page(browser, path, "[...document.images].map(i => i.naturalWidth)")
    said = " ".join(found.errors)
    assert "so it is said" in said and "and thrown" in said
    assert found.value == [0, 0]
    assert any(address.endswith("missing.png") for address in found.requests)
