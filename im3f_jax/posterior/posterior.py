"""What a fit gives: draws, traces, predictions, scores."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from im3f_jax.data.ids import IdIndex
from im3f_jax.data.persons import in_order
from im3f_jax.data.ratings import Ratings, timestamp_array
from im3f_jax.data.seen import SeenItems
from im3f_jax.data.times import TimeColumns, TimeScale
from im3f_jax.errors import InputError
from im3f_jax.inference.features import precisions_of_features
from im3f_jax.inference.run import Draws
from im3f_jax.model.likelihood import Ordinal
from im3f_jax.model.noise import GammaNoise
from im3f_jax.model.reciprocal import is_unordered
from im3f_jax.model.spec import ModelSpec, check_levels
from im3f_jax.model.time_effects import (
    TimeBins,
    TimeDrift,
    reads_times,
    times_of,
)
from im3f_jax.model.topic_prior import NoTopics
from im3f_jax.posterior import predict, recommend
from im3f_jax.posterior.explain import Explanation, explain, nearest_draw
from im3f_jax.posterior.score import level_probabilities, log_score
from im3f_jax.posterior.similar import similar_rows
from im3f_jax.posterior.spread import Prediction, Spread, spread_of_pairs

__all__ = ["Posterior"]

Clip = str | tuple[float, float] | None


@dataclass(eq=False, repr=False)
class Posterior:
    """Posterior draws of a model, with the ids that they belong to.

    Attributes
    ----------
    spec
        The model with every default resolved.
    users, items
        The ids of the training data's index.
    user_row, item_row
        Row of each id's vectors in the draws, shape (num ids,); ids without a training
        rating ("cold") share the last row, that of a new user or item.
    draws
        Kept draws, or None after a fit with store="summary"; with the topics of the
        training ratings after one with store="all".
    trace
        Label-free scalars of every sweep, each of shape (chain, sweep).
    test_predictions, train_predictions
        Mean over kept draws for the pairs given to `fit`, in their order; None
        without.
    levels
        Distinct ratings of the training data, ascending; those of the likelihood where
        it is ordinal.
    is_discrete
        Whether the levels look like a scale of steps; always under the ordinal
        likelihood.
    seconds
        Wall time of "start" (warm start included), "compile" and "run".
    device, seed, versions, num_warmup, num_samples, thinning, partial
        How it was run; `partial` after an interrupt.
    time_scale
        Bins of time and users' mean times, where the model reads times.
    seen
        What each user of the index has a training rating of; None in files of versions
        before it was kept.
    """

    spec: ModelSpec
    users: IdIndex
    items: IdIndex
    user_row: np.ndarray
    item_row: np.ndarray
    draws: Draws | None
    trace: dict[str, np.ndarray]
    levels: np.ndarray
    is_discrete: bool
    num_warmup: int
    num_samples: int
    thinning: int
    seed: int
    device: str
    versions: dict[str, str]
    seconds: dict[str, float]
    test_predictions: np.ndarray | None = None
    train_predictions: np.ndarray | None = None
    partial: bool = False
    time_scale: TimeScale | None = None
    seen: SeenItems | None = None
    _fitted: list[tuple[Ratings, np.ndarray]] = field(default_factory=list)

    def __repr__(self) -> str:
        chains, sweeps = self.trace["rating_variance"].shape
        return (
            f"Posterior(latent_dim={self.spec.latent_dim}, chains={chains}, "
            f"sweeps={sweeps}, kept={self.num_kept} a chain, "
            f"user_topics={_span(self.num_user_topics)}, "
            f"item_topics={_span(self.num_item_topics)}, device={self.device!r}"
            f"{', partial' if self.partial else ''})"
        )

    @property
    def num_kept(self) -> int:
        """Kept draws a chain."""
        return int(self._kept_sweeps().sum())

    @property
    def num_user_topics(self) -> np.ndarray:
        """User topics with at least one rating in each kept draw, (chain, draw).

        Of a reciprocal model the topics of both roles, as `num_item_topics`.
        """
        return self._kept("num_user_topics")

    @property
    def num_item_topics(self) -> np.ndarray:
        """Item topics with at least one rating in each kept draw, (chain, draw)."""
        return self._kept("num_item_topics")

    @property
    def effective_user_topics(self) -> np.ndarray:
        """exp(entropy of the shares of ratings) in each kept draw, (chain, draw)."""
        return self._kept("effective_user_topics")

    @property
    def effective_item_topics(self) -> np.ndarray:
        """exp(entropy of the shares of ratings) in each kept draw, (chain, draw)."""
        return self._kept("effective_item_topics")

    @property
    def effective_dimension(self) -> np.ndarray:
        """Columns of the factors in use in each kept draw, (chain, draw).

        exp(entropy of the columns' shares of the energy of the factors' product), that
        of column h being ``|a_h|^2 |b_h|^2``: from 1 to latent_dim. Under a
        `MultiplicativeGamma` it is the learned dimension; under the other priors, which
        shrink no column, it tells little.

        Raises
        ------
        InputError
            For a file saved before it was kept.
        """
        if "effective_dimension" not in self.trace:
            raise InputError(
                "This posterior was saved by an older version, which did not keep the "
                "effective dimension: fit again."
            )
        return self._kept("effective_dimension")

    @property
    def rating_variance(self) -> np.ndarray:
        """sigma^2 in each kept draw, squared rating scale, (chain, draw)."""
        return self._kept("rating_variance")

    @property
    def user_precision(self) -> pd.Series:
        """Relative precision of each user's ratings, a mean over kept draws.

        The noise of a rating has variance sigma^2 / (p_u q_j w_n) (`GammaNoise`); this
        is p_u, indexed by the caller's user ids, NaN for users without a training
        rating.

        Raises
        ------
        InputError
            Where the noise does not differ between users, or no draws were kept.
        """
        return self._precision("user")

    @property
    def item_precision(self) -> pd.Series:
        """Relative precision of each item's ratings, a mean over kept draws.

        As `user_precision`, by the caller's item ids.

        Raises
        ------
        InputError
            Where the noise does not differ between items, or no draws were kept.
        """
        return self._precision("item")

    def _precision(self, side: str) -> pd.Series:
        if not isinstance(getattr(self.spec, f"{side}_noise"), GammaNoise):
            raise InputError(
                f"The noise does not differ between {side}s in this fit: set "
                f"{side}_noise_shape to None or to a number."
            )
        if self.draws is None:
            raise InputError(
                "This fit kept no draws (store='summary'): fit with store='factors' to "
                "get precisions."
            )
        of_user, of_item = precisions_of_features(
            self.draws.user_features, self.draws.item_features
        )
        each = of_user if side == "user" else of_item
        mean = np.mean(each, axis=(0, 1), dtype=np.float64)
        mean[-1] = np.nan  # the row of those without a training rating
        index: IdIndex = getattr(self, f"{side}s")
        # Where every id is trained, one row more stands for a new one.
        row = getattr(self, f"{side}_row")[: len(index.ids)]
        return pd.Series(
            mean[row], index=pd.Index(index.ids, name=side), name=f"{side}_precision"
        )

    @property
    def user_drift(self) -> pd.Series:
        """Each user's drift f_u, a mean over kept draws, rating scale.

        What a rating of a user gains at a time whose covariate is 1 (`TimeDrift`); by
        the caller's user ids, NaN for users without a training rating.

        Raises
        ------
        InputError
            Where the model has no drift, or no draws were kept.
        """
        drift = self._time_draws("user", TimeDrift, "user_drift_variance")
        return pd.Series(drift, pd.Index(self.users.ids, name="user"), name="drift")

    @property
    def item_time_bias(self) -> pd.DataFrame:
        """What each item adds in each bin of time, a mean over kept draws.

        On the rating scale, by the caller's item ids, a column a bin (from 0; bin b
        ends before `time_scale.edges[b]`), NaN for items without a training rating.

        Raises
        ------
        InputError
            Where the model has no bins of time, or no draws were kept.
        """
        bias = self._time_draws("item", TimeBins, "item_time_bins")
        return pd.DataFrame(bias, pd.Index(self.items.ids, name="item"))

    def _time_draws(self, side: str, kind: type, setting: str) -> np.ndarray:
        if not isinstance(getattr(self.spec, f"{side}_time"), kind):
            raise InputError(
                f"In this fit nothing of the {side}s depends on time: set {setting}."
            )
        if self.draws is None:
            raise InputError(
                "This fit kept no draws (store='summary'): fit with store='factors' to "
                "get what depends on time."
            )
        name = "item_time" if side == "item" else "user_drift"
        mean = np.mean(getattr(self.draws, name), axis=(0, 1), dtype=np.float64)
        mean[-1] = np.nan  # the row of those without a training rating
        return mean[getattr(self, f"{side}_row")][: len(getattr(self, f"{side}s"))]

    @cached_property
    def representative_draw(self) -> tuple[int, int]:
        """The kept draw whose predictions are nearest their mean over draws.

        (chain, kept draw), from 0: for what may not be averaged, since labels of topics
        switch. By the mean square distance over a few thousand pairs, spread over the
        trained users and items, of the means without what depends on time (under the
        ordinal likelihood, of latent means).

        Raises
        ------
        InputError
            Where no draws were kept.
        """
        if self.draws is None:
            raise InputError(
                "This fit kept no draws (store='summary'): fit with store='factors' to "
                "get a representative one."
            )
        return nearest_draw(self.draws)

    def predict(
        self,
        users: Iterable,
        items: Iterable,
        *,
        times: Iterable | None = None,
        clip: Clip = None,
        per_draw: bool = False,
        unknown: str = "raise",
        return_std: bool = False,
        quantiles: Iterable | None = None,
    ) -> "np.ndarray | Prediction":
        """Posterior mean of ratings, and how sure it is.

        In each kept draw the mean of the rating over its topics,
        chi_0 + a_u . b_j + sum_k theta_M[j,k] c_u[k] + sum_i theta_U[u,i] d_j[i]; then
        the mean over draws. Under the ordinal likelihood the sum of the levels times
        their probabilities (see `predict_proba`). A user or item without a training
        rating is predicted as the prior expects a new one. A model that depends on time
        adds e_j[bin(t)] + f_u x(t), on the bins and mean times of the training ratings.
        An unordered pair has one prediction, in either order.

        Parameters
        ----------
        users, items
            The caller's own ids, of one length n.
        times
            Of the pairs, for a model that depends on time: numbers in the unit of the
            training ratings' timestamps, shape (n,), or datetimes, which are read as
            seconds since 1970, as training's must have been. None leaves the time out:
            the prior mean of its part, with no effect of a bin, and without drift, as
            at the user's mean time.
        clip
            None, "train" (the range of the training ratings) or (low, high).
        per_draw
            Return each draw's value instead of the mean.
        unknown
            What to do with ids that are not in the index: "raise", "prior" (as a new
            user or item) or "nan".
        return_std
            Give two standard deviations too: of the mean, over the kept draws, and of
            the rating itself, which has the spread over topics and the noise beside.
            (Infinite under Student's t with 2 degrees of freedom or fewer.) `clip` does
            not touch them.
        quantiles
            Probabilities between 0 and 1, shape (Q,): give these quantiles of the
            rating, a mixture over kept draws, topics and noise, too. Of a Gaussian
            model they lie on the continuous scale of its ratings, of an ordinal one
            they are levels, the first that is reached with that probability.

        Returns
        -------
        ndarray or Prediction
            Rating scale, shape (n,), or (chain, draw, n) with `per_draw`. With
            `return_std` or `quantiles` a named tuple: `mean`, `std_of_mean` and
            `std_of_rating` of shape (n,), `quantiles` of shape (n, Q); None for what
            was not asked for. Spreads of a user or an item without a training rating
            have that of its prior: in each draw one new row drawn from it, while the
            mean is that which the prior expects.

        Raises
        ------
        InputError
            For an unknown id, unequal lengths, times of a model that reads none, or
            pairs (and times) that were not given to a fit with store="summary", which
            has no spreads either; for quantiles that are none; and, where spreads of
            new rows are asked for, as `fold_in`.
        """
        bounds = self._bounds(clip)
        asked = _probabilities(quantiles)
        if per_draw and (return_std or asked is not None):
            raise InputError(
                "per_draw gives each draw's mean, return_std and quantiles what all "
                "draws say together: ask for one of them."
            )
        user, item, wanted = self._pairs(users, items, unknown)
        times = self._times(times, wanted)
        found = self._predict_codes(user[wanted], item[wanted], per_draw, times)
        values = np.full((*found.shape[:-1], len(user)), np.nan)
        values[..., wanted] = found
        if bounds is not None:
            values = np.clip(values, *bounds)
        if not return_std and asked is None:
            return values
        given = user[wanted], item[wanted], times
        spread = self._spread(*given, np.zeros(0) if asked is None else asked)

        def all_pairs(found):
            result = np.full((len(user), *found.shape[1:]), np.nan)
            result[wanted] = found
            return result

        std_of_mean, std_of_rating, found = map(all_pairs, spread)
        if bounds is not None:
            found = np.clip(found, *bounds)
        return Prediction(
            values,
            std_of_mean if return_std else None,
            std_of_rating if return_std else None,
            None if asked is None else found,
        )

    def predict_frame(
        self,
        users: Iterable,
        items: Iterable,
        *,
        times: Iterable | None = None,
        clip: Clip = None,
        unknown: str = "raise",
        quantiles: Iterable = (),
    ) -> pd.DataFrame:
        """Predictions as a frame, with the caller's ids.

        Parameters
        ----------
        users, items, times, clip, unknown, quantiles
            As in `predict`.

        Returns
        -------
        DataFrame
            A row a pair: user, item, prediction, std_of_mean, std_of_rating, known
            (whether both ids have a training rating), and a column a quantile, "q0.05"
            for 0.05.

        Raises
        ------
        InputError
            As `predict`.
        """
        quantiles = () if quantiles is None else quantiles
        users, items, quantiles = map(_column, (users, items, quantiles))
        found = self.predict(
            users,
            items,
            times=times,
            clip=clip,
            unknown=unknown,
            return_std=True,
            quantiles=quantiles,
        )
        columns = {
            "user": users,
            "item": items,
            "prediction": found.mean,
            "std_of_mean": found.std_of_mean,
            "std_of_rating": found.std_of_rating,
            "known": self.is_known(users, items),
        }
        for probability, values in zip(quantiles, found.quantiles.T, strict=True):
            columns[f"q{probability:g}"] = values
        return pd.DataFrame(columns)

    def _spread(
        self,
        user: np.ndarray,
        item: np.ndarray,
        times: np.ndarray | None,
        quantiles: np.ndarray,
    ) -> Spread:
        if self.draws is None:
            raise InputError(
                "This fit kept no draws (store='summary'): fit with store='factors' to "
                "get standard deviations and quantiles."
            )
        user_row = self._rows(user, self.user_row)
        item_row = self._rows(item, self.item_row)
        new = {"new_user": None, "new_item": None}
        for side, row, last in (
            ("user", user_row, self._num_users),
            ("item", item_row, self._num_items),
        ):
            if (row == last).any():
                from im3f_jax.posterior.fold_in import prior_rows

                try:
                    new[f"new_{side}"] = prior_rows(self, side)
                except InputError as error:
                    raise InputError(
                        f"There are {side}s without a training rating, whose spreads "
                        f"are of new {side}s drawn from the prior. {error} Leave them "
                        "out (see is_known), or predict the mean alone."
                    ) from None
        return spread_of_pairs(
            self.draws,
            self.spec,
            user_row,
            item_row,
            quantiles,
            self.levels,
            self._time_columns(times, user_row),
            **new,
        )

    def predict_proba(
        self,
        users: Iterable,
        items: Iterable,
        *,
        times: Iterable | None = None,
        per_draw: bool = False,
        unknown: str = "raise",
    ) -> np.ndarray:
        """Posterior probability of each level of the scale, `posterior.levels`.

        In each kept draw a mixture over the topics of largest weight (as in `evaluate`,
        which reports the weight of the others; here it is shared out); then the mean
        over draws. A Gaussian model of a discrete scale gives a level the mass between
        the midpoints to its neighbours, the outermost open.

        Parameters
        ----------
        users, items, times, unknown
            As in `predict`.
        per_draw
            Return each draw's probabilities instead of their mean.

        Returns
        -------
        ndarray
            Shape (n, L), or (chain, draw, n, L) with `per_draw`. Rows sum to 1.

        Raises
        ------
        InputError
            As `predict`; without kept draws; and for a Gaussian model whose training
            ratings are not on a discrete scale.
        """
        if self.draws is None:
            raise InputError(
                "This fit kept no draws (store='summary'): fit with store='factors' to "
                "get probabilities."
            )
        if not self.is_discrete:
            raise InputError(
                "The training ratings are not on a discrete scale: there are no levels "
                "to give probabilities of."
            )
        user, item, wanted = self._pairs(users, items, unknown)
        times = self._times(times, wanted)
        user_row = self._rows(user[wanted], self.user_row)
        found = level_probabilities(
            self.draws,
            self.spec,
            user_row,
            self._rows(item[wanted], self.item_row),
            self.levels,
            per_draw,
            self._time_columns(times, user_row),
        ).probability
        values = np.full((*found.shape[:-2], len(user), len(self.levels)), np.nan)
        values[..., wanted, :] = found
        return values

    def _pairs(
        self, users: Iterable, items: Iterable, unknown: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes of pairs, and which of them are to be predicted."""
        if unknown not in ("raise", "prior", "nan"):
            raise InputError(
                f"unknown is {unknown!r}, but must be 'raise', 'prior' or 'nan'."
            )
        how = "raise" if unknown == "raise" else "mark"
        user, item = self.users.lookup(users, how), self.items.lookup(items, how)
        if len(user) != len(item):
            raise InputError(
                f"predict takes pairs, but there are {len(user)} users and "
                f"{len(item)} items."
            )
        wanted = np.full(len(user), True)
        if unknown == "nan":
            wanted = (user >= 0) & (item >= 0)
        return *self._in_order(user, item), wanted

    def _times(self, times: Iterable | None, wanted: np.ndarray) -> np.ndarray | None:
        """Select the times of the wanted pairs, shape (n,)."""
        if times is None:
            return None
        if not reads_times(self.spec):
            raise InputError("This model reads no times: leave `times` out.")
        times = timestamp_array(times, "times")
        if len(times) != len(wanted):
            raise InputError(
                f"predict takes a time for each pair, but there are {len(wanted)} "
                f"pairs and {len(times)} times."
            )
        return times[wanted]

    def _time_columns(
        self, times: np.ndarray | None, user_row: np.ndarray
    ) -> TimeColumns | None:
        return None if times is None else self.time_scale.columns(times, user_row)

    def is_known(self, users: Iterable, items: Iterable) -> np.ndarray:
        """Tell whether both ids of each pair have a training rating.

        Parameters
        ----------
        users, items
            The caller's ids, of one length n; unknown ones are not known.

        Returns
        -------
        ndarray of bool
            Shape (n,).
        """
        user = self.users.lookup(users, "mark")
        item = self.items.lookup(items, "mark")
        return (self._rows(user, self.user_row) < self._num_users) & (
            self._rows(item, self.item_row) < self._num_items
        )

    def recommend(
        self,
        users: Iterable | Any | None = None,
        n: int = 10,
        *,
        items: Iterable | None = None,
        exclude_seen: bool = True,
        rank_by: str = "mean",
        level: float = 0.9,
        unknown: str = "raise",
        times: Any | None = None,
    ) -> pd.DataFrame:
        """Give each user the n items of highest expected rating.

        The mean over kept draws of each draw's mean, as `predict` gives it; under the
        ordinal likelihood the expected level. Of equal items the one that comes first
        in the index comes first. Blocks of users meet blocks of items; all pairs are
        never held at once. An ordinal model is asked pair by pair, which takes far
        longer than the products of a Gaussian one.

        Parameters
        ----------
        users
            One id, or several; None is every user of the index. Without a training
            rating one gets the list that the prior gives a new user.
        n
            Items a user, fewer where no more are left.
        items
            Ids to choose from. None: all items with a training rating (of the others
            the prior expects the same; they are recommended where they are named).
        exclude_seen
            Leave out what the user has a training rating of. Of a reciprocal model
            nobody is recommended to themselves, whatever this is.
        rank_by
            "mean", or a bound of the mean: "lower" for items that are safe, "upper" for
            those worth a try. The bounds are mean -/+ z std_of_mean, with z the normal
            quantile at `level`; a second pass over the draws.
        level
            Probability by the posterior (taken for normal) that the mean lies on the
            far side of the bound, from 0.5 to below 1.
        unknown
            "raise", or "prior": users that are not in the index get the list of a new
            user.
        times
            One time, or one for each user, as in `predict`.

        Returns
        -------
        DataFrame
            A row a recommendation, users in the order asked for: `user` and `item` (the
            caller's ids and dtypes), `rank` from 1, `mean` and its standard deviation
            over draws `std_of_mean`, rating scale, and the bound `lower` or `upper`
            where it ranks. Of a user or an item without a training rating the deviation
            is that of what the prior expects in each draw: unlike in `predict`, the
            spread of a new one about that is not in it.

        Raises
        ------
        InputError
            For an unknown id, a setting without meaning, times of a model that reads
            none, a fit with store="summary", and `exclude_seen` of a file that does not
            hold who rated what.
        """
        blocks = self.recommend_in_blocks(
            users,
            n,
            items=items,
            exclude_seen=exclude_seen,
            rank_by=rank_by,
            level=level,
            unknown=unknown,
            times=times,
        )
        return pd.concat(list(blocks), ignore_index=True)

    def recommend_in_blocks(
        self,
        users: Iterable | Any | None = None,
        n: int = 10,
        *,
        items: Iterable | None = None,
        exclude_seen: bool = True,
        rank_by: str = "mean",
        level: float = 0.9,
        unknown: str = "raise",
        times: Any | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Yield what `recommend` returns, some thousands of users at a time.

        For lists that are written on, so that those of all users need not be held. The
        parameters are those of `recommend`.

        Yields
        ------
        DataFrame
            The columns of `recommend`.

        Raises
        ------
        InputError
            As `recommend`.
        """
        return recommend.recommend(
            self,
            users,
            n,
            items=items,
            exclude_seen=exclude_seen,
            rank_by=rank_by,
            level=level,
            unknown=unknown,
            times=times,
        )

    def similar_items(self, item: Any, n: int = 10) -> pd.DataFrame:
        """Give the n items whose predictions go with those of one item.

        The correlation over the trained users of the predictions for the two items, in
        each draw, then the mean over draws: y_j' S y_k / sqrt(y_j' S y_j y_k' S y_k),
        where a draw predicts chi_0 + x_u . y_j and the x_u have covariance S. It does
        not depend on labels or on the rotation of factors. Under the ordinal likelihood
        predictions of the latent rating; what depends on time is left out.

        Parameters
        ----------
        item
            An id with a training rating.
        n
            Items at most; those with a training rating, not `item` itself.

        Returns
        -------
        DataFrame
            `rank` from 1, `item` (the caller's ids), `similarity` from -1 to 1, and its
            standard deviation over draws `std`.

        Raises
        ------
        InputError
            For an id that is unknown or has no training rating, an n below 1, and a fit
            with store="summary".
        """
        return similar_rows(self, "item", item, n)

    def similar_users(self, user: Any, n: int = 10) -> pd.DataFrame:
        """Give the n users whose predictions go with those of one user.

        As `similar_items`, the sides exchanged: over the trained items.

        Parameters
        ----------
        user
            An id with a training rating.
        n
            Users at most; those with a training rating, not `user` itself.

        Returns
        -------
        DataFrame
            As `similar_items`, with a column `user`.

        Raises
        ------
        InputError
            As `similar_items`.
        """
        return similar_rows(self, "user", user, n)

    def explain(
        self,
        user: Any,
        item: Any,
        *,
        time: Any | None = None,
        draw: tuple[int, int] | None = None,
        unknown: str = "raise",
    ) -> Explanation:
        """Take a prediction apart.

        chi_0, a_u . b_j, the user's biases under the item's contexts, sum_k
        theta_M[j, k] c_u[k], the item's under the user's moods, sum_i theta_U[u, i]
        d_j[i], and what topic factors and time add: a mean over draws of each, which
        sum to what `predict` says (under the ordinal likelihood: to the mean of the
        latent rating). And topic by topic, in one draw.

        Parameters
        ----------
        user, item
            Ids of one pair.
        time
            Of the pair, as in `predict`.
        draw
            (chain, kept draw), from 0, whose topics to list; None is
            `representative_draw`.
        unknown
            "raise", or "prior" for ids that are not in the index.

        Returns
        -------
        Explanation
            Its frames are `parts`, `contexts` and `moods`; its repr is to be read.

        Raises
        ------
        InputError
            As `predict`; for a draw that is not there, and a fit with store="summary".
        """
        return explain(self, user, item, time=time, draw=draw, unknown=unknown)

    def evaluate(
        self,
        test: Ratings,
        *,
        clip: Clip = None,
        log_score: bool = True,
        pointwise: bool = False,
    ) -> dict:
        """Score held-out ratings.

        Parameters
        ----------
        test
            Ratings whose ids are those of the training data; with timestamps, where the
            model depends on time.
        clip
            As in `predict`; clipping does not touch the log score.
        log_score
            Compute the log score too (it needs the kept draws).
        pointwise
            Give "squared_errors" (squared rating scale) and "log_scores" (nats) of each
            rating too, arrays of shape (num_ratings,).

        Returns
        -------
        dict
            "rmse" and "mae" of the posterior mean (rating scale); "log_score", mean
            nats a rating; "log_score_kind", "log_probability" of the rating's level on
            a discrete scale, else "log_density"; "dropped_weight" of the topics that
            the log score left out; "num_ratings"; "num_cold", how many of them belong
            to a user or an item without a training rating.

        Raises
        ------
        InputError
            For a test set that is no `Ratings` or is empty, an unknown id, a rating
            that is no level of an ordinal model, times that are missing, and a clip
            without meaning.
        """
        if not isinstance(test, Ratings):
            raise InputError(
                f"test is of type {type(test).__name__}: make Ratings of it first, by "
                "Ratings.from_dataframe, Ratings.from_arrays or load_ratings."
            )
        if len(test) == 0:
            raise InputError("There are no ratings to score.")
        bounds = self._bounds(clip)
        if isinstance(self.spec.likelihood, Ordinal):
            check_levels(self.spec.likelihood, test.levels)
        user, item = self._codes(test)
        times = times_of(test, "test") if reads_times(self.spec) else None
        predictions = self._fitted_predictions(test)
        if predictions is None:
            predictions = self._predict_codes(user, item, per_draw=False, times=times)
        if bounds is not None:
            predictions = np.clip(predictions, *bounds)
        error = predictions - test.rating
        user_row = self._rows(user, self.user_row)
        item_row = self._rows(item, self.item_row)
        cold = (user_row == self._num_users) | (item_row == self._num_items)
        result = {
            "rmse": float(np.sqrt(np.mean(error**2))),
            "mae": float(np.mean(np.abs(error))),
            "num_ratings": len(test),
            "num_cold": int(cold.sum()),
        }
        if log_score and self.draws is not None:
            columns = self._time_columns(times, user_row)
            result |= self._log_score(
                user_row, item_row, test.rating, columns, pointwise
            )
        if pointwise:
            result["squared_errors"] = error**2
        return result

    def fold_in(
        self,
        ratings: "Ratings | pd.DataFrame | None",
        *,
        side: str = "user",
        ids: Iterable | None = None,
        unknown: str = "raise",
        duplicates: str = "error",
        num_sweeps: int = 16,
        seed: int = 0,
    ) -> "Posterior":
        """Add new users, or new items, from their ratings, without fitting anew.

        In every kept draw all that belongs to a new row, factors, biases, weights over
        topics, relative precision and the topics of its ratings, is drawn by Gibbs
        sweeps from its posterior given the other side's rows and what the rows of its
        side have in common, none of which the new ratings change: to learn from them
        too, fit again. A new row without ratings is drawn from its prior. Of a MAP fit
        the new factors are the mode.

        Parameters
        ----------
        ratings
            `Ratings`, a frame with the columns user, item and rating, or None. On one
            side (`side`) the ids are new, or had no rating in the fit; on the other
            they all had.
        side
            "user" for new users who rated known items, "item" for new items which
            known users rated.
        ids
            More new ids, without a rating.
        unknown
            What to do with ratings whose other id had no rating in the fit: "raise" or
            "drop", which logs how many.
        duplicates
            What to do with repeated pairs of a frame, as in `Ratings.from_dataframe`.
        num_sweeps
            Sweeps in each kept draw, from what the prior expects; the last is kept.
        seed
            The same ratings, in the same order, and seed give the same draws.

        Returns
        -------
        Posterior
            As this one, which stays as it is, with rows more: new ids are predicted,
            recommended for, evaluated and saved as the others are. Trace and topics
            reported are those of the fit.

        Raises
        ------
        InputError
            For ids of this side that had ratings in the fit, unknown ones of the other,
            ids of another kind than the fit's; without kept draws, or those of an older
            file; and for a reciprocal model, a CRF, topics of each row's own, topic
            factors and parts that depend on time.
        """
        from im3f_jax.posterior.fold_in import fold_in

        return fold_in(
            self,
            ratings,
            side=side,
            ids=ids,
            unknown=unknown,
            duplicates=duplicates,
            num_sweeps=num_sweeps,
            seed=seed,
        )

    def coassignment(self, rows: Iterable, side: str = "user") -> np.ndarray:
        """Posterior probability that two training ratings share a topic.

        The share of kept draws, of all chains, in which they have the same topic. It
        does not depend on the names of topics, which differ from draw to draw.

        Parameters
        ----------
        rows
            Positions in the training ratings given to `fit`, from 0, shape (n,).
        side
            "user" for user topics (moods), "item" for item topics (contexts).

        Returns
        -------
        ndarray
            Symmetric, with 1 on the diagonal, shape (n, n).

        Raises
        ------
        InputError
            Where the topics were not kept (they are with store="all"), the side has
            none, each row has topics of its own, or a position is none.
        """
        if side not in ("user", "item"):
            raise InputError(f"side is {side!r}, but must be 'user' or 'item'.")
        if isinstance(getattr(self.spec, f"{side}_topic_prior"), NoTopics):
            raise InputError(f"This model has no {side} topics.")
        if self.spec.own_topics:
            raise InputError(
                "Each row has topics of its own in this model: no two rows share one."
            )
        topics = getattr(self.draws, f"{side}_topic", None)
        if topics is None:
            raise InputError(
                "This fit kept no topics of its ratings: fit with store='all'."
            )
        rows, count = np.asarray(rows), topics.shape[-1]
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise InputError("rows must be whole numbers, in one dimension.")
        rows = rows.astype(np.int64)
        outside = rows[(rows < 0) | (rows >= count)]
        if len(outside):
            raise InputError(
                f"Row {outside[0]} is none of the {count} training ratings, which "
                "count from 0."
            )
        number = topics.shape[0] * topics.shape[1]
        total = np.zeros((len(rows), len(rows)), np.int32)
        for topic in topics[..., rows].reshape(number, len(rows)):
            total += topic[:, None] == topic
        return total / number

    def to_arviz(self, *, log_likelihood: Ratings | None = None, warmup: bool = False):
        """Give label-free scalars of the kept draws to ArviZ.

        What does not depend on the names of topics or the directions of factors, in
        ArviZ's groups, with dimensions (chain, draw) whatever the number of chains:

        posterior
            Variances, concentrations, numbers of topics and the like, under the names
            of `trace`; cut points of the ordinal likelihood.
        sample_stats
            "lp", the log joint density (nats, up to a constant), and the root mean
            squared errors of `trace`.
        constant_data
            What of these has one value in all kept draws, as a variance that is fixed:
            a diagnostic would divide by 0. With chi_0, "global_bias".
        warmup_posterior, warmup_sample_stats
            The same of every sweep before, on request.
        observed_data, log_likelihood
            Of ratings, on request; "rating" has the dimension "row", with the ids as
            its coordinates "user" and "item".

        Attributes tell versions, seed, device and lengths. `az.summary`,
        `az.plot_trace` and, on the training ratings' log likelihood, `az.loo` take it,
        and its `to_netcdf` writes a file that `az.from_netcdf` reads.

        Parameters
        ----------
        log_likelihood
            Ratings whose log density (nats) to give in every kept draw, topics summed
            out; under the ordinal likelihood their log probability. It is what the
            model was fitted by, as leave-one-out needs: `evaluate` instead scores the
            levels of a discrete scale. For `az.loo` the training ratings.
        warmup
            Give the groups of the warm-up.

        Returns
        -------
        xarray.DataTree
            An `arviz.InferenceData` where the ArviZ installed is older than 1.0, whose
            functions take no tree.

        Raises
        ------
        InputError
            Where ArviZ is not installed (the extra "arviz"); for the log likelihood
            where no draws were kept, and as `evaluate`, or beyond half of the machine's
            memory.
        """
        try:
            from im3f_jax.posterior.arviz import to_arviz
        except ModuleNotFoundError as error:
            raise InputError(
                f"to_arviz needs {error.name}: install the extra arviz of im3f-jax."
            ) from None
        return to_arviz(self, log_likelihood, warmup)

    def trace_frame(self) -> pd.DataFrame:
        """Return the trace as a frame.

        Returns
        -------
        DataFrame
            A row for each sweep of each chain: `chain` and `sweep` from 0, `phase`
            ("warmup" or "sample"), whether it is `kept`, and a column for each scalar
            of `trace`.
        """
        chains, sweeps = self.trace["rating_variance"].shape
        sweep = np.tile(np.arange(sweeps), chains)
        return pd.DataFrame(
            {
                "chain": np.repeat(np.arange(chains), sweeps),
                "sweep": sweep,
                "phase": np.where(sweep < self.num_warmup, "warmup", "sample"),
                "kept": np.tile(self._kept_sweeps(), chains),
            }
            | {name: values.ravel() for name, values in self.trace.items()}
        )

    def plot_trace(self, scalars=None, *, ax=None):
        """Plot label-free scalars by sweep, as `im3f_jax.plots.plot_trace` does.

        Parameters
        ----------
        scalars
            Names in `trace`, a panel each; or one name. None: those that vary.
        ax
            Matplotlib axes, as many as scalars.

        Returns
        -------
        matplotlib axes, or for several scalars an ndarray of them

        Raises
        ------
        InputError
            For a name that is not in the trace, or another number of axes.
        """
        from im3f_jax.posterior.plots import plot_trace

        return plot_trace(self, scalars, ax=ax)

    def report(
        self,
        path,
        *,
        test: Ratings | None = None,
        train: Ratings | None = None,
        titles=None,
        baselines=None,
        clip: Clip = None,
        command: str | None = None,
        heading: str = "What the fit found",
    ):
        """Write one page of HTML about the fit: facts, errors, topics, pictures.

        It holds everything that it shows: it needs no network and runs no script. Where
        something is not given (`test`, `train`, `baselines`), the page says so.

        Parameters
        ----------
        path
            The file, replaced at the end.
        test
            Held-out ratings, for errors, calibration and coverage.
        train
            The training ratings: for counts, and what others gave.
        titles
            Of items, by id: a mapping, a Series, or what `load_titles` gives.
        baselines
            Other fits by name, compared with this one on `test`; or what `compare`
            gave.
        clip
            As in `evaluate`.
        command
            How the fit was made, for the last section.
        heading
            Of the page.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        InputError
            Without matplotlib; for ratings that do not fit the model; for baselines
            without `test`.
        """
        from im3f_jax.posterior.report import write_report

        return write_report(
            self,
            path,
            test=test,
            train=train,
            titles=titles,
            baselines=baselines,
            clip=clip,
            command=command,
            heading=heading,
        )

    def save(self, path) -> None:
        """Write the posterior to one file, self-contained, without pickle.

        Parameters
        ----------
        path
            Of the file, which `load` reads; one of that name is replaced at the end.

        Raises
        ------
        InputError
            Where ids are not str, int, float or bool.
        """
        from im3f_jax.posterior.storage import save

        save(self, path)

    @property
    def _num_users(self) -> int:
        """The row of a new user."""
        return int(self.user_row.max(initial=0))

    @property
    def _num_items(self) -> int:
        return int(self.item_row.max(initial=0))

    def _kept_sweeps(self) -> np.ndarray:
        sweeps = self.trace["rating_variance"].shape[1]
        since = np.arange(sweeps) + 1 - self.num_warmup
        return (since > 0) & (since % self.thinning == 0)

    def _kept(self, name: str) -> np.ndarray:
        return self.trace[name][:, self._kept_sweeps()]

    def _rows(self, codes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.where(codes < 0, rows.max(initial=0), rows[codes])

    def _bounds(self, clip: Clip) -> tuple[float, float] | None:
        if clip is None:
            return None
        if isinstance(clip, str) and clip == "train":
            return float(self.levels[0]), float(self.levels[-1])
        try:
            low, high = map(float, () if isinstance(clip, str) else clip)
            fits = low < high
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise InputError(
                f"clip is {clip!r}, but must be None, 'train' or (low, high)."
            )
        return low, high

    def _codes(self, test: Ratings) -> tuple[np.ndarray, np.ndarray]:
        if test.users is self.users and test.items is self.items:
            return test.user, test.item
        user, item = self.users.lookup(test.user_ids), self.items.lookup(test.item_ids)
        return self._in_order(user, item)

    def _in_order(
        self, user: np.ndarray, item: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give both orders of an unordered pair one, and the same numbers."""
        return in_order(user, item) if is_unordered(self.spec) else (user, item)

    def _predict_codes(
        self,
        user: np.ndarray,
        item: np.ndarray,
        per_draw: bool,
        times: np.ndarray | None,
    ) -> np.ndarray:
        if self.draws is not None:
            predictor = predict.predict_draws if per_draw else predict.predict_mean
            user_row = self._rows(user, self.user_row)
            return predictor(
                self.draws,
                self.spec,
                user_row,
                self._rows(item, self.item_row),
                self._time_columns(times, user_row),
            )
        if per_draw:
            raise InputError(
                "This fit kept no draws (store='summary'): fit with store='factors' to "
                "get each draw's predictions."
            )
        return self._summary_predictions(user, item, times)

    def _summary_predictions(
        self, user: np.ndarray, item: np.ndarray, times: np.ndarray | None
    ) -> np.ndarray:
        timed = reads_times(self.spec)
        if timed and times is None:
            raise InputError(
                "This fit kept no draws (store='summary'), and predicts its pairs at "
                "the times of their ratings only: give these as `times`."
            )
        pairs = np.int64(len(self.items))
        # No pair has the key -1: unknown ids are never found.
        key = np.where(
            (user < 0) | (item < 0), -1, user.astype(np.int64) * pairs + item
        )
        wanted = pd.Index(key) if not timed else _index(key, times)
        values = np.full(len(user), np.nan)
        for ratings, predictions in self._fitted:
            key = ratings.user.astype(np.int64) * pairs + ratings.item
            index = pd.Index(key) if not timed else _index(key, ratings.timestamp)
            known = pd.Series(predictions, index)
            known = known[~known.index.duplicated()]
            values = np.where(np.isnan(values), known.reindex(wanted), values)
        missing = np.isnan(values)
        if missing.any():
            raise InputError(
                f"{int(missing.sum())} of {len(user)} pairs were not given to this "
                "fit, which kept no draws (store='summary'): fit with store='factors' "
                "to predict any pair."
            )
        return values

    def _fitted_predictions(self, test: Ratings) -> np.ndarray | None:
        for ratings, predictions in self._fitted:
            if ratings is test:
                return predictions
        return None

    def _log_score(
        self,
        user_row: np.ndarray,
        item_row: np.ndarray,
        rating: np.ndarray,
        times: TimeColumns | None,
        pointwise: bool,
    ) -> dict:
        levels = np.union1d(self.levels, rating) if self.is_discrete else None
        result = log_score(
            self.draws, self.spec, user_row, item_row, rating, levels, times
        )
        return {
            "log_score": float(np.mean(result.log_score)),
            "log_score_kind": "log_probability" if self.is_discrete else "log_density",
            "dropped_weight": result.dropped,
            **({"log_scores": result.log_score} if pointwise else {}),
        }


def _index(key: np.ndarray, times: np.ndarray) -> pd.MultiIndex:
    return pd.MultiIndex.from_arrays([key, np.asarray(times, np.float64)])


def _probabilities(quantiles: Iterable | None) -> np.ndarray | None:
    """Check the quantiles that are asked for, shape (Q,)."""
    if quantiles is None:
        return None
    try:
        asked = np.atleast_1d(np.asarray(quantiles, np.float64))
    except (TypeError, ValueError):
        asked = np.full(1, np.nan)
    if asked.ndim > 1 or not np.all((asked > 0) & (asked < 1)):
        raise InputError(
            f"quantiles is {quantiles!r}, but must be numbers between 0 and 1."
        )
    return asked


def _column(values: Iterable):
    """Hold values of one column, which may be read once only."""
    if pd.api.types.is_scalar(values):
        return [values]
    if isinstance(values, pd.Series):  # by position: labels would align columns anew
        return values.reset_index(drop=True)
    return values if hasattr(values, "__len__") else list(values)


def _span(values: np.ndarray) -> str:
    if values.size == 0:
        return "none"
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low}..{high}"
