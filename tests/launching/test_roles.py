"""What programs say of their nodes, and how it is read."""

import importlib

import pytest

from impala.config import uses
from impala.launching.roles import ACTOR, EVALUATOR, LEARNER, TABLE, Roles


def test_roles_are_found_by_the_names_of_nodes():
    roles = Roles((TABLE, LEARNER, ACTOR, EVALUATOR))
    assert roles.head == "learner" and roles.of("actor/17") is ACTOR and roles.of("table") is TABLE
    assert roles.heads(["actor/0", "learner/1", "table/0", "learner/0"]) == ["learner/1", "learner/0"]
    by_turn = [{role.name for role in (TABLE, LEARNER, ACTOR, EVALUATOR) if role.turn == turn} for turn in roles.turns()]
    assert by_turn == [{"actor", "evaluator"}, {"learner"}, {"table"}], "a learner's last checkpoint comes before its table goes"


@pytest.mark.parametrize("program", uses.AGENTS)
def test_every_program_has_one_head_that_alone_sees_gpus_and_says_who_plays_and_stores(program):
    roles = importlib.import_module(f"impala.programs.{program}").ROLES
    names = {role.name for role in roles}
    if "server" in names:  # of parameters: it holds no chunks, and workers differentiate where they act
        assert [role.name for role in roles if role.is_head] == ["server"]
        assert not any(role.sees_gpu for role in roles)
        assert {role.name for role in roles if role.stores} == {"table"} & names
    else:
        assert [role.name for role in roles if role.is_head] == [role.name for role in roles if role.sees_gpu] == ["learner"]
        stores = {"table"} if "table" in names else {"learner"}
        assert {role.name for role in roles if role.stores} == stores | ({"learner"} if program == "seed" else set())
    assert {role.name for role in roles if role.plays} == {"evaluator"} | ({"actor"} if "actor" in names else {"learner"})
