"""The same numbers from an independent library, trfl (a dependency of the tests alone)."""

import numpy as np
import pytest
import tensorflow as tf
import trfl

from impala import corrections
from tests.corrections.test_q_based import random_arguments as random_q_arguments
from tests.corrections.test_vtrace import random_arguments


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip_rho, clip_pg", [(1.0, 1.0), (2.0, 1.5), (1.0, 0.7)])
def test_vtrace(seed, clip_rho, clip_pg):
    x = random_arguments(seed, with_mask=False, dtype="float32")
    oracle = trfl.vtrace_from_importance_weights(
        log_rhos=x["log_rho_tm1"], discounts=x["discount_t"], rewards=x["r_t"], values=x["v_tm1"],
        bootstrap_value=x["v_t"][-1], clip_rho_threshold=clip_rho, clip_pg_rho_threshold=clip_pg,
    )  # fmt: skip
    targets = corrections.vtrace(**x, clip_rho=clip_rho, clip_pg=clip_pg)
    np.testing.assert_allclose(targets.target_tm1, oracle.vs, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(targets.advantage_tm1, oracle.pg_advantages, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_td_lambda(lambda_):
    x = random_arguments(4, with_mask=False, dtype="float32")
    tensors = map(tf.constant, (x["r_t"], x["discount_t"], x["v_tm1"], x["v_t"][-1]))
    oracle = trfl.generalized_lambda_returns(*tensors, lambda_)
    np.testing.assert_allclose(corrections.td_lambda(**x, lambda_=lambda_).target_tm1, oracle, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("lambda_", [0.5, 1.0])
def test_retrace(lambda_):
    x = random_q_arguments(5, with_mask=False, dtype="float32")
    after = lambda y: np.concatenate([y[1:], y[-1:]])  # noqa: E731  one step on; the last ratio enters nothing
    mu_a = np.take_along_axis(np.exp(x["log_mu_tm1"]), x["a_tm1"][..., None], -1)[..., 0]
    oracle = trfl.retrace_core(
        lambda_, q_tm1=x["q_tm1"], a_tm1=x["a_tm1"], r_t=x["r_t"], pcont_t=x["discount_t"],
        target_policy_t=np.exp(x["log_pi_t"]), behaviour_policy_t=after(mu_a), targnet_q_t=x["q_t"], a_t=after(x["a_tm1"]),
    ).extra.target  # fmt: skip
    np.testing.assert_allclose(corrections.retrace(**x, lambda_=lambda_).target_tm1, oracle, rtol=5e-5, atol=5e-5)
