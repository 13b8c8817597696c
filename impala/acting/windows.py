"""From steps to overlapping windows of T transitions, one for every step: what is replayed rather than handed on once.

A window shares its steps with its neighbours, so that they are kept once. It holds T + k observations, the first k − 1
of them the older planes of the stack that its first state is; those of an episode before are zeroed where windows are
read (`replay.windows`), since in the table they are their own episode's.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from impala.acting.policies import Decision
from impala.types import EnvironmentSpec, Origin, Step, TimeAccount


class Sink(Protocol):
    """What takes the steps of N environments."""

    def __call__(self, rows: list[dict[str, np.ndarray]], is_window: np.ndarray) -> None:
        """Takes a step of each environment, and whether it ends a window to train on."""


class WindowWriter:
    """A `chunks.Writer` whose steps are handed to `sink` one by one.

    No window begins with a transition across a reset, which is none.

    Args:
      length: T.
      origin: of the first environment.
      on_steps: takes how many transitions a step was, those across a reset not counted.
    """

    def __init__(
        self, spec: EnvironmentSpec, num_environments: int, *, length: int, origin: Origin, sink: Sink,
        on_steps: Callable[[int], None] = lambda count: None,
    ):  # fmt: skip
        self._n, self._length, self._sink, self._on_steps = num_environments, length, sink, on_steps
        self._origins = [
            np.array(origin._replace(environment=origin.environment + i), np.int64) for i in range(num_environments)
        ]
        self._no_action = np.zeros((num_environments, *spec.actions.array.shape), spec.actions.array.dtype)
        self._is_first: collections.deque[np.ndarray] = collections.deque(maxlen=length + 1)  # of the last T + 1 states

    def start(self, window: np.ndarray, step: Step, previous_action, weights_version: int, core_state=()) -> None:
        """See `chunks.Writer`; only a life's first has something to write: the frames that its first state is of."""
        self._version = weights_version
        if self._is_first:
            return
        nothing = np.zeros(self._n, np.float32)
        no_window = is_later = np.zeros(self._n, bool)
        for older in window[:-1]:
            self._write(step._replace(observation=older, reward=nothing, is_first=is_later), self._no_action, no_window)
        self._write(step._replace(reward=nothing), self._no_action, no_window)
        self._is_first.append(step.is_first)

    def append(self, decision: Decision, step: Step) -> None:
        self._version = int(np.max(decision.version, initial=self._version))
        self._is_first.append(step.is_first)
        is_whole = len(self._is_first) == self._length + 1
        self._write(step, decision.action, ~self._is_first[1] if is_whole else np.zeros(self._n, bool))
        self._on_steps(self._n - int(np.sum(step.is_first)))

    def _write(self, step: Step, action: np.ndarray, is_window: np.ndarray) -> None:
        version = np.int64(self._version)
        columns = (step.observation, step.is_first, action, step.reward, step.discount)
        if not _are_finite(step.reward, step.observation):
            raise ValueError(f"a step of {Origin(*self._origins[0])}, or beside it, holds a value that is not finite")
        self._sink(
            [
                dict(observation=o, is_first=f, a_tm1=a, r_t=r, discount_t=d, weights_version=version, origin=origin)
                for o, f, a, r, d, origin in zip(*columns, self._origins)
            ],
            is_window,
        )


def _are_finite(*arrays: np.ndarray) -> bool:
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


class TableWindows:
    """A `Sink` that writes steps into Reverb, and windows of them as a table's items.

    Args:
      client: a `reverb.Client`.
      lengths: of a window's columns, the newest steps of each; of those that are not named the last.
      should_stop: asked twice a second while the rate limiter holds the writer back; True abandons the wait.
      max_pending: windows of each environment that may be on their way when a call returns.
    """

    _FLUSH_MILLISECONDS = 500

    def __init__(
        self, client, table: str, num_environments: int, *, lengths: Mapping[str, int],
        should_stop: Callable[[], bool], max_pending: int = 2,
    ):  # fmt: skip
        longest = max(lengths.values())
        self._writers = [client.trajectory_writer(num_keep_alive_refs=longest) for _ in range(num_environments)]
        self._lengths, self._table, self._should_stop, self._max_pending = lengths, table, should_stop, max_pending
        self._account = TimeAccount()

    def __call__(self, rows: list[dict[str, np.ndarray]], is_window: np.ndarray) -> None:
        for writer, row, is_wanted in zip(self._writers, rows, is_window):
            writer.append(row)
            if is_wanted:
                trajectory = {
                    name: column[-self._lengths[name] :] if name in self._lengths else column[-1]
                    for name, column in writer.history.items()
                }
                writer.create_item(self._table, priority=1.0, trajectory=trajectory)
        for writer in self._writers:
            self._wait(writer)

    def _wait(self, writer) -> None:
        """Waits until little of a writer's is on its way, in slices: Reverb's blocking calls swallow signals."""
        from reverb import errors

        while not self._should_stop():
            try:
                with self._account.part("blocked"):
                    return writer.flush(self._max_pending, timeout_ms=self._FLUSH_MILLISECONDS)
            except errors.DeadlineExceededError:
                continue

    def blocked_fraction(self) -> float:
        """Returns the share of time waited for the table since the last call."""
        return self._account.fraction("blocked")

    def close(self) -> None:
        """Ends the streams; windows on their way are dropped."""
        for writer in self._writers:
            writer.close()
