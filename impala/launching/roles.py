"""What the launcher has to know about each kind of node: when it is stopped, whether it has the weights, and so on.

A program lists the roles of its nodes in `ROLES`. A node is named after its role, with a number: `actor/0`.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Role(NamedTuple):
    """Nodes of one kind."""

    name: str
    turn: int  # nodes of turn 0 are stopped first, together; those of turn 1 when all of turn 0 have ended, and so on
    is_head: bool = False  # has the weights: writes the last checkpoint, and ends by itself when training is done
    sees_gpu: bool = False
    plays: bool = False  # steps environments, which may hang or leak
    returns_alone: bool = False  # is restarted alone after a death; the others together, from the newest checkpoint
    tells: bool = True  # gives signs of life (`beats`); nodes of foreign programs may not
    stores: bool = False  # holds chunks, so its memory is expected to grow
    imports: tuple[str, ...] = ()  # heavy modules of its nodes, which share them on one machine: see `fork_server`


_HEAVY = ("tensorflow", "reverb", "launchpad.launch.worker_manager")
ACTOR = Role("actor", turn=0, plays=True, returns_alone=True, imports=_HEAVY)
STEPPER = ACTOR._replace(imports=())  # an actor without a network of its own
EVALUATOR = Role("evaluator", turn=0, plays=True, returns_alone=True, imports=_HEAVY)
RELAY = Role("relay", turn=1)  # of weights: actors know where it stands, so it cannot come back alone elsewhere
LEARNER = Role("learner", turn=1, is_head=True, sees_gpu=True, imports=_HEAVY)
SERVER = Role("server", turn=1, is_head=True, imports=_HEAVY)  # of parameters
SHARD = Role("shard", turn=2, imports=_HEAVY)  # further processes of the server: the first saves what they hold
LIKE_LEARNERS = (SERVER.name, SHARD.name)  # need, and count as, what a learner does
TABLE = Role("table", turn=2, stores=True, imports=_HEAVY)  # last: the learner may still be waiting for it


class Roles:
    """The roles of a program, found by the names of its nodes."""

    def __init__(self, roles: Iterable[Role]):
        self._by_name = {role.name: role for role in roles}
        self.head = next((name for name, role in self._by_name.items() if role.is_head), None)

    def of(self, node: str) -> Role:
        """Returns the role of a node like `actor/0`."""
        return self._by_name[node.partition("/")[0]]

    def turns(self) -> list[int]:
        """Returns the turns in which nodes are stopped, in their order."""
        return sorted({role.turn for role in self._by_name.values()})

    def heads(self, nodes: Iterable[str]) -> list[str]:
        """Returns those of the nodes that have the weights."""
        return [node for node in nodes if self.of(node).is_head]
