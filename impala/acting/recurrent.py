"""The policy of a network with a core."""

import numpy as np

from impala.acting.behaviours import Behaviour
from impala.acting.policies import Decision, FeedForwardPolicy, Outputs
from impala.types import EnvironmentSpec, Step


class RecurrentPolicy(FeedForwardPolicy):
    """Also remembers the network's core state, and the action and the reward that led to the last observation."""

    def __init__(
        self, outputs: Outputs, spec: EnvironmentSpec, num_environments: int, *, seed: int, behaviour: Behaviour
    ):
        super().__init__(outputs, spec, num_environments, seed=seed, behaviour=behaviour)
        self.core_state = np.zeros((num_environments, *behaviour.core_state_shape), np.float32)
        shape, dtype = spec.actions.array
        self._last_action = np.zeros((1, num_environments, *shape), dtype)
        self._last_reward = np.zeros((1, num_environments), np.float32)

    def observe(self, step: Step) -> None:
        super().observe(step)
        self._last_reward = step.reward[None]

    def decide(self) -> Decision:
        numbers, (self.core_state, *version) = self._ask(
            self.window, self._is_first, self._last_action, self._last_reward, self.core_state
        )
        decision = Decision(*self._behaviour.choose(numbers, self._random), *version)
        self._last_action = decision.action[None]
        return decision
