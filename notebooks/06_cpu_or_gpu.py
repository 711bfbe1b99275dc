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
# # CPU or GPU?
#
# What will it run on, will it fit, how long will it take? The figures of speed below are
# read from the files that `python -m bench.throughput` and its like have written to
# `bench/results`, with date and machine; none is typed in here. Run this notebook from a
# clone of the repository.

# %%
import json
import logging
import os
from pathlib import Path

import numpy as np
import pandas as pd

import im3f_jax as im3f

short = os.environ.get("IM3F_NOTEBOOK_SIZE") == "short"  # a corner: for tests
if "IM3F_DATA_DIR" in os.environ:
    ratings = im3f.load_ratings("ml-100k")
else:
    ratings = im3f.planted_ratings(levels=(1, 2, 3, 4, 5), seed=0).ratings
if short:
    ratings = ratings.select(np.flatnonzero((ratings.user < 60) & (ratings.item < 60)))
here = Path.cwd()
root = next(p for p in (here, *here.parents) if (p / "bench" / "results").is_dir())
ratings

# %% [markdown]
# ## What JAX sees
#
# And why it runs on the CPU, where there is an NVIDIA GPU that it does not use.

# %%
im3f.device_report()

# %% [markdown]
# ## Will it fit?
#
# From numbers alone, before there are data: the formulas that `fit` itself applies at
# its start. (On a command line: `python -m bench.memory --estimate 6040x3706x1000209`.)

# %%
from im3f_jax.data.layout import GPU_BLOCKS
from im3f_jax.inference.memory import estimate_memory, expected_sizes

sizes = {
    "MovieLens 1M": (6_040, 3_706, 1_000_209),
    "20 million": (138_000, 27_000, 20_000_000),
    "Netflix": (480_000, 17_770, 100_000_000),
}
model = im3f.IM3F(latent_dim=32, max_user_topics=64, max_item_topics=64)
estimate = pd.DataFrame(
    {
        name: estimate_memory(model, expected_sizes(*size, GPU_BLOCKS))
        for name, size in sizes.items()
    }
)
(estimate / 1e9).round(2).rename_axis("GB, latent_dim 32, 64 topics a side")

# %% [markdown]
# A fit logs its device and its estimate before it starts, and refuses what does not fit.

# %%
model = im3f.IM3F(
    latent_dim=2 if short else 10,
    max_user_topics=6 if short else 16,
    max_item_topics=6 if short else 16,
    likelihood="ordinal",
)
train, test = im3f.random_split(ratings, test_fraction=0.1, seed=0)
try:
    model.fit(train, num_samples=400, memory_limit=1_000_000, progress=False)
except im3f.InputError as error:
    print(error)

# %% [markdown]
# ## How long does it take here?
#
# Compiling is paid once for each shape of data and model, and hides in every short
# measurement. (With JAX_COMPILATION_CACHE_DIR it is paid once for all processes.)

# %%
log = logging.getLogger("im3f_jax")
handler = logging.StreamHandler()
log.addHandler(handler)
log.setLevel(logging.INFO)
posterior = model.fit(
    train, test=test, num_warmup=5, num_samples=15 if short else 45, progress=False
)
log.removeHandler(handler)
seconds = pd.Series(posterior.seconds, name="seconds")
seconds["a sweep"] = seconds["run"] / (20 if short else 50)
print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
seconds.round(4)

# %% [markdown]
# ## What has been measured
#
# Seconds a sweep, without compilation, of every result file of throughput.

# %%
rows = []
for path in sorted((root / "bench" / "results").glob("throughput*.json")):
    measured = json.loads(path.read_text())
    for result in measured["results"]:
        topics = result["truncation"]
        rows.append(
            {
                "file": path.name,
                "date": measured["date"][:10],
                "machine": f"{measured['machine']['cores']} x "
                f"{measured['machine']['cpu']}",
                "runs on": result["device"],
                "ratings": result["num_ratings"],
                "D": result["latent_dim"],
                "truncation": topics or "BPMF",
                "seconds a sweep": result["sweep"]["median"],
                "seconds compiling": result["compile"],
            }
        )
measured = pd.DataFrame(rows).round(3)
measured

# %%
gpus = measured[~measured["runs on"].str.startswith("cpu")]
if gpus.empty:
    print("None of these files comes from a GPU: no figure for one is claimed.")
else:
    print(f"{len(gpus)} of these were measured on a GPU: {set(gpus['runs on'])}")

# %% [markdown]
# The time of a sweep against the number of ratings, with users and items in proportion:

# %%
growth = json.loads((root / "bench" / "results" / "growth.json").read_text())
rows = [
    {
        "device": f"{line['device']}, D={line['latent_dim']}, K={line['truncation']}",
        "num_ratings": size["num_ratings"],
        "seconds": size["sweep"]["median"],
    }
    for line in growth["growth"]
    for size in line["sizes"]
]
ax = im3f.plots.plot_throughput(pd.DataFrame(rows))
print(growth["date"][:10], growth["machine"]["cores"], "x", growth["machine"]["cpu"])

# %% [markdown]
# ## Several devices
#
# `fit(devices="all")` shares one chain among the GPUs of a machine. Where the file tells
# of CPUs, its devices share the cores that it names: more devices than cores cannot be
# faster.

# %%
scaling = json.loads((root / "bench" / "results" / "scaling.json").read_text())
rows = [line | {"kind": kind} for kind in ("strong", "weak") for line in scaling[kind]]
ax = im3f.plots.plot_scaling(pd.DataFrame(rows))
print(scaling["date"][:10], scaling["cores"], "cores,", rows[0]["device"])

# %% [markdown]
# ## On your machine
#
# `make bench` measures CPU and GPU, where there is one, at several sizes, says from which
# on the GPU is the faster, and writes the file; then run this notebook again.
