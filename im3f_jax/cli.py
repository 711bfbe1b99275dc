"""The command line: ``im3f fit``, ``predict``, ``recommend`` and the others.

The words are those of the Python interface. Results go to files and to standard
output, what is said about the run to standard error. Exit codes: 0 done, 1 the run
had to stop, 2 the input cannot be used (one sentence says why), 130 interrupted.
"""

import argparse
import gzip
import io
import json
import logging
import math
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

import im3f_jax
from im3f_jax.errors import Im3fWarning, InputError, SamplingError

__all__ = ["main"]

A_WEEK = 7 * 24 * 3600  # seconds
PREDICTIONS = "predictions.csv"
METRICS = "metrics.json"
TRACE = "trace.csv"
MODEL = "model.npz"
COMMAND = "command.json"  # beside checkpoints
REPORT = "report.html"

_WORDS = {
    "user": ("user", "userid"),
    "item": ("item", "itemid", "movie", "movieid"),
    "rating": ("rating",),
}
_SAMPLE = "sampled"
_ROWS_AT_ONCE = 1 << 18  # of a table that is written, so that a long one takes no room


def _number(text: str) -> float | str:
    """Read a number, or the word that leaves it to be sampled."""
    if text == _SAMPLE:
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number or {_SAMPLE}, not {text!r}"
        ) from None


_PRESETS = {
    "im3f": "IM3F",
    "bpmf": "BPMF",
    "m3f": "M3F",
    "m3f-tif": "M3F_TIF",
    "separate-dp": "SeparateDP",
    "reciprocal": "ReciprocalIM3F",
    "pmf": "PMF",
}

# Options that become arguments of the preset: name, type, who has it, what it says.
# They have no default here: what is not given is left to the preset.
_ALL = tuple(_PRESETS)
_SAMPLED = ("im3f", "bpmf", "m3f", "m3f-tif", "separate-dp")
_TOPICS = ("im3f", "m3f")
_FINITE = ("m3f", "m3f-tif")
_GIBBS = (*_SAMPLED, "reciprocal")
_HDP = ("im3f", "reciprocal")
_BIASES = ("im3f", "m3f", "m3f-tif", "separate-dp")
_PROCESS = ("im3f", "separate-dp")
_SPEC_OPTIONS = [
    ("latent_dim", int, _ALL, "length of the factors"),
    ("max_user_topics", int, _PROCESS, "truncation of the user topics (moods)"),
    ("max_item_topics", int, _PROCESS, "truncation of the item topics (contexts)"),
    ("user_topics", int, _FINITE, "number of user topics"),
    ("item_topics", int, _FINITE, "number of item topics"),
    ("topic_factor_dim", int, ("m3f-tif",), "length of the factors topics select"),
    ("directed", bool, ("reciprocal",), "a row's user rates its item: no plain pair"),
    ("max_topics", int, ("reciprocal",), "truncation of the persons' topics"),
    ("topics", str, _HDP, "how the HDP is truncated; crf: not at all, slow"),
    ("dish_concentration", float, ("reciprocal",), "of the global topic weights"),
    ("table_concentration", float, ("reciprocal",), "of each person's topic weights"),
    ("user_dish_concentration", float, ("im3f",), "of the global user-topic weights"),
    ("item_dish_concentration", float, ("im3f",), "of the global item-topic weights"),
    ("user_table_concentration", float, _PROCESS, "of each user's topic weights"),
    ("item_table_concentration", float, _PROCESS, "of each item's topic weights"),
    ("user_topic_concentration", float, _FINITE, "of each user's topic weights"),
    ("item_topic_concentration", float, _FINITE, "of each item's topic weights"),
    ("factor_prior", str, _GIBBS, "shrinkage: learn how many columns are needed"),
    ("likelihood", str, _GIBBS, "ordinal: for stars, and counts of few levels"),
    ("rating_variance", float, _ALL, "fixed at this number instead of sampled"),
    ("rating_variance_floor", float, _GIBBS, "least it may be; 0: continuous scale"),
    ("bias_variance", float, ("reciprocal",), "of biases about their topic's mean"),
    ("topic_mean_variance", float, ("reciprocal",), "of the means of topics"),
    ("user_bias_variance", float, _BIASES, "of biases about their topic's mean"),
    ("item_bias_variance", float, _BIASES, "of biases about their topic's mean"),
    ("user_shared_bias_variance", _number, _TOPICS, "of what a user's biases share"),
    ("item_shared_bias_variance", _number, _TOPICS, "of what an item's biases share"),
    ("user_topic_mean_variance", float, _TOPICS, "of the means of user topics"),
    ("item_topic_mean_variance", float, _TOPICS, "of the means of item topics"),
    ("user_noise_shape", _number, _SAMPLED, "of precisions by user; inf: constant"),
    ("item_noise_shape", _number, _SAMPLED, "of precisions by item; inf: constant"),
    ("degrees_of_freedom", float, _SAMPLED, "of Student's t noise; inf: normal"),
    ("item_time_bins", int, _SAMPLED, "biases of items in so many bins of time"),
    ("item_time_variance", _number, _SAMPLED, "of items' biases by time"),
    ("user_drift_variance", _number, _SAMPLED, "of users' drifts with time"),
    ("global_bias", float, _ALL, "fixed at this number instead of the training mean"),
]


_CHOICES = {
    "topics": ["weak_limit", "stick_breaking", "crf"],
    "factor_prior": ["shrinkage"],
    "likelihood": ["gaussian", "ordinal"],
}


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one sentence."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
        0 when done, 1 where the run had to stop, 2 where the input cannot be used,
        130 when interrupted.

    Raises
    ------
    SystemExit
        By argparse: for ``--help`` and ``--version``, and with code 2 for arguments
        that it refuses.
    """
    arguments, spare = _parser().parse_known_args(argv)
    if spare:  # argparse would name the help of im3f, which has no such options
        arguments.refuse(f"unrecognized arguments: {' '.join(spare)}")
    arguments.words = sys.argv[1:] if argv is None else list(argv)
    try:
        with _warnings_in_one_line():
            return arguments.run(arguments)
    except KeyboardInterrupt:
        print("im3f: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `im3f predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (InputError, OSError) as error:
        print(f"im3f: {_sentence(error)}", file=sys.stderr)
        return 2
    except SamplingError as error:
        print(f"im3f: {_sentence(error)}", file=sys.stderr)
        return 1


def _sentence(error: Exception) -> str:
    """Say in one line what is wrong, without an error number."""
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename is not None else ""
        return f"{name}{error.strerror}"
    return " ".join(str(error).split())


@contextmanager
def _warnings_in_one_line():
    """Show our own warnings without a line of source code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_ours(message, category, *place, **more):
            if issubclass(category, Im3fWarning):
                print(f"im3f: warning: {message}", file=sys.stderr)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = show_ours
        yield


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="im3f",
        description="Predict ratings, and say how sure the prediction is.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"im3f_jax {im3f_jax.__version__}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fit(commands)
    _add_resume(commands)
    _add_predict(commands)
    _add_fold_in(commands)
    _add_recommend(commands)
    _add_similar(commands)
    _add_report(commands)
    _add_dblp(commands)
    _add_demo(commands)
    return parser


def _add_command(commands, name, run, help, description=None):
    parser = commands.add_parser(
        name, help=help, description=description or help, allow_abbrev=False
    )
    parser.set_defaults(run=run, refuse=parser.error)
    return parser


def _add_fit(commands) -> None:
    parser = _add_command(
        commands,
        "fit",
        _fit,
        "fit a model to a file of ratings and judge it on held-out ones",
        f"Fit a model by Gibbs sampling. Writes {PREDICTIONS} (of the test ratings, or "
        f"of the training ratings where there is no test set), {METRICS}, {TRACE} "
        f"(every sweep) and {MODEL} (for im3f predict).",
    )
    parser.usage = "im3f fit FILE [options]"
    parser.add_argument(
        "file",
        metavar="FILE",
        help="u.data, ratings.dat, ratings.csv, an .npz, plain or as .gz or .zip; the "
        "name of a folder in IM3F_DATA_DIR; or ml-100k, ml-1m, ml-10m, ml-20m, ml-25m, "
        "ml-32m or ml-latest-small: MovieLens, downloaded where it is in no folder of "
        "data sets",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of data sets to look into first, and to download to (default: "
        "that of IM3F_DATA_DIR, else the platform's cache folder)",
    )
    parser.add_argument(
        "--duplicates",
        choices=["error", "last", "mean", "keep"],
        default="error",
        help="what to do about repeated (user, item) rows (default: error)",
    )
    _add_columns(parser, "user", "item", "rating", "timestamp")

    model = parser.add_argument_group("model")
    model.add_argument("--model", choices=list(_PRESETS), default="im3f")
    for name, kind, models, text in _SPEC_OPTIONS:
        whose = "" if models == _ALL else f" [{', '.join(models)}]"
        if name in _CHOICES:
            shape = {"choices": _CHOICES[name]}
        elif kind is bool:
            shape = {"action": "store_true", "default": None}
        else:
            metavar = {int: "N", float: "X"}.get(kind, f"X|{_SAMPLE}")
            shape = {"type": kind, "metavar": metavar}
        model.add_argument(_option(name), **shape, help=f"{text}{whose}")

    test = parser.add_argument_group("test set")
    test.add_argument(
        "--split",
        default="leave-one-out",
        metavar="HOW",
        help="leave-one-out (the default: one rating of each user), random, time (what "
        "came last), none, or ROWS.npz:KEY, an array of 0-based row numbers to test on",
    )
    test.add_argument(
        "--test-fraction",
        type=float,
        metavar="X",
        help="share of the ratings that --split random or time takes (default: 0.1)",
    )
    _add_clip(test)

    run = parser.add_argument_group("sampling")
    run.add_argument(
        "--num-warmup", type=int, metavar="N", default=100, help="default: 100"
    )
    run.add_argument(
        "--num-samples", type=int, metavar="N", default=400, help="default: 400"
    )
    run.add_argument(
        "--num-chains", type=int, metavar="N", default=1, help="default: 1"
    )
    run.add_argument(
        "--thinning",
        type=int,
        metavar="N",
        default=1,
        help="keep every such sweep (default: 1)",
    )
    run.add_argument(
        "--seed",
        type=int,
        metavar="N",
        default=0,
        help="of the split and the chains (default: 0)",
    )
    run.add_argument(
        "--init",
        choices=["map", "prior"],
        default="map",
        help="where the factors start (default: map)",
    )
    run.add_argument(
        "--device",
        choices=["auto", "cpu", "gpu"],
        default="auto",
        help="gpu fails where JAX has none (default: auto)",
    )
    run.add_argument(
        "--devices",
        type=_devices,
        metavar="N|all",
        help="so many devices share every chain (default: one device)",
    )
    run.add_argument(
        "--compilation-cache",
        metavar="DIR",
        help="keep compiled programs in this folder, and take from it what is there: "
        "another run on data of nearly the same size then starts sooner (only a folder "
        "that nobody else may write to)",
    )
    run.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="write the run to this folder as it goes; the same command, or im3f "
        "resume DIR, then goes on where it was broken off",
    )
    run.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        default=50,
        help="sweeps from one checkpoint to the next (default: 50)",
    )
    many = parser.add_argument_group("several processes")
    many.add_argument(
        "--distributed",
        action="store_true",
        help="the devices of all processes share every chain; start the same command "
        "once on each machine, where it can read the data (or once a GPU, each seeing "
        "one only: CUDA_VISIBLE_DEVICES). "
        "Under Slurm, Open MPI or Kubernetes processes find each other; elsewhere give "
        "the three options below. The first process writes the results",
    )
    many.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of the first process, and a free port there",
    )
    many.add_argument("--num-processes", type=int, metavar="N")
    many.add_argument("--process-id", type=int, metavar="N", help="from 0")

    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        default="im3f-out",
        metavar="DIR",
        help="folder of the results, made if need be (default: im3f-out)",
    )
    output.add_argument(
        "--overwrite", action="store_true", help="replace results that are there"
    )
    output.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _add_resume(commands) -> None:
    parser = _add_command(
        commands,
        "resume",
        _resume,
        "go on with a fit that was broken off",
        "Go on with the im3f fit whose --checkpoint-dir was DIR, with the options it "
        "had, and write what it would have written, where it would have: results of "
        "its interrupted run are replaced. A fit that was done is written again.",
    )
    parser.add_argument("folder", metavar="DIR", help="its --checkpoint-dir")
    parser.add_argument(
        "--num-samples",
        type=int,
        metavar="N",
        help="more sweeps after the warm-up than it was to have",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _add_predict(commands) -> None:
    parser = _add_command(
        commands,
        "predict",
        _predict,
        "predict ratings of (user, item) pairs with a fitted model",
        "Predict pairs: the mean over the kept draws. Every column of the file of "
        "pairs is kept, and a column `prediction` added. A model that depends on time "
        "reads a column `timestamp`, where there is one; else it leaves the time out.",
    )
    _add_model(parser)
    parser.add_argument(
        "pairs", metavar="PAIRS.csv", help="CSV whose header names user and item"
    )
    _add_columns(parser, "user", "item", "timestamp")
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--unknown",
        choices=["raise", "prior", "nan"],
        default="raise",
        help="what to do about ids that the model has never seen (default: raise)",
    )
    parser.add_argument(
        "--spread",
        action="store_true",
        help="add columns std_of_mean and std_of_rating (standard deviations), and "
        "known: whether both ids have a training rating",
    )
    parser.add_argument(
        "--quantiles",
        type=_probabilities,
        default=(),
        metavar="P,P...",
        help="add columns of quantiles of the rating, as in 0.05,0.95; and those of "
        "--spread",
    )
    _add_clip(parser)


def _add_fold_in(commands) -> None:
    parser = _add_command(
        commands,
        "fold-in",
        _fold_in,
        "add new users or items to a fitted model, without fitting anew",
        "Draw new users, or new items, from their ratings in every kept draw of a "
        "model, which stays as it is, and write a model with them to another file, "
        "which im3f predict reads. A row that names a new id and nothing else adds it "
        "without a rating.",
    )
    _add_model(parser)
    parser.add_argument(
        "ratings",
        metavar="NEW.csv",
        help="CSV whose header names user, item and rating",
    )
    _add_columns(parser, "user", "item", "rating")
    parser.add_argument(
        "--out", required=True, metavar="FILE.npz", help="file of the new model"
    )
    parser.add_argument(
        "--side",
        choices=["user", "item"],
        default="user",
        help="who is new (default: user)",
    )
    parser.add_argument(
        "--unknown",
        choices=["raise", "drop"],
        default="raise",
        help="what to do about ratings whose other id has no training rating (default: "
        "raise)",
    )
    parser.add_argument(
        "--duplicates",
        choices=["error", "last", "mean", "keep"],
        default="error",
        help="what to do about repeated pairs (default: error)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a file that is there"
    )
    parser.add_argument(
        "--json", action="store_true", help="say what was done as a JSON object"
    )


def _add_recommend(commands) -> None:
    parser = _add_command(
        commands,
        "recommend",
        _recommend,
        "name the items that users would rate highest",
        "Recommend items: those of highest expected rating, the mean over the kept "
        "draws, that the user has no training rating of. A row a recommendation: user, "
        "rank, item, mean, and the standard deviation of the mean over draws.",
    )
    _add_model(parser)
    users = parser.add_mutually_exclusive_group(required=True)
    users.add_argument(
        "--user", nargs="+", action="extend", metavar="ID", help="one user, or several"
    )
    users.add_argument(
        "--users-file", metavar="FILE.csv", help="CSV whose header names user"
    )
    _add_columns(parser, "user")
    users.add_argument("--all", action="store_true", help="all users of the model")
    parser.add_argument(
        "--include-seen",
        action="store_true",
        help="recommend what the user has rated, too",
    )
    parser.add_argument(
        "--rank-by",
        choices=["mean", "lower", "upper"],
        default="mean",
        help="lower: by a bound that the mean lies above with probability --level; "
        "upper: below (default: mean)",
    )
    parser.add_argument(
        "--level", type=float, metavar="X", default=0.9, help="default: 0.9"
    )
    parser.add_argument(
        "--unknown",
        choices=["raise", "prior"],
        default="raise",
        help="prior: give users that the model has never seen the list of a new user "
        "(default: raise)",
    )
    parser.add_argument(
        "--time",
        type=float,
        metavar="X",
        help="when, in the unit of the training timestamps, for a model that depends "
        "on time (default: leave the time out)",
    )
    _add_list(parser)


def _add_similar(commands) -> None:
    parser = _add_command(
        commands,
        "similar",
        _similar,
        "name the items, or the users, that are most like one",
        "Name the items whose predictions go with those of one item: the correlation "
        "over users in each draw, its mean and standard deviation over draws.",
    )
    _add_model(parser)
    parser.add_argument("id", metavar="ID", help="an item, or with --users a user")
    parser.add_argument(
        "--users", action="store_true", help="users that are like a user"
    )
    _add_list(parser)


def _add_model(parser) -> None:
    parser.add_argument(
        "model", metavar="DIR", help="what im3f fit wrote: its folder, or the file"
    )


def _add_list(parser) -> None:
    parser.add_argument(
        "-n", type=int, default=10, metavar="N", help="length of a list (default: 10)"
    )
    parser.add_argument(
        "--titles",
        metavar="NAME",
        help="add titles of items: of a data set by its name or path, as im3f fit "
        "takes them, or a file u.item, movies.dat, movies.csv, or a CSV whose header "
        "names item and title",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of data sets to look into first for titles",
    )
    parser.add_argument("--out", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--json", action="store_true", help="a JSON object a row instead of CSV"
    )


def _add_report(commands) -> None:
    parser = _add_command(
        commands,
        "report",
        _report,
        "write a page of HTML about a fitted model, with pictures",
        "Write one page about a fit: data, model, convergence, errors, topics, "
        "calibration. It needs no network and runs no script. Test ratings come from "
        f"the folder's {PREDICTIONS}.",
    )
    parser.add_argument(
        "model", metavar="DIR", help="what im3f fit wrote: its folder, or the file"
    )
    parser.add_argument(
        "--out", metavar="FILE", help=f"default: {REPORT} beside the model"
    )
    parser.add_argument(
        "--ratings",
        metavar="FILE",
        help="what im3f fit was given: for counts, for what others gave, for titles "
        "that lie beside it, and for --baselines",
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="fit BPMF and M3F(2, 1) to the same ratings, and compare",
    )
    parser.add_argument(
        "--titles",
        metavar="FILE",
        help="u.item, movies.dat, movies.csv, or a CSV of items and titles",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="folder of data sets, as for im3f fit"
    )
    parser.add_argument(
        "--duplicates",
        choices=["error", "last", "mean", "keep"],
        default="error",
        help="as for im3f fit (default: error)",
    )
    _add_columns(parser, "user", "item", "rating", "timestamp")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a page that is there"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _add_dblp(commands) -> None:
    parser = _add_command(
        commands,
        "dblp",
        _dblp,
        "turn DBLP into a file of ratings: authors, and their joint papers",
        "Count the joint papers of every pair of authors in the DBLP bibliography "
        "(dblp.xml.gz from dblp.org), and write them as a table user,item,rating that "
        "im3f fit reads. A pair stands in one row: user is the name that comes first "
        "by Unicode code points, item the other, rating the number of joint papers.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="dblp.xml.gz, dblp.xml, or papers.npz with its lists of names beside it",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="where the pairs go: a name that ends in .csv or .csv.gz",
    )
    parser.add_argument(
        "--min-count",
        type=int,
        default=1,
        metavar="N",
        help="leave out pairs of fewer joint papers (default: 1)",
    )
    parser.add_argument(
        "--max-authors",
        type=_max_authors,
        default=50,
        metavar="N|none",
        help="leave out papers of more authors (default: 50)",
    )
    parser.add_argument(
        "--years",
        type=_years,
        metavar="FIRST-LAST",
        help="only papers of these years: 2000-2010, 2010 alone, 2000- (and later), "
        "or --years=-2010 (and before)",
    )
    parser.add_argument(
        "--venues",
        type=_venues,
        metavar="V,V,...",
        help="only papers of these venues, by DBLP's keys: conf/kdd,journals/jmlr",
    )
    parser.add_argument(
        "--informal",
        action="store_true",
        help="count preprints and the like too, most of which appear again elsewhere",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a file that is there"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")


def _add_demo(commands) -> None:
    parser = _add_command(
        commands,
        "demo",
        _demo,
        "plant ratings with moods and contexts, and let three models find them",
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="default: 0")
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds, and rougher figures"
    )


def _add_clip(parser) -> None:
    parser.add_argument(
        "--clip",
        type=_clip,
        metavar="none|train|LO,HI",
        help="hold predictions within the training ratings' range, or within "
        "numbers: --clip=-10,10 (default: none)",
    )


def _add_columns(parser, *roles: str) -> None:
    for role in roles:
        parser.add_argument(
            f"--{role}-column",
            metavar="NAME",
            help=f"name of the column of {role}s in the header, where it is another",
        )


def _columns(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Names of columns, as `load_ratings` takes them."""
    from im3f_jax.data.movielens import given_names

    roles = "user", "item", "rating", "timestamp"
    names = [getattr(arguments, f"{role}_column", None) for role in roles]
    return dict(zip(roles, given_names(*names), strict=True))


def _probabilities(text: str) -> list[float]:
    """Read probabilities with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list of probabilities, as in 0.05,0.95"
        ) from None


def _clip(text: str) -> str | tuple[float, float] | None:
    if text == "none":
        return None
    if text == "train":
        return text
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be none, train or two numbers such as 1,5, not {text!r}"
        ) from None
    if not low < high:
        raise argparse.ArgumentTypeError(f"{text!r} is no range from low to high")
    return low, high


def _max_authors(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number or none, not {text!r}"
        ) from None


def _years(text: str) -> tuple[int | None, int | None]:
    first, dash, last = text.partition("-")
    try:
        years = tuple(int(year) if year else None for year in (first, last))
    except ValueError:
        years = None, None
    if years == (None, None):
        raise argparse.ArgumentTypeError(
            f"must be years such as 2000-2010, 2010 or 2000-, not {text!r}"
        )
    return years if dash else (years[0], years[0])


def _venues(text: str) -> list[str]:
    return [venue for venue in text.split(",") if venue]


def _devices(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a whole number or all, not {text!r}"
        ) from None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


# --- im3f fit ---------------------------------------------------------------------


def _fit(arguments: argparse.Namespace) -> int:
    from im3f_jax.posterior.storage import spec_to_json  # starts JAX

    started = time.perf_counter()
    first = _join_processes(arguments)
    arguments.quiet |= not first
    say = _silent if arguments.quiet else _say
    model = _model(arguments)
    ratings = im3f_jax.load_ratings(
        arguments.file,
        **_columns(arguments),
        duplicates=arguments.duplicates,
        data_dir=arguments.data_dir,
        progress=not arguments.quiet,
    )
    train, test, split = _split(ratings, arguments)
    out = None
    with _together(arguments.distributed):
        if first:
            out = _output_folder(arguments.out, arguments.overwrite)
    say(
        f"{arguments.file}: {len(ratings):,} ratings, {ratings.num_users:,} users, "
        f"{ratings.num_items:,} items; training on {len(train):,}"
    )

    cache = _compilation_cache(arguments.compilation_cache)
    noted = _command_noted(arguments, first)
    with _progress_notes(arguments.quiet), cache, noted:
        posterior = model.fit(
            train,
            test=test,
            num_warmup=arguments.num_warmup,
            num_samples=arguments.num_samples,
            num_chains=arguments.num_chains,
            thinning=arguments.thinning,
            seed=arguments.seed,
            init=arguments.init,
            device=arguments.device,
            devices=arguments.devices,
            progress=not arguments.quiet,
            checkpoint_dir=arguments.checkpoint_dir,
            checkpoint_every=arguments.checkpoint_every,
        )

    if not first:
        return 0
    judged = train if test is None else test
    scores = posterior.evaluate(judged, clip=arguments.clip)
    metrics = {
        "command": _command(arguments.words),
        "model": arguments.model,
        "data": {
            "file": Path(arguments.file).name,
            "num_ratings": len(ratings),
            "num_users": ratings.num_users,
            "num_items": ratings.num_items,
            "num_train": len(train),
        },
        "split": split,
        "scored_on": "train" if test is None else "test",
        "clip": arguments.clip,
        **scores,
        "topics": _topics(posterior),
        "effective_dimension": float(posterior.effective_dimension.mean()),
        "sweeps": {
            "num_warmup": arguments.num_warmup,
            "num_samples": arguments.num_samples,
            "num_chains": arguments.num_chains,
            "thinning": arguments.thinning,
            "init": arguments.init,
        },
        "seed": arguments.seed,
        "partial": posterior.partial,
        "device": str(posterior.device),
        "seconds": {**posterior.seconds, "all": time.perf_counter() - started},
        "versions": posterior.versions,
        "spec": spec_to_json(posterior.spec),
    }
    _write_results(out, posterior, judged, metrics, arguments.clip)
    say(_summary(metrics))
    say(f"Wrote {PREDICTIONS}, {METRICS}, {TRACE} and {MODEL} to {out}")
    if posterior.partial:
        print("im3f: interrupted; the results are of what was sampled", file=sys.stderr)
        if arguments.checkpoint_dir is not None:
            print(
                f"im3f: im3f resume {arguments.checkpoint_dir} goes on", file=sys.stderr
            )
        return 130
    return 0


def _resume(arguments: argparse.Namespace) -> int:
    path = Path(arguments.folder) / COMMAND
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        fit = _parser().parse_args(["fit", noted["file"]])
        vars(fit).update(noted)
    except FileNotFoundError:
        raise InputError(
            f"{arguments.folder} holds no checkpoints of im3f fit --checkpoint-dir"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged: give the im3f fit again") from None
    if fit.distributed:
        raise InputError(
            "im3f resume starts one process: give the im3f fit again in each of them"
        )
    fit.clip = tuple(fit.clip) if isinstance(fit.clip, list) else fit.clip
    fit.checkpoint_dir, fit.quiet = arguments.folder, arguments.quiet
    fit.overwrite = True
    if arguments.num_samples is not None:
        fit.num_samples = arguments.num_samples
    return _fit(fit)


_NOT_NOTED = {"run", "refuse", "command", "checkpoint_dir", "overwrite", "quiet"}


@contextmanager
def _command_noted(arguments: argparse.Namespace, first: bool):
    """Note what `im3f resume` needs to know; not of a fit that is refused."""
    if arguments.checkpoint_dir is None or not first:
        yield
        return
    from im3f_jax.data.archive import write_whole

    noted = {
        name: value for name, value in vars(arguments).items() if name not in _NOT_NOTED
    }
    # From wherever it is resumed.
    for name in ("data_dir", "out", "compilation_cache"):
        noted[name] = noted[name] and os.path.abspath(noted[name])
    rows, colon, key = noted["split"].rpartition(":")
    if rows:
        noted["split"] = os.path.abspath(rows) + colon + key
    if os.path.exists(noted["file"]):
        noted["file"] = os.path.abspath(noted["file"])
    path = Path(arguments.checkpoint_dir) / COMMAND
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else None
    text = json.dumps(noted, indent=1) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))
    try:
        yield
    except InputError:
        if before is None:
            path.unlink()
        else:
            write_whole(path, lambda file: file.write(before))
        raise


@contextmanager
def _together(distributed: bool):
    """Go on after the block in all processes, or in none."""
    if not distributed:
        yield
        return
    import jax

    from im3f_jax.inference.sharding import all_or_none

    with all_or_none(jax.sharding.Mesh(jax.devices(), "devices")):
        yield


def _join_processes(arguments: argparse.Namespace) -> bool:
    """Join the other processes, where there are; tell whether this is the first."""
    by_hand = {
        "coordinator_address": arguments.coordinator,
        "num_processes": arguments.num_processes,
        "process_id": arguments.process_id,
    }
    given = [value is not None for value in by_hand.values()]
    if any(given) and not (arguments.distributed and all(given)):
        raise InputError(
            "--coordinator, --num-processes and --process-id belong together, and to "
            "--distributed"
        )
    if not arguments.distributed:
        return True
    import jax

    try:
        # At the end all wait for the first, which scores and writes.
        jax.distributed.initialize(**by_hand, shutdown_timeout_seconds=A_WEEK)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes do not find each other: {error} (outside of Slurm, Open "
            "MPI and Kubernetes give --coordinator, --num-processes and --process-id)"
        ) from None
    if arguments.devices is None:
        arguments.devices = "all"
    return jax.process_index() == 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _silent(text: str) -> None:
    pass


@contextmanager
def _progress_notes(quiet: bool):
    """Show what the library notes while it runs: the device, sizes, skipped users."""
    if quiet:
        yield
        return
    logger = logging.getLogger("im3f_jax")
    handler, level = logging.StreamHandler(sys.stderr), logger.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _compilation_cache(folder: str | None):
    """Let JAX keep its compiled programs in a folder, and put its settings back.

    Only here is JAX's configuration changed: a command is a process of its own.
    """
    if folder is None:
        yield
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # many are small
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _model(arguments: argparse.Namespace):
    """Make the preset that the arguments name, with the numbers they give."""
    given = {}
    for name, _, models, _ in _SPEC_OPTIONS:
        value = getattr(arguments, name)
        if value is None:
            continue
        if arguments.model not in models:
            raise InputError(
                f"{_option(name)} belongs to --model {' or '.join(models)}, not to "
                f"--model {arguments.model}"
            )
        if (name, value) == ("topics", "crf"):
            value = im3f_jax.CRF()
        given[name] = None if value == _SAMPLE else value
    return getattr(im3f_jax, _PRESETS[arguments.model])(**given)


def _output_folder(name: str, overwrite: bool) -> Path:
    """Make the folder before the run, so that a long one is not lost at its end."""
    out = Path(name)
    out.mkdir(parents=True, exist_ok=True)
    there = [
        file for file in (PREDICTIONS, METRICS, TRACE, MODEL) if (out / file).exists()
    ]
    if there and not overwrite:
        raise InputError(
            f"{out} already holds results ({', '.join(there)}): name another folder "
            f"by --out, or add --overwrite"
        )
    if not os.access(out, os.W_OK):
        raise InputError(f"{out} cannot be written to")
    return out


def _split(ratings, arguments: argparse.Namespace):
    """Split as asked for; the third result describes it for the metrics."""
    how, seed, fraction = arguments.split, arguments.seed, arguments.test_fraction
    if fraction is not None and how not in ("random", "time"):
        raise InputError("--test-fraction belongs to --split random and --split time")
    if how == "none":
        return ratings, None, {"kind": "none"}
    if how == "leave-one-out":
        train, test = im3f_jax.leave_one_out(ratings, seed=seed)
        split = {"kind": how, "seed": seed}
    elif how == "random":
        fraction = 0.1 if fraction is None else fraction
        train, test = im3f_jax.random_split(ratings, test_fraction=fraction, seed=seed)
        split = {"kind": how, "seed": seed, "test_fraction": fraction}
    elif how == "time":
        if ratings.timestamp is None:
            raise InputError(
                "--split time needs the time of every rating, and there is none in "
                f"{arguments.file}: a column timestamp or time, or as you name it by "
                "--timestamp-column, of numbers or ISO dates"
            )
        fraction = 0.1 if fraction is None else fraction
        train, test = im3f_jax.time_split(ratings, test_fraction=fraction)
        split = {"kind": how, "test_fraction": fraction}
    else:
        path, colon, key = how.rpartition(":")
        if not colon or not path:
            raise InputError(
                f"--split must be leave-one-out, random, time, none or ROWS.npz:KEY, "
                f"not {how!r}"
            )
        train, test = im3f_jax.split_by_rows(ratings, _rows(path, key))
        split = {"kind": "rows", "file": Path(path).name, "key": key}
    return train, test, {**split, "num_test": len(test)}


def _rows(path: str, key: str) -> np.ndarray:
    from im3f_jax.data.sources import plain_arrays

    with open(path, "rb") as file:
        try:
            arrays = plain_arrays(file)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    if key not in arrays:
        raise InputError(
            f"{path} has no array {key!r}; its arrays are {', '.join(arrays)}"
        )
    return arrays[key]


def _command(words: list[str]) -> str:
    """Write the command as it was given, but without the folders of its files."""
    option = re.compile(r"--(user|item|rating|timestamp)-column(=|$)")
    names = [
        word
        if option.match(word) or option.fullmatch(before)
        else re.sub(r"^(--[\w-]+=)?.*[/\\](?=.)", r"\1", word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return shlex.join(["im3f", *names])


def _topics(posterior) -> dict:
    """Topics in use over the kept draws; empty for a model without topics."""
    topics = {}
    for side in ("user", "item"):
        number = np.asarray(getattr(posterior, f"num_{side}_topics"))
        effective = np.asarray(getattr(posterior, f"effective_{side}_topics"))
        topics[side] = {
            "mean": float(number.mean()),
            "min": int(number.min()),
            "max": int(number.max()),
            "effective": float(effective.mean()),
        }
    return topics


def _write_results(out: Path, posterior, judged, metrics: dict, clip) -> None:
    timed = posterior.time_scale is not None
    names = ["user", "item", "rating", "timestamp"][: 3 + timed]
    frame = judged.to_dataframe().iloc[:, : len(names)]
    frame.columns = names
    times = judged.timestamp if timed else None
    frame["prediction"] = posterior.predict(
        judged.user_ids, judged.item_ids, times=times, clip=clip
    )
    as_csv = {"index": False, "lineterminator": "\n"}
    _write_text(out / PREDICTIONS, partial(frame.to_csv, **as_csv))
    _write_text(out / TRACE, partial(posterior.trace_frame().to_csv, **as_csv))
    posterior.save(out / MODEL)
    text = json.dumps(_plain(metrics), indent=2, allow_nan=False)
    _write_text(out / METRICS, lambda file: file.write(text + "\n"))


def _write_text(path: Path, write: Callable[[TextIO], Any], packed=False) -> None:
    """Write a text, `packed` by gzip or not, that is there as a whole or not at all."""
    from im3f_jax.data.archive import write_whole

    def write_bytes(file):
        # Without name and time, so that the same text gives the same bytes.
        opened = gzip.GzipFile("", "wb", 6, file, mtime=0) if packed else file
        text = io.TextIOWrapper(opened, encoding="utf-8", newline="")
        try:
            write(text)
        finally:
            text.detach()
            if packed:
                opened.close()

    write_whole(path, write_bytes)


def _plain(value):
    """Turn a value into what JSON has; what it lacks, NaN and infinity, into null."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if hasattr(value, "tolist"):  # an array or a number of numpy or JAX
        return _plain(value.tolist())
    return str(value)


def _summary(metrics: dict) -> str:
    score = metrics["log_score_kind"].replace("_", " ")
    cold = metrics["num_cold"]
    lines = [
        f"{metrics['scored_on']} RMSE {metrics['rmse']:.4f}, MAE {metrics['mae']:.4f}, "
        f"{score} {metrics['log_score']:.4f} nats a rating "
        f"({metrics['num_ratings']:,} ratings"
        + (f", {cold:,} of them cold)" if cold else ")")
    ]
    if metrics["model"] in _TOPICS:
        sides = [
            f"{topics['mean']:.1f} {side} (effective {topics['effective']:.1f})"
            for side, topics in metrics["topics"].items()
        ]
        lines.append(f"topics in use, mean over draws: {', '.join(sides)}")
    if metrics["spec"]["factor_prior"]["type"] == "MultiplicativeGamma":
        lines.append(
            f"effective dimension {metrics['effective_dimension']:.1f} of "
            f"{metrics['spec']['latent_dim']}"
        )
    # One sum, since on a CPU the sweep is compiled while the chains start. After a
    # resumption both parts count every process, the last one this call alone.
    took = metrics["seconds"]
    seconds = (
        f"{took['start'] + took['compile']:.1f} s to start and compile, "
        f"{took['run']:.1f} s of sweeps; this call, with its files, {took['all']:.1f} s"
    )
    lines.append(f"on {metrics['device']}: {seconds}")
    return "\n".join(lines)


# --- im3f predict -----------------------------------------------------------------


def _predict(arguments: argparse.Namespace) -> int:
    posterior = _load(arguments.model)
    frame = _read_text(arguments.pairs)
    user, item = _find_columns(frame, arguments.pairs, arguments, "user", "item")
    times = None
    if posterior.time_scale is not None:
        times = _read_times(frame, arguments.pairs, _columns(arguments))
    elif arguments.timestamp_column is not None:
        raise InputError("this model knows no time: leave --timestamp-column out")
    given = {
        "users": _as_known(frame[user], posterior.users),
        "items": _as_known(frame[item], posterior.items),
        "times": times,
        "clip": arguments.clip,
        "unknown": arguments.unknown,
    }
    if arguments.spread or arguments.quantiles:
        found = posterior.predict_frame(**given, quantiles=arguments.quantiles)
        columns = dict(found.drop(columns=["user", "item"]))
    else:
        columns = {"prediction": posterior.predict(**given)}
    for name, values in columns.items():
        if name in frame:
            raise InputError(
                f"{arguments.pairs}: there is a column '{name}' already; rename it"
            )
        frame[name] = np.asarray(values)
    frame.to_csv(arguments.out or sys.stdout, index=False)
    return 0


def _load(name: str):
    path = Path(name)
    return im3f_jax.load(path / MODEL if path.is_dir() else path)


def _read_text(path: str):
    """Read a CSV as text."""
    import pandas as pd

    from im3f_jax.data.columns import PANDAS_2
    from im3f_jax.data.sources import refuse_zero_characters

    try:
        if PANDAS_2:  # it would end a field there
            with open(path, "rb") as file:
                refuse_zero_characters(file)
        # The header is read as a row: pandas would rename what stands there twice, and
        # where rows are longer than it, take the first column for no column.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, header=None)
    except (
        InputError,
        pd.errors.ParserError,
        pd.errors.EmptyDataError,
        UnicodeError,
    ) as error:
        raise InputError(f"{path}: {error}") from None
    frame.columns = frame.iloc[0].astype(str).tolist()
    return frame.iloc[1:].reset_index(drop=True)


def _find_columns(frame, path: str, arguments, *roles: str) -> list[str]:
    """Find a column for each role: the one that is named, or that has its name."""
    return [_one_column(frame, path, role, _columns(arguments)) for role in roles]


def _one_column(frame, path: str, role: str, given: dict[str, str | None]) -> str:
    name = given[role]
    if name is None:
        found = [
            column
            for column in _without(frame, given)
            if _letters(column) in _WORDS[role]
        ]
    else:
        found = [column for column in frame if _trimmed(column) == name]
    if len(found) != 1:
        raise InputError(
            f"{path}: its first line must name one column {name or role}; it names "
            f"{', '.join(map(str, frame))}"
        )
    return found[0]


def _without(frame, given: dict[str, str | None]) -> list[str]:
    """Give the columns of a table; an empty name stands for one that is named."""
    named = given.values()
    return ["" if _trimmed(column) in named else column for column in frame]


def _trimmed(name) -> str:
    from im3f_jax.data.movielens import FRINGE

    return str(name).strip(FRINGE)


def _read_times(frame, path: str, given: dict) -> np.ndarray | None:
    """Read the times of the pairs, where the file has such a column."""
    import pandas as pd

    from im3f_jax.data.movielens import time_column

    place = time_column(_without(frame, given))
    if given["timestamp"] is not None:
        place = list(frame).index(_one_column(frame, path, "timestamp", given))
    if place is None:
        print(
            f"im3f: {path} has no column timestamp: what depends on time is left out",
            file=sys.stderr,
        )
        return None
    column = frame.iloc[:, place]
    times = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~np.isfinite(times))
    if len(bad):
        text = column.iloc[bad[0]]
        raise InputError(
            f"{path}: the timestamp {text!r} in row {bad[0]} (from 0) is no number"
        )
    return times


def _letters(name) -> str:
    return "".join(c for c in str(name).lower() if c not in " _-")


def _as_known(column, index) -> np.ndarray:
    """Turn text into the ids that are written so: "7" into 7 where 7 is known.

    A file of text cannot tell 7 from "7"; what the model was trained on can. Text that
    is no known id stays text, and the look-up says what is wrong with it.
    """
    from im3f_jax.data.columns import distinct

    known = {}
    for value in index.ids.tolist():
        known.setdefault(str(value), []).append(value)
    codes, texts = distinct(column.to_numpy())
    ids = np.empty(len(texts), dtype=object)
    for place, text in enumerate(texts):
        values = known.get(text, [text])
        if len(values) > 1:
            raise InputError(
                f"{index.what} {text} could be any of {', '.join(map(repr, values))}, "
                f"which a file of text cannot tell apart"
            )
        ids[place] = values[0]
    return ids[codes]


# --- im3f fold-in -----------------------------------------------------------------


def _fold_in(arguments: argparse.Namespace) -> int:
    import pandas as pd

    out = Path(arguments.out)
    if out.exists() and not arguments.overwrite:
        raise InputError(f"{out} is there already: give --overwrite to replace it")
    posterior = _load(arguments.model)
    frame = _read_text(arguments.ratings)
    names = _find_columns(frame, arguments.ratings, arguments, *_WORDS)
    frame = frame[names].set_axis(["user", "item", "rating"], axis=1)
    side = arguments.side
    other = "item" if side == "user" else "user"
    index, other_index = getattr(posterior, f"{side}s"), getattr(posterior, f"{other}s")
    ids = _new_ids(frame[side], index)
    rated = ~((frame[other] == "") & (frame["rating"] == "")).to_numpy()
    texts = frame["rating"][rated]
    rating = pd.to_numeric(texts, errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~np.isfinite(rating))
    if len(bad):
        raise InputError(
            f"{arguments.ratings}: the rating {texts.iloc[bad[0]]!r} in row "
            f"{np.flatnonzero(rated)[bad[0]]} (from 0) is no number"
        )
    start = time.perf_counter()
    folded = posterior.fold_in(
        pd.DataFrame(
            {
                side: ids[rated],
                other: _as_known(frame[other][rated], other_index),
                "rating": rating,
            }
        ),
        side=side,
        ids=ids,
        unknown=arguments.unknown,
        duplicates=arguments.duplicates,
        seed=arguments.seed,
    )
    seconds = time.perf_counter() - start
    folded.save(out)
    summary = {
        "side": side,
        "num_new": len(np.unique(frame[side])),
        "num_without_ratings": len(set(frame[side]) - set(frame[side][rated])),
        "num_ratings": int(rated.sum()),
        "seed": arguments.seed,
        "seconds": seconds,
        "out": str(out),
    }
    if arguments.json:
        print(json.dumps(_plain(summary), allow_nan=False))
    else:
        print(
            f"{summary['num_new']:,} new {side}s, {summary['num_ratings']:,} ratings, "
            f"{seconds:.1f} s: {out}"
        )
    return 0


def _new_ids(column, index) -> np.ndarray:
    """Turn text into ids of the kind that the model has: 7, not "7", among integers."""
    whole = index.ids.dtype.kind in "iu"

    def fits(text):
        if not whole:
            return text != ""
        try:
            return str(np.array(int(text), index.ids.dtype)) == text
        except (ValueError, OverflowError):
            return False

    bad = [text for text in column if not fits(text)]
    if bad:
        what = f"a whole number, as those of the model are: {bad[0]!r}"
        raise InputError(
            f"ids of new {index.what}s must be {what if whole else 'there: one is not'}"
        )
    if whole:
        return column.map(int).to_numpy(index.ids.dtype)
    return _as_known(column, index)


# --- im3f recommend, im3f similar ---------------------------------------------------


def _recommend(arguments: argparse.Namespace) -> int:
    import pandas as pd

    posterior = _load(arguments.model)
    users = None
    if arguments.user_column is not None and arguments.users_file is None:
        raise InputError("--user-column names a column of --users-file: give that too")
    if not arguments.all:
        texts = pd.Series(arguments.user, dtype=object)
        if arguments.users_file is not None:
            frame = _read_text(arguments.users_file)
            (name,) = _find_columns(frame, arguments.users_file, arguments, "user")
            texts = frame[name]
        users = _as_known(texts, posterior.users)
    titled = _titled(arguments, posterior)
    if posterior.time_scale is not None and arguments.time is None:
        print(
            "im3f: no --time is given: what depends on time is left out",
            file=sys.stderr,
        )
    frames = posterior.recommend_in_blocks(
        users,
        arguments.n,
        exclude_seen=not arguments.include_seen,
        rank_by=arguments.rank_by,
        level=arguments.level,
        unknown=arguments.unknown,
        times=arguments.time,
    )
    _write_frames(map(titled, frames), arguments.out, arguments.json)
    return 0


def _similar(arguments: argparse.Namespace) -> int:
    import pandas as pd

    posterior = _load(arguments.model)
    index = posterior.users if arguments.users else posterior.items
    similar = posterior.similar_users if arguments.users else posterior.similar_items
    (one,) = _as_known(pd.Series([arguments.id], dtype=object), index)
    titled = _titled(arguments, posterior)
    _write_frames([titled(similar(one, arguments.n))], arguments.out, arguments.json)
    return 0


def _titled(arguments: argparse.Namespace, posterior):
    """Give the function that adds titles to a frame with a column of items."""
    if arguments.titles is None:
        return lambda frame: frame
    titles = im3f_jax.load_titles(
        arguments.titles, data_dir=arguments.data_dir, progress=False
    )
    # By what is written: a column of ids is text in one file and numbers in another.
    known = dict(zip(map(str, titles.index), titles["title"], strict=True))
    if not any(str(item) in known for item in posterior.items.ids.tolist()):
        raise InputError(
            f"{arguments.titles} has titles of other items: none of the model's "
            f"{len(posterior.items)} is among its {len(titles)}"
        )

    def add(frame):
        if "item" in frame:
            found = [known.get(str(item), "") for item in frame["item"].tolist()]
            frame.insert(frame.columns.get_loc("item") + 1, "title", found)
        return frame

    return add


def _write_frames(frames, out: str | None, as_json: bool) -> None:
    """Write frames one after the other; a file is there as a whole or not at all."""
    if out is None:
        _write_each(frames, sys.stdout, as_json)
        return
    _write_text(Path(out), lambda file: _write_each(frames, file, as_json))


def _write_each(frames, file, as_json: bool) -> None:
    for number, frame in enumerate(frames):
        if not as_json:
            frame.to_csv(file, index=False, header=number == 0, lineterminator="\n")
        elif len(frame):
            shape = {"orient": "records", "lines": True, "force_ascii": False}
            frame.to_json(file, double_precision=15, **shape)


# --- im3f report ------------------------------------------------------------------


def _report(arguments: argparse.Namespace) -> int:
    path = Path(arguments.model)
    folder = path if path.is_dir() else path.parent
    out = Path(arguments.out or folder / REPORT)
    if out.exists() and not arguments.overwrite:
        raise InputError(f"{out} is there already: name another, or add --overwrite")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out.parent} is no folder that can be written to")
    if arguments.baselines and arguments.ratings is None:
        raise InputError("--baselines needs the ratings of the fit: give --ratings")
    columns = _columns(arguments)
    if columns != dict.fromkeys(columns) and arguments.ratings is None:
        raise InputError("the columns that are named are those of --ratings: give that")
    say = _silent if arguments.quiet else _say
    posterior = _load(arguments.model)
    metrics, test = _judged(folder, posterior)
    if arguments.baselines and test is None:
        raise InputError(
            "--baselines needs test ratings, but the fit had none (--split none), or "
            f"{folder} holds the model alone"
        )
    train = titles = None
    where = {"data_dir": arguments.data_dir, "progress": not arguments.quiet}
    if arguments.ratings is not None:
        ratings = im3f_jax.load_ratings(
            arguments.ratings,
            **columns,
            duplicates=arguments.duplicates,
            **where,
        )
        train, test = _parted(ratings, posterior, test, arguments.ratings)
    if arguments.titles is not None:
        titles = im3f_jax.load_titles(arguments.titles, **where)
    elif arguments.ratings is not None:
        with suppress(InputError):
            if columns["item"] is None:  # else its column "item" has other ids
                name = arguments.ratings
                titles = im3f_jax.load_titles(name, download=False, **where)
        if titles is None:
            say("Items are shown by their ids: --titles gives them titles")
    clip = metrics.get("clip")
    clip = tuple(clip) if isinstance(clip, list) else clip
    baselines = None
    with _progress_notes(arguments.quiet):
        if arguments.baselines:
            baselines = _baselines(posterior, train, test, arguments.quiet)
        posterior.report(
            out,
            test=test,
            train=train,
            titles=titles,
            baselines=baselines,
            clip=clip,
            command=metrics.get("command"),
            heading="What the fit found"
            + (f": {metrics['data']['file']}" if metrics else ""),
        )
    say(f"Wrote {out}")
    return 0


def _judged(folder: Path, posterior):
    """Read what a fit's folder says, and its test ratings, where it had any."""
    if not (folder / METRICS).is_file():
        return {}, None
    metrics = _read_metrics(folder / METRICS)
    if metrics["scored_on"] != "test" or not (folder / PREDICTIONS).is_file():
        return metrics, None
    path = folder / PREDICTIONS
    try:
        frame = _read_text(str(path))
        times = {}
        if "timestamp" in frame:
            times["timestamp"] = frame["timestamp"].to_numpy(np.float64)
        test = im3f_jax.Ratings(
            user=posterior.users.lookup(_as_known(frame["user"], posterior.users)),
            item=posterior.items.lookup(_as_known(frame["item"], posterior.items)),
            rating=frame["rating"].to_numpy(np.float64),
            users=posterior.users,
            items=posterior.items,
            **times,
        )
    except (KeyError, ValueError) as error:  # an InputError is a ValueError
        what = _sentence(error) if isinstance(error, InputError) else "cannot be read"
        raise InputError(
            f"{path} is damaged ({what}): give the im3f fit again"
        ) from None
    return metrics, test


def _read_metrics(path: Path) -> dict:
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        metrics["data"]["file"], metrics["scored_on"]  # what a report reads
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged: give the im3f fit again") from None
    return metrics


def _parted(ratings, posterior, test, name: str):
    """Part a file of ratings as the fit did: training ratings, and its test set."""
    user = posterior.users.lookup(ratings.user_ids).astype(np.int64)
    item = posterior.items.lookup(ratings.item_ids)
    held = np.full(len(ratings), False)
    if test is not None:
        pairs = len(posterior.items)
        held = np.isin(
            user * pairs + item, test.user.astype(np.int64) * pairs + test.item
        )
    found = [int(np.sum(~held)), int(np.sum(held))]
    asked = [found[0], 0 if test is None else len(test)]
    if posterior.train_predictions is not None:
        asked[0] = len(posterior.train_predictions)
    if found != asked:
        raise InputError(
            f"{name} gives {found[0]:,} training and {found[1]:,} test ratings, the "
            f"fit had {asked[0]:,} and {asked[1]:,}: give --ratings and --duplicates "
            "as for im3f fit"
        )
    train, test = (ratings.select(np.flatnonzero(rows)) for rows in (~held, held))
    return train, test if len(test) else None


def _baselines(posterior, train, test, quiet: bool) -> dict:
    """Fit BPMF and M3F as the model was fitted: dimension, likelihood, sweeps, seed.

    Beside PMF with the sweeps that `fit` runs by default.
    """
    ordinal = isinstance(posterior.spec.likelihood, im3f_jax.Ordinal)
    shared = {"likelihood": posterior.spec.likelihood if ordinal else "gaussian"}
    shared["latent_dim"] = posterior.spec.latent_dim
    models = {
        "BPMF": im3f_jax.BPMF(**shared),
        "M3F(2, 1)": im3f_jax.M3F(2, 1, **shared),
    }
    run = {"seed": posterior.seed}
    if posterior.spec.estimate != "map":  # PMF is found in one step, without sweeps
        lengths = "num_warmup", "num_samples", "thinning"
        run |= {name: getattr(posterior, name) for name in lengths}
        run["num_chains"] = len(posterior.trace["rating_variance"])
    return {
        name: model.fit(train, test=test, progress=not quiet, **run)
        for name, model in models.items()
    }


# --- im3f dblp --------------------------------------------------------------------


def _dblp(arguments: argparse.Namespace) -> int:
    out = Path(arguments.out)
    if not out.name.endswith((".csv", ".csv.gz")):
        raise InputError(f"--out must end in .csv or .csv.gz, not be {str(out)!r}")
    if out.exists() and not arguments.overwrite:
        raise InputError(f"{out} is there already: name another, or add --overwrite")
    # Seen before the run, so that a long one is not lost at its end.
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"{out.parent} is no folder that can be written to")
    with _progress_notes(arguments.quiet):
        ratings = im3f_jax.load_dblp(
            arguments.file,
            min_count=arguments.min_count,
            max_authors=arguments.max_authors,
            years=arguments.years,
            venues=arguments.venues,
            informal=arguments.informal,
            progress=not arguments.quiet,
        )
    _write_pairs(ratings, out)
    (_silent if arguments.quiet else _say)(f"Wrote {len(ratings):,} pairs to {out}")
    return 0


def _write_pairs(ratings, out: Path) -> None:
    def write(file):
        for start in range(0, len(ratings), _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(ratings)))
            frame = ratings.select(rows).to_dataframe()
            frame["rating"] = frame["rating"].astype(np.int64)
            frame.to_csv(file, index=False, header=start == 0, lineterminator="\n")

    _write_text(out, write, packed=out.suffix == ".gz")


# --- im3f demo --------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> int:
    from im3f_jax.demo import run_demo

    run_demo(seed=arguments.seed, quick=arguments.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
