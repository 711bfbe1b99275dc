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
# Fit iM3F to ratings that are drawn here, predict, score, and look at the topics in use.
# With data of your own, replace the first cell by
# `ratings = im3f.load_ratings("u.data")` or `im3f.Ratings.from_dataframe(df)`.

# %%
import im3f_jax as im3f

ratings = im3f.planted_ratings(
    num_users=100, num_items=60, num_ratings=2_000, seed=0
).ratings
train, test = im3f.random_split(ratings, test_fraction=0.1, seed=0)
train

# %%
model = im3f.IM3F(latent_dim=3, max_user_topics=8, max_item_topics=8)
posterior = model.fit(train, test=test, num_warmup=50, num_samples=50, progress=False)
posterior

# %%
posterior.evaluate(test)

# %%
frame = test.to_dataframe().head()
frame["prediction"] = posterior.predict(frame["user"], frame["item"])
frame["spread"] = posterior.predict(frame["user"], frame["item"], per_draw=True).std(
    axis=(0, 1)
)
frame

# %% [markdown]
# Topics in use in each kept draw: not the truncation, and not a discovery either until
# several chains agree.

# %%
posterior.num_user_topics.mean(), posterior.effective_user_topics.mean()

# %%
posterior.trace_frame()[["sweep", "phase", "rating_variance", "test_rmse"]].tail()
