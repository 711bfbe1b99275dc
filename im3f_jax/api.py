"""The presets of the family, and `fit`."""

import dataclasses
import functools
import inspect
import logging
import math
import os
import platform
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from typing import Any, ClassVar

import jax
import numpy as np

from im3f_jax.data.layout import RatingLayout, lay_out
from im3f_jax.data.persons import check_pairs, of_persons
from im3f_jax.data.ratings import Ratings
from im3f_jax.data.seen import SeenItems
from im3f_jax.data.shards import Shards, lay_out_shards
from im3f_jax.data.times import TimeColumns, TimeScale
from im3f_jax.errors import Im3fWarning, InputError
from im3f_jax.gibbs.sweep_info import effective_dimension
from im3f_jax.gibbs.topic_room import kept_topic_dtypes, start_room
from im3f_jax.inference.checkpoint import Checkpoints, Places, fingerprint
from im3f_jax.inference.devices import (
    block_sizes,
    describe_device,
    device_memory,
    machine_memory,
)
from im3f_jax.inference.memory import (
    check_device_memory,
    estimate_draw_bytes,
    estimate_memory,
    format_bytes,
)
from im3f_jax.inference.run import Draws, Pairs, RunResult, map_settings, run
from im3f_jax.inference.sharding import (
    ALL_THE_SAME,
    BY_SHARD,
    Placement,
    all_or_none,
    check_sharded,
    choose_devices,
    put,
)
from im3f_jax.inference.warm_start import fit_map
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.factor_prior import (
    IsotropicNormal,
    MultiplicativeGamma,
    NormalWishart,
)
from im3f_jax.model.likelihood import Gaussian, Ordinal
from im3f_jax.model.noise import ConstantNoise, GammaNoise
from im3f_jax.model.plain import spec_to_json
from im3f_jax.model.reciprocal import Reciprocal, is_reciprocal, is_unordered
from im3f_jax.model.scalars import Gamma, InverseGamma
from im3f_jax.model.spec import (
    ModelSpec,
    check_levels,
    has_franchise,
    resolve,
    validate,
    with_room_of,
)
from im3f_jax.model.time_effects import (
    NoTime,
    TimeBins,
    TimeDrift,
    read_times,
    reads_times,
    times_of,
)
from im3f_jax.model.topic_factors import TopicFactors
from im3f_jax.model.topic_prior import CRF, HDP, FiniteDirichlet, NoTopics
from im3f_jax.posterior.posterior import Posterior

__all__ = [
    "BPMF",
    "IM3F",
    "M3F",
    "M3F_TIF",
    "PMF",
    "Model",
    "ReciprocalIM3F",
    "SeparateDP",
]

logger = logging.getLogger(__name__)

Variance = float | InverseGamma | None
Concentration = float | Gamma
FactorPrior = str | NormalWishart | IsotropicNormal | MultiplicativeGamma | None
Likelihood = str | Gaussian | Ordinal
NoiseShape = float | Gamma | None
MAP_STEPS = 300
MAX_TOPICS = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Model(ModelSpec):
    """A `ModelSpec` that can be fitted; made by `IM3F` and its like.

    It never changes, fitted or not, and `repr` gives Python that makes an equal one:
    the call of the preset, with what was given there.
    """

    _call: ClassVar[str | None] = None  # of the preset; None where none made it

    def __repr__(self) -> str:
        return self._call or super().__repr__()

    def fit(
        self,
        train: Ratings,
        test: Ratings | None = None,
        *,
        num_warmup: int = 100,
        num_samples: int = 400,
        num_chains: int = 1,
        thinning: int = 1,
        seed: int = 0,
        init: str = "map",
        start_topics: int = 1,
        chain_method: str = "auto",
        device: Any = "auto",
        devices: Any = None,
        progress: bool = True,
        store: str = "factors",
        track_train: bool = True,
        memory_limit: int | None = None,
        callback: Callable[[int, float, dict], Any] | None = None,
        checkpoint_dir: str | os.PathLike | None = None,
        checkpoint_every: int = 50,
    ) -> Posterior:
        """Sample the posterior.

        As in numpyro, `num_samples` sweeps follow the warm-up and every thinning-th of
        them is kept. The same seed gives the same draws, bit for bit, on a CPU with the
        same versions; on a GPU the same distribution; on another number of `devices`
        other draws of the same distribution.

        Parameters
        ----------
        train
            Training ratings. Users and items of their index without a rating here are
            cold: the sampler has no row for them, and they are predicted as new ones.
        test
            Held-out ratings to score on the way; they share the index of `train`.
        num_warmup, num_samples, num_chains, thinning
            Sweeps before, sweeps after, independent chains, distance of kept draws.
        seed
            Non-negative. numpy's global generator plays no part.
        init
            "map" starts the factors at PMF's mode (Adam), "prior" at a draw.
        start_topics
            Topics a side over which the ratings are scattered at the start. One is the
            safe start on ratings of films; where distinct moods are expected, start
            from a few, and compare chains.
        chain_method
            "sequential", "parallel" (at once, each in a thread of the host),
            "vectorized" (at once, in one program), or "auto": vectorized on a GPU,
            parallel on a CPU; sequential where memory is short, and on a CPU with a
            `checkpoint_dir`, from which chains by themselves go on on any number of
            devices. Sequential and parallel chains have the same draws, until one needs
            more room for topics than it began with, which all of them get at once.
        device
            "auto" (JAX's default), "cpu", "gpu" (fails where there is none), or a JAX
            device. The device is logged at the start and stands in the result.
        devices
            Several devices that share every chain, each with some of the users and all
            their ratings: "all" (of the kind that `device` names, of all processes that
            `jax.distributed.initialize` joined), a number of them, or a list of JAX
            devices. Chains run one after another then. None is one device.
        progress
            Show a progress bar: sweeps/s, running test RMSE, topics in use.
        store
            What is kept on the host. "factors": the vectors of every kept draw, so that
            any pair can be predicted; "all": the topics of the training ratings in
            every kept draw too (`Posterior.coassignment`), 1 to 4 bytes a rating and
            side; "summary": the mean predictions of `train` and `test` only. The size
            is logged before the start.
        track_train
            Average the predictions of the training ratings too.
        memory_limit
            Bytes that kept draws may take on the host; None is half of the machine's
            memory.
        callback
            Called as callback(sweep, elapsed seconds, metrics) between compiled chunks:
            for each chain by itself, or once for chains that run at once, with the
            metrics of the first.
        checkpoint_dir
            A folder to which the run is written as it goes, made if need be. A fit of
            the same model, ratings and settings goes on from the checkpoint that it
            finds there, also with more `num_samples`; it says so in the log. On a CPU
            with the same versions its result is, bit for bit, that of a run which was
            never broken off. Ctrl-C writes one more checkpoint.
        checkpoint_every
            Sweeps from one checkpoint to the next: what a process loses at most that is
            killed. Draws do not depend on it.

        Returns
        -------
        Posterior

        Raises
        ------
        InputError
            For a setting without meaning, a device that is not there, a model whose
            sweep does not run on several devices; a fit beyond the memory of its device
            or kept draws beyond the memory limit (both estimated);
            ratings without timestamps for a model that reads them;
            pairs that a reciprocal model refuses;
            a folder with the checkpoints of another fit, or damaged ones only.
        SamplingError
            If a draw is not finite.
        OSError
            If a checkpoint cannot be written; the one before stands.
        """
        validate(self)
        _check_run(
            num_warmup,
            num_samples,
            num_chains,
            thinning,
            seed,
            start_topics,
            init,
            chain_method,
            store,
            memory_limit,
            callback,
            checkpoint_every,
        )
        if checkpoint_dir is not None and self.estimate == "map":
            raise InputError(
                "PMF is found in one step, of which there are no checkpoints: leave "
                "checkpoint_dir out."
            )
        if not isinstance(train, Ratings):
            raise InputError(
                f"train is of type {type(train).__name__}: make Ratings of it first, "
                "by Ratings.from_dataframe, Ratings.from_arrays or load_ratings."
            )
        if len(train) == 0:
            raise InputError("There are no training ratings.")
        every = choose_devices(devices, device)
        here = (d for d in every if d.process_index == jax.process_index(d.platform))
        chosen = next(here, None)
        if chosen is None:
            raise InputError(
                "None of the devices belongs to this process: give devices='all', or "
                "a list with one of its own."
            )
        described = describe_device(chosen)
        if len(every) > 1:
            described = f"{len(every)} x {described}"
            check_sharded(self)
        logger.info("device: %s", described)
        _check_test(train, test)
        if is_reciprocal(self):
            train, *rest = of_persons(
                is_unordered(self), train, *([] if test is None else [test])
            )
            test = rest[0] if rest else None
            check_pairs(train, test, is_unordered(self))
        levels = train.levels if test is None else np.union1d(train.levels, test.levels)
        spec = resolve(
            self, train.mean, float(np.var(train.rating)), train.step, levels.tolist()
        )
        ordinal = isinstance(spec.likelihood, Ordinal)
        if ordinal:
            check_levels(spec.likelihood, levels)
        if is_reciprocal(self):
            codes = np.append(train.user, train.item)
            user_row, rows = _trained_rows(codes, train.num_users)
            item_row, (user, item) = user_row, np.split(rows, 2)
        else:
            user_row, user = _trained_rows(train.user, train.num_users)
            item_row, item = _trained_rows(train.item, train.num_items)
        num_users, num_items = int(user_row.max()), int(item_row.max())
        scale = times = None
        if reads_times(self):
            scale, times = read_times(self, train, user, num_users)
        given = user, item, train.rating, num_users, num_items
        blocks = block_sizes(chosen, self)
        shards = mesh = None
        if len(every) > 1:
            shards = lay_out_shards(*given, len(every), blocks)
            mesh = jax.sharding.Mesh(np.array(every), shards.layout.axis)
            layout, order = shards.one(), shards.order
            place = shards.place_of_rating
        else:
            layout, order = lay_out(
                *given, blocks, times=times, unordered=is_unordered(self)
            )
            place = np.arange(len(train))
        # Of each training rating, in the caller's order, on the device or devices.
        rating_place = np.empty(len(train), np.int64)
        rating_place[order] = place
        pairs = _test_pairs(test, user_row, item_row, layout.chunk, scale)
        test_place = np.arange(0 if test is None else len(test))
        if shards is not None:
            pairs, test_place = _spread(pairs, len(test_place), shards)
        alone = num_chains == 1 or self.estimate == "map"
        alone = alone or shards is not None or has_franchise(self)
        is_free = chain_method == "auto"
        if is_free:
            on_cpu = chosen.platform == "cpu"
            chain_method = "parallel" if on_cpu else "vectorized"
            # A checkpoint of chains by themselves goes on on any number of devices.
            alone = alone or (on_cpu and checkpoint_dir is not None)
        elif chain_method != "sequential" and shards is not None:
            raise InputError(
                f"chain_method is {chain_method!r}, but on several devices chains run "
                "'sequential': each is shared by all of them."
            )
        elif chain_method != "sequential" and has_franchise(self):
            raise InputError(
                f"chain_method is {chain_method!r}, but a CRF takes ratings one after "
                "another: its chains run 'sequential'."
            )
        if alone:
            chain_method = "sequential"
        keeps = store != "summary" and self.estimate == "posterior"
        keeps_topics = store == "all" and bool(kept_topic_dtypes(spec))
        num_topics_kept = len(train) if keeps_topics else 0
        num_kept = num_chains * (num_samples // thinning) if keeps else 0
        lengths = num_warmup, num_samples, num_chains, thinning, start_topics
        settings = repr((spec, lengths, seed, init, store, track_train))
        with all_or_none(mesh, (user, item, train.rating), settings):
            if keeps:
                _check_host_memory(
                    estimate_draw_bytes(spec, num_users, num_items, num_topics_kept),
                    num_chains,
                    num_samples,
                    thinning,
                    memory_limit,
                    keeps_topics,
                )

            def check(number):
                _check_device_memory(
                    spec,
                    start_room(spec, start_topics),
                    layout,
                    len(pairs.rating) // len(every),
                    number,
                    num_kept if chosen.platform == "cpu" else 0,
                    (num_users, num_items, num_topics_kept),
                    every,
                    described,
                )

            if chain_method == "sequential":
                check(1)
            else:
                try:
                    check(num_chains)
                except InputError:
                    if not is_free:
                        raise
                    chain_method = "sequential"
                    check(1)
        arrays = jax.tree.map(lambda x: np.asarray(x, layout.rating.dtype), spec)
        placement = None
        if shards is None:
            data, pairs, arrays = jax.device_put((layout, pairs, arrays), chosen)
        else:
            data, pairs = put((shards.layout, pairs), mesh, BY_SHARD)
            arrays = put(arrays, mesh, ALL_THE_SAME)
            users = np.append(shards.place_of_user, shards.place_of_new_user)
            placement = Placement(mesh, users, num_items)
        checkpoints = None
        if checkpoint_dir is not None:
            settings = {
                "training": fingerprint(train, reads_times(self)),
                "test": fingerprint(test, reads_times(self)),
                "model": spec_to_json(spec),
                "num_warmup": int(num_warmup),
                "num_samples": int(num_samples),
                "num_chains": int(num_chains),
                "thinning": int(thinning),
                "seed": int(seed),
                "init": init,
                "start_topics": int(start_topics),
                "chain_method": chain_method,
                "store": store,
                "track_train": bool(track_train),
                "dtype": str(layout.rating.dtype),
            }
            checkpoints = Checkpoints(
                checkpoint_dir,
                checkpoint_every,
                settings,
                spec,
                Places(place, test_place, (num_users, num_items), shards, mesh),
                {"versions": _versions(), "device": described},
                writes=jax.process_index(chosen.platform) == 0,
            )
        with jax.default_device(chosen), _entered(checkpoints, mesh):
            if self.estimate == "map":
                result = _fit_map(arrays, data, pairs, seed)
            else:
                with _Bar(progress, num_chains * (num_warmup + num_samples)) as bar:
                    result = run(
                        arrays,
                        data,
                        pairs,
                        num_warmup=num_warmup,
                        num_samples=num_samples,
                        thinning=thinning,
                        num_chains=num_chains,
                        seed=seed,
                        init=init,
                        start_topics=start_topics,
                        chain_method=chain_method,
                        keep_draws=keeps,
                        track_train=track_train,
                        progress=bar,
                        callback=callback,
                        placement=placement,
                        checkpoints=checkpoints,
                        topics_at=rating_place if keeps_topics else None,
                    )
        if result.spec is not None:
            spec = with_room_of(spec, result.spec)
        if self.estimate == "map":
            num_warmup, num_samples, thinning = 0, 1, 1
        train_predictions = None
        if result.train_predictions is not None:
            train_predictions = result.train_predictions[rating_place]
        posterior = Posterior(
            spec=spec,
            users=train.users,
            items=train.items,
            user_row=user_row,
            item_row=item_row,
            draws=result.draws,
            trace=result.trace,
            levels=np.asarray(spec.likelihood.levels, float)
            if ordinal
            else train.levels,
            is_discrete=ordinal or train.is_discrete,
            num_warmup=num_warmup,
            num_samples=num_samples,
            thinning=thinning,
            seed=seed,
            device=described,
            versions=_versions(),
            seconds=result.seconds,
            train_predictions=train_predictions,
            partial=result.partial,
            time_scale=scale,
            seen=SeenItems.of(
                train.user,
                train.item,
                train.num_users,
                train.num_items,
                is_unordered(self),
            ),
        )
        if train_predictions is not None:
            posterior._fitted.append((train, train_predictions))
        if test is not None:
            posterior.test_predictions = result.test_predictions[test_place]
            posterior._fitted.append((test, posterior.test_predictions))
        _warn(posterior)
        return posterior


def _preset(function: Callable[..., Model]) -> Callable[..., Model]:
    """Let a preset note its call in the model, for `repr`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make(*args, **settings):
        model = function(*args, **settings)
        given = signature.bind(*args, **settings).arguments.items()
        said = ", ".join(f"{name}={_python(value)}" for name, value in given)
        # No field: what is made of this model by other means is no longer this call.
        object.__setattr__(model, "_call", f"{function.__name__}({said})")
        return model

    return make


def _python(value) -> str:
    """Write a setting as Python that gives it; infinity has no literal."""
    infinite = isinstance(value, float) and math.isinf(value)
    return f"float('{value}')" if infinite else repr(value)


@_preset
def BPMF(
    latent_dim: int = 10,
    *,
    rating_variance: Variance = None,
    rating_variance_floor: float | None = None,
    global_bias: float | None = None,
    factor_prior: FactorPrior = None,
    likelihood: Likelihood = "gaussian",
    user_noise_shape: NoiseShape = math.inf,
    item_noise_shape: NoiseShape = math.inf,
    degrees_of_freedom: float = math.inf,
    item_time_bins: int = 0,
    item_time_variance: Variance = None,
    user_drift_variance: Variance = 0.0,
) -> Model:
    """Bayesian probabilistic matrix factorisation: the family without topics.

    Salakhutdinov and Mnih (2008). The parameters are those of `IM3F`.

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    return _model(
        latent_dim,
        NoTopics(),
        NoTopics(),
        _likelihood(likelihood, rating_variance, rating_variance_floor),
        global_bias,
        factor_prior,
        _noise(user_noise_shape, item_noise_shape, degrees_of_freedom)
        | _time(item_time_bins, item_time_variance, user_drift_variance),
    )


@_preset
def PMF(
    latent_dim: int = 10,
    *,
    factor_precision: float | None = None,
    rating_variance: float | None = None,
    global_bias: float | None = None,
) -> Model:
    """Probabilistic matrix factorisation: one point, the mode, by Adam (optax).

    Salakhutdinov and Mnih (2007). Its `fit` gives a posterior of one draw.

    Parameters
    ----------
    latent_dim
        D.
    factor_precision
        Prior precision of each element of the factors; None is the documented default
        of `IsotropicNormal`.
    rating_variance
        sigma^2, squared rating scale, fixed; None is 0.7 times the variance of the
        training ratings.
    global_bias
        chi_0, rating scale; None is the training mean.

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    model = _model(
        latent_dim,
        NoTopics(),
        NoTopics(),
        Gaussian(rating_variance),
        global_bias,
        IsotropicNormal(factor_precision),
        {},
    )
    model = dataclasses.replace(model, estimate="map")
    validate(model)
    return model


@_preset
def M3F(
    user_topics: int = 2,
    item_topics: int = 1,
    latent_dim: int = 10,
    *,
    user_topic_concentration: float = 10000.0,
    item_topic_concentration: float = 10000.0,
    rating_variance: Variance = None,
    rating_variance_floor: float | None = None,
    user_bias_variance: Variance = None,
    item_bias_variance: Variance = None,
    user_shared_bias_variance: Variance = 0.0,
    item_shared_bias_variance: Variance = 0.0,
    user_topic_mean_variance: Variance = 0.0,
    item_topic_mean_variance: Variance = 0.0,
    global_bias: float | None = None,
    factor_prior: FactorPrior = None,
    likelihood: Likelihood = "gaussian",
    user_noise_shape: NoiseShape = math.inf,
    item_noise_shape: NoiseShape = math.inf,
    degrees_of_freedom: float = math.inf,
    item_time_bins: int = 0,
    item_time_variance: Variance = None,
    user_drift_variance: Variance = 0.0,
) -> Model:
    """Mixed membership matrix factorisation with topic-indexed biases, M3F-TIB.

    Mackey, Weiss and Jordan (2010): a fixed number of topics a side, with a symmetric
    Dirichlet(concentration / topics) prior. Topic means are 0 by default, as there. The
    other parameters are those of `IM3F`.

    Parameters
    ----------
    user_topics, item_topics
        Numbers of topics; 0 leaves the other side without biases.
    user_topic_concentration, item_topic_concentration
        alpha; 10,000 makes weights nearly uniform.

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    return _model(
        latent_dim,
        _finite(user_topics, user_topic_concentration),
        _finite(item_topics, item_topic_concentration),
        _likelihood(likelihood, rating_variance, rating_variance_floor),
        global_bias,
        factor_prior,
        _noise(user_noise_shape, item_noise_shape, degrees_of_freedom)
        | _time(item_time_bins, item_time_variance, user_drift_variance),
        _biases(
            user_bias_variance, item_topic_mean_variance, user_shared_bias_variance
        ),
        _biases(
            item_bias_variance, user_topic_mean_variance, item_shared_bias_variance
        ),
    )


@_preset
def M3F_TIF(
    user_topics: int = 2,
    item_topics: int = 2,
    latent_dim: int = 10,
    *,
    topic_factor_dim: int = 2,
    topic_factor_prior: NormalWishart | None = None,
    user_topic_concentration: float = 10000.0,
    item_topic_concentration: float = 10000.0,
    rating_variance: Variance = None,
    rating_variance_floor: float | None = None,
    user_bias_variance: Variance = None,
    item_bias_variance: Variance = None,
    global_bias: float | None = None,
    factor_prior: FactorPrior = None,
    likelihood: Likelihood = "gaussian",
    user_noise_shape: NoiseShape = math.inf,
    item_noise_shape: NoiseShape = math.inf,
    degrees_of_freedom: float = math.inf,
    item_time_bins: int = 0,
    item_time_variance: Variance = None,
    user_drift_variance: Variance = 0.0,
) -> Model:
    """Mixed membership matrix factorisation with topic-indexed factors, M3F-TIF.

    Mackey, Weiss and Jordan (2010): a rating's mean is chi_0 + s_u + t_j + a_u . b_j +
    v_u[zM] . w_j[zU]. Its topics select vectors whose inner product is added, in the
    place of biases; each user and each item has a bias that no topic changes. The other
    parameters are those of `M3F` and `IM3F`.

    Parameters
    ----------
    user_topics, item_topics
        Numbers of topics, at least 1.
    topic_factor_dim
        Length of v_u[k] and w_j[i].
    topic_factor_prior
        Of the mean and the precision of each side's; None is `NormalWishart()`.
    user_bias_variance, item_bias_variance
        Of s_u and t_j ~ Normal(0, variance): a number, an `InverseGamma`, or None
        (sampled).

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    part = TopicFactors(topic_factor_dim, topic_factor_prior or NormalWishart())
    return _model(
        latent_dim,
        _finite(user_topics, user_topic_concentration),
        _finite(item_topics, item_topic_concentration),
        _likelihood(likelihood, rating_variance, rating_variance_floor),
        global_bias,
        factor_prior,
        _noise(user_noise_shape, item_noise_shape, degrees_of_freedom)
        | _time(item_time_bins, item_time_variance, user_drift_variance)
        | {"topic_factors": part},
        # The same under all topics: only the part that they share varies.
        SharedNormal(0.0, 0.0, shared_variance=user_bias_variance),
        SharedNormal(0.0, 0.0, shared_variance=item_bias_variance),
    )


@_preset
def SeparateDP(
    latent_dim: int = 10,
    *,
    max_user_topics: int = 8,
    max_item_topics: int = 8,
    user_table_concentration: float = 1.0,
    item_table_concentration: float = 1.0,
    rating_variance: Variance = None,
    rating_variance_floor: float | None = None,
    user_bias_variance: Variance = None,
    item_bias_variance: Variance = None,
    global_bias: float | None = None,
    factor_prior: FactorPrior = None,
    likelihood: Likelihood = "gaussian",
    user_noise_shape: NoiseShape = math.inf,
    item_noise_shape: NoiseShape = math.inf,
    degrees_of_freedom: float = math.inf,
    item_time_bins: int = 0,
    item_time_variance: Variance = None,
    user_drift_variance: Variance = 0.0,
) -> Model:
    """Matrix factorisation with a Dirichlet process a row: no topics are shared.

    The model that a footnote of the iM3F paper sets aside: a rating's mean is chi_0 +
    a_u . b_j + c_u[zM] + d_j[zU] with zM drawn from weights of the user and zU from
    weights of the item, theta ~ Dirichlet(gamma/K), so that each row mixes biases of
    its own, c_u[k] ~ Normal(0, variance). Item topics are still those that select a
    user's biases. A row's labels mean nothing to another: where topics are counted,
    those count that any row uses. The other parameters are those of `IM3F`.

    Parameters
    ----------
    max_user_topics, max_item_topics
        Truncations K, at least 1, of an item's and of a user's biases.
    user_table_concentration, item_table_concentration
        gamma, a positive number.
    user_bias_variance, item_bias_variance
        A number, an `InverseGamma`, or None (sampled).

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    return _model(
        latent_dim,
        _finite(max_user_topics, user_table_concentration),
        _finite(max_item_topics, item_table_concentration),
        _likelihood(likelihood, rating_variance, rating_variance_floor),
        global_bias,
        factor_prior,
        _noise(user_noise_shape, item_noise_shape, degrees_of_freedom)
        | _time(item_time_bins, item_time_variance, user_drift_variance)
        | {"own_topics": True},
        TopicNormal(user_bias_variance, 0.0),
        TopicNormal(item_bias_variance, 0.0),
    )


@_preset
def IM3F(
    latent_dim: int = 10,
    *,
    max_user_topics: int = MAX_TOPICS,
    max_item_topics: int = MAX_TOPICS,
    topics: str | CRF = "weak_limit",
    user_dish_concentration: Concentration = 1.0,
    item_dish_concentration: Concentration = 1.0,
    user_table_concentration: Concentration = 1.0,
    item_table_concentration: Concentration = 1.0,
    rating_variance: Variance = None,
    rating_variance_floor: float | None = None,
    user_bias_variance: Variance = None,
    item_bias_variance: Variance = None,
    user_shared_bias_variance: Variance = 0.0,
    item_shared_bias_variance: Variance = 0.0,
    user_topic_mean_variance: Variance = None,
    item_topic_mean_variance: Variance = None,
    global_bias: float | None = None,
    factor_prior: FactorPrior = None,
    likelihood: Likelihood = "gaussian",
    user_noise_shape: NoiseShape = math.inf,
    item_noise_shape: NoiseShape = math.inf,
    degrees_of_freedom: float = math.inf,
    item_time_bins: int = 0,
    item_time_variance: Variance = None,
    user_drift_variance: Variance = 0.0,
) -> Model:
    """Infinite mixed membership matrix factorisation.

    The number of user topics (moods) and of item topics (contexts) follows from a
    truncated hierarchical Dirichlet process a side. A number given here is fixed and
    never changed, a prior is sampled, None is the documented default.

    Parameters
    ----------
    latent_dim
        D.
    max_user_topics, max_item_topics
        Truncations; 64 with a `CRF`, which has none.
    topics
        "weak_limit" or "stick_breaking"; or a `CRF`, the exact sampler of the
        untruncated process, for small data.
    user_dish_concentration, item_dish_concentration
        The paper's beta (Teh's gamma): a number, or a `Gamma` prior.
    user_table_concentration, item_table_concentration
        The paper's gamma (Teh's alpha_0): a number, or a `Gamma` prior.
    rating_variance
        sigma^2: a number, an `InverseGamma`, or None (sampled).
    rating_variance_floor
        Least sampled sigma^2; None is step^2 / 12, see `Gaussian`.
    user_bias_variance, item_bias_variance
        sigma_0^2 of each side: a number (0: every bias equals its topic's mean), an
        `InverseGamma`, or None (sampled).
    user_shared_bias_variance, item_shared_bias_variance
        Variance of a part that all biases of a user (of an item) have in common, beside
        sigma_0^2 of the parts by topic (`SharedNormal`). 0, the default, is the paper's
        prior, without such a part; None samples it, with a prior scaled by the training
        variance; or a number, or an `InverseGamma`.
    user_topic_mean_variance, item_topic_mean_variance
        tau^2 of the means of the user topics (about which item biases lie) and of the
        item topics: a number, an `InverseGamma`, or None (0.1 times the variance of
        the training ratings, fixed).
    global_bias
        chi_0, rating scale; None is the training mean.
    factor_prior
        None is `NormalWishart()`. "shrinkage" is `MultiplicativeGamma()`, under which
        the data choose how many of the `latent_dim` columns they need (the posterior's
        `effective_dimension`); or one of these components.
    likelihood
        "gaussian", the default, for scales with many levels or none; or "ordinal" for
        stars and counts with few levels (see `Ordinal`), whose latent ratings then have
        the noise variance 1, in units of whose root factors and biases are given. Or
        one of these components: ``Ordinal(levels=(1, 2, 3, 4, 5))``.
    user_noise_shape, item_noise_shape
        Noise that differs between users, between items: the variance of a rating is
        sigma^2 / (p_u q_j), each relative precision a gamma of mean 1 and this shape
        (`GammaNoise`). Infinity, the default, is the paper's constant noise; None
        samples the shape; or a number, or a `Gamma` prior.
    degrees_of_freedom
        Of Student's t for the noise of single ratings, a number; infinity, the
        default, is the normal.
    item_time_bins, item_time_variance
        Biases of items by time: a rating gains e_j[b] ~ Normal(0, variance), b its bin
        of so many, which hold equal numbers of training ratings (`TimeBins`). 0 bins,
        the default, is the paper's model, without them; else the ratings need
        timestamps. The variance is a number, an `InverseGamma`, or None (sampled).
    user_drift_variance
        Of each user's drift f_u ~ Normal(0, variance): a rating gains f_u x, with
        ``x = sign(t - tbar_u) |t - tbar_u|^0.4`` in units of its root mean square,
        tbar_u the user's mean time (`TimeDrift`; Koren 2009). 0, the default, is the
        paper's model, without it; None samples the variance; or a number, or an
        `InverseGamma`.

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.
    """
    return _model(
        latent_dim,
        _topics(
            topics, max_user_topics, user_dish_concentration, user_table_concentration
        ),
        _topics(
            topics, max_item_topics, item_dish_concentration, item_table_concentration
        ),
        _likelihood(likelihood, rating_variance, rating_variance_floor),
        global_bias,
        factor_prior,
        _noise(user_noise_shape, item_noise_shape, degrees_of_freedom)
        | _time(item_time_bins, item_time_variance, user_drift_variance),
        _biases(
            user_bias_variance, item_topic_mean_variance, user_shared_bias_variance
        ),
        _biases(
            item_bias_variance, user_topic_mean_variance, item_shared_bias_variance
        ),
    )


@_preset
def ReciprocalIM3F(
    latent_dim: int = 10,
    *,
    directed: bool = False,
    max_topics: int = MAX_TOPICS,
    topics: str = "weak_limit",
    dish_concentration: Concentration = 1.0,
    table_concentration: Concentration = 1.0,
    rating_variance: Variance = None,
    rating_variance_floor: float | None = None,
    bias_variance: Variance = None,
    topic_mean_variance: Variance = None,
    global_bias: float | None = None,
    factor_prior: FactorPrior = None,
    likelihood: Likelihood = "gaussian",
) -> Model:
    """Infinite mixed membership matrix factorisation of people who rate people.

    Users and items of the ratings are ids of one kind, persons, and both topics of a
    rating come from one franchise: a person has one set of weights, the same in both
    roles. `fit` takes ordinary `Ratings`; a person's ratings of themselves are refused.
    The other parameters are those of `IM3F`.

    Parameters
    ----------
    directed
        False (the default): a rating belongs to two persons without order, such as the
        number of their joint papers; a person has one row of factors and of biases,
        (p, q) and (q, p) are one pair, which stands in the ratings once, and neither of
        which may be in `train` where the other is in `test`. True: one rates the other;
        factors and biases differ by role, and (p, q) and (q, p) are two ratings.
    max_topics
        Truncation.
    topics
        "weak_limit" or "stick_breaking".
    dish_concentration, table_concentration
        The paper's beta and gamma, of the one franchise: a number, or a `Gamma` prior.
    bias_variance, topic_mean_variance
        sigma_0^2 and tau^2, as those of a side of `IM3F`; where both roles have biases
        of their own, these are the priors of both.

    Returns
    -------
    Model
        To be fitted by `Model.fit`.

    Raises
    ------
    InputError
        One sentence that names the setting.

    Examples
    --------
    >>> pairs = im3f.load_dblp("dblp.xml.gz")
    >>> train, test = im3f.random_split(pairs)
    >>> posterior = im3f.ReciprocalIM3F(likelihood="ordinal").fit(train, test)
    """
    prior = _topics(topics, max_topics, dish_concentration, table_concentration)
    bias = TopicNormal(bias_variance, topic_mean_variance)
    return _model(
        latent_dim,
        prior,
        prior,
        _likelihood(likelihood, rating_variance, rating_variance_floor),
        global_bias,
        factor_prior,
        {"reciprocal": Reciprocal(directed)},
        bias,
        bias,
    )


def _model(
    latent_dim,
    user_topics,
    item_topics,
    likelihood,
    global_bias,
    factor_prior,
    noise,
    user_bias=None,
    item_bias=None,
) -> Model:
    model = Model(
        latent_dim=latent_dim,
        likelihood=likelihood,
        factor_prior=_factors(factor_prior),
        user_bias_prior=user_bias or TopicNormal(),
        item_bias_prior=item_bias or TopicNormal(),
        user_topic_prior=user_topics,
        item_topic_prior=item_topics,
        global_bias=global_bias,
        **noise,
    )
    validate(model)
    return model


def _noise(user: NoiseShape, item: NoiseShape, degrees: float) -> dict:
    """Make the spec's noise components; an infinite shape is constant noise."""

    def component(shape):
        number = isinstance(shape, Real) and not isinstance(shape, bool)
        return ConstantNoise() if number and shape == math.inf else GammaNoise(shape)

    number = isinstance(degrees, Real) and not isinstance(degrees, bool)
    # Finite in float32 too, or infinite; NaN is refused.
    if not number or not (0 < degrees < 3e38 or degrees == math.inf):
        raise InputError(
            f"degrees_of_freedom is {degrees!r}, but must be a positive number, or "
            "infinite for the normal."
        )
    return {
        "user_noise": component(user),
        "item_noise": component(item),
        "rating_noise": component(degrees / 2),
    }


def _time(bins: int, bin_variance: Variance, drift_variance: Variance) -> dict:
    """Make the spec's components of time; 0 bins, a drift's variance of 0: none."""

    def is_zero(value):
        number = isinstance(value, Real) and not isinstance(value, bool)
        return number and value == 0

    if is_zero(bins) and bin_variance is not None:
        raise InputError(
            "item_time_variance is that of biases by time: give item_time_bins too."
        )
    return {
        "item_time": NoTime() if is_zero(bins) else TimeBins(bin_variance, bins),
        "user_time": NoTime() if is_zero(drift_variance) else TimeDrift(drift_variance),
    }


def _likelihood(
    likelihood: Likelihood, variance: Variance, floor: float | None
) -> Gaussian | Ordinal:
    if isinstance(likelihood, str) and likelihood == "gaussian":
        return Gaussian(variance, floor)
    if isinstance(likelihood, str) and likelihood == "ordinal":
        likelihood = Ordinal()
    if not isinstance(likelihood, Gaussian | Ordinal):
        raise InputError(
            f"likelihood is {likelihood!r}, but must be 'gaussian', 'ordinal', a "
            "Gaussian or an Ordinal."
        )
    given = "rating_variance" if variance is not None else "rating_variance_floor"
    if variance is None and floor is None:
        return likelihood
    if isinstance(likelihood, Ordinal):
        raise InputError(
            f"{given} belongs to the Gaussian likelihood: under the ordinal one the "
            "noise of the latent ratings has variance 1, and cut points are sampled."
        )
    raise InputError(
        f"Give {given} to the model or to its Gaussian likelihood, not to both."
    )


def _factors(
    prior: FactorPrior,
) -> NormalWishart | IsotropicNormal | MultiplicativeGamma:
    if prior is None:
        return NormalWishart()
    if isinstance(prior, str):
        if prior != "shrinkage":
            raise InputError(
                f"factor_prior is {prior!r}, but must be None, 'shrinkage', a "
                "NormalWishart, an IsotropicNormal or a MultiplicativeGamma."
            )
        return MultiplicativeGamma()
    return prior


def _biases(
    variance: Variance, topic_mean_variance: Variance, shared: Variance
) -> TopicNormal:
    number = isinstance(shared, Real) and not isinstance(shared, bool)
    if number and shared == 0:
        return TopicNormal(variance, topic_mean_variance)
    return SharedNormal(variance, topic_mean_variance, shared_variance=shared)


def _topics(
    topics: str | CRF, truncation: int, dish: Concentration, table: Concentration
) -> HDP | CRF:
    if not isinstance(topics, CRF):
        return HDP(truncation, topics, dish, table)
    if truncation != MAX_TOPICS:
        raise InputError(
            "max_user_topics and max_item_topics are truncations, and a CRF has none: "
            "leave them out."
        )
    own = topics.dish_concentration, topics.table_concentration
    if own != (CRF.dish_concentration, CRF.table_concentration):
        raise InputError(
            "Give the concentrations to IM3F (user_dish_concentration and so on), not "
            "to its CRF: each side has its own."
        )
    return dataclasses.replace(
        topics, dish_concentration=dish, table_concentration=table
    )


def _finite(number: int, concentration: float):
    if not isinstance(number, bool) and number == 0:
        return NoTopics()
    return FiniteDirichlet(number, concentration)


def _check_run(
    num_warmup,
    num_samples,
    num_chains,
    thinning,
    seed,
    start_topics,
    init,
    chain_method,
    store,
    memory_limit,
    callback,
    checkpoint_every,
) -> None:
    for name, value, least in (
        ("num_warmup", num_warmup, 0),
        ("num_samples", num_samples, 1),
        ("num_chains", num_chains, 1),
        ("thinning", thinning, 1),
        ("seed", seed, 0),
        ("start_topics", start_topics, 1),
        ("checkpoint_every", checkpoint_every, 1),
        ("memory_limit", 0 if memory_limit is None else memory_limit, 0),
    ):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise InputError(
                f"{name} is {value!r}, but must be a whole number of at least {least}."
            )
    if seed >= 2**32:
        # JAX takes the seed modulo 2**32: two seeds would give the same draws.
        raise InputError(f"seed is {seed}, but must be below 2**32.")
    if callback is not None and not callable(callback):
        raise InputError(f"callback is {callback!r}, but must be a function.")
    if thinning > num_samples:
        raise InputError(
            f"thinning is {thinning}, more than num_samples, {num_samples}: no draw "
            "would be kept."
        )
    for name, value, choices in (
        ("init", init, ("map", "prior")),
        (
            "chain_method",
            chain_method,
            ("auto", "sequential", "parallel", "vectorized"),
        ),
        ("store", store, ("summary", "factors", "all")),
    ):
        if value not in choices:
            raise InputError(f"{name} is {value!r}, but must be one of {choices}.")


def _trained_rows(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row of each id of the index (cold ids share the last), and of each rating."""
    trained = np.unique(codes)
    rows = np.full(size, len(trained))
    rows[trained] = np.arange(len(trained))
    if len(trained) == size:
        rows = np.append(rows, size)
    return rows, rows.astype(np.int32)[codes]


def _check_test(train: Ratings, test: Ratings | None) -> None:
    if not isinstance(test, Ratings | None):
        raise InputError(
            f"test is of type {type(test).__name__}, but must be Ratings: make both by "
            "a split of one table (leave_one_out, random_split, split_by_rows)."
        )
    if test is None or not len(test):
        return
    if not (test.users is train.users and test.items is train.items):
        raise InputError(
            "test must share the ids of train: make both by a split of one table "
            "(leave_one_out, random_split, split_by_rows), or score other ratings "
            "by posterior.evaluate."
        )


def _test_pairs(
    test: Ratings | None,
    user_row: np.ndarray,
    item_row: np.ndarray,
    chunk: int,
    scale: TimeScale | None,
) -> Pairs:
    count = 0 if test is None else len(test)
    size = -(-count // chunk) * chunk
    user, item = np.zeros(size, np.int32), np.zeros(size, np.int32)
    rating = np.zeros(size, np.float32)
    if count:
        user[:count], item[:count] = user_row[test.user], item_row[test.item]
        rating[:count] = test.rating
    times = None
    if scale is not None:
        times = TimeColumns(np.zeros(size, np.int32), np.zeros(size, np.float32))
        if count:
            found = scale.columns(times_of(test, "test"), user[:count])
            times.bin[:count], times.drift[:count] = found
    return Pairs(user, item, rating, np.int32(count), chunk, times)


def _spread(pairs: Pairs, count: int, shards: Shards) -> tuple[Pairs, np.ndarray]:
    """Cut test pairs into shards; with the place of each among those of all."""
    place, counts = shards.spread(pairs.user[:count], pairs.chunk)
    size = -(-counts.max() // pairs.chunk) * pairs.chunk

    def spread(values):
        result = np.zeros(shards.number * size, values.dtype)
        result[place] = values[:count]
        return result

    rows = shards.row_of_user(pairs.user[:count]).astype(np.int32)
    spread_pairs = Pairs(
        spread(rows),
        spread(pairs.item),
        spread(pairs.rating),
        counts.astype(np.int32),
        pairs.chunk,
    )
    return spread_pairs, place


def _check_device_memory(
    spec: ModelSpec,
    start: ModelSpec,
    layout: RatingLayout,
    num_test: int,
    num_chains: int,
    num_kept: int,
    sizes: tuple[int, int, int],
    devices: list[jax.Device],
    described: str,
) -> None:
    """Refuse what does not fit on the device in the room that the topics start with."""
    parts, most = (
        estimate_memory(room, layout, num_test, num_chains) for room in (start, spec)
    )
    said = format_bytes(parts["total"])
    if most["total"] > parts["total"]:
        said += f" (with room for all topics {format_bytes(most['total'])})"
    logger.info("device memory, estimated: %s", said)
    advice = []
    if num_chains > 1:
        advice.append("chain_method='sequential' (fewer chains at once)")
    if num_kept:  # on the host, which the device is
        parts["kept draws"] = num_kept * estimate_draw_bytes(start, *sizes)
        advice.append("store='summary'")
    if start.num_user_topics + start.num_item_topics > 2:
        advice.append("fewer topics stored (start_topics, truncations)")
    advice += ["a smaller latent_dim", "fewer ratings"]
    here = [d for d in devices if d.process_index == jax.process_index(d.platform)]
    if here[0].platform == "cpu":  # they are one machine, with the draws once
        kept = parts.pop("kept draws", 0)
        parts = {name: len(here) * size for name, size in parts.items()}
        parts |= {"kept draws": kept, "total": parts["total"] + kept}
    check_device_memory(parts, device_memory(here[0]), described, advice)


def _check_host_memory(
    draw: int,
    num_chains: int,
    num_samples: int,
    thinning: int,
    limit: int | None,
    keeps_topics: bool,
) -> None:
    if limit is None:
        limit = machine_memory() // 2
    needed = draw * num_chains * (num_samples // thinning)
    logger.info("kept draws: %s (%s each)", format_bytes(needed), format_bytes(draw))
    if needed <= limit:
        return
    fits = limit // (draw * num_chains)
    advice = (
        f"thinning={num_samples // (fits + 1) + 1} fits" if fits else "no thinning fits"
    )
    if keeps_topics:
        advice += "; store='factors' leaves out the topics of the ratings"
    raise InputError(
        f"The kept draws would take {format_bytes(needed)} of host memory, more than "
        f"the limit of {format_bytes(limit)}: {advice}; store='summary' keeps only the "
        "predictions of the pairs given."
    )


@contextmanager
def _entered(checkpoints: Checkpoints | None, mesh):
    """Enter checkpoints, in all processes or in none, where there are any."""
    if checkpoints is None:
        yield
        return
    with ExitStack() as stack:
        with all_or_none(mesh):
            try:
                stack.enter_context(checkpoints)
            except OSError as error:
                raise InputError(
                    f"There can be no checkpoints in {error.filename}: "
                    f"{error.strerror}."
                ) from None
        with all_or_none(mesh, settings=checkpoints.checksum):
            pass
        yield


def _fit_map(spec: ModelSpec, data, pairs: Pairs, seed: int) -> RunResult:
    """PMF: one point, presented as a run of one draw."""
    import time

    begin = time.perf_counter()
    variance, precision = map_settings(spec, data)
    fit = fit_map(
        jax.random.key(seed),
        data,
        spec.latent_dim,
        spec.global_bias,
        variance,
        precision,
        num_steps=MAP_STEPS,
    )
    users = np.asarray(fit.user_factors, np.float32)
    items = np.asarray(fit.item_factors, np.float32)
    rows = int(data.num_users) + 1, int(data.num_items) + 1
    bias = float(spec.global_bias)
    square = np.asarray(precision, np.float32) * np.eye(
        spec.latent_dim, dtype=np.float32
    )

    def predict(user, item):
        return bias + np.einsum("nd,nd->n", users[user], items[item])

    train = predict(np.asarray(data.user), np.asarray(data.item))
    count = int(data.num_ratings)
    error = np.asarray(data.rating)[:count] - train[:count]
    test = predict(np.asarray(pairs.user), np.asarray(pairs.item))
    trace = {
        "log_joint": -np.asarray(fit.objective)[None, -1:],
        "rating_variance": np.full((1, 1), float(variance)),
        "residual_rmse": np.sqrt(np.mean(error**2)).reshape(1, 1),
    }
    for side in ("user", "item"):
        trace[f"num_{side}_topics"] = np.zeros((1, 1), np.int32)
        trace[f"effective_{side}_topics"] = np.zeros((1, 1))
    dimension = effective_dimension(fit.user_factors, fit.item_factors)
    trace["effective_dimension"] = np.asarray(dimension).reshape(1, 1)
    draws = Draws(
        user_features=users[None, None, : rows[0]],
        item_features=items[None, None, : rows[1]],
        global_bias=np.full((1, 1), bias),
        rating_variance=np.full((1, 1), float(variance)),
        cut_points=np.zeros((1, 1, 0)),
        user_factor_precision=square[None, None],
        item_factor_precision=square[None, None],
    )
    seconds = {"start": 0.0, "compile": 0.0, "run": time.perf_counter() - begin}
    return RunResult(
        trace,
        draws,
        test.astype(np.float64),
        train.astype(np.float64),
        seconds,
        1,
        False,
    )


class _Bar:
    """A tqdm bar in the outer loop, or nothing."""

    def __init__(self, shown: bool, total: int) -> None:
        self.shown, self.total, self.bar = shown, total, None

    def __enter__(self):
        if not self.shown:
            return None
        from tqdm.auto import tqdm

        waiting = "starting, compiling"
        self.bar = tqdm(total=self.total, unit="sweep", desc=waiting)
        return self.update

    def update(self, sweeps: int, metrics: dict) -> None:
        if self.bar.desc:  # the clock of sweeps starts now
            self.bar.set_description(refresh=False)
            self.bar.unpause()
        self.bar.update(sweeps)
        shown = {"var": f"{metrics['rating_variance']:.3f}"}
        if not math.isnan(metrics["rmse"]):
            shown["test rmse"] = f"{metrics['rmse']:.4f}"
        if metrics["num_user_topics"] or metrics["num_item_topics"]:
            shown["topics"] = (
                f"{metrics['num_user_topics']}/{metrics['num_item_topics']}"
            )
        self.bar.set_postfix(shown, refresh=False)

    def __exit__(self, *error) -> None:
        if self.bar is not None:
            self.bar.close()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("im3f-jax", "jax", "jaxlib", "numpy", "pandas", "optax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            from im3f_jax import __version__

            found[name] = __version__
    return found


def _warn(posterior: Posterior) -> None:
    """Say what a reader of the result must know."""
    spec = posterior.spec
    floor = spec.likelihood.variance_floor
    if isinstance(spec.likelihood.variance, InverseGamma) and floor > 0:
        at_floor = np.mean(posterior.rating_variance <= 1.001 * floor)
        if at_floor > 0.5:
            warnings.warn(
                f"{at_floor:.0%} of the kept draws have the rating variance at its "
                f"floor of {floor:.4g}: topics sit on the levels of the scale. Fix the "
                "rating variance, or use fewer topics.",
                Im3fWarning,
                stacklevel=3,
            )
    sides = (("user", spec.user_topic_prior), ("item", spec.item_topic_prior))
    for side, prior in sides[: 1 if is_reciprocal(spec) else 2]:
        occupied = getattr(posterior, f"num_{side}_topics")
        whose = ("", "") if is_reciprocal(spec) else (f"{side} ", f"{side}_")
        if isinstance(prior, HDP) and occupied.max(initial=0) >= 0.9 * prior.num_topics:
            warnings.warn(
                f"Up to {occupied.max()} {whose[0]}topics were occupied, close to the "
                f"truncation of {prior.num_topics}: raise max_{whose[1]}topics.",
                Im3fWarning,
                stacklevel=3,
            )
