"""One page of HTML about a fit: read without a network, without a script."""

import base64
import html
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.data.archive import write_whole
from im3f_jax.data.ratings import Ratings
from im3f_jax.errors import InputError
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CRF, FiniteDirichlet
from im3f_jax.posterior import plots
from im3f_jax.posterior.compare import compare
from im3f_jax.posterior.moods import topic_side
from im3f_jax.posterior.posterior import Clip, Posterior
from im3f_jax.posterior.storage import spec_to_json

__all__ = ["convergence", "write_report"]

DISAGREE = 1.05  # R-hat above this is called out
FEW_EFFECTIVE = 50  # draws, fewer are called out
FEWEST = 4  # draws that R-hat needs
DOTS = 144  # an inch of a picture
RUNNING = ("test_rmse", "train_rmse", "train_rmse_draw", "cut_points_accepted")
Baselines = Mapping[str, Posterior] | pd.DataFrame | None


def convergence(posterior: Posterior) -> pd.DataFrame:
    """Mean, spread, split R-hat and effective draws of the label-free scalars.

    Of the kept draws; R-hat and effective sample size by `numpyro.diagnostics` (Gelman
    et al., Bayesian Data Analysis, 3rd edition).

    Returns
    -------
    DataFrame
        A row a scalar that varies: "mean", "sd", "r_hat" and "ess", the last two NaN
        for fewer than 4 draws a chain.
    """
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    rows = {}
    for name in posterior.trace:
        values = np.asarray(posterior._kept(name), np.float64)
        if name in RUNNING or not np.isfinite(values).all() or not values.size:
            continue
        if np.ptp(values) == 0:
            continue
        r_hat = ess = math.nan
        if values.shape[1] >= FEWEST:
            with np.errstate(all="ignore"):  # a chain that stands still
                r_hat = float(split_gelman_rubin(values))
                ess = float(effective_sample_size(values))
        sd = float(values.std())
        rows[name] = {"mean": values.mean(), "sd": sd, "r_hat": r_hat, "ess": ess}
    columns = ["mean", "sd", "r_hat", "ess"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def write_report(
    posterior: Posterior,
    path: str | os.PathLike,
    *,
    test: Ratings | None = None,
    train: Ratings | None = None,
    titles: plots.Titles = None,
    baselines: Baselines = None,
    clip: Clip = None,
    command: str | None = None,
    heading: str = "What the fit found",
) -> Path:
    """Write what `Posterior.report` says, with the same parameters."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            "A report needs matplotlib: pip install 'im3f-jax[plots]'."
        ) from None
    if isinstance(baselines, Mapping):
        if test is None:
            raise InputError("Baselines are compared on test ratings: give `test`.")
        fits = {**baselines, "this fit": posterior}
        has_draws = all(fit.draws is not None for fit in fits.values())
        baselines = compare(fits, test, clip=clip, log_score=has_draws)
    sections = {
        "The data": _data(posterior, train, test),
        "The model": _model(posterior),
        "Convergence": _convergence(posterior),
        "Error": _error(posterior, test, baselines, clip),
        "Topics": _topics(posterior),
        "Loved or hated, by mood": _napoleon(posterior, train, titles),
        "One rating": _one_rating(posterior, train, test, titles),
        "Calibration": _calibration(posterior, test),
        "How to reproduce it": _reproduce(posterior, command),
    }
    ids = {name: f"s{number}" for number, name in enumerate(sections, start=1)}
    links = [f'<li><a href="#{ids[n]}">{_text(n)}</a></li>' for n in sections]
    body = [
        f'<section aria-labelledby="{ids[name]}"><h2 id="{ids[name]}">{_text(name)}'
        f"</h2>\n{''.join(parts)}</section>"
        for name, parts in sections.items()
    ]
    versions, now = posterior.versions, datetime.now(UTC)
    template = resources.files("im3f_jax.posterior").joinpath("report.html")
    page = Template(template.read_text(encoding="utf-8")).substitute(
        heading=_text(heading),
        links="\n".join(links),
        sections="\n".join(body),
        footer=_text(
            f"Written {now:%Y-%m-%d %H:%M} UTC by im3f_jax; fitted by version "
            f"{versions.get('im3f-jax', 'unknown')}."
        ),
    )
    path = Path(path)
    write_whole(path, lambda file: file.write(page.encode()))
    return path


# --- sections ---------------------------------------------------------------------


def _data(posterior: Posterior, train: Ratings | None, test: Ratings | None):
    levels = posterior.levels
    facts = {
        "users with a training rating": f"{posterior._num_users:,}",
        "items with a training rating": f"{posterior._num_items:,}",
    }
    cold = {
        "users": len(posterior.users) - posterior._num_users,
        "items": len(posterior.items) - posterior._num_items,
    }
    if any(cold.values()):
        said = (f"{number:,} {side}" for side, number in cold.items() if number)
        facts["known, but without one (cold)"] = ", ".join(said)
    if train is not None:
        facts["training ratings"] = f"{len(train):,}"
        facts["their mean, standard deviation"] = (
            f"{train.mean:.3f}, {train.rating.std():.3f}"
        )
    elif posterior.train_predictions is not None:
        facts["training ratings"] = f"{len(posterior.train_predictions):,}"
    if test is not None:
        facts["held-out ratings"] = f"{len(test):,}"
    scale = f"{levels[0]:g} to {levels[-1]:g}"
    if posterior.is_discrete:
        scale += f", {len(levels)} levels"
    facts["scale"] = scale
    yield _facts("The ratings that were fitted", facts)
    if train is not None and posterior.is_discrete:
        counts = [int(np.sum(train.rating == level)) for level in levels]
        rows = [
            (f"{level:g}", f"{count:,}", f"{count / len(train):.1%}")
            for level, count in zip(levels, counts, strict=True)
        ]
        yield _table("Training ratings by level", ("level", "ratings", "share"), rows)


def _model(posterior: Posterior):
    spec = posterior.spec
    likelihood = "ordinal probit" if isinstance(spec.likelihood, Ordinal) else "normal"
    parts = [f"{spec.latent_dim} latent dimensions", f"{likelihood} likelihood"]
    for side in ("user", "item"):
        prior, what = getattr(spec, f"{side}_topic_prior"), plots.CALLED[side]
        number = getattr(spec, f"num_{side}_topics")
        if not number:
            parts.append(f"no {side} topics ({what})")
        elif isinstance(prior, FiniteDirichlet):
            parts.append(f"{number} {side} topics ({what})")
        elif isinstance(prior, CRF):
            parts.append(f"{side} topics ({what}) by the Chinese restaurant franchise")
        else:
            parts.append(f"up to {prior.num_topics} {side} topics ({what}) by the HDP")
    yield _paragraph(f"A model with {', '.join(parts)}.")
    rows = [(name, _in_words(value)) for name, value in spec_to_json(spec).items()]
    table = _table("Every setting, defaults resolved", ("setting", "value"), rows)
    yield f"<details><summary>Every setting</summary>{table}</details>"


def _convergence(posterior: Posterior):
    chains = len(posterior.trace["rating_variance"])
    yield _paragraph(
        f"Chains: {chains}, each of {posterior.num_warmup:,} sweeps of warm-up and "
        f"{posterior.num_samples:,} further ones, thinned by {posterior.thinning}: "
        f"{posterior.num_kept:,} kept draws a chain."
        + (" The run was interrupted." if posterior.partial else "")
    )
    table = convergence(posterior)
    known = table["r_hat"].notna()
    bad = table.index[table["r_hat"] > DISAGREE]
    if not known.any():
        said = "There are too few draws to judge convergence by R-hat."
    elif len(bad):
        said = (
            f"{len(bad)} of {known.sum()} scalars have R-hat above {DISAGREE}: "
            f"{', '.join(bad)}. The chains have not settled, or do not agree, on "
            "these; predictions may have settled before them."
        )
    else:
        said = f"All {known.sum()} scalars have R-hat up to {DISAGREE}."
    if chains == 1 and known.any():
        said += " One chain cannot show whether chains agree: fit with num_chains=2."
    few = table.index[table["ess"] < FEW_EFFECTIVE]
    if len(few):
        said += (
            f" Fewer than {FEW_EFFECTIVE} effective draws have {', '.join(few)}: "
            "their means and intervals are rough."
        )
    yield _paragraph(said)
    rows = [
        (
            name,
            f"{row['mean']:,.4g}",
            f"{row['sd']:,.3g}",
            _number(row["r_hat"], ".3f") + (" (high)" if name in bad else ""),
            _number(row["ess"], ",.0f") + (" (few)" if name in few else ""),
        )
        for name, row in table.iterrows()
    ]
    yield _table(
        "Label-free scalars over kept draws (R-hat of split chains and effective "
        "sample size by numpyro.diagnostics)",
        ("scalar", "mean", "sd", "R-hat", "effective draws"),
        rows,
    )
    if any(plots.varies(posterior.trace.get(name)) for name in plots.SCALARS):
        yield _picture(lambda ax: plots.plot_trace(posterior, ax=ax))


def _error(
    posterior: Posterior, test: Ratings | None, baselines: pd.DataFrame | None, clip
):
    if test is None:
        yield _paragraph(
            "No held-out ratings were given: posterior.report(path, test=test) judges "
            "the predictions."
        )
    else:
        scores = posterior.evaluate(test, clip=clip)
        facts = {
            "RMSE (rating scale)": f"{scores['rmse']:.4f}",
            "MAE (rating scale)": f"{scores['mae']:.4f}",
        }
        if "log_score" in scores:
            kind = scores["log_score_kind"].replace("_", " ")
            facts[f"{kind} (nats a rating)"] = f"{scores['log_score']:.4f}"
        facts["ratings"] = f"{scores['num_ratings']:,}"
        facts["of them of a cold user or item"] = f"{scores['num_cold']:,}"
        clipped = "not clipped" if clip is None else f"clipped ({clip})"
        yield _facts(f"Held-out ratings, predictions {clipped}", facts)
    if baselines is None:
        dim = posterior.spec.latent_dim
        ordinal = isinstance(posterior.spec.likelihood, Ordinal)
        more = ', likelihood="ordinal"' if ordinal else ""
        yield _paragraph("BPMF and M3F were not fitted beside it. To get them:")
        yield _code(
            "im3f report DIR --ratings FILE --baselines --overwrite\n\n"
            "# or in Python\n"
            "baselines = {\n"
            f'    "BPMF": im3f.BPMF({dim}{more}).fit(train),\n'
            f'    "M3F": im3f.M3F(2, 1, {dim}{more}).fit(train),\n'
            "}\n"
            "posterior.report(path, test=test, baselines=baselines)"
        )
        return
    shown = {
        "rmse": "RMSE",
        "rmse_difference": "difference",
        "rmse_low": "from",
        "rmse_high": "to",
        "rmse_p": "p",
        "mae": "MAE",
        "log_score": "log score",
        "calibration_error": "calibration error",
        "seconds": "seconds",
    }
    names = [name for name in shown if name in baselines]
    rows = [
        (
            str(model),
            *(_number(row[n], ".2g" if n == "rmse_p" else ".4f") for n in names),
        )
        for model, row in baselines.iterrows()
    ]
    first = baselines.index[0]
    yield _table(
        f"Models on the same held-out ratings; differences from {first}, with the 95 % "
        "interval from resampled users and the paired t-test",
        ("model", *(shown[name] for name in names)),
        rows,
    )
    if "rmse_low" in baselines and len(baselines) > 1:
        yield _picture(lambda ax: plots.plot_comparison(baselines, ax=ax))


def _topics(posterior: Posterior):
    spec = posterior.spec
    sides = [side for side in ("user", "item") if getattr(spec, f"num_{side}_topics")]
    if not sides:
        yield _paragraph("This model has no topics.")
        return
    rows = []
    for side in sides:
        number = getattr(posterior, f"num_{side}_topics")
        effective = getattr(posterior, f"effective_{side}_topics")
        rows.append(
            (
                f"{side} topics ({plots.CALLED[side]})",
                f"{number.mean():.1f}",
                f"{number.min()} to {number.max()}",
                f"{effective.mean():.2f}",
            )
        )
    yield _table(
        "Topics with at least one rating, over kept draws",
        ("", "mean", "range", "effective: exp(entropy of the shares)"),
        rows,
    )
    yield _paragraph(
        "The number of topics mixes slowly, and is no discovery by itself; labels of "
        "topics switch from draw to draw, so that pictures by topic are of one draw."
    )
    yield _picture(lambda ax: plots.plot_num_topics(posterior, ax=ax))
    if posterior.draws is None:
        yield _no_draws()
        return
    for side in sides:
        yield _picture(lambda ax, side=side: plots.plot_topics(posterior, side, ax=ax))


def _napoleon(posterior: Posterior, train: Ratings | None, titles: plots.Titles):
    if not posterior.spec.num_user_topics:
        yield _paragraph("This model has no moods (user topics).")
        return
    if isinstance(posterior.spec.topic_factors, TopicFactors):
        yield _paragraph("The topics of this model select factors, not biases.")
        return
    if posterior.draws is None:
        yield _no_draws()
        return
    yield _paragraph(
        "Items that depend most on the mood of the user, beyond what the mood does to "
        "every item, like the film Napoleon Dynamite in the Netflix prize. An item of "
        "few ratings keeps the spread that the prior expects of it."
    )
    least = _least_ratings(train)
    given = {"train": train, "min_ratings": least}
    yield _picture(
        lambda ax: plots.plot_napoleon_dynamite(posterior, titles, **given, ax=ax)
    )
    table = plots.napoleon_table(posterior, **given)
    usual, table = table["mean"].median(), table[:15]
    sure = int((table["low"] > usual).sum())
    whose = "all items" if train is None else f"items of {least} ratings or more"
    yield _paragraph(
        f"Of the {len(table)} in the table {sure or 'none'} "
        f"{'lies' if sure < 2 else 'lie'} above the median of {whose}, {usual:.3f}, "
        "in 95 % of the draws"
        + ("." if sure == len(table) else "; the rank of the others may be chance.")
    )
    rows = [
        (
            *([plots.title_of(item, titles) or ""] if titles is not None else []),
            str(item),
            *([f"{row['ratings']:,.0f}"] if train is not None else []),
            *(f"{row[name]:.3f}" for name in ("mean", "low", "high")),
        )
        for item, row in table.iterrows()
    ]
    titled = ("title",) if titles is not None else ()
    counted = ("ratings",) if train is not None else ()
    yield _table(
        f"Standard deviation of the bias over moods ({plots.unit(posterior)})",
        (*titled, "item", *counted, "mean", "5 %", "95 %"),
        rows,
    )


def _least_ratings(train: Ratings | None) -> int:
    """20 ratings; fewer where no item has so many."""
    most = 20 if train is None else int(np.bincount(train.item).max(initial=1))
    return min(20, most)


def _one_rating(posterior, train, test, titles: plots.Titles):
    if test is None or not len(test):
        yield _paragraph("No held-out ratings were given.")
        return
    if posterior.draws is None:
        yield _no_draws()
        return
    row = 0
    if posterior.spec.num_user_topics:
        least = _least_ratings(train)
        table = plots.napoleon_table(posterior, train=train, min_ratings=least)
        place = pd.Series(np.arange(len(table)), table.index)
        place = place.reindex(test.item_ids).fillna(len(table)).to_numpy()
        row = int(np.argmin(place))
    user, item = test.user_ids[row], test.item_ids[row]
    given = {"train": train, "rating": float(test.rating[row]), "titles": titles}
    if posterior.time_scale is not None:
        given["time"] = test.timestamp[row]
    yield _paragraph("A held-out rating, predicted as a mixture over the topics.")
    yield _picture(
        lambda ax: plots.plot_prediction(posterior, user, item, **given, ax=ax)
    )
    if getattr(posterior.spec, f"num_{topic_side(posterior, 'user')}_topics"):
        yield _picture(lambda ax: plots.plot_moods(posterior, user, ax=ax))


def _calibration(posterior: Posterior, test: Ratings | None):
    if test is None or not len(test):
        yield _paragraph("No held-out ratings were given.")
        return
    if posterior.draws is None:
        yield _no_draws()
        return
    if posterior.is_discrete:
        yield _picture(lambda ax: plots.plot_calibration(posterior, test, ax=ax))
    yield _picture(lambda ax: plots.plot_coverage(posterior, test, ax=ax))


def _reproduce(posterior: Posterior, command: str | None):
    seconds = (f"{part} {value:.1f}" for part, value in posterior.seconds.items())
    facts = {
        "seed": str(posterior.seed),
        "device": str(posterior.device),
        "seconds": ", ".join(seconds),
        "versions": ", ".join(f"{k} {v}" for k, v in posterior.versions.items()),
    }
    yield _facts("How it was run", facts)
    chains = len(posterior.trace["rating_variance"])
    yield _code(
        command
        or "posterior = model.fit(\n    train, test=test, "
        f"num_warmup={posterior.num_warmup}, num_samples={posterior.num_samples},\n"
        f"    num_chains={chains}, thinning={posterior.thinning}, "
        f"seed={posterior.seed},\n)"
    )
    yield _paragraph(
        "On a CPU with the same versions the same seed gives the same draws, bit for "
        "bit; on a GPU, the same distribution."
    )


# --- HTML -------------------------------------------------------------------------


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>\n"


def _no_draws() -> str:
    return _paragraph("This fit kept no draws (store='summary'), which this needs.")


def _code(text: str) -> str:
    return f'<pre tabindex="0"><code>{_text(text)}</code></pre>\n'


def _facts(caption: str, facts: Mapping[str, str]) -> str:
    return _table(caption, ("", ""), list(facts.items()))


def _table(caption: str, header: tuple, rows: Iterable[tuple]) -> str:
    """Make a table, the first column of which names the rows."""
    head = ""
    if any(header):
        cells = (
            f'<th scope="col">{_text(name)}</th>' if name else "<td></td>"
            for name in header
        )
        head = f"<thead><tr>{''.join(cells)}</tr></thead>"
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{_text(first)}</th>{cells}</tr>')
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}">'
        f"<table><caption>{_text(caption)}</caption>{head}<tbody>{''.join(lines)}"
        "</tbody></table></div>\n"
    )


def _picture(draw: Callable[[Any], Any]) -> str:
    """Draw a plot into the page: a PNG in a data URI, with its captions for a text."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    draw(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    said = [
        f"{ax.get_title(loc='left')}: {text.get_text()}"
        for ax in figure.axes
        for text in ax.texts
        if text.get_gid() == "caption"
    ]
    alt = ". ".join(" ".join(line.split()) for line in said)
    wide, high = (round(96 * inches) for inches in figure.get_size_inches())
    return (
        f'<img src="data:image/png;base64,{data}" alt="{_text(alt)}" '
        f'width="{wide}" height="{high}">\n'
    )


def _number(value: float, form: str) -> str:
    return format(value, form) if np.isfinite(value) else "-"


def _in_words(value: Any) -> str:
    """Write a setting, or a component with its settings."""
    if not isinstance(value, dict):
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    given = (f"{k}={_in_words(v)}" for k, v in value.items() if k != "type")
    return f"{value['type']}({', '.join(given)})"
