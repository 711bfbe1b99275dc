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
# # Co-authors, and people who rate people
#
# DBLP lists papers and their authors. A pair of authors "rates" each other by its number
# of joint papers: users and items are people of one kind, and the pair has no order.
# `im3f.ReciprocalIM3F` knows that; `im3f.IM3F` takes the first of each pair for a user and
# the second for an item, so that a person is two strangers.
#
# Where the environment variable IM3F_DATA_DIR names a folder with `dblp/papers.npz` (all
# of DBLP as of January 2016), four venues are read from it; else a small bibliography is
# written here. `im3f.load_dblp("dblp.xml.gz")` reads the file that dblp.org offers.
# DBLP is under ODC-BY 1.0.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import im3f_jax as im3f

short = os.environ.get("IM3F_NOTEBOOK_SIZE") == "short"  # a corner: for tests
if "IM3F_DATA_DIR" in os.environ:
    pairs, report = im3f.load_dblp(
        Path(os.environ["IM3F_DATA_DIR"], "dblp", "papers.npz"),
        venues=["conf/kdd", "conf/icml", "conf/nips", "conf/icdm"],
        years=(2012, 2015) if short else (None, None),
        progress=False,
        return_report=True,
    )
else:  # three groups, who write in threes; some write more than others
    random = np.random.default_rng(0)
    papers = []
    for number in range(150 if short else 1500):
        group = random.integers(3)
        authors = 20 * group + np.unique(random.beta(0.7, 1.5, 3) * 20).astype(int)
        named = "".join(f"<author>Author {a:02}</author>" for a in np.unique(authors))
        papers.append(f'<article key="journals/made/{number}">{named}</article>')
    file = Path(tempfile.mkdtemp(), "made.xml")
    file.write_text(f"<dblp>{''.join(papers)}</dblp>")
    pairs, report = im3f.load_dblp(file, progress=False, return_report=True)
pairs

# %% [markdown]
# People with few co-authors say little about anything: keep those with several. Most
# counts are 1, as they are in all of DBLP.

# %%
frame = pairs.to_dataframe()
for _ in range(3):
    coauthors = pd.concat([frame["user"], frame["item"]]).value_counts()
    kept = coauthors.index[coauthors >= (4 if short else 6)]
    frame = frame[frame["user"].isin(kept) & frame["item"].isin(kept)]
frame["rating"] = frame["rating"].clip(upper=10)
pairs = im3f.Ratings.from_dataframe(frame, user="user", item="item", rating="rating")
frame["rating"].value_counts(normalize=True).sort_index().round(3)

# %% [markdown]
# ## Three models of the same counts
#
# All ordinal, since a count of joint papers is no continuous scale. Counts above 10 are
# taken for 10.

# %%
train, test = im3f.random_split(pairs, test_fraction=0.1, seed=0)
dim, most = (2, 6) if short else (5, 12)
sweeps = {
    "num_warmup": 10 if short else 100,
    "num_samples": 10 if short else 200,
    "progress": False,
}
models = {
    "BPMF": im3f.BPMF(dim, likelihood="ordinal"),
    "iM3F": im3f.IM3F(
        dim, max_user_topics=most, max_item_topics=most, likelihood="ordinal"
    ),
    "reciprocal": im3f.ReciprocalIM3F(dim, max_topics=most, likelihood="ordinal"),
}
found = {name: model.fit(train, test=test, **sweeps) for name, model in models.items()}
table = im3f.compare(found, test)
table[["rmse", "rmse_difference", "rmse_se", "log_score", "log_score_difference"]]

# %%
ax = im3f.plots.plot_comparison(table, "log_score")

# %% [markdown]
# In the committed run the reciprocal model is clearly the best: all papers of a person
# inform one row of factors and biases, where the others have two, of half the papers each.
#
# Is any of them better than knowing nothing of who the authors are? The mean of all
# training counts, for every pair:

# %%
print(f"RMSE of the mean: {np.sqrt(np.mean((test.rating - train.mean) ** 2)):.4f}")

# %% [markdown]
# ## What the reciprocal model says
#
# One row a person, the same in both roles: the order in which a pair is asked for does
# not matter.

# %%
reciprocal = found["reciprocal"]
person, other = train.user_ids[0], train.item_ids[0]
reciprocal.predict([person, other], [other, person])

# %%
ax = im3f.plots.plot_num_topics(reciprocal)

# %% [markdown]
# In use does not mean in weight: the effective number, exp(entropy of the shares), stays
# close to 1 in the committed run. What helps is the one row a person, not the topics.

# %%
print(f"effective topics: {reciprocal.effective_user_topics.mean():.2f}")

# %% [markdown]
# Who would write most together, if they did? The model is of the number of papers of
# pairs that have at least one: it does not say whether two people will ever meet.

# %%
author = pd.concat([frame["user"], frame["item"]]).value_counts().index[0]
reciprocal.recommend(author, n=5)

# %%
ax = im3f.plots.plot_calibration(reciprocal, test)
