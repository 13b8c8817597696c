"""The step compiled with XLA does what the plain one does; off by default, since its speed was not measured on a GPU."""

import numpy as np
import pytest

from impala import config as config_lib
from impala import lockstep
from impala.agents.actor_critic import make_learner, make_network
from impala.environments import make


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_compiled_step_matches_the_plain_one(optimizer):
    overrides = {"learner.optimizer": optimizer, "learner.epsilon": 0.01}
    plain_config = config_lib.load("configs/catch.yaml", overrides)
    compiled_config = config_lib.load("configs/catch.yaml", overrides | {"learner.jit_compile": True})
    spec = make("catch", num_environments=1).spec
    plain, compiled = (
        make_learner(config, make_network(config, spec))
        for config in (plain_config, compiled_config)
    )
    for update in lockstep.Lockstep(plain_config).updates():
        one, other = plain.update(update.batch, 1e-3), compiled.update(update.batch, 1e-3)
        assert one.applied and other.applied
        for name, value in one.metrics.items():
            assert other.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
        if update.index == 5:
            break
    for one, other in zip(plain.network.trainable_variables, compiled.network.trainable_variables):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert compiled.num_traces == 1
