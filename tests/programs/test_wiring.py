"""Who can reach whom in a program, by the handles that each node is given."""

import os
import time

import pytest

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
from impala import config as config_lib
from impala.nodes import checking
from impala.nodes.run import Run
from impala.programs import apex, seed


def reached(program):
    """Returns by node the nodes whose servers it can reach."""
    nodes = {f"{label}/{index}": node for label, group in program.groups.items() for index, node in enumerate(group)}
    owners = {address: name for name, node in nodes.items() for address in node.addresses}
    return {name: {owners[handle._address] for handle in node.input_handles} for name, node in nodes.items()}


@pytest.mark.parametrize("make_program, name, overrides", [
    (apex.make_program, "apex_catch", {}),
    (apex.make_program, "apex_dpg_pendulum", {}),
    (seed.make_program, "r2d2_memory_chain", {"actor.num_actors": 2}),
])  # fmt: skip
def test_a_learner_reaches_its_table_and_no_actor_and_an_evaluator_no_table(tmp_path, make_program, name, overrides):
    """So parameters flow one way, and nothing of an evaluation is ever stored."""
    config = config_lib.load(f"configs/{name}.yaml", overrides)
    program = make_program(config, checking.check(config), Run(tmp_path, os.getpid(), time.monotonic(), 0))
    of_actors = {"learner/0"} if make_program is seed.make_program else {"learner/0", "table/0"}  # SEED's only step
    assert reached(program) == {
        "table/0": set(), "learner/0": {"table/0"}, "actor/0": of_actors, "actor/1": of_actors, "evaluator/0": {"learner/0"},
    }  # fmt: skip


def test_of_two_learners_each_reaches_its_own_table_and_its_peers(tmp_path):
    config = config_lib.load("configs/apex_catch.yaml", {"learner.num_learners": 2})
    program = apex.make_program(config, checking.check(config), Run(tmp_path, os.getpid(), time.monotonic(), 0))
    found, peers = reached(program), {"learner/0", "learner/1"}
    assert found["learner/0"] == {"table/0"} | peers and found["learner/1"] == {"table/1"} | peers
    assert found["actor/0"] == {"table/0", "table/1", "learner/0"}, "which also gathers metrics"
    assert found["actor/1"] == {"table/0", "table/1", "learner/0", "learner/1"}, "it has the weights of the second"
    assert found["evaluator/0"] == {"learner/0"}
