"""Where nodes stand on a cluster, and how many."""

import importlib

import pytest

from impala import config as config_lib
from impala.nodes import checking, placing
from impala.nodes.run import Run


@pytest.mark.parametrize("word, overrides", [
    ("catch", {"learner.num_learners": 2}), ("dqn_catch", {}), ("apex_catch", {"learner.num_learners": 2}), ("seed_catch", {}),
    ("r2d2_catch", {}), ("ga3c_catch", {}), ("a3c_catch", {"server.num_shards": 2}), ("dppo_catch", {}), ("gorila_catch", {}),
    ("gorila_catch", {"replay.shared": True}), ("apex_catch", {"actor.num_relays": 2}),
    ("catch", {"population.size": 2, "actor.num_actors": 3}), ("a3c_catch", {"population.size": 2, "server.num_shards": 2}),
])  # fmt: skip
def test_as_many_are_awaited_as_a_program_has(tmp_path, word, overrides):
    config = config_lib.load(f"configs/{word}.yaml", overrides)
    module = importlib.import_module(f"impala.programs.{config.program}")
    program = module.make_program(config, checking.check(config), Run(tmp_path, 0, 0.0, 0))
    assert {label: len(group) for label, group in program.groups.items()} == placing.awaited(config)


@pytest.mark.parametrize("overrides, expected", [({}, 1 + 1), ({"evaluator.num_episodes": 0, "target_return": None}, 1)])
def test_a_later_launch_awaits_one_actor_beside_the_evaluator_which_is_placed_first(overrides, expected):
    config = config_lib.load("configs/apex_catch.yaml", {"actor.num_actors": 3} | overrides)
    again = placing.placement_again(config)
    assert again.num_awaited == expected and again.avoids_unfit and placing.placement(config).num_awaited is None


def test_each_role_needs_what_its_own_keys_say_and_servers_of_parameters_what_a_learner_does():
    roles = ("actor", "learner", "table", "evaluator", "relay")
    overrides = {f"cluster.{role}_cpus": 2.0 + i for i, role in enumerate(roles)}
    overrides |= {f"cluster.{role}_memory_gb": 20.0 + i for i, role in enumerate(roles)} | {"cluster.learner_gpus": 0.5}
    needs = placing.placement(config_lib.load("configs/apex_catch.yaml", overrides | {"actor.num_relays": 1})).needs
    assert {role: tuple(needs(f"{role}/1")) for role in roles} == {
        role: (2.0 + i, 0.5 if role == "learner" else 0.0, 20.0 + i) for i, role in enumerate(roles)
    }
    assert needs("server/0") == needs("shard/3") == needs("learner/0")._replace(gpus=0.0), "they use no GPU"
    with pytest.raises(config_lib.ConfigError, match="cluster.learner_gpus"):
        config_lib.load("configs/a3c_catch.yaml", {"cluster.learner_gpus": 1.0})
