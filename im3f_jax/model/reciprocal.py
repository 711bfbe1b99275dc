"""People who rate people: one franchise of topics for both sides of a rating.

A rating n has two persons, u_n and v_n, of one index. Both its topics come from one
table of weights, zU_n ~ theta[u_n] and zM_n ~ theta[v_n], theta[p] ~ Dirichlet(gamma
pi). Directed (u rates v), factors and biases differ by role, as in the paper:

    r_n ~ Normal(chi_0 + a_u . b_v + c_u[zM_n] + d_v[zU_n], sigma^2)

Unordered (u and v wrote papers together), a person has one row of each:

    r_n ~ Normal(chi_0 + a_u . a_v + c_u[zM_n] + c_v[zU_n], sigma^2)

Fields of a state or of a draw that both sides share stand there twice, once a side.
"""

from dataclasses import dataclass, field

import jax

__all__ = ["NotReciprocal", "Reciprocal", "is_reciprocal", "is_unordered"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NotReciprocal:
    """Users and items are of different kinds, as in the paper."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reciprocal:
    """Both sides of a rating are persons of one index, and share their topics.

    Attributes
    ----------
    directed
        Whether one rates the other; static. Else pairs are unordered, and factors and
        biases shared too.
    """

    directed: bool = field(default=False, metadata={"static": True})


def is_reciprocal(spec) -> bool:
    """Tell whether both sides share topics."""
    return isinstance(spec.reciprocal, Reciprocal)


def is_unordered(spec) -> bool:
    """Tell whether both sides share factors and biases too."""
    return is_reciprocal(spec) and not spec.reciprocal.directed
