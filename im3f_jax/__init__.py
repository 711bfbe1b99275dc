"""Bayesian mixed membership matrix factorization in JAX.

The names below are found on first use (PEP 562), so that ``import im3f_jax`` starts
neither JAX nor pandas, takes no GPU memory, and costs a few milliseconds.
"""

import importlib

__version__ = "0.1.0"

# public name -> the module that defines it. To make a name public, add one line.
_PUBLIC = {
    # data
    "load_ratings": "im3f_jax.data.movielens",
    "load_titles": "im3f_jax.data.titles",
    "load_dblp": "im3f_jax.data.dblp",
    "Ratings": "im3f_jax.data.ratings",
    "k_fold": "im3f_jax.data.splits",
    "leave_one_out": "im3f_jax.data.splits",
    "random_split": "im3f_jax.data.splits",
    "split_by_rows": "im3f_jax.data.splits",
    "time_split": "im3f_jax.data.splits",
    "planted_ratings": "im3f_jax.data.synthetic",
    # the model: presets, and what a spec is made of
    "BPMF": "im3f_jax.api",
    "M3F": "im3f_jax.api",
    "M3F_TIF": "im3f_jax.api",
    "SeparateDP": "im3f_jax.api",
    "ReciprocalIM3F": "im3f_jax.api",
    "IM3F": "im3f_jax.api",
    "PMF": "im3f_jax.api",
    "Model": "im3f_jax.api",
    "ModelSpec": "im3f_jax.model.spec",
    "Gaussian": "im3f_jax.model.likelihood",
    "Ordinal": "im3f_jax.model.likelihood",
    "InverseGamma": "im3f_jax.model.scalars",
    "Gamma": "im3f_jax.model.scalars",
    "NormalWishart": "im3f_jax.model.factor_prior",
    "CRF": "im3f_jax.model.topic_prior",
    "HDP": "im3f_jax.model.topic_prior",
    "FiniteDirichlet": "im3f_jax.model.topic_prior",
    "NoTopics": "im3f_jax.model.topic_prior",
    "IsotropicNormal": "im3f_jax.model.factor_prior",
    "MultiplicativeGamma": "im3f_jax.model.factor_prior",
    "TopicNormal": "im3f_jax.model.bias_prior",
    "SharedNormal": "im3f_jax.model.bias_prior",
    "GammaNoise": "im3f_jax.model.noise",
    "ConstantNoise": "im3f_jax.model.noise",
    "Reciprocal": "im3f_jax.model.reciprocal",
    "NotReciprocal": "im3f_jax.model.reciprocal",
    "TopicFactors": "im3f_jax.model.topic_factors",
    "NoTopicFactors": "im3f_jax.model.topic_factors",
    "TimeBins": "im3f_jax.model.time_effects",
    "TimeDrift": "im3f_jax.model.time_effects",
    "NoTime": "im3f_jax.model.time_effects",
    # pure functions, for those who compose
    "gibbs_sweep": "im3f_jax.gibbs.sweep",
    "init_state": "im3f_jax.gibbs.init",
    "log_joint": "im3f_jax.model.log_joint",
    # the prior: as a NumPyro program, in plain JAX, and held against data
    "generative_model": "im3f_jax.model.generative",
    "sample_prior": "im3f_jax.model.prior",
    "prior_check": "im3f_jax.posterior.prior_check",
    # results
    "Posterior": "im3f_jax.posterior.posterior",
    "load": "im3f_jax.posterior.storage",
    "compare": "im3f_jax.posterior.compare",
    "cross_validate": "im3f_jax.posterior.compare",
    # what JAX runs on
    "device_report": "im3f_jax.inference.devices",
    # errors and warnings
    "InputError": "im3f_jax.errors",
    "SamplingError": "im3f_jax.errors",
    "Im3fWarning": "im3f_jax.errors",
}

# Modules that are public as a whole.
_MODULES = {"plots": "im3f_jax.posterior.plots"}

__all__ = ["__version__", *_PUBLIC, *_MODULES]


def __getattr__(name):
    """Import a public name when it is first asked for."""
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value  # found once: the next look-up does not come here
    return value


def __dir__():
    """List the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
