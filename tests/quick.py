"""`jax.jit` for tests that compile much and run little."""

from functools import partial

import jax

__all__ = ["quick_jit"]

# The arithmetic is the same, the machine code is less optimised: compiling the random
# draws takes most of the time of these tests, and this halves it. The sweep as shipped
# is compiled as `fit` compiles it in tests/gibbs/test_sweep.py.
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
