"""Any gymnasium id that observes numbers or one of n states; discrete, multi-discrete or continuous actions.

One of n states, as in gymnasium's toy text environments, becomes a one-hot vector, several become one for each, joined.
A dict or tuple of observations is flattened into one vector, whose parts `EnvironmentSpec.parts` names; a tuple of
discrete actions is multi-discrete.
"""

import collections
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from impala.environments import trials
from impala.environments.boundaries import Boundaries
from impala.types import Actions, ArraySpec, Continuous, Discrete, EnvironmentSpec, MultiDiscrete, Step

_MOST_UNSOUND, _WITHIN_STEPS = 10, 20_000  # of all environments together


class Gymnasium:
    """`num_environments` environments in this process, stepped one after another.

    Where a reward or an observation is not finite, that environment begins a new episode at once: no transition leads
    there, and the old episode has no score. The tenth time within 20,000 steps is an error. So is the tenth time of one
    environment if none of its episodes has come to its end meanwhile.
    """

    def __init__(self, name: str, *, num_environments: int, with_picture: bool = False):
        self._environment = gymnasium.make_vec(
            name,
            num_envs=num_environments,
            vectorization_mode="sync",
            **(dict(render_mode="rgb_array") if with_picture else {}),
            vector_kwargs=dict(autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP, copy=True),
        )
        if len({id(copy.unwrapped) for copy in self._environment.envs}) < num_environments:
            raise ValueError(f"{name}: {num_environments} copies are the same object; expected a new one each time")
        observation, action = self._environment.single_observation_space, self._environment.single_action_space
        actions, self._to_space = _actions(action)
        seen, self._observe, parts = _observations(observation)
        if actions is None or seen is None:
            raise ValueError(
                f"{name} has observations {observation} and actions {action}; expected a Box, Discrete, "
                "MultiDiscrete or MultiBinary, or a Dict or Tuple of them, and actions of a Discrete, MultiDiscrete or "
                "MultiBinary space, a Tuple of those, or a Box with one axis; none of them empty"
            )
        self.num_environments = num_environments
        self.spec = EnvironmentSpec(name, seen, actions, parts=parts)
        self._boundaries = Boundaries(num_environments)
        self._num_steps, self._unsound_at = 0, collections.deque(maxlen=_MOST_UNSOUND)
        self._num_in_a_row = np.zeros(num_environments, int)  # episodes given up since one came to its end

    def reset(self, seed: int) -> Step:
        observation, _ = self._environment.reset(seed=seed)
        return self._boundaries.reset(self._observe(observation))

    def send(self, action: np.ndarray) -> None:
        self._result = self._environment.step(self._to_space(action))

    def receive(self) -> Step:
        observation, reward, terminated, truncated, _ = self._result
        observation, reward = self._observe(observation), reward.astype(np.float32)
        self._num_steps += 1
        if np.isfinite(reward).all() and (observation.dtype == np.uint8 or np.isfinite(observation).all()):
            step = self._boundaries.step(observation, reward, terminated, truncated)
            self._num_in_a_row[step.is_last] = 0
            return step
        is_unsound = ~(np.isfinite(reward) & np.isfinite(observation).reshape(len(reward), -1).all(1))
        observation = self._begin_anew(is_unsound)
        goes_on = ~is_unsound
        return self._boundaries.step(
            observation, reward, terminated & goes_on, truncated & goes_on, is_beginning=is_unsound
        )

    def _begin_anew(self, is_unsound: np.ndarray) -> np.ndarray:
        """Resets these environments; returns the observations of all."""
        numbers = np.flatnonzero(is_unsound).tolist()
        where = f"{self.spec.name}: environment {', '.join(map(str, numbers))}"
        what = f"{where}: a reward or observation is not finite, as float32"
        self._unsound_at.extend(len(numbers) * [self._num_steps])
        self._num_in_a_row[is_unsound] += 1
        if len(self._unsound_at) == _MOST_UNSOUND and self._num_steps - self._unsound_at[0] < _WITHIN_STEPS:
            raise RuntimeError(f"{what}, {_MOST_UNSOUND} times within {_WITHIN_STEPS:,} steps; mend the environment")
        if self._num_in_a_row.max() >= _MOST_UNSOUND:
            raise RuntimeError(f"{what}, in {_MOST_UNSOUND} episodes in a row; mend the environment")
        logging.warning("%s; its episode is dropped, and a new one begins", what)
        observation, _ = self._environment.reset(options=dict(reset_mask=is_unsound))
        return self._observe(observation)

    def fault(self, num_steps: int) -> str | None:
        """Plays the first environment alone; returns how a result breaks its spaces or gymnasium's rules, or None.

        The vector environment copies results into arrays of the announced kind, which hides such faults or blurs them.
        """
        environment = self._environment.envs[0]
        environment.action_space.seed(0)
        observation, _ = environment.reset(seed=0)
        for _ in range(num_steps):
            if found := _misfit(environment.observation_space, observation):
                return found
            observation, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
            found = (
                trials.fault_of_array("reward", reward, np.shape(reward) if np.size(reward) == 1 else (), np.float32)
                or trials.fault_of_array("terminated", np.squeeze(terminated), (), np.int64)
                or trials.fault_of_array("truncated", np.squeeze(truncated), (), np.int64)
            )
            if found or terminated or truncated:
                return found or _misfit(environment.observation_space, observation)
        return _misfit(environment.observation_space, observation)

    def picture(self) -> np.ndarray:
        """Returns the first environment as it draws itself, RGB [H, W, 3]; for those made `with_picture`.

        Raises:
          RuntimeError: it does not draw itself, or lacks a package to do so.
        """
        try:
            pictures = self._environment.render()
        except gymnasium.error.Error as error:
            raise RuntimeError(str(error)) from None
        if pictures is None or pictures[0] is None:
            raise RuntimeError("it has no render mode rgb_array")
        return pictures[0]

    def close(self) -> None:
        self._environment.close()


def _misfit(space, observation) -> str | None:
    """Returns how an observation differs from what its space announces, or None; bounds of a Box are not checked."""
    if isinstance(space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        return next(filter(None, (_misfit_of_part(path, leaf, observation) for path, leaf in _leaves(space))), None)
    if isinstance(space, gymnasium.spaces.Discrete):
        is_one = np.size(observation) == 1 and space.contains(np.asarray(observation).reshape(()).item())
        return None if is_one else f"observation is {observation!r}; expected one of {space}"
    if found := trials.fault_of_array("observation", observation, space.shape, space.dtype):
        return found
    if isinstance(space, gymnasium.spaces.Box) or space.contains(np.asarray(observation, space.dtype)):
        return None
    return f"observation is {observation!r}; expected one of {space}"


def _misfit_of_part(path: tuple, space, observation) -> str | None:
    try:
        part = _at(path, observation)
    except (KeyError, IndexError, TypeError):
        return f"observation has no part {_name(path)}; expected {space} there"
    found = _misfit(space, part)
    return found and f"part {_name(path)} of the {found}"


Parts = tuple[tuple[str, ArraySpec], ...]


def _observations(space) -> tuple[ArraySpec | None, Callable, Parts]:
    """Returns what agents see of an observation space, how to convert observations [N, …], and their parts.

    None instead of a spec if the space is not supported; no parts where it is not composite.
    """
    spaces = gymnasium.spaces
    match space:
        case spaces.Discrete():
            return _one_hots(np.array([space.n]), space.start)
        case spaces.MultiDiscrete():
            return _one_hots(space.nvec.ravel(), space.start.ravel())
        case spaces.MultiBinary():
            return ArraySpec(tuple(space.shape), np.float32), lambda observation: observation.astype(np.float32), ()
        case spaces.Box():
            dtype = np.uint8 if space.dtype == np.uint8 else np.float32
            return ArraySpec(tuple(space.shape), dtype), lambda observation: observation.astype(dtype), ()
        case spaces.Dict() | spaces.Tuple() if any(_leaves(space)):
            return _composite(space)
    return None, lambda observation: observation, ()


def _one_hots(num_states: np.ndarray, start: np.ndarray | int) -> tuple[ArraySpec, Callable, Parts]:
    """The same for numbers in [start, start + num_states): a one-hot vector for each of them, joined."""
    size, ones = int(num_states.sum()), np.cumsum(num_states) - num_states - start

    def convert(observation) -> np.ndarray:
        rows = np.zeros((len(observation), size), np.float32)
        np.put_along_axis(rows, observation.reshape(len(observation), -1).astype(np.int64) + ones, 1.0, axis=1)
        return rows

    return ArraySpec((size,), np.float32), convert, ()


def _composite(space) -> tuple[ArraySpec | None, Callable, Parts]:
    """The same for a Dict or Tuple, nested ones included: one vector, bytes if all its parts are bytes."""
    paths = [path for path, _ in _leaves(space)]
    specs, observe, _ = zip(*(_observations(leaf) for _, leaf in _leaves(space)))
    if None in specs:
        return None, observe[0], ()
    dtype = np.uint8 if all(spec.dtype == np.uint8 for spec in specs) else np.float32

    def flatten(observation) -> np.ndarray:
        parts = [convert(_at(path, observation)) for path, convert in zip(paths, observe)]
        return np.concatenate([part.reshape(len(part), -1).astype(dtype) for part in parts], axis=1)

    size = sum(int(np.prod(spec.shape)) for spec in specs)
    return ArraySpec((size,), dtype), flatten, tuple((_name(path), spec) for path, spec in zip(paths, specs))


def _leaves(space, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yields the spaces that a Dict or Tuple consists of, with the keys and indices that lead to each."""
    spaces = gymnasium.spaces
    below = space.spaces if isinstance(space, (spaces.Dict, spaces.Tuple)) else None
    if below is None:
        yield path, space
        return
    for key, each in below.items() if isinstance(below, dict) else enumerate(below):
        yield from _leaves(each, (*path, key))


def _at(path: tuple, observation) -> Any:
    return functools.reduce(lambda part, key: part[key], path, observation)


def _name(path: tuple) -> str:
    return ".".join(map(str, path))


def _actions(space) -> tuple[Actions | None, Callable]:
    """Returns how agents see an action space, or None, and a function from their actions [N, …] to the space's."""
    spaces = gymnasium.spaces
    match space:
        case spaces.Discrete():
            return Discrete(int(space.n)), lambda action: action + space.start
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return MultiDiscrete(tuple(space.nvec.tolist())), lambda action: action + space.start
        case spaces.MultiBinary() if len(space.shape) == 1:
            return MultiDiscrete(space.shape[0] * (2,)), lambda action: action.astype(space.dtype)
        case spaces.Box() if len(space.shape) == 1:
            return Continuous(space.shape[0]), functools.partial(_scale, space)
        case spaces.Tuple() if space.spaces:
            return _tuple_of_actions(space)
    return None, lambda action: action


def _tuple_of_actions(space) -> tuple[Actions | None, Callable]:
    """The same for a Tuple of discrete actions: a dimension for each Discrete and each dimension of a MultiDiscrete."""
    parts, to_space = zip(*map(_actions, space.spaces))
    if not all(isinstance(part, (Discrete, MultiDiscrete)) for part in parts):
        return None, lambda action: action
    dimensions = [part.num_actions if isinstance(part, MultiDiscrete) else (part.num_actions,) for part in parts]
    ends = np.cumsum([len(each) for each in dimensions])[:-1]

    def split(action: np.ndarray) -> tuple[np.ndarray, ...]:  # [N, K]
        columns = np.split(action, ends, axis=1)
        return tuple(
            convert(column if isinstance(part, MultiDiscrete) else column[:, 0])
            for part, convert, column in zip(parts, to_space, columns)
        )

    return MultiDiscrete(sum(dimensions, ())), split


def _scale(space, action: np.ndarray) -> np.ndarray:
    """Clips actions to [−1, 1] and scales them to the bounds; a dimension without both is only clipped to its bound."""
    bounded = space.bounded_below & space.bounded_above
    low, high, action = (np.asarray(each, np.float64) for each in (space.low, space.high, action))
    to_high = 0.5 * (np.clip(action, -1.0, 1.0) + 1.0)  # a share of each bound, since high − low may be too large
    scaled = np.where(bounded, low, 0.0) * (1.0 - to_high) + np.where(bounded, high, 0.0) * to_high
    scaled = np.clip(np.where(bounded, scaled, action), low, high)
    return (np.rint(scaled) if np.issubdtype(space.dtype, np.integer) else scaled).astype(space.dtype)
