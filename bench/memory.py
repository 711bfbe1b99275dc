"""Peak memory of a fit against its estimate: ``python -m bench.memory``.

ML-1M, D = 40, truncation 128 on the CPU, a few sweeps; data come from IM3F_DATA_DIR.
The second fit compiles nothing: the formulas answer for what it adds.
"""

import sys

import numpy as np

import im3f_jax as im3f
from bench import machine, rows
from im3f_jax.data.layout import lay_out
from im3f_jax.inference.memory import estimate_draw_bytes, estimate_memory

__all__ = ["main"]


def main():
    """Run the command line."""
    started = machine.describe()
    split = rows.load_rows("ml-1m", "random90_0")
    model = im3f.IM3F(40, max_user_topics=128, max_item_topics=128)
    user, item = (
        np.unique(x, return_inverse=True)[1]
        for x in (split.train.user, split.train.item)
    )
    num_users, num_items = int(user.max()) + 1, int(item.max()) + 1
    layout, _ = lay_out(user, item, split.train.rating, num_users, num_items)
    draws = 10
    estimate = estimate_memory(model, layout, len(split.test))
    kept = draws * estimate_draw_bytes(model, num_users, num_items)
    found = {}
    for name in ("process", "second_fit"):
        found[f"{name}_before_mb"] = machine.peak_memory(reset=True)
        model.fit(
            split.train, split.test, num_warmup=2, num_samples=draws, progress=False
        )
        found[f"{name}_peak_mb"] = machine.peak_memory()
    result = {
        "device_estimate_mb": {k: v / 1e6 for k, v in estimate.items()},
        "kept_draws_mb": kept / 1e6,
        "num_draws": draws,
        **found,
    }
    print(result)
    machine.write_result("memory_ml-1m_d40_k128", result, started)
    return 0


if __name__ == "__main__":
    sys.exit(main())
