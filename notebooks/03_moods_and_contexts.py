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
# # Moods and contexts in MovieLens
#
# Every rating has a *mood* of its user, which selects one of the film's biases, and a
# *context* of its film, which selects one of the user's biases. Do people rate in moods?
# Which films depend on them?
#
# Where the environment variable IM3F_DATA_DIR names a folder with `ml-latest-small`
# (MovieLens, GroupLens), it is read; else ratings are drawn here.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import im3f_jax as im3f

short = os.environ.get("IM3F_NOTEBOOK_SIZE") == "short"  # a corner: for tests
if "IM3F_DATA_DIR" in os.environ:
    ratings = im3f.load_ratings("ml-latest-small")
    titles = im3f.load_titles("ml-latest-small")["title"]
else:
    ratings = im3f.planted_ratings(levels=(1, 2, 3, 4, 5), seed=0).ratings
    titles = pd.Series({item: f"item {item}" for item in ratings.items.ids})
if short:
    ratings = ratings.select(np.flatnonzero((ratings.user < 60) & (ratings.item < 60)))
train, test = im3f.random_split(ratings, test_fraction=0.1, seed=0)
dim = 2 if short else 10
sweeps = {
    "num_warmup": 10 if short else 100,
    "num_samples": 10 if short else 160,
    "thinning": 1 if short else 2,
    "progress": False,
}
train

# %% [markdown]
# ## How many moods does the data ask for?
#
# `IM3F` decides by itself. Look at the effective number: a topic with three ratings is
# "in use" as much as one with thirty thousand.

# %%
most = 6 if short else 16
model = im3f.IM3F(dim, max_user_topics=most, max_item_topics=most, likelihood="ordinal")
free = model.fit(train, test=test, **sweeps)
ax = im3f.plots.plot_num_topics(free)

# %%
pd.DataFrame(
    {
        "in use": [free.num_user_topics.mean(), free.num_item_topics.mean()],
        "effective": [
            free.effective_user_topics.mean(),
            free.effective_item_topics.mean(),
        ],
    },
    index=["moods", "contexts"],
).round(2)

# %%
ax = im3f.plots.plot_topics(free, "user")

# %% [markdown]
# In the committed run a few moods carry weight, and their lines are short: a mood moves
# all films alike, by several times the noise. That is no taste in films, but a way of
# giving stars: most ratings are as expected, and some are far above or below.

# %% [markdown]
# ## Two moods and two contexts, given
#
# A finite model is told how many there are. With a concentration of 2, any mixture of
# the two is as likely as any other for a user before the ratings are seen. Two chains
# run, to see whether they tell the same story.

# %%
given = im3f.M3F(
    user_topics=2,
    item_topics=2,
    latent_dim=dim,
    user_topic_concentration=2.0,
    item_topic_concentration=2.0,
    likelihood="ordinal",
).fit(train, test=test, num_chains=2, store="all", **sweeps)
none = im3f.BPMF(dim, likelihood="ordinal").fit(train, test=test, **sweeps)
table = im3f.compare({"BPMF": none, "iM3F": free, "M3F(2,2)": given}, test)
table[["rmse", "rmse_difference", "rmse_se", "log_score", "log_score_difference"]]

# %%
ax = im3f.plots.plot_comparison(table, "log_score")

# %% [markdown]
# Both predict better than BPMF here. But BPMF has no biases of users and films at all: how
# much of the gain is the biases', and how much the topics', a model with one mood and one
# context, `im3f.M3F(1, 1)`, tells. docs/accuracy.md has such rows for these ratings, with
# noise that differs between users: the topics add to the log probability, and nothing to
# the error.

# %% [markdown]
# ## Loved or hated, by mood
#
# The films whose bias differs most between the moods, beyond what a mood does to all
# films. The name is that of the film which was the hardest to predict in the Netflix
# prize. In the committed run all lines begin near 0, and the first films are little beyond
# the median: which films depend on the mood, these ratings do not tell with certainty.

# %%
ax = im3f.plots.plot_napoleon_dynamite(
    given, titles, train=train, min_ratings=5 if short else 40
)

# %% [markdown]
# What are the moods? Of one draw, which the caption names: size and biases of each.

# %%
ax = im3f.plots.plot_topics(given, "user")

# %% [markdown]
# ## The moods of one user, the contexts of one film
#
# Labels switch between draws, so the weights are sorted within each draw before they
# are averaged.

# %%
user = train.to_dataframe()["user"].value_counts().index[0]
item = train.to_dataframe()["item"].value_counts().index[0]
figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
ax = im3f.plots.plot_moods(given, user, ax=axes[0])
ax = im3f.plots.plot_contexts(given, item, titles=titles, ax=axes[1])

# %% [markdown]
# Without labels one can also ask how probable it is that two ratings of this user were
# given in the same mood. Blocks would be moods; even grey, as in the committed run, says
# that the data do not tell them apart. (The ratings stay unnamed here.)

# %%
rows = np.flatnonzero(train.user_ids == user)[:60]
together = given.coassignment(rows, side="user")
figure, ax = plt.subplots(figsize=(4.8, 4), layout="constrained")
picture = ax.imshow(together, vmin=0, vmax=1, cmap="Greys")
ax.set(xlabel=f"ratings of user {user}", ylabel="the same ratings")
bar = figure.colorbar(picture, label="probability of the same mood, all draws")
