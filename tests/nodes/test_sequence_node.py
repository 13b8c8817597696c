"""Central inference with a replay: what its process does for each lane, made here without the process."""

from types import SimpleNamespace

from impala import agents
from impala import config as config_lib
from impala.nodes import checking
from impala.nodes.central_node import StepperNode
from impala.nodes.sequence_node import SequenceNode
from tests.nodes.test_window_actor_node import assert_explores_with


class Stepper(StepperNode):
    """Keeps the name under which a lane asks for its actions, and asks nobody."""

    def __init__(self, config, index):
        self._config, self._index, self._incarnation, self._learners = config, index, 0, [None]
        self._stop, self._environments = SimpleNamespace(is_set=lambda: False), []

    def _request(self, learner, method, name, fields):
        self.name = name


def test_every_environment_plays_the_rung_of_its_number_among_all_actors():
    """Of 3 actors with 2 lanes of 2, the second has environments 4 to 7: what a lane calls itself says which it has."""
    overrides = {"actor.num_actors": 3, "actor.num_environments": 4, "actor.num_lanes": 2, "network.core_size": 4}
    config = config_lib.load("configs/r2d2_memory_chain.yaml", overrides)
    node, actor = object.__new__(SequenceNode), Stepper(config, 1)
    node._config, node._spec, node._gatherer = config, checking.check(config), None
    node._behaviour = agents.of(config).make_behaviour(config, node._spec)  # an evaluation's, of which lanes need a part
    for lane, numbers in ((0, (4, 5)), (1, (6, 7))):
        actor._lane(lane)
        behaviour = node._make_policy(actor.name, 2)._behaviour
        assert_explores_with(behaviour, [0.4 ** (1 + 7 * number / 11) for number in numbers])
        assert behaviour.core_state_shape == (2, 4)
