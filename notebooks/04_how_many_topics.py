# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How many topics?
#
# The hierarchical Dirichlet process (HDP) leaves the number of topics to the data. Here
# it is put to the test where the answer is known, 4 moods and 3 contexts planted in
# drawn ratings: against finite models, at several truncations and concentrations, and
# against the exact sampler without a truncation. Then MovieLens, where nobody knows.
#
# Where the environment variable IM3F_DATA_DIR names a folder with `ml-100k`
# (MovieLens, GroupLens), it is read for the last part.

# %%
import os

import numpy as np
import pandas as pd

import im3f_jax as im3f

short = os.environ.get("IM3F_NOTEBOOK_SIZE") == "short"  # a corner: for tests
ratings = im3f.planted_ratings(  # as `im3f demo` plants them: moods that differ enough
    num_users=50 if short else 500,
    num_items=40 if short else 250,
    num_ratings=800 if short else 50_000,
    user_topics=4,
    item_topics=3,
    bias_scale=0.7,
    topic_mean_scale=0.3,
    user_topic_concentration=0.4,
    item_topic_concentration=0.4,
    seed=0,
).ratings
train, test = im3f.random_split(ratings, test_fraction=0.1, seed=0)
dim = 2 if short else 3
sweeps = {
    "num_warmup": 10 if short else 150,
    "num_samples": 10 if short else 200,
    "progress": False,
}
train


# %%
def topics(posteriors):
    """Tabulate topics in use, and how many carry weight."""
    rows = {}
    for name, found in posteriors.items():
        rows[name] = {
            "moods in use": found.num_user_topics.mean(),
            "moods, effective": found.effective_user_topics.mean(),
            "contexts in use": found.num_item_topics.mean(),
            "contexts, effective": found.effective_item_topics.mean(),
        }
    return pd.DataFrame.from_dict(rows, orient="index").round(2)


# %% [markdown]
# ## HDP against finite, and two truncations
#
# `M3F` is told the numbers: once the right ones, once too many. `IM3F` is told an upper
# bound only, the truncation, small and large. What a truncation does not do is choose:
# from the small to the large one the topics in use should hardly change.

# %%
small, large = (6, 12) if short else (10, 24)
models = {
    "M3F(4,3), as planted": im3f.M3F(
        4, 3, dim, user_topic_concentration=0.4, item_topic_concentration=0.4
    ),
    f"iM3F, truncation {small}": im3f.IM3F(
        dim, max_user_topics=small, max_item_topics=small
    ),
    f"iM3F, truncation {large}": im3f.IM3F(
        dim, max_user_topics=large, max_item_topics=large
    ),
}
found = {name: model.fit(train, test=test, **sweeps) for name, model in models.items()}
topics(found)

# %%
table = im3f.compare(found, test)
table[["rmse", "rmse_difference", "rmse_se", "log_score", "log_score_difference"]]

# %%
ax = im3f.plots.plot_num_topics(found[f"iM3F, truncation {small}"])

# %%
ax = im3f.plots.plot_topics(found[f"iM3F, truncation {small}"], "user")

# %% [markdown]
# In the committed run the model that was told the numbers predicts best. iM3F starts with
# all ratings in one topic; with either truncation it comes to about three moods of weight
# and a few small ones, and its error differs between the truncations by far more than
# their standard error. That is not the truncation's doing: in so few sweeps a single chain
# has not settled. Where moods are expected, run longer, start from several
# (`fit(start_topics=6)`), and compare chains (`num_chains=4`) before you count.

# %% [markdown]
# ## Concentrations
#
# A number given is fixed. Changing it compiles nothing again, so that a grid is cheap.
# The dish concentration is the paper's beta, the table concentration its gamma.

# %%
fewer = sweeps | {
    "num_warmup": 10 if short else 80,
    "num_samples": 10 if short else 60,
}
rows = []
for dish in (0.1, 1.0, 10.0):
    for table in (0.1, 1.0, 10.0):
        fit = im3f.IM3F(
            dim,
            max_user_topics=small,
            max_item_topics=small,
            user_dish_concentration=dish,
            item_dish_concentration=dish,
            user_table_concentration=table,
            item_table_concentration=table,
        ).fit(train, test=test, **fewer)
        rows.append(
            {
                "dish_concentration": dish,
                "table_concentration": table,
                "num_user_topics": fit.num_user_topics.mean(),
                "num_item_topics": fit.num_item_topics.mean(),
                "effective_user_topics": fit.effective_user_topics.mean(),
                "test_rmse": fit.evaluate(test)["rmse"],
            }
        )
grid = pd.DataFrame(rows)
ax = im3f.plots.plot_topic_grid(grid, "user")

# %%
grid.round(3)

# %% [markdown]
# The topics in use follow the dish concentration, up to the truncation; the table
# concentration hardly matters for them. The effective numbers and the errors of these
# short chains scatter too much to choose by them.
#
# Rather than choose one, give a prior: `user_table_concentration=im3f.Gamma(2.0, 2.0)`
# is sampled with the rest.
#
# ## Without a truncation
#
# `topics=im3f.CRF()` samples the paper's Chinese restaurant franchise, one rating after
# another: exact, and slow. On a small part of the data it should agree with the
# truncated sampler; docs/validation.md tells how that is tested, with many chains. One
# short chain of each, as here, may differ, and in the committed run does.

# %%
part = train.select(np.flatnonzero((train.user < 60) & (train.item < 60)))
exact = {
    f"truncation {small}": im3f.IM3F(
        dim, max_user_topics=small, max_item_topics=small
    ).fit(part, **sweeps),
    "franchise": im3f.IM3F(dim, topics=im3f.CRF()).fit(part, **sweeps),
}
print(len(part), "ratings")
topics(exact)

# %%
pd.Series({name: fit.seconds["run"] for name, fit in exact.items()}, name="seconds")

# %% [markdown]
# ## MovieLens
#
# Where nobody planted anything. In the committed run (ML-100K) iM3F cannot be told from
# BPMF, and four moods and three contexts, given with sparse weights, do harm.

# %%
if "IM3F_DATA_DIR" in os.environ:
    ratings = im3f.load_ratings("ml-100k")
    if short:
        corner = (ratings.user < 50) & (ratings.item < 40)
        ratings = ratings.select(np.flatnonzero(corner))
    train, test = im3f.random_split(ratings, test_fraction=0.1, seed=0)
models = {
    "BPMF": im3f.BPMF(dim),
    "M3F(4,3)": im3f.M3F(
        4, 3, dim, user_topic_concentration=0.4, item_topic_concentration=0.4
    ),
    f"iM3F, truncation {small}": im3f.IM3F(
        dim, max_user_topics=small, max_item_topics=small
    ),
}
real = {name: model.fit(train, test=test, **fewer) for name, model in models.items()}
topics(real)

# %%
ax = im3f.plots.plot_comparison(im3f.compare(real, test))
