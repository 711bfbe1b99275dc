"""Saving and loading a posterior: one file of arrays and JSON, no pickle."""

import dataclasses
import json
import os
import zipfile
from pathlib import Path

import numpy as np

from im3f_jax.data.ids import IdIndex
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.seen import SeenItems
from im3f_jax.data.times import TimeScale
from im3f_jax.errors import InputError
from im3f_jax.inference.run import Draws
from im3f_jax.model import (
    bias_prior,
    factor_prior,
    likelihood,
    noise,
    reciprocal,
    scalars,
    time_effects,
    topic_factors,
    topic_prior,
)
from im3f_jax.model.spec import ModelSpec
from im3f_jax.posterior.posterior import Posterior

__all__ = ["FORMAT_VERSION", "load", "save", "spec_from_json", "spec_to_json"]

FORMAT = "im3f_jax posterior"
FORMAT_VERSION = 3
# Version 2 knew of no topic factors; version 1 of no time either, and of no means of
# shrunk columns: they were 0.
READABLE = (FORMAT_VERSION, 2, 1)
NO_MEANS = 1e6  # mean precision, in units of the rows'

_COMPONENTS = {
    kind.__name__: kind
    for kind in (
        ModelSpec,
        bias_prior.SharedNormal,
        bias_prior.TopicNormal,
        factor_prior.IsotropicNormal,
        factor_prior.MultiplicativeGamma,
        factor_prior.NormalWishart,
        likelihood.Gaussian,
        likelihood.Ordinal,
        noise.ConstantNoise,
        noise.GammaNoise,
        reciprocal.NotReciprocal,
        reciprocal.Reciprocal,
        scalars.Gamma,
        scalars.InverseGamma,
        time_effects.NoTime,
        time_effects.TimeBins,
        time_effects.TimeDrift,
        topic_factors.NoTopicFactors,
        topic_factors.TopicFactors,
        topic_prior.CRF,
        topic_prior.FiniteDirichlet,
        topic_prior.HDP,
        topic_prior.NoTopics,
    )
}
_FACTS = (
    "is_discrete",
    "num_warmup",
    "num_samples",
    "thinning",
    "seed",
    "device",
    "versions",
    "seconds",
    "partial",
)


def save(posterior: Posterior, path: str | os.PathLike) -> None:
    """Write a posterior to one file; a file of that name is replaced at the end.

    Raises
    ------
    InputError
        If ids cannot be written without pickle.
    """
    path = Path(path)
    arrays = {
        "user_ids": posterior.users.to_array(),
        "item_ids": posterior.items.to_array(),
        "user_row": posterior.user_row,
        "item_row": posterior.item_row,
        "levels": posterior.levels,
    }
    arrays |= {f"trace.{name}": values for name, values in posterior.trace.items()}
    if posterior.draws is not None:
        draws = posterior.draws._asdict()
        arrays |= {f"draws.{k}": v for k, v in draws.items() if v is not None}
    if posterior.time_scale is not None:
        scale = vars(posterior.time_scale)
        arrays |= {f"time_scale.{name}": value for name, value in scale.items()}
    if posterior.seen is not None:
        seen = posterior.seen._asdict()
        arrays |= {f"seen.{name}": values for name, values in seen.items()}
    for name in ("test_predictions", "train_predictions"):
        if getattr(posterior, name) is not None:
            arrays[name] = getattr(posterior, name)
    if posterior.draws is None:  # then only these pairs can be predicted
        for i, (pairs, predictions) in enumerate(posterior._fitted):
            arrays |= {f"pairs.{i}.user": pairs.user, f"pairs.{i}.item": pairs.item}
            if pairs.timestamp is not None:
                arrays[f"pairs.{i}.timestamp"] = pairs.timestamp
            arrays[f"pairs.{i}.predictions"] = predictions
    facts = {name: _plain(getattr(posterior, name)) for name in _FACTS}
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    header |= {"spec": spec_to_json(posterior.spec), "facts": facts}
    arrays["header"] = np.array(json.dumps(header))
    temporary = path.with_name(path.name + ".partial")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | os.PathLike) -> Posterior:
    """Read what `Posterior.save` wrote; the training data are not needed.

    Raises
    ------
    InputError
        If the file is no saved posterior, or has another format version.
    """
    unreadable = (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)
    try:
        # Opened here: np.load leaves a file open that turns out to be no zip.
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = dict(file)
        header = json.loads(str(arrays.pop("header")))
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
        version = header["format_version"]
        if version in READABLE:
            factors = header["spec"]["factor_prior"]
            if version == 1 and factors["type"] == "MultiplicativeGamma":
                factors["mean_precision"] = NO_MEANS
            return _restore(header, arrays)
    except unreadable as error:
        raise InputError(f"{path} is not a saved posterior ({error}).") from None
    raise InputError(
        f"{path} has format version {version}, but this version of im3f_jax reads "
        f"{' and '.join(f'version {number}' for number in READABLE)}."
    )


def _restore(header: dict, arrays: dict[str, np.ndarray]) -> Posterior:
    def group(prefix: str) -> dict[str, np.ndarray]:
        return {
            name.removeprefix(prefix): values
            for name, values in arrays.items()
            if name.startswith(prefix)
        }

    draws = group("draws.")
    if draws:  # files from before the ordinal likelihood hold no cut points
        none = np.zeros((*draws["global_bias"].shape, 0))
        draws.setdefault("cut_points", none)
    users = IdIndex.from_array(arrays["user_ids"], "user")
    items = IdIndex.from_array(arrays["item_ids"], "item")
    fitted, i = [], 0
    while pairs := group(f"pairs.{i}."):
        predictions, i = pairs.pop("predictions"), i + 1
        ratings = np.full(len(predictions), np.nan)
        fitted.append(
            (Ratings(**pairs, rating=ratings, users=users, items=items), predictions)
        )
    scale = group("time_scale.")
    if scale:
        scale = TimeScale(**scale | {"scale": float(scale["scale"])})
    seen = group("seen.")
    return Posterior(
        spec=spec_from_json(header["spec"]),
        users=users,
        items=items,
        user_row=arrays["user_row"],
        item_row=arrays["item_row"],
        draws=Draws(**draws) if draws else None,
        trace=group("trace."),
        levels=arrays["levels"],
        test_predictions=arrays.get("test_predictions"),
        train_predictions=arrays.get("train_predictions"),
        time_scale=scale or None,
        seen=SeenItems(**seen) if seen else None,
        _fitted=fitted,
        **header["facts"],
    )


def spec_to_json(spec) -> dict:
    """Turn a spec or component into plain JSON: its type, and its fields."""
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    return {"type": type(spec).__name__} | {
        name: spec_to_json(value) if dataclasses.is_dataclass(value) else _plain(value)
        for name, value in fields.items()
    }


def _plain(value):
    """Turn a number of numpy into one of Python, which JSON knows."""
    return value.item() if isinstance(value, np.generic) else value


def spec_from_json(value: dict):
    """Make a spec or component of what `spec_to_json` wrote."""
    fields = {
        name: spec_from_json(field) if isinstance(field, dict) else field
        for name, field in value.items()
        if name != "type"
    }
    return _COMPONENTS[value["type"]](**fields)
