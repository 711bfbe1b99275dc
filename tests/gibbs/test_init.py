"""Where chains start."""

import jax
import numpy as np
import pytest

from im3f_jax.data.layout import lay_out
from im3f_jax.gibbs.init import init_state
from im3f_jax.gibbs.sweep import gibbs_sweep
from im3f_jax.model.bias_prior import SharedNormal, TopicNormal
from im3f_jax.model.likelihood import Gaussian
from im3f_jax.model.scalars import InverseGamma
from im3f_jax.model.spec import ModelSpec, resolve
from im3f_jax.model.topic_prior import FiniteDirichlet
from tests.quick import quick_jit

NUM_USERS = 2_000
PRIOR = InverseGamma(3.0, 1.2)  # mode 0.3
BIASES = {
    "by topic": TopicNormal(PRIOR, 0.0, 0.0),
    "shared": SharedNormal(PRIOR, 0.0, 0.0, PRIOR),
}


@pytest.fixture(scope="module", params=BIASES)
def sparse(request):
    """Two ratings a user, all noise: spec and layout."""
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(NUM_USERS), 2)
    item = np.tile([0, 1], NUM_USERS)
    layout, _ = lay_out(user, item, rng.normal(size=len(user)), NUM_USERS, 2)
    prior = BIASES[request.param]
    spec = ModelSpec(
        latent_dim=2,
        likelihood=Gaussian(1.0),
        user_bias_prior=prior,
        item_bias_prior=prior,
        user_topic_prior=FiniteDirichlet(1, 1.0),
        item_topic_prior=FiniteDirichlet(2, 1.0),
        global_bias=0.0,
    )
    return resolve(spec, 0.0, 1.0, 1.0), layout


@pytest.mark.thorough
def test_biases_of_sparse_rows_start_as_wide_as_their_prior(sparse):
    spec, layout = sparse
    zeros = np.zeros((layout.user_rows, 2)), np.zeros((layout.item_rows, 2))
    start = quick_jit(init_state.__wrapped__)(jax.random.key(0), spec, layout, *zeros)
    # Residuals of variance 1 as the model has it but for the biases: a draw given them
    # has the variance 0.3 of the prior but for a term that two ratings tell.
    shared = start.user_bias_prior.shared
    variance = 0.3 if shared is None else 0.6
    assert 0.6 * variance < np.var(start.user_bias[:NUM_USERS]) < 1.1 * variance
    assert np.array_equal(start.user_bias_prior.variance, np.float32(0.3))
    after, _ = quick_jit(gibbs_sweep.__wrapped__)(
        jax.random.key(1), start, spec, layout
    )
    assert after.user_bias_prior.variance > 0.15
    if shared is not None:
        assert np.var(start.user_bias_prior.shared[:NUM_USERS]) > 0.15
        assert after.user_bias_prior.shared_variance > 0.15


def test_biases_of_rated_rows_start_where_their_ratings_are():
    rng = np.random.default_rng(4)
    user, item = np.repeat([0, 1], 400), np.tile(np.arange(400), 2)
    rating = np.where(user == 0, 2.0, -1.0) + 0.1 * rng.normal(size=800)
    layout, _ = lay_out(user, item, rating, 2, 400)
    spec = ModelSpec(
        latent_dim=2,
        likelihood=Gaussian(0.01),
        user_bias_prior=TopicNormal(PRIOR, 0.0, 0.0),
        user_topic_prior=FiniteDirichlet(1, 1.0),
        item_topic_prior=FiniteDirichlet(1, 1.0),
        global_bias=0.0,
    )
    spec = resolve(spec, 0.0, 1.0, 1.0)
    zeros = np.zeros((layout.user_rows, 2)), np.zeros((layout.item_rows, 2))
    start = quick_jit(init_state.__wrapped__)(jax.random.key(0), spec, layout, *zeros)
    np.testing.assert_allclose(start.user_bias[:2, 0], [2.0, -1.0], atol=0.05)
    # The item's come after the user's: what is left to them is noise.
    assert np.std(start.item_bias[:400]) < 0.15
