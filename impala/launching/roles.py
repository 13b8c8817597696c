"""What whoever starts, watches and ends the nodes of a program has to know of each kind of them.

A program lists its roles as `ROLES`. A node's name is that of its role and a number, like `actor/0`.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Role(NamedTuple):
    """Nodes of one kind."""

    name: str
    turn: int  # at the end of a run the roles of a turn are stopped together, and are gone when the next turn comes
    is_head: bool = False  # has the weights: it writes the last checkpoint, and may end by itself when all is done
    sees_gpu: bool = False
    plays: bool = False  # environments, which are code of others
    stores: bool = False  # chunks, so that its memory is meant to grow


ACTOR = Role("actor", turn=0, plays=True)
EVALUATOR = Role("evaluator", turn=0, plays=True)
LEARNER = Role("learner", turn=1, is_head=True, sees_gpu=True)
TABLE = Role("table", turn=2, stores=True)  # last: the learner may still wait for it


class Roles:
    """The roles of a program, found by the names of its nodes."""

    def __init__(self, roles: Iterable[Role]):
        self._by_name = {role.name: role for role in roles}
        (self.head,) = (role.name for role in roles if role.is_head)

    def of(self, node: str) -> Role:
        """Returns the role of a node like `actor/0`."""
        return self._by_name[node.partition("/")[0]]

    def turns(self) -> list[int]:
        """Returns the turns in which nodes are stopped, in their order."""
        return sorted({role.turn for role in self._by_name.values()})

    def heads(self, nodes: Iterable[str]) -> list[str]:
        """Returns those of the nodes that have the weights."""
        return [node for node in nodes if self.of(node).is_head]
