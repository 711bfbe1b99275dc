"""Unsigned Stirling numbers of the first kind, in whole numbers."""

import math
from functools import cache

import numpy as np

__all__ = ["log_stirling"]


@cache
def log_stirling(most):
    """Log s(n, m) for n, m = 0 .. most, -inf where s is 0."""
    rows = [[1] + [0] * most]
    for n in range(most):
        last = rows[-1]
        rows.append(
            [n * last[0]] + [last[m - 1] + n * last[m] for m in range(1, most + 1)]
        )
    table = [[math.log(s) if s else -math.inf for s in row] for row in rows]
    result = np.array(table)
    result.setflags(write=False)
    return result
