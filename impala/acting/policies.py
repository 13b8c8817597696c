"""From a step to an action, and to what must be kept of that decision for training."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from impala.acting.behaviours import Behaviour, sampled
from impala.types import EnvironmentSpec, Step


class Decision(NamedTuple):
    """An action, and what is kept of how it was chosen."""

    action: np.ndarray  # [N, …]
    kept: tuple[np.ndarray, ...]  # [N, …] each, as `Behaviour.kept` says; () if another process keeps it
    version: Any = ()  # [N] int64, of the weights, where they may change from step to step


# (window [k, N, …], is_first [1, N]) → `Behaviour.numbers`, [N, …] each; with a core
# (window, is_first, last_action [1, N], last_reward [1, N], core_state [N, …]) → (*numbers, core_state).
# Where the weights may change from step to step, their version [N] comes last.
Outputs = Callable[..., tuple[np.ndarray, ...]]


class Policy(Protocol):
    """What an actor asks of what decides for its N environments."""

    window: np.ndarray  # [k, N, …], the last k frames of each, with which an unroll begins
    core_state: Any  # [N, …] before the last observation; () of a feed-forward network
    decides_elsewhere: bool  # if True, `observe` sends the request, and other lanes run until `decide`

    def observe(self, step: Step) -> None:
        """Takes in a step."""

    def decide(self) -> Decision:
        """Chooses an action for the last step observed."""


class FeedForwardPolicy:
    """Decides by a network's outputs; remembers the last k frames of each of N environments.

    Args:
      outputs: the network at one time step; it runs in this process or behind an RPC.
      spec: of the environment.
      num_environments: N.
      seed: of the random draws.
      behaviour: by default draws from a distribution over the environment's actions.
    """

    core_state: Any = ()
    decides_elsewhere = False

    def __init__(
        self, outputs: Outputs, spec: EnvironmentSpec, num_environments: int, *, seed: int,
        behaviour: Behaviour | None = None,
    ):  # fmt: skip
        self._outputs = outputs
        self._behaviour = behaviour or sampled(spec.actions)
        self._random = np.random.default_rng([seed, 2])  # not the stream of an environment with the same seed
        shape, dtype = spec.observation
        self.window = np.zeros((spec.num_stacked, num_environments, *shape), dtype)  # oldest first
        self._is_first = np.ones((1, num_environments), bool)

    def observe(self, step: Step) -> None:
        """Appends the step's observation to the window, whose older frames are zero where an episode starts."""
        if len(self.window) > 1:
            self.window = np.concatenate([self.window[1:], step.observation[None]])
            if step.is_first.any():
                self.window[:-1, step.is_first] = 0
        else:
            self.window = step.observation[None]
        self._is_first = step.is_first[None]

    def decide(self) -> Decision:
        numbers, version = self._ask(self.window, self._is_first)
        return Decision(*self._behaviour.choose(numbers, self._random), *version)

    def _ask(self, *inputs) -> tuple[tuple, tuple]:
        """Returns the behaviour's numbers, and the outputs that follow them."""
        outputs, count = self._outputs(*inputs), len(self._behaviour.numbers)
        return tuple(outputs[:count]), tuple(outputs[count:])


def network_outputs(network) -> Outputs:
    """Compiles a network into `Outputs`, traced once for each shape; policies of several lanes can share it.

    The network's `numbers` takes its outputs for n = 1 time steps and returns what its agent's behaviour needs.
    """
    from impala.traces import Traced

    def numbers(window, is_first, *memory):
        outputs = network(window, is_first, *memory)
        return *network.numbers(outputs), *([outputs.core_state] if memory else [])

    compiled = Traced(numbers)
    return lambda *inputs: tuple(output.numpy() for output in compiled(*inputs))


def with_version(outputs, version: Callable[[], int]) -> Outputs:
    """Returns `outputs` that also return, last, the version of the weights that computed them."""

    def outputs_and_version(*inputs):
        now = version()
        arrays = outputs(*inputs)
        return *arrays, np.full(len(arrays[0]), now, np.int64)

    return outputs_and_version
