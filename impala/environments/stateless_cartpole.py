"""CartPole-v1 without its velocities (as RLlib's StatelessCartPole): where the cart is, and how far the pole leans.

The velocities must be inferred from what was seen before.
"""

import numpy as np

from impala.environments.gymnasium_environment import Gymnasium
from impala.types import ArraySpec, Step

_SEEN = [0, 2]  # of position, velocity, angle and angular velocity


class StatelessCartPole:
    """`num_environments` carts."""

    def __init__(self, *, num_environments: int, with_picture: bool = False):
        self.num_environments = num_environments
        self._environment = Gymnasium("CartPole-v1", num_environments=num_environments, with_picture=with_picture)
        self.spec = self._environment.spec._replace(
            name="stateless_cartpole", observation=ArraySpec((len(_SEEN),), np.float32)
        )  # fmt: skip
        self.send, self.close = self._environment.send, self._environment.close

    def reset(self, seed: int) -> Step:
        return _seen(self._environment.reset(seed))

    def receive(self) -> Step:
        return _seen(self._environment.receive())

    def picture(self) -> np.ndarray:
        """Returns the first environment as RGB [H, W, 3]; for those made `with_picture`."""
        return self._environment.picture()


def _seen(step: Step) -> Step:
    return step._replace(observation=step.observation[:, _SEEN])
