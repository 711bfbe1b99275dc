"""Specs as plain JSON, and back."""

import dataclasses

import numpy as np

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

__all__ = ["plain", "spec_from_json", "spec_to_json"]

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


def spec_to_json(spec) -> dict:
    """Turn a spec or component into plain JSON: its type, and its fields."""
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    return {"type": type(spec).__name__} | {
        name: spec_to_json(value) if dataclasses.is_dataclass(value) else plain(value)
        for name, value in fields.items()
    }


def plain(value):
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
