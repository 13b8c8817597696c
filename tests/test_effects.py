"""Keys that are set and change nothing are named; the table of them agrees with what corrections take."""

import inspect

import pytest

from impala import config as config_lib
from impala import corrections, losses
from impala.config import effects, sections

OF_SCHEMES = {  # keys whose use the signatures of corrections and terms of the loss tell
    "clip_rho", "clip_c", "clip_pg", "lambda_", "pg_bootstrap", "alpha_rho", "alpha_c", "control_variate", "epsilon",
    "surrogate_clip", "ratio_max", "policy_cloning_cost", "value_cloning_cost", "trust_threshold", "allow_expansion",
}  # fmt: skip


def parameters_of(word):
    if word in losses.POLICY_TERMS:
        term = losses.POLICY_TERMS[word]
        return {*inspect.signature(term.make).parameters, *inspect.signature(corrections.SCHEMES[term.correction]).parameters}
    names = {"is": "importance_sampling", "n_step": "none"}
    return set(inspect.signature((corrections.SCHEMES | corrections.Q_SCHEMES)[names.get(word, word)]).parameters)


@pytest.mark.parametrize("agent", ["actor_critic", "q_learning"])
@pytest.mark.parametrize("name", sorted(OF_SCHEMES))
def test_the_table_says_what_the_signatures_of_schemes_say(agent, name):
    field = sections.LossConfig.model_fields[name]
    fits = effects._ONLY_WITH[f"loss.{field.alias or name}"]["loss.correction"]
    for word in sections.CORRECTIONS_OF[agent]:
        assert fits(word) == (name in parameters_of(word)), word
    assert fits("my_module:mine"), "one of the user's own may use it"


def test_every_key_of_the_table_exists():
    assert {
        *effects._ONLY_WITH, *effects._AND_WITH,
        *(other for table in (effects._ONLY_WITH, effects._AND_WITH) for each in table.values() for other in each),
    } <= {*config_lib.keys()}


@pytest.mark.parametrize("word", sorted(config_lib.shipped.trainings()))
def test_shipped_configurations_set_no_key_in_vain(word):
    assert not config_lib.without_effect(config_lib.load(config_lib.shipped.trainings()[word]))


@pytest.mark.parametrize("word, keys, lines", [
    ("catch", {"loss.correction": "none", "loss.lambda": 0.9},
     ["loss.lambda=0.9 has no effect on training with loss.correction=none"]),
    ("catch", {"loss.correction": "td_lambda", "loss.lambda": 0.9}, []),
    ("catch", {"loss.correction": "none", "loss.lambda": 1.0}, []),
    ("catch", {"loss.correction": "my_module:mine", "loss.lambda": 0.9}, []),
    ("catch", {"learner.rmsprop_decay": 0.9, "replay.size": 500},
     ["learner.rmsprop_decay=0.9 has no effect on training with learner.optimizer=adam",
      "replay.size=500 has no effect on training with replay.fraction=0.0 and program=impala"]),
    ("catch", {"replay.fraction": 0.5, "replay.size": 500}, []),
    ("catch", {"loss.pg_bootstrap": "mixed"}, ["loss.pg_bootstrap=mixed has no effect on training with loss.lambda=1.0"]),
    ("catch", {"loss.pg_bootstrap": "mixed", "loss.lambda": 0.9}, []),
    ("catch", {"loss.pg_bootstrap": "mixed", "loss.correction": "none"},
     ["loss.pg_bootstrap=mixed has no effect on training with loss.correction=none"]),
    ("catch", {"loss.clip_c": 0.5, "loss.lambda": 0.0, "loss.correction": "my_module:mine"}, []),
    ("catch", {"loss.clip_c": 0.5, "loss.lambda": 0.0}, ["loss.clip_c=0.5 has no effect on training with loss.lambda=0.0"]),
    ("catch", {"loss.entropy_cost": 0.0, "loss.entropy_cost_schedule": "linear"},
     ["loss.entropy_cost_schedule=linear has no effect on training with loss.entropy_cost=0.0"]),
    ("catch", {"environment.protocol": "rllib"},
     ["environment.protocol=rllib has no effect on training with environment.name=catch"]),
    ("q_unrolls_catch", {"agent.n_step": 3},
     ["agent.n_step=3 has no effect on training with loss.correction=retrace and agent.name=q_unrolls"]),
    ("r2d2_catch", {"loss.correction": "retrace", "agent.n_step": 3},
     ["agent.n_step=3 has no effect on training with loss.correction=retrace and agent.name=r2d2"]),
    ("dqn_catch", {"loss.correction": "retrace", "agent.n_step": 3}, []),
    ("dqn_catch", {"loss.correction": "retrace", "agent.n_step": 1},
     ["loss.correction=retrace has no trace with agent.n_step=1: every correction here has the same targets then, of one step"]),
    ("dqn_catch", {"loss.correction": "my_module:mine", "agent.n_step": 1}, []),
    ("q_unrolls_catch", {"learner.unroll_length": 1},
     ["loss.correction=retrace has no trace with learner.unroll_length=1: every correction here has the same targets then, of one step"]),
    ("dppo_catch", {"loss.correction": "penalty", "loss.surrogate_clip": 0.3},
     ["loss.surrogate_clip=0.3 has no effect on training with loss.correction=penalty and agent.value_clip=False"]),
    ("dppo_catch", {"loss.correction": "penalty", "loss.surrogate_clip": 0.3, "agent.value_clip": True}, []),
    ("dppo_catch", {"agent.kl_target": 0.02, "agent.kl_hinge": 1000.0}, []),
    ("dppo_catch", {"agent.kl_target": 0.02},
     ["agent.kl_target=0.02 has no effect on training with loss.correction=clip and agent.kl_hinge=0.0"]),
    ("catch", {"learner.max_lag": 24, "replay.queue_size": 77},
     ["replay.queue_size=77 has no effect on training with learner.max_lag=24"]),
    ("ga3c_catch", {"replay.queue_size": 77}, []),
    ("seed_catch", {"loss.correction": "clear"},
     ["loss.correction=clear: nothing is replayed, so that it is vtrace; program=impala can replay"]),
    ("catch", {"loss.correction": "clear", "replay.fraction": 0.5}, []),
    ("apex_catch", {"actor.max_episode_frames": 99},
     ["actor.max_episode_frames=99 has no effect on training with environment.name=catch"]),
    ("gorila_catch", {"population.parameters": ["entropy_cost", "learning_rate"], "population.size": 2},
     ["population.parameters: entropy_cost does not evolve with agent.name=q_learning"]),
    ("gorila_catch", {"population.size": 2}, []),
    ("r2d2_catch", {"network.core": "none", "network.core_size": 256},
     ["agent.burn_in=4 has no effect on training with network.core=none, which has nothing to bring up to date; 0 saves its time"]),
    ("r2d2_catch", {"network.core": "none", "network.core_size": 256, "agent.burn_in": 0}, []),
    ("catch", {"agent.name": "my_module:mine", "loss.popart_step": 0.1}, []),
    ("seed_catch", {"learner.learning_rate_frames": 5_000, "learner.learning_rate_schedule": "constant"},
     ["learner.learning_rate_frames=5000 has no effect on training with "
      "learner.learning_rate_schedule=constant and loss.entropy_cost_schedule=constant"]),
])  # fmt: skip
def test_what_has_no_effect_is_named(word, keys, lines):
    assert config_lib.without_effect(config_lib.load(config_lib.shipped.trainings()[word], keys)) == lines


@pytest.mark.parametrize("overrides, is_told", [({}, True), ({"learner.learning_rate_schedule": "constant"}, False), ({"total_frames": 40_000_000}, False)])
def test_frames_without_a_learning_rate_are_named(overrides, is_told):
    made = config_lib.load("configs/breakout.yaml", {"total_frames": 200_000_000} | overrides)
    lines = [line for line in config_lib.without_effect(made) if "the learning rate is 0 from there to total_frames" in line]
    assert lines == is_told * ["learner.learning_rate_frames=40000000: the learning rate is 0 from there to total_frames, 200000000, and nothing is learned"]
