"""The loop between environment and policy."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from impala.acting.chunks import Writer
from impala.acting.policies import Policy
from impala.timing import TimeAccount
from impala.types import Environment, Episode, Origin, Step

_FIRST = Origin(run=0, actor=0, environment=0, incarnation=0, seq=0)


class Actor:
    """Steps the N environments of one lane with a policy and hands every step to a writer.

    Args:
      environment: N environments.
      policy: decides for all of them at once.
      writer: takes the steps.
      sync_weights: called at the start of every unroll, before its first action; brings the policy up to date and
        returns the version it acts with.
      unroll_length: T.
      origin: of the first chunk of the first environment; its actor, environment and task go into `Episode`s.
    """

    def __init__(
        self, environment: Environment, policy: Policy, writer: Writer, sync_weights: Callable[[], int],
        *, unroll_length: int, origin: Origin = _FIRST,
    ):  # fmt: skip
        self._environment, self._policy, self._writer = environment, policy, writer
        self._sync_weights, self.unroll_length = sync_weights, unroll_length
        self._origin = origin
        self.account = TimeAccount()

    def steps(self, seed: int) -> Iterator[list[Episode]]:
        """Acts for ever; yields the episodes that ended since the last yield, T + 1 times an unroll.

        Yields once before every unroll, before its weights are fetched, and once for each of its steps: while the
        environments step or, if the policy decides elsewhere, while it decides.
        """
        environment, policy, writer, account = self._environment, self._policy, self._writer, self.account
        origin = self._origin
        step = environment.reset(seed)
        policy.observe(step)
        scores = Scores(environment.num_environments, origin.actor, origin.environment, origin.task)
        shape, dtype = environment.spec.actions.array
        action = np.zeros((environment.num_environments, *shape), dtype)
        finished: list[Episode] = []
        while True:
            yield finished
            finished = []
            with account.part("weights"):
                version = self._sync_weights()
            writer.start(policy.window, step, action, version, policy.core_state)
            for _ in range(self.unroll_length):
                with account.part("inference"):
                    decision = policy.decide()
                with account.part("environment"):
                    environment.send(decision.action)  # most kinds of environment do the whole step here
                if not policy.decides_elsewhere:
                    yield finished
                with account.part("environment"):
                    step = environment.receive()
                policy.observe(step)
                with account.part("table"):
                    writer.append(decision, step)
                version = int(np.max(decision.version, initial=version))
                action, finished = decision.action, scores.add(step, version)
                if policy.decides_elsewhere:
                    yield finished
                    finished = []


class Scores:
    """Raw score and length of the running episodes of an actor's environments, which are numbered from `first`."""

    def __init__(self, num_environments: int, actor: int, first: int, task: int = 0):
        self._score = np.zeros(num_environments)
        self._length = np.zeros(num_environments, int)
        self._actor, self._first, self._task = actor, first, task

    def add(self, step: Step, version: int) -> list[Episode]:
        """Counts a step and returns the episodes that it ended."""
        self._score = np.where(step.is_first, 0.0, self._score + step.reward)
        self._length = np.where(step.is_first, 0, self._length + 1)
        return [
            Episode(
                float(self._score[i]), int(self._length[i]), self._actor, self._first + int(i), version, self._task
            )
            for i in np.flatnonzero(step.is_last)
        ]


def total_fractions(actors: Iterable[Actor], blocked: float) -> dict[str, float]:
    """Returns the shares of time of actors that take turns in one thread, summed for each part.

    `blocked` is the share of time that their writers waited for room; it is subtracted from the table's.
    """
    shares = [actor.account.fractions() for actor in actors]
    total = {name: sum(s.get(name, 0.0) for s in shares) for name in set().union(*shares)}
    return total | {"table": max(0.0, total.get("table", 0.0) - blocked), "blocked": blocked}


def interleave(loops: Iterable[Iterator[list[Episode]]]) -> Iterator[list[Episode]]:
    """Runs several actors' loops in turn: while one's environments step, the next one's policy decides."""
    loops = list(loops)
    while True:
        for loop in loops:
            yield next(loop)
