"""What the server of many clients keeps and writes for each of them (SEED RL, Espeholt et al. 2019, section 3).

A *lane* is a group of environments that step together. `Lanes` keeps its frames, core state and unroll in progress.
"""

import threading
from collections.abc import Callable

import numpy as np

from impala.acting.actors import Scores
from impala.acting.chunks import Writer
from impala.acting.policies import Decision, Policy
from impala.acting.remote import LaneId, Refused, check_fields, decision_fields
from impala.types import EnvironmentSpec, Episode, Step


class Lanes:
    """Decides for the lanes of many clients and writes their unrolls; each request calls it from a thread of its own.

    Every request takes effect once: a client that got no answer repeats its request under the same number and gets the
    same decision; the step is not counted twice. If a lane is unknown, its client has restarted, or a decision failed,
    the step is taken as an episode's first, whatever it says; the lane's unfinished unrolls are dropped and counted.

    Args:
      make_policy: (lane, number of environments) → `Policy`, around a `Gatherer` that the lanes share.
      make_writer: (lane, number of environments) → `Writer`.
      unroll_length: T.
      spec: of the environments; a step that does not fit it is refused.
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
        """Takes the step that followed the last action (or a life's first step) and decides on the next action.

        Args:
          number: of the request, one more than the lane's last.

        Raises:
          Refused: another request of the lane is under way; its number of environments has changed; some of them belong
            to another lane; a later life of it has begun; `number` is not the next one; or the step does not fit the
            spec, or is not finite.
        """
        self._check(lane, step)
        with self._lock:
            kept = self._lane(lane, number, len(step.reward))
            # A client whose connection broke may repeat a request that is under way: it gets the same decision.
            is_repeated = number == kept.number
            if not is_repeated:
                kept.admit(number)
        if is_repeated:
            kept.busy.acquire()
        try:
            if self._lanes.get(lane[:2]) is not kept or number != kept.number:
                raise Refused(f"{lane}: request {number}; a later life or a later request of it has begun")
            decision, episodes = (kept.decision, []) if is_repeated and kept.decision is not None else kept.step(step)
        except Refused:
            raise
        except BaseException:  # how far the step got is unknown, so the lane is reset
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
        for key, other in list(self._lanes.items()):  # lanes that hold some of these environments
            if key[0] == lane.actor and range(max(key[1], environments.start), min(other.end, environments.stop)):
                if other.life >= lane.life:
                    raise Refused(f"{lane}: environments {key[1]} to {other.end - 1} are another lane's")
                self.num_dropped_unrolls += self._lanes.pop(key).num_unfinished_unrolls
        if kept is None and number > 0 and (number - 1) % self._unroll_length:  # unrolls that an earlier server began
            self.num_dropped_unrolls += num_environments
        policy, writer = self._make_policy(lane, num_environments), self._make_writer(lane, num_environments)
        self._lanes[lane[:2]] = Lane(lane, policy, writer, num_environments, number, self._unroll_length)
        return self._lanes[lane[:2]]

    def _check(self, lane: LaneId, step: Step) -> None:
        fields, _ = decision_fields(self._spec, len(step.reward))
        check_fields(str(lane), Step._fields, step, fields, self._spec.name)


class Lane:
    """The state of one lane in one life: what `Actor.steps` does in a loop, done request by request.

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
        self.number = number - 1  # of the last request, under way or answered
        self.decision: Decision | None = None  # on the last step; None where a life begins
        self._lane, self._policy, self._writer, self._unroll_length = lane, policy, writer, unroll_length
        self._scores = Scores(num_environments, lane.actor, lane.first_environment, lane.task)
        self._is_partial = np.ones(num_environments, bool)  # the running episode began before the lane did
        self._t = 0

    @property
    def num_unfinished_unrolls(self) -> int:
        return self.num_environments if self._t % self._unroll_length else 0

    def admit(self, number: int) -> None:
        """Acquires the lane for the next request. Raises `Refused` if one is under way, or `number` is not the next."""
        if not self.busy.acquire(blocking=False):
            raise Refused(f"{self._lane}: request {number} while {self.number} is under way; expected one at a time")
        if self.decision is not None and number != self.number + 1:
            self.busy.release()
            raise Refused(f"{self._lane}: request {number}; expected {self.number + 1}")
        self.number = number

    def begin_anew(self) -> int:
        """Resets the lane as a new life does, but keeps numbering chunks; returns the number of unrolls it drops."""
        num_dropped = self.num_unfinished_unrolls
        self._t, self.decision = 0, None
        return num_dropped

    def step(self, step: Step) -> tuple[Decision, list[Episode]]:
        """Takes a step and decides on it; also returns the episodes that ended."""
        episodes = self.observe(step)
        return self.decide(), episodes

    def observe(self, step: Step) -> list[Episode]:
        """Takes a step, which may end an unroll and begin the next; returns the episodes that ended."""
        last, episodes = self.decision, []
        if last is None:  # what came before is unknown here
            self._is_partial = ~step.is_first
            step = step._replace(is_first=np.ones_like(step.is_first), reward=np.zeros_like(step.reward))
        self._policy.observe(step)
        if last is not None:
            self._t += 1  # before `append`, which may block: the unroll it completes does not count as dropped
            self._writer.append(last, step)
            episodes = self._scores.add(step, int(np.max(last.version, initial=0)))
            is_partial, self._is_partial = self._is_partial, self._is_partial & ~(step.is_last | step.is_first)
            episodes = [e for e in episodes if not is_partial[e.environment - self._lane.first_environment]]
        if self._t % self._unroll_length == 0:
            action = 0 if last is None else last.action  # a life begins like an episode: no action led to it
            self._writer.start(self._policy.window, step, action, 0, self._policy.core_state)
        return episodes

    def decide(self) -> Decision:
        """Decides on the last step observed."""
        self.decision = self._policy.decide()
        return self.decision
