"""A parameter server: it holds parameters and the optimizer's state, and applies the gradients of workers.

    worker 0 ── gradient, and version of the parameters it was taken at ───▶┐  is it too old?  has it come before?
    worker 1 ── … ─────────────────────────────────────────────────────────▶┤  apply; version + 1
             ◀── verdict, the newest parameters ────────────────────────────┘

Without a barrier each gradient is applied as it arrives (A3C, Mnih et al. 2016; Gorila, Nair et al. 2015). A3C's
threads write into shared memory without locks; here one gradient is applied after the other, which differs in that no
parameter is read half written. With a barrier the gradients of all workers, or of all but the slowest, make one update
(A2C, DPPO).

A server may be one of several *shards*, each of which holds some of the tensors and applies its part of every
gradient.
"""

import collections
import contextlib
import enum
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala.arrays import empty
from impala.learning.parameters import copies_of
from impala.timing import TimeAccount
from impala.traces import Traced

_SLICE_SECONDS = 0.2


class Verdict(enum.IntEnum):
    """What became of a gradient."""

    ACCEPTED = 0
    STALE = 1  # too many updates were made since its parameters were read, its round is over, or all were replaced
    REPEATED = 2  # it was received before, but its answer was lost
    NONFINITE = 3  # it is not finite
    ENDED = 4  # there are no more updates
    OUTLIER = 5  # its worker judged its loss an outlier, see `learning.outliers`


class Push(NamedTuple):
    """A worker's gradient, or one shard's part of it."""

    worker: int
    life: int  # rises when the worker is started again
    number: int  # rises with every gradient of a life
    version: int  # of the parameters that it is the gradient of
    gradients: Sequence[np.ndarray]
    num_frames: int  # that it was computed on
    is_finite: bool = True  # it, and the loss
    is_outlier: bool = False
    increments: np.ndarray = np.zeros(0)  # of what workers share, see `learning.statistics`
    is_filler: bool = False  # in place of one that was lost, see `nodes.exchanging.Exchange.agree`


class State(NamedTuple):
    """Parameters and optimizer of some tensors."""

    version: int  # updates made
    frames: int
    parameters: list[np.ndarray]
    slots: list[list[np.ndarray]]  # for each parameter, of each optimizer in the order of `slot_names`
    statistics: np.ndarray = np.zeros(0)
    target: Sequence[np.ndarray] = ()  # the parameters of θ⁻, if there is one
    iterations: Sequence[int] = ()  # of each optimizer, if these are not all updates


class Rules(NamedTuple):
    """Which gradients are combined into an update, and how."""

    max_staleness: int | None = None  # updates between reading parameters and applying the gradient; None: any number
    num_awaited: int | None = None  # gradients of one update; None: each by itself
    is_mean: bool = False  # apply the mean of those, not their sum
    target_period: int | None = None  # updates between copies into θ⁻; None: there is none
    num_optimizers: int = 1  # one for all workers; else one for each, and no barrier


EACH = Rules()


class ParameterServer:
    """One shard; safe to call from many threads.

    Args:
      state: the initial one; without slots if the parameters are new.
      make_optimizer: variables → optimizer, see `learning.optimizers`.
      schedule: frames → learning rate and the optimizer's ε.
      rules: which gradients make an update.
      merge: (statistics, sum of the increments of an update's gradients) → statistics.
      should_stop: asked while a gradient waits for others; True abandons the wait.

    `is_done`, a function, is asked at each push whether there are to be no more updates.
    """

    def __init__(
        self, state: State, make_optimizer: Callable, schedule: Callable[[int], dict[str, float]], *,
        rules: Rules = EACH,
        merge: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda statistics, increments: statistics,
        should_stop: Callable[[], bool] = lambda: False,
    ):  # fmt: skip
        self._changed = threading.Condition(threading.RLock())
        self._variables = [tf.Variable(array) for array in state.parameters]
        self._optimizers = [make_optimizer(self._variables) for _ in range(rules.num_optimizers)]
        restore(state, self._variables, self._optimizers)
        self.version, self.frames, self.statistics = state.version, state.frames, np.asarray(state.statistics)
        self._schedule, self._rules, self._merge, self._should_stop = schedule, rules, merge, should_stop
        self._copies, self._copied = [], -1  # of the parameters, and of which version
        self._target = list(state.target) or (self.read()[2] if rules.target_period else [])
        self.num_replaced = self._least_version = 0  # how often all was replaced; the version then
        self._newest: dict[int, tuple[int, int, int]] = {}  # by worker: its last gradient's life, number, update
        self._judged: dict[int, tuple[int, int]] = {}  # by worker: life and number of the last one with a verdict
        self._admitted: dict[int, tuple[int, int]] | None = None  # while paused: by worker, up to which it may push
        self._round: dict[int, tuple[Push, Callable, Verdict]] = {}  # by worker: who waits for others, see `push`
        self._account = TimeAccount()
        self.counts = dict.fromkeys(Verdict, 0)
        self.staleness: collections.Counter[int] = collections.Counter()  # of gradients that were accepted
        self.is_done: Callable[[], bool] = lambda: False
        self._apply = [Traced(functools.partial(self._apply_by, optimizer)) for optimizer in self._optimizers]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of its parameters."""
        return [tuple(variable.shape) for variable in self._variables]

    @property
    def target_number(self) -> int:
        """The number of the newest θ⁻; it rises whenever θ⁻ changes."""
        return self.num_replaced + (self.num_target_copies or 0)

    @property
    def num_target_copies(self) -> int | None:
        """How often θ was copied into θ⁻ so far; None: there is no θ⁻."""
        return self.version // self._rules.target_period if self._rules.target_period else None

    def push(self, push: Push, accepted: Callable[[int], None] = lambda version: None) -> Verdict:
        """Applies a gradient, or refuses it; with a barrier, waits for those of other workers first.

        At a barrier one that is not finite waits, too, and the update is of the others: if its worker went on alone, it
        would be a round ahead of them. A round in which none is finite changes nothing and counts as an update, so that
        every round has its place in an iteration.

        Args:
          accepted: called with the number of the update that the gradient is a part of, before anybody else sees
            that update; with a barrier perhaps by another worker's thread.
        """
        with self._changed:
            if not self._wait_while_paused(push):
                return Verdict.ENDED
            is_new = self._judged.get(push.worker, (-1, -1)) < (push.life, push.number)
            verdict = self._judge(push)
            waits = verdict is Verdict.NONFINITE and self._rules.num_awaited and push.version == self.version
            if verdict is Verdict.ACCEPTED or waits:
                self._round[push.worker] = push, accepted, verdict
                if len(self._round) >= (self._rules.num_awaited or 1):
                    self._update()
                else:
                    verdict = self._wait(push, verdict)
            else:
                self._note_judged(push)
            # One that is refused counts once, though it may come again; a repetition counts each time.
            counts_now = is_new or verdict is Verdict.REPEATED
            if verdict is not Verdict.ACCEPTED and counts_now and not push.is_filler:
                self.counts[verdict] += 1
            return verdict

    def read(self) -> tuple[int, int, list[np.ndarray], np.ndarray]:
        """Returns version, frames, copies of the parameters that cannot be written to, and the statistics."""
        with self._changed:
            if self._copied != self.version:  # at a barrier all workers get the same ones
                self._copies, self._copied = copies_of(self._variables), self.version
                for array in self._copies:
                    array.flags.writeable = False
            return self.version, self.frames, self._copies, self.statistics

    def target(self) -> tuple[int, list[np.ndarray]]:
        """Returns the number of θ⁻ and its parameters."""
        with self._changed:
            return self.target_number, self._target

    def copy(self) -> State:
        """Returns a copy of everything; pushes wait meanwhile."""
        with self._changed:
            version, frames, parameters, statistics = self.read()
            slots, iterations = slots_of(self._variables, self._optimizers), iterations_of(self._optimizers)
            return State(version, frames, parameters, slots, statistics, self._target, iterations)

    def replace(self, state: State) -> None:
        """Takes over everything but version and frames; the version rises, and gradients of those before are stale."""
        with self._changed:
            self.version += 1
            for push, _, _ in self._round.values():
                self._note_judged(push)
            restore(state, self._variables, self._optimizers)
            self.statistics, self._target = np.asarray(state.statistics), list(state.target)
            self.num_replaced += 1
            self._least_version, self._round = self.version, {}
            self._changed.notify_all()

    def pause(self) -> list[tuple[int, int, int]]:
        """Applies no further gradients until `resume`; returns worker, life and number of the last of each worker.

        To bring several shards to the same gradients: pause all, let each `catch_up` with the newest, resume all.
        """
        with self._changed:
            self._admitted = {}
            return [(worker, *key) for worker, key in self._judged.items()]

    def catch_up(self, newest: Sequence[Sequence[int]], patience_seconds: float) -> bool:
        """Lets in, while paused, what is not newer than `newest`; returns whether all of it came in time."""
        with self._changed:
            self._admitted = {worker: (life, number) for worker, life, number in newest}
            self._changed.notify_all()
            return self._changed.wait_for(
                lambda: all(self._judged.get(worker, (-1, -1)) >= key for worker, key in self._admitted.items()),
                patience_seconds,
            )

    def resume(self) -> None:
        """Ends a pause."""
        with self._changed:
            self._admitted = None
            self._changed.notify_all()

    def held(self) -> contextlib.AbstractContextManager:
        """Within the block no gradient is applied by other threads."""
        return self._changed

    def busy_fraction(self) -> float:
        """Returns the share of time spent applying gradients since the last call."""
        return self._account.fraction("applying")

    def take_staleness(self) -> collections.Counter[int]:
        """Returns how many gradients were accepted since the last call, by how many updates stale they were."""
        with self._changed:
            taken, self.staleness = self.staleness, collections.Counter()
            return taken

    def _wait_while_paused(self, push: Push) -> bool:
        """Returns False if it was told to stop meanwhile."""
        while self._admitted is not None and (push.life, push.number) > self._admitted.get(push.worker, (-1, -1)):
            if self._should_stop():
                return False
            self._changed.wait(_SLICE_SECONDS)
        return True

    def _note_judged(self, push: Push) -> None:
        self._judged[push.worker] = max(self._judged.get(push.worker, (-1, -1)), (push.life, push.number))
        if self._admitted is not None:
            self._changed.notify_all()

    def _judge(self, push: Push) -> Verdict:
        if self.is_done():
            return Verdict.ENDED
        waiting = self._round[push.worker][0] if push.worker in self._round else push
        if (push.life, push.number) <= self._newest.get(push.worker, (-1, -1))[:2]:
            return Verdict.REPEATED
        if (push.life, push.number) < (waiting.life, waiting.number):  # late, of a life that has ended
            return Verdict.REPEATED
        # A sum of squares is not finite if an element is not, and takes a third of the time that a look at each takes.
        is_finite = push.is_finite and math.isfinite(sum(float(np.vdot(g, g)) for g in push.gradients))
        if not (is_finite and np.isfinite(push.increments).all()):
            return Verdict.NONFINITE
        if push.is_outlier:
            return Verdict.OUTLIER
        staleness = self.version - push.version
        if push.version < self._least_version or staleness < 0:  # of parameters that are gone, or never were
            return Verdict.STALE
        most = 0 if self._rules.num_awaited else self._rules.max_staleness
        if most is not None and staleness > most:
            return Verdict.STALE
        return Verdict.ACCEPTED

    def _wait(self, push: Push, verdict: Verdict) -> Verdict:
        """Waits until this round has enough gradients; the push that brings the last one applies all."""
        while self._round.get(push.worker, (None,))[0] is push:
            if self._should_stop():
                del self._round[push.worker]
                return Verdict.ENDED
            self._changed.wait(_SLICE_SECONDS)
        if verdict is Verdict.NONFINITE or self._newest.get(push.worker, (-1, -1))[:2] == (push.life, push.number):
            return verdict
        return Verdict.STALE if push.version < self._least_version else Verdict.REPEATED

    def _update(self) -> None:
        in_order = [self._round[worker] for worker in sorted(self._round)]
        self._round = {}
        self._changed.notify_all()
        for push, _, _ in in_order:
            self._note_judged(push)
        sound = [(push, accepted) for push, accepted, verdict in in_order if verdict is Verdict.ACCEPTED]
        if not sound:
            self.version += 1
            return
        pushes, told = zip(*sound)
        with self._account.part("applying"):
            gradients = self._combined(pushes)
            scheduled = self._schedule(self.frames)
            self._copied = -1  # should `apply` fail halfway
            apply = self._apply[pushes[0].worker if len(self._apply) > 1 else 0]
            apply(gradients, *(np.float32(scheduled[name]) for name in ("learning_rate", "epsilon")))
        self.counts[Verdict.ACCEPTED] += len(pushes)
        self.statistics = self._merge(self.statistics, sum(push.increments for push in pushes))
        self.version += 1
        if self._rules.target_period and self.version % self._rules.target_period == 0:
            self._target = self.read()[2]
        for push in pushes:
            self._newest[push.worker] = (push.life, push.number, self.version)
            self.frames += push.num_frames
            self.staleness[self.version - 1 - push.version] += 1
        for accepted in told:
            accepted(self.version)

    def _combined(self, pushes: Sequence[Push]) -> Sequence[np.ndarray]:
        """Returns the sum of gradients in this order, or their mean."""
        if len(pushes) == 1:
            return pushes[0].gradients
        totals = [empty(shape) for shape in self.shapes]
        for total, *arrays in zip(totals, *(push.gradients for push in pushes)):
            np.add(arrays[0], arrays[1], out=total)
            for array in arrays[2:]:
                total += array
            if self._rules.is_mean:
                total /= np.float32(len(pushes))
        return totals

    def _apply_by(self, optimizer, gradients: list[tf.Tensor], learning_rate: tf.Tensor, epsilon: tf.Tensor) -> None:
        optimizer.epsilon.assign(epsilon)
        optimizer.learning_rate.assign(learning_rate)
        optimizer.apply_gradients(list(zip(gradients, self._variables, strict=True)))


def slots_of(variables: Sequence[tf.Variable], optimizers: Sequence) -> list[list[np.ndarray]]:
    """Returns copies of the optimizers' slots, a list for each variable."""
    return [[slot.numpy() for slot in _slots(variable, optimizers)] for variable in variables]


def iterations_of(optimizers: Sequence) -> list[int]:
    """Returns how often each optimizer was applied."""
    return [int(optimizer.iterations.numpy()) for optimizer in optimizers]


def restore(state: State, variables: Sequence[tf.Variable], optimizers: Sequence) -> None:
    """Copies a state into variables and optimizers; without slots, into the variables alone."""
    for variable, array in zip(variables, state.parameters, strict=True):
        variable.assign(array)
    for variable, slots in zip(variables, state.slots):
        for slot, array in zip(_slots(variable, optimizers), slots, strict=True):
            slot.assign(array)
    for optimizer, number in zip(optimizers, state.iterations or [state.version] * len(optimizers), strict=True):
        optimizer.iterations.assign(number)


def _slots(variable: tf.Variable, optimizers: Sequence) -> list[tf.Variable]:
    return [optimizer.get_slot(variable, name) for optimizer in optimizers for name in optimizer.get_slot_names()]


def partition(sizes: Sequence[int], num_shards: int) -> list[list[int]]:
    """Returns which tensors each shard holds, of about equal total size: the largest first, to the emptiest shard."""
    shards, totals = [[] for _ in range(num_shards)], [0] * num_shards
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        emptiest = min(range(num_shards), key=lambda shard: (totals[shard], shard))
        shards[emptiest].append(index)
        totals[emptiest] += sizes[index]
    return [sorted(shard) for shard in shards]
