"""From a step to an action, and what must be remembered of it to train on it later."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from impala.types import EnvironmentSpec, Step


class Decision(NamedTuple):
    """An action and the parameters of the distribution it was drawn from."""

    action: np.ndarray  # [N] int32
    logits: np.ndarray  # [N, A] float32


Logits = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (window [k, N, …], is_first [1, N]) → [N, A]


class Policy:
    """Samples from a network's logits; remembers the k last frames of each of N environments.

    To bring your own, write `observe`, `decide` and `window`.

    Args:
      logits: the network at one time; it runs in this process or behind an RPC.
      spec: of the environment.
      num_environments: N.
      seed: of the sampling.
      greedy: take the most probable action instead of sampling.
    """

    def __init__(
        self, logits: Logits, spec: EnvironmentSpec, num_environments: int, *, seed: int, greedy: bool = False
    ):
        self._logits, self._greedy = logits, greedy
        self._random = np.random.default_rng(seed)
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
        """Chooses an action for the last step observed."""
        logits = np.asarray(self._logits(self.window, self._is_first))
        # argmax(logits + Gumbel noise) is a sample of the softmax (Gumbel 1954).
        noise = 0.0 if self._greedy else self._random.gumbel(size=logits.shape)
        return Decision(np.argmax(logits + noise, axis=-1).astype(np.int32), logits)


def network_logits(network) -> Logits:
    """Compiles an `ActorCritic` into a `Logits`, traced once; policies of several lanes share it."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def logits(window, is_first):
        return network(window, is_first).logits[0]

    return lambda window, is_first: logits(tf.convert_to_tensor(window), tf.convert_to_tensor(is_first)).numpy()
