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
# # What the prior expects
#
# A model says something about ratings before it has seen any. Here its generative story
# runs as a NumPyro program, and `im3f.prior_check` holds what the prior expects against
# the ratings. Nothing is fitted: it takes seconds, and it finds a setting that makes no
# sense before an hour of sampling does.
#
# Where the environment variable IM3F_DATA_DIR names a folder with `ml-100k`
# (MovieLens, GroupLens), it is read; else ratings are drawn here.

# %%
import os

import jax
import numpy as np
import pandas as pd
from numpyro.infer import Predictive

import im3f_jax as im3f

short = os.environ.get("IM3F_NOTEBOOK_SIZE") == "short"  # a corner: for tests
if "IM3F_DATA_DIR" in os.environ:
    ratings = im3f.load_ratings("ml-100k")
else:
    ratings = im3f.planted_ratings(levels=(1, 2, 3, 4, 5), seed=0).ratings
if short:
    ratings = ratings.select(np.flatnonzero((ratings.user < 60) & (ratings.item < 60)))
ratings

# %% [markdown]
# ## The story, as a NumPyro model
#
# `im3f.generative_model` writes the model of these users, items and pairs. Called
# without values it draws the ratings too. `prior_check` below does the same in plain
# JAX, written independently.

# %%
model = im3f.IM3F(latent_dim=5, max_user_topics=16, max_item_topics=16)
program = im3f.generative_model(model, ratings)
sites = ["ratings", "user_topic_of_rating", "rating_variance"]
draws = Predictive(program, num_samples=50, return_sites=sites)(jax.random.key(0))
pd.DataFrame(
    {
        "mean": draws["ratings"].mean(axis=1),
        "standard deviation": draws["ratings"].std(axis=1),
        "rating variance": draws["rating_variance"],
        "moods in use": [len(np.unique(z)) for z in draws["user_topic_of_rating"]],
    }
).describe(percentiles=[0.05, 0.5, 0.95]).loc[["mean", "5%", "50%", "95%"]]

# %% [markdown]
# ## The check
#
# Grey: what the prior allows for (5 % to 95 % of its draws). Black: the data. A vague
# prior is no fault, and the default is vague: it is scaled by the ratings' mean and
# variance, and knows nothing of the ends of the scale. What stands out in the list below
# the table is worth a thought, not a reason to change numbers until it is silent.

# %%
check = im3f.prior_check(model, ratings, num_draws=200)
check

# %%
axes = im3f.plots.plot_prior_check(check)

# %% [markdown]
# The ordinal likelihood cannot leave the scale.

# %%
ordinal = im3f.IM3F(
    latent_dim=5, max_user_topics=16, max_item_topics=16, likelihood="ordinal"
)
axes = im3f.plots.plot_prior_check(im3f.prior_check(ordinal, ratings, num_draws=200))

# %% [markdown]
# ## A setting that makes no sense
#
# Somebody reads "variance" as "spread of the mean", and fixes the noise at 0.01 and the
# means of topics at a variance of 25.

# %%
wrong = im3f.IM3F(
    latent_dim=5,
    max_user_topics=16,
    max_item_topics=16,
    rating_variance=0.01,
    user_topic_mean_variance=25.0,
    item_topic_mean_variance=25.0,
)
for sentence in im3f.prior_check(wrong, ratings, num_draws=200).warnings:
    print("-", sentence)

# %% [markdown]
# ## How many topics the concentrations expect
#
# The concentrations are the part of the prior that is hardest to guess. The dish
# concentration says how many topics there are in all, the table concentration how many
# of them one user mixes. Occupied topics grow with both; the effective number,
# exp(entropy of the shares), says how many carry weight. Where the occupied ones come
# near the truncation, the truncation is part of the prior.

# %%
rows = []
for dish in (0.5, 2.0, 8.0):
    for table in (0.5, 5.0):
        spec = im3f.IM3F(
            latent_dim=5,
            max_user_topics=16,
            max_item_topics=16,
            user_dish_concentration=dish,
            user_table_concentration=table,
        )
        found = im3f.prior_check(spec, ratings, num_draws=100).table
        occupied, effective = (
            found.loc[f"{kind} user topics"] for kind in ("occupied", "effective")
        )
        rows.append(
            {
                "dish concentration": dish,
                "table concentration": table,
                "occupied, median": occupied["prior median"],
                "occupied, 95%": occupied["prior 95%"],
                "effective, 5%": effective["prior 5%"],
                "effective, median": effective["prior median"],
                "effective, 95%": effective["prior 95%"],
            }
        )
pd.DataFrame(rows).round(2)
