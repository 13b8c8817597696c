"""From steps to overlapping windows of T transitions, one for every step, for agents that replay.

Neighbouring windows share their steps, and each step is stored once. A window holds T + k observations; the first k − 1
are the older planes of its first state's stack. Planes of an earlier episode are zeroed when a window is read
(`replay.windows`), not here, since windows of that episode share them.
"""

import collections
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from impala.acting.chunks import flush
from impala.acting.policies import Decision
from impala.timing import TimeAccount
from impala.types import ArraySpec, Chunk, EnvironmentSpec, Origin, Step


class Played(NamedTuple):
    """A window of T transitions of N environments, from which an agent computes its priority."""

    r_t: np.ndarray  # [T, N]
    discount_t: np.ndarray  # [T, N]
    is_first: np.ndarray  # [T+1, N]
    kept: tuple[np.ndarray, ...]  # [T+1, N, …] each, of the decisions in its states: see `Behaviour.kept`


Prioritise = Callable[[Played], np.ndarray]  # → priorities [N], positive


class Sink(Protocol):
    """Takes the steps of N environments."""

    def write(self, rows: list[dict[str, np.ndarray]]) -> None:
        """Takes a step of each environment."""

    def end_windows(self, is_window: np.ndarray, priority: np.ndarray) -> None:
        """Takes whether the last step written ends a window to train on, and the window's priority; [N] each."""


class WindowWriter:
    """A `chunks.Writer` whose steps are handed to `sink` one by one.

    No window begins across a reset, where there is no transition.

    Args:
      length: T.
      origin: of the first environment.
      on_steps: takes the number of transitions of each step; across a reset there is none to count.
      prioritise: if given, a window waits for the decision in its last state, and gets this priority; otherwise 1.
      kept: specs of what is kept of a decision, by name; those that are fields of `Chunk` become columns of the steps.
    """

    def __init__(
        self, spec: EnvironmentSpec, num_environments: int, *, length: int, origin: Origin, sink: Sink,
        on_steps: Callable[[int], None] = lambda count: None, prioritise: Prioritise | None = None,
        kept: Mapping[str, ArraySpec] = MappingProxyType({}),
    ):  # fmt: skip
        self._n, self._length, self._sink, self._on_steps = num_environments, length, sink, on_steps
        self._prioritise = prioritise
        self._columns = {name: index for index, name in enumerate(kept) if name in Chunk._fields}
        self._nothing_kept = {
            name: np.zeros((num_environments, *kept[name].shape), kept[name].dtype) for name in self._columns
        }
        self._origins = [
            np.array(origin._replace(environment=origin.environment + i), np.int64) for i in range(num_environments)
        ]
        self._no_action = np.zeros((num_environments, *spec.actions.array.shape), spec.actions.array.dtype)
        self._states = _last(length + 1)  # is_first of the last T + 1 states
        self._kept, self._steps = _last(length + 1), _last(length)  # of the decisions in them; (reward, discount)

    def start(self, window: np.ndarray, step: Step, previous_action, weights_version: int, core_state=()) -> None:
        """See `chunks.Writer`; only the first call writes anything: the frames of the first state's stack."""
        self._version = weights_version
        if self._states:
            return
        nothing = np.zeros(self._n, np.float32)
        is_later = np.zeros(self._n, bool)
        for older in window[:-1]:
            older_step = step._replace(observation=older, reward=nothing, is_first=is_later)
            self._write(older_step, self._no_action, self._nothing_kept)
        self._write(step._replace(reward=nothing), self._no_action, self._nothing_kept)
        self._states.append(step.is_first.copy())

    def append(self, decision: Decision, step: Step) -> None:
        self._version = int(np.max(decision.version, initial=self._version))
        if self._prioritise:  # windows that ended with the previous step waited for this decision in their last state
            self._kept.append(decision.kept)
            self._end_windows()
        self._write(step, decision.action, {name: decision.kept[index] for name, index in self._columns.items()})
        self._states.append(step.is_first.copy())
        self._steps.append((step.reward.copy(), step.discount.copy()))
        if not self._prioritise:
            self._end_windows()
        self._on_steps(self._n - int(np.sum(step.is_first)))

    def _end_windows(self) -> None:
        if len(self._states) > self._length:
            self._sink.end_windows(~self._states[1], self._priority())

    def _priority(self) -> np.ndarray:
        """Returns the priority of the window that ends with the last step, for each environment."""
        if not self._prioritise:
            return np.ones(self._n)
        rewards, discounts = zip(*self._steps)
        kept = tuple(np.stack(arrays) for arrays in zip(*self._kept))
        return self._prioritise(Played(np.stack(rewards), np.stack(discounts), np.stack(self._states), kept))

    def _write(self, step: Step, action: np.ndarray, kept: Mapping[str, np.ndarray]) -> None:
        version = np.int64(self._version)
        columns = (step.observation, step.is_first, action, step.reward, step.discount)
        if not _are_finite(step.reward, step.observation):
            raise ValueError(f"a step of {Origin(*self._origins[0])} or a neighbour holds a value that is not finite")
        self._sink.write([
            dict(observation=o, is_first=f, a_tm1=a, r_t=r, discount_t=d, weights_version=version, origin=origin)
            | {name: array[i] for name, array in kept.items()}
            for i, (o, f, a, r, d, origin) in enumerate(zip(*columns, self._origins))
        ])  # fmt: skip


def _last(count: int) -> collections.deque:
    return collections.deque(maxlen=count)


def _are_finite(*arrays: np.ndarray) -> bool:
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


class TableWindows:
    """A `Sink` that writes steps into Reverb, and windows of them as a table's items.

    Args:
      client: a `reverb.Client`.
      lengths: by column, how many of the newest steps a window holds; of other columns, it holds the last value only.
      should_stop: asked twice a second while the rate limiter blocks the writer; True abandons the wait.
      max_pending: windows of each environment that may be in flight when a call returns.
      num_together: windows of each environment that are sent together; until then they wait here.
    """

    def __init__(
        self, client, table: str, num_environments: int, *, lengths: Mapping[str, int],
        should_stop: Callable[[], bool], max_pending: int = 2, num_together: int = 1,
    ):  # fmt: skip
        num_kept = max(lengths.values()) + num_together - 1
        # Each call gives up the interpreter and waits to get it back: one writer, with columns for each environment.
        self._writer = client.trajectory_writer(num_keep_alive_refs=num_kept)
        self._lengths, self._table, self._should_stop = lengths, table, should_stop
        self._max_pending, self._num_together = max_pending * num_environments, num_together
        self._ended, self._num_steps = [], 0  # windows that were not sent yet, and steps since the first of them
        self._account = TimeAccount()

    def write(self, rows: list[dict[str, np.ndarray]]) -> None:
        if self._ended and self._num_steps == self._num_together - 1:
            self._send()  # the first of their steps would be forgotten
        self._num_steps += bool(self._ended)
        self._writer.append(rows)

    def end_windows(self, is_window: np.ndarray, priority: np.ndarray) -> None:
        sent = priority[is_window]
        if not (np.isfinite(sent) & (sent > 0)).all():  # a negative one would end the table's thread for good
            raise ValueError(f"priorities {sent.tolist()}; expected finite numbers above 0")
        for history, is_wanted, of_window in zip(self._writer.history, is_window, priority.tolist()):
            if is_wanted:
                trajectory = {
                    name: column[-self._lengths[name] :] if name in self._lengths else column[-1]
                    for name, column in history.items()
                }
                self._ended.append((of_window, trajectory))
        if self._num_steps == self._num_together - 1:
            self._send()

    def _send(self) -> None:
        for of_window, trajectory in self._ended:
            self._writer.create_item(self._table, priority=of_window, trajectory=trajectory)
        self._ended, self._num_steps = [], 0
        flush(self._writer, self._max_pending, self._should_stop, self._account)

    def blocked_fraction(self) -> float:
        """Returns the share of time spent waiting for the table since the last call."""
        return self._account.fraction("blocked")

    def close(self) -> None:
        """Ends the stream; windows that were not sent, or are in flight, are dropped."""
        self._writer.close()
