"""Any gymnasium id with a discrete action space and a box of numbers as observation."""

import gymnasium
import numpy as np

from impala.environments.boundaries import Boundaries
from impala.types import ArraySpec, EnvironmentSpec, Step


class Gymnasium:
    """`num_environments` environments in this process, stepped one after another."""

    def __init__(self, name: str, *, num_environments: int):
        self._environment = gymnasium.make_vec(
            name,
            num_envs=num_environments,
            vectorization_mode="sync",
            vector_kwargs=dict(autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP, copy=True),
        )
        observation, action = self._environment.single_observation_space, self._environment.single_action_space
        if not isinstance(action, gymnasium.spaces.Discrete) or not isinstance(observation, gymnasium.spaces.Box):
            raise ValueError(
                f"environment.name: {name} has observations {observation} and actions {action}; "
                "expected a Box and a Discrete space"
            )
        self._first_action = action.start
        self._dtype = np.uint8 if observation.dtype == np.uint8 else np.float32
        self.num_environments = num_environments
        self.spec = EnvironmentSpec(name, ArraySpec(tuple(observation.shape), self._dtype), int(action.n))
        self._boundaries = Boundaries(num_environments)

    def reset(self, seed: int) -> Step:
        observation, _ = self._environment.reset(seed=seed)
        return self._boundaries.reset(observation.astype(self._dtype))

    def send(self, action: np.ndarray) -> None:
        self._result = self._environment.step(action + self._first_action)

    def receive(self) -> Step:
        observation, reward, terminated, truncated, _ = self._result
        return self._boundaries.step(observation.astype(self._dtype), reward, terminated, truncated)

    def close(self) -> None:
        self._environment.close()
