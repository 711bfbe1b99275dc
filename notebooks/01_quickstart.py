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
# # Quickstart
#
# Fit a model to ratings, and ask it for predictions with their uncertainty, for
# recommendations, and for reasons. With ratings of your own, replace the first cell by
# `ratings = im3f.Ratings.from_dataframe(df, user="user", item="item", rating="stars")`
# or by `im3f.load_ratings("ratings.csv")`.
#
# Where the environment variable IM3F_DATA_DIR names a folder with `ml-100k`
# (MovieLens, GroupLens), it is read; else ratings are drawn here.

# %%
import os

import numpy as np
import pandas as pd

import im3f_jax as im3f

short = os.environ.get("IM3F_NOTEBOOK_SIZE") == "short"  # a corner: for tests
if "IM3F_DATA_DIR" in os.environ:
    ratings = im3f.load_ratings("ml-100k")
    titles = im3f.load_titles("ml-100k")["title"]
else:
    ratings = im3f.planted_ratings(levels=(1, 2, 3, 4, 5), seed=0).ratings
    titles = pd.Series({item: f"item {item}" for item in ratings.items.ids})
if short:
    ratings = ratings.select(np.flatnonzero((ratings.user < 60) & (ratings.item < 60)))
ratings

# %% [markdown]
# **Fit.** `IM3F` finds how many moods (topics of users) and contexts (topics of items)
# it needs, up to a truncation. Stars are an ordinal scale, and the model can say so.

# %%
train, test = im3f.random_split(ratings, test_fraction=0.1, seed=0)
model = im3f.IM3F(
    latent_dim=2 if short else 10,
    max_user_topics=6 if short else 16,
    max_item_topics=6 if short else 16,
    likelihood="ordinal",
)
posterior = model.fit(
    train,
    test=test,
    num_warmup=10 if short else 100,
    num_samples=10 if short else 200,
    progress=False,
)
posterior

# %% [markdown]
# **How good?** Scores of the held-out ratings: errors in stars, the log probability of
# the star that was given in nats.

# %%
posterior.evaluate(test, clip="train")

# %%
axes = posterior.plot_trace()

# %% [markdown]
# The error of the mean over draws soon settles. The number of moods does not: in the
# committed run (ML-100K) it still grows when the run ends, and the log joint still falls.
# Predict from such a chain, but do not read a number of topics off it (notebook 04).

# %% [markdown]
# **Recommend.** The best items that a user has not rated, here for the user with the
# most ratings. `std_of_mean` is the spread over draws: how sure the model is of its own
# mean. Ask with `rank_by="lower"` for items that are safe.

# %%
user = int(train.to_dataframe()["user"].value_counts().index[0])
best = posterior.recommend(user, n=5)
first = int(best["item"][0])
best.assign(title=best["item"].map(titles))

# %% [markdown]
# **Predict, with uncertainty.** `std_of_rating` is the spread of the rating itself, and
# the quantiles are of the rating: levels, since the model is ordinal.

# %%
posterior.predict_frame(best["user"], best["item"], quantiles=(0.05, 0.5, 0.95))

# %%
ax = im3f.plots.plot_prediction(posterior, user, first, train=train, titles=titles)

# %% [markdown]
# **Explain.** The parts of one prediction, which sum to the mean of the latent rating;
# and the topics of one draw, which is named, for their labels switch between draws.

# %%
posterior.explain(user, first)

# %%
similar = posterior.similar_items(first, n=5)
similar.assign(title=similar["item"].map(titles))

# %% [markdown]
# **Somebody new.** `fold_in` draws a new user from a few ratings, in every kept draw,
# without fitting again.

# %%
favourites = similar["item"][:3]
newcomer = pd.DataFrame({"user": -1, "item": favourites, "rating": ratings.levels[-1]})
extended = posterior.fold_in(newcomer)
found = extended.recommend(-1, n=5)
found.assign(title=found["item"].map(titles))

# %% [markdown]
# `posterior.save("fit.npz")` and `im3f.load("fit.npz")` keep all of it in one file, and
# `posterior.report("report.html")` writes it up as one page. How many topics there are,
# and whether they help, is the matter of the notebooks 03 and 04.
