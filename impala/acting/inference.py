"""One network decides for many actors (GA3C, Babaeizadeh et al. 2016; SEED RL, Espeholt et al. 2019).

    Client: step ──▶ Lanes: Policy, Writer ──▶ Gatherer ──▶ network, one call for all
            action ◀──────── decision ◀── logits, value ◀──┘

A *lane* is a group of environments that step together. `Lanes` keeps what each remembers, its frames, core state and
unroll in progress, so that observations cross the network once and a client only steps environments. GA3C's agents keep
that themselves and ask for outputs alone: `acting.predictors`.
"""

import contextlib
import threading
import time
from collections.abc import Callable

import numpy as np

from impala.acting.actors import Scores
from impala.acting.chunks import Writer
from impala.acting.policies import Decision, Outputs, Policy
from impala.acting.remote import LaneId, Refused, check_fields, decision_fields
from impala.types import EnvironmentSpec, Episode, Step


class Gatherer:
    """Is `Outputs` for many threads at once: what they ask for goes through `outputs` as one batch.

    A batch is closed when it is full or when its first caller has waited long enough; while as many are computed as may
    be, the next one fills.

    Args:
      outputs: the network, (window [k, N, …], is_first [1, N], …) → arrays [N, …].
      max_environments: most N of a batch; a caller's own are never divided.
      timeout_seconds: that the first caller waits for others.
      num_at_once: batches that may be computed at the same time: a small network gives one the time that another's
        threads wait for each other.
    """

    def __init__(self, outputs: Outputs, *, max_environments: int, timeout_seconds: float, num_at_once: int = 1):
        if max_environments < 1:
            raise ValueError(f"max_environments={max_environments}; expected 1 or more")
        if not timeout_seconds > 0.0:
            raise ValueError(f"timeout_seconds={timeout_seconds}; expected more than 0, or nobody waits for anybody")
        self._outputs, self._max, self._timeout = outputs, max_environments, timeout_seconds
        if num_at_once < 1:
            raise ValueError(f"num_at_once={num_at_once}; expected 1 or more")
        self._num_at_once = num_at_once
        self._condition, self._computing = threading.Condition(), threading.Semaphore(num_at_once)
        self._pausing = threading.Lock()  # two who took a part each would wait for ever
        self._open: _Batch | None = None
        self.log = BatchLog()

    def __call__(self, window: np.ndarray, is_first: np.ndarray, *memory: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns this caller's rows of the outputs. Raises what the network raised, in every caller of the batch."""
        n = is_first.shape[1]
        with self._condition:
            if self._open and self._open.size + n > self._max:
                self._close(self._open)
            batch, is_leader = self._open, self._open is None
            if is_leader:
                batch = self._open = _Batch()
            index = len(batch.requests)
            batch.requests.append((window, is_first, *memory))
            batch.size += n
            if batch.size >= self._max:
                self._close(batch)
            if is_leader:
                self._condition.wait_for(lambda: batch.is_closed, self._timeout)
        if is_leader:
            self._compute(batch)
        batch.done.wait()
        if batch.error is not None:
            raise batch.error
        return batch.rows[index]

    @contextlib.contextmanager
    def paused(self):
        """Surrounds a change of the network's weights: no batch is computed meanwhile."""
        with self._pausing:
            for _ in range(self._num_at_once):
                self._computing.acquire()
        try:
            yield
        finally:
            self._computing.release(self._num_at_once)

    def _close(self, batch: "_Batch") -> None:
        batch.is_closed = True
        if self._open is batch:
            self._open = None
        self._condition.notify_all()

    def _compute(self, batch: "_Batch") -> None:
        try:
            with self._computing:  # while others are computed, this one goes on filling
                with self._condition:
                    self._close(batch)
                batch.rows = compute_together(self._outputs, batch.requests)
                self.log.add(batch.size, time.perf_counter() - batch.started)
        except BaseException as error:  # whoever waits must hear of it
            batch.error = error
        finally:
            batch.done.set()


class BatchLog:
    """Counts batches, the environments in them, and how long they took; for several threads."""

    def __init__(self):
        self.num_batches = self.num_environments = 0
        self._lock, self._last, self._slowest = threading.Lock(), (0, 0), 0.0

    def add(self, num_environments: int, seconds: float) -> None:
        """Counts a batch, which took `seconds` from its first request to its results."""
        with self._lock:
            self.num_batches += 1
            self.num_environments += num_environments
            self._slowest = max(self._slowest, seconds)

    def columns(self) -> dict[str, float]:
        """Returns what was since the last call: environments in a batch on average, and the slowest batch's seconds."""
        with self._lock:
            batches, environments = self.num_batches - self._last[0], self.num_environments - self._last[1]
            slowest, self._last, self._slowest = self._slowest, (self.num_batches, self.num_environments), 0.0
        return dict(inference_batch_mean=environments / batches, inference_seconds_max=slowest) if batches else {}


def compute_together(outputs: Outputs, requests: list[tuple[np.ndarray, ...]]) -> list[tuple[np.ndarray, ...]]:
    """Calls `outputs` once for the inputs of several requests; returns each one's rows."""
    if len(requests) == 1:
        return [outputs(*requests[0])]
    # Windows, is_first and what led to an observation have environments second, a core state first.
    columns = zip([1, 1, 1, 1, 0], zip(*requests))
    rows = outputs(*(np.concatenate(parts, axis=axis) for axis, parts in columns))
    ends = np.cumsum([is_first.shape[1] for _, is_first, *_ in requests])[:-1]
    return list(zip(*(np.split(array, ends) for array in rows)))


class _Batch:
    """Requests on their way through the network together."""

    def __init__(self):
        self.requests, self.size, self.is_closed, self.started = [], 0, False, time.perf_counter()
        self.done, self.error, self.rows = threading.Event(), None, ()


class Lanes:
    """Decides for the lanes of many clients and writes their unrolls; called from a thread for each request.

    Every request is answered once: a client that heard no answer asks again under the same number and gets the same
    decision, and its step is not counted twice. Where a lane is not known, its client lives anew, or a decision failed,
    it begins as an episode does, whatever the step says, and its unfinished unrolls are dropped and counted.

    Args:
      make_policy: (lane, number of environments) → `Policy`, around a `Gatherer` that they share.
      make_writer: (lane, number of environments) → `Writer`.
      unroll_length: T.
      spec: of the environments; a step of others is refused.
      on_episodes: takes the episodes that ended.
    """

    def __init__(
        self, make_policy: Callable[[LaneId, int], Policy], make_writer: Callable[[LaneId, int], Writer],
        *, unroll_length: int, spec: EnvironmentSpec,
        on_episodes: Callable[[list[Episode]], None] = lambda episodes: None,
    ):  # fmt: skip
        self._spec = spec
        self._make_policy, self._make_writer = make_policy, make_writer
        self._unroll_length, self._on_episodes = unroll_length, on_episodes
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._lock = threading.Lock()
        self.num_dropped_unrolls = 0

    def step(self, lane: LaneId, number: int, step: Step) -> Decision:
        """Takes what the last action brought, the first step of a life included, and decides on the next action.

        Args:
          number: of the request, one more than that of the lane's last.

        Raises:
          Refused: the lane has another request under way, other environments than before or those of another lane, or
            is in a later life already; or the step is not one of these environments, or not finite.
        """
        self._check(lane, step)
        with self._lock:
            kept = self._lane(lane, number, len(step.reward))
            # A client whose line broke asks again while its first request is under way: it gets the same decision.
            is_repeated = number == kept.last_asked
            if not is_repeated:
                if not kept.busy.acquire(blocking=False):
                    under_way = f"request {number} while {kept.last_asked} is under way"
                    raise Refused(f"{lane}: {under_way}; expected one at a time")
                kept.last_asked = number
        if is_repeated:
            kept.busy.acquire()
        try:
            if self._lanes.get(lane[:2]) is not kept:
                raise Refused(f"{lane}: a later life of it has begun")
            decision, episodes = kept.step(number, step)
        except Refused:
            raise
        except BaseException:  # it is not known how far it came: the client's next request begins anew
            with self._lock:
                if self._lanes.get(lane[:2]) is kept:
                    self.num_dropped_unrolls += kept.begin_anew()
            raise
        finally:
            kept.busy.release()
        if episodes:
            self._on_episodes(episodes)
        return decision

    def _lane(self, lane: LaneId, number: int, num_environments: int) -> "Lane":
        kept = self._lanes.get(lane[:2])
        if kept is not None and lane.life < kept.life:
            raise Refused(f"{lane}: life {kept.life} of it has begun; expected that or a later one")
        if kept is not None and lane.life == kept.life:
            if num_environments != kept.num_environments:
                raise Refused(f"{lane}: {num_environments} environments; expected {kept.num_environments} as before")
            return kept
        environments = range(lane.first_environment, lane.first_environment + num_environments)
        for key, other in list(self._lanes.items()):  # what the environments were to their client's last life
            if key[0] == lane.actor and range(max(key[1], environments.start), min(other.end, environments.stop)):
                if other.life >= lane.life:
                    raise Refused(f"{lane}: environments {key[1]} to {other.end - 1} are another lane's")
                self.num_dropped_unrolls += self._lanes.pop(key).num_unfinished_unrolls
        if kept is None and number > 0 and (number - 1) % self._unroll_length:  # of a server before this one
            self.num_dropped_unrolls += num_environments
        policy, writer = self._make_policy(lane, num_environments), self._make_writer(lane, num_environments)
        self._lanes[lane[:2]] = Lane(lane, policy, writer, num_environments, number, self._unroll_length)
        return self._lanes[lane[:2]]

    def _check(self, lane: LaneId, step: Step) -> None:
        fields, _ = decision_fields(self._spec, len(step.reward))
        check_fields(str(lane), Step._fields, step, fields, self._spec.name)


class Lane:
    """What is remembered of one lane in one life: `Actor.steps`, turned inside out.

    Args:
      lane: its name.
      policy: decides for its environments.
      writer: takes its steps.
      number: of its first request.
      unroll_length: T.
    """

    def __init__(
        self, lane: LaneId, policy: Policy, writer: Writer, num_environments: int, number: int, unroll_length: int
    ):
        self.life, self.num_environments, self.busy = lane.life, num_environments, threading.Lock()
        self.end = lane.first_environment + num_environments
        self.last_asked = number - 1  # the number of the last request, be it under way or answered
        self._lane, self._policy, self._writer, self._unroll_length = lane, policy, writer, unroll_length
        self._scores = Scores(num_environments, lane.actor, lane.first_environment, lane.task)
        self._is_partial = np.ones(num_environments, bool)  # the running episode began before the lane did
        self._expected: int | None = number  # None: whatever comes next
        self._t = 0
        self._decision: Decision | None = None

    @property
    def num_unfinished_unrolls(self) -> int:
        return self.num_environments if self._t % self._unroll_length else 0

    def begin_anew(self) -> int:
        """Forgets what led here, as a new life does, but goes on numbering chunks; returns what it drops."""
        num_dropped = self.num_unfinished_unrolls
        self._expected, self._t, self._decision = None, 0, None
        return num_dropped

    def step(self, number: int, step: Step) -> tuple[Decision, list[Episode]]:
        """See `Lanes.step`; returns the episodes that ended as well."""
        if self._decision is not None and number + 1 == self._expected:
            return self._decision, []  # asked again
        if number != (number if self._expected is None else self._expected):
            raise Refused(f"{self._lane}: request {number}; expected {self._expected}")
        self._expected = number + 1
        episodes = self.observe(step)
        return self.decide(), episodes

    def observe(self, step: Step) -> list[Episode]:
        """Takes a step, which may end an unroll and begin the next; returns the episodes that ended."""
        last, episodes = self._decision, []
        if last is None:  # whatever came before is not known here
            self._is_partial = ~step.is_first
            step = step._replace(is_first=np.ones_like(step.is_first), reward=np.zeros_like(step.reward))
        self._policy.observe(step)
        if last is not None:
            self._t += 1  # a full queue holds `append` back, after which nothing of the unroll can get lost
            self._writer.append(last, step)
            episodes = self._scores.add(step, int(np.max(last.version, initial=0)))
            is_partial, self._is_partial = self._is_partial, self._is_partial & ~step.is_last
            episodes = [e for e in episodes if not is_partial[e.environment - self._lane.first_environment]]
        if self._t % self._unroll_length == 0:
            action = 0 if last is None else last.action  # a life begins as an episode: nothing led to it
            self._writer.start(self._policy.window, step, action, 0, self._policy.core_state)
        return episodes

    def decide(self) -> Decision:
        """Decides on the last step observed."""
        self._decision = self._policy.decide()
        return self._decision
