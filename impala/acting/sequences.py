"""From steps to sequences, for recurrent agents with replay (R2D2, Kapturowski et al. 2019, section 2.3).

    ├─ burn-in ─┼────── T ──────┤
    ·           ├─ burn-in ─┼────── T ──────┤      a sequence begins with each unroll of the actor: every `period` steps

Sequences that overlap share their steps, and each step is stored once. Each has the core state, the last action and the
last reward at its first observation. They may cross the ends of episodes (SEED RL, Espeholt et al. 2019): the network
resets its core there, and there is no transition to learn from.
"""

import collections
from typing import NamedTuple

import numpy as np

from impala.acting.policies import Decision
from impala.acting.windows import WindowWriter
from impala.types import Step


class _Begun(NamedTuple):
    """A sequence in progress: what is known where it began, [N, …] each."""

    at: int  # the number of steps written before
    memory: dict[str, np.ndarray]


class SequenceWriter(WindowWriter):
    """A `WindowWriter` whose windows begin at the calls of `start` and may cross the ends of episodes.

    A sequence whose trained transitions all lead across a reset is left out: there is nothing to learn from it.

    Args:
      burn_in: steps before the trained ones.
      windows: arguments of `WindowWriter`; `length` is that of burn-in and trained transitions together.
    """

    def __init__(self, *where, burn_in: int, **windows):
        super().__init__(*where, **windows)
        self._burn_in = burn_in
        self._begun: collections.deque[_Begun] = collections.deque()
        self._num_steps, self._last, self._ended = 0, None, False

    def start(self, window: np.ndarray, step: Step, previous_action, weights_version: int, core_state=()) -> None:
        """See `chunks.Writer`; if `step` is not the one appended last, all sequences in progress are dropped."""
        if step is not self._last:
            self._ended = False
            for begun in (self._begun, self._states, self._kept, self._steps):
                begun.clear()
        super().start(window, step, previous_action, weights_version, core_state)
        self._last, memory = step, {}
        if not isinstance(core_state, tuple):
            action = self._no_action + previous_action  # a new array; `previous_action` may be the number 0
            action[step.is_first] = 0
            memory = dict(core_state=core_state, previous_action=action, previous_reward=step.reward.copy())
        self._begun.append(_Begun(self._num_steps, memory))

    def append(self, decision: Decision, step: Step) -> None:
        super().append(decision, step)
        self._last = step

    def _write(self, step: Step, action: np.ndarray, kept) -> None:
        """Writes a step; the last one of a sequence also carries the `memory` of its first."""
        if self._states:  # not while `start` writes the first stack of frames, to which no transition leads
            self._num_steps += 1
        self._ended = bool(self._begun) and self._num_steps - self._begun[0].at == self._length
        super()._write(step, action, kept | self._begun.popleft().memory if self._ended else kept)

    def _end_windows(self) -> None:
        if self._ended:
            self._ended = False
            is_first = np.stack(self._states)[self._burn_in + 1 :]
            self._sink.end_windows(~is_first.all(axis=0), self._priority())
