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
import matplotlib.pyplot as plt
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
# prior is no fault, and the default of the Gaussian is vague: it is scaled by the ratings'
# mean and variance, and knows nothing of the ends of the scale. What stands in the list
# below the table is worth a thought, not a reason to change numbers until it is silent.

# %%
check = im3f.prior_check(model, ratings, num_draws=200)
check

# %%
figure, axes = plt.subplots(2, 2, figsize=(8.4, 6), layout="constrained")
axes = im3f.plots.plot_prior_check(check, ax=axes)

# %% [markdown]
# ## Where the width comes from
#
# From the factors. Their Wishart prior has by default as many degrees of freedom as there
# are dimensions, as in BPMF, and such precisions may come close to singular: some draws
# have enormous factors. Twenty degrees of freedom keep them near their scale. A number
# that is changed compiles nothing again.
#
# The last of the three has a mistake: a global bias of 0, as for centred ratings, which
# these are not.

# %%
tame = im3f.NormalWishart(degrees_of_freedom=20.0, scale=5.0)
tamed = im3f.IM3F(
    latent_dim=5, max_user_topics=16, max_item_topics=16, factor_prior=tame
)
mistaken = im3f.IM3F(
    latent_dim=5,
    max_user_topics=16,
    max_item_topics=16,
    factor_prior=tame,
    global_bias=0.0,
)
checks = {
    "default": check,
    "20 degrees of freedom": im3f.prior_check(tamed, ratings, num_draws=200),
    "and a global bias of 0": im3f.prior_check(mistaken, ratings, num_draws=200),
}
for name, found in checks.items():
    print(f"{name}: {len(found.warnings)} warnings")
    for sentence in found.warnings[:3]:
        print(" -", sentence)

# %%
figure, axes = plt.subplots(2, 2, figsize=(8.4, 6), layout="constrained")
axes = im3f.plots.plot_prior_check(checks["20 degrees of freedom"], ax=axes)

# %% [markdown]
# A prior that suits the data better need not predict better: with thousands of ratings
# the data decide. `im3f.compare` on held-out ratings answers that.
#
# The ordinal likelihood cannot leave the scale in the first place.

# %%
ordinal = im3f.IM3F(
    latent_dim=5, max_user_topics=16, max_item_topics=16, likelihood="ordinal"
)
found = im3f.prior_check(ordinal, ratings, num_draws=200)
figure, axes = plt.subplots(2, 2, figsize=(8.4, 6), layout="constrained")
axes = im3f.plots.plot_prior_check(found, ax=axes)

# %% [markdown]
# ## How many topics the concentrations expect
#
# The concentrations are the part of the prior that is hardest to guess. The dish
# concentration says how many topics there are in all, the table concentration how evenly
# one user mixes them, which these numbers hardly show. The effective number,
# exp(entropy of the shares), says how many carry weight. Where the occupied ones come near
# the truncation, 16 here, the truncation is part of the prior: raise it.

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
