"""What runs inside the process of an actor whose network is in another process; it does without TensorFlow."""

import abc
from collections.abc import Callable

from impala.config import Config
from impala.nodes.closing import close_all
from impala.nodes.parts import lane_origin, lane_seed, make_environment
from impala.nodes.reporter import Reporter
from impala.nodes.requesting import request_to
from impala.nodes.run import Run
from impala.types import Environment, Origin


class RemoteActorNode(abc.ABC):
    """Steps one actor's environments in lanes until it is told to stop, and reports to the first learner.

    Args:
      learners: RPC clients of the nodes that decide or predict; their RPC `address` returns a shared-memory address.
    """

    _tells_episodes = True  # False where they are counted elsewhere

    def __init__(self, config: Config, run: Run, index: int, *, learners):
        from impala.launching import processes, roles

        self._stop = processes.prepare(roles.ACTOR, index, config.actor.niceness)
        self._config, self._index, self._learners = config, index, learners
        self._incarnation = processes.incarnation(run.incarnation)

    @abc.abstractmethod
    def _make_actor(self, environment: Environment, origin: Origin, seed: int):
        """Makes the actor of one lane; `origin` is of the first chunk of its first environment."""

    def _blocked_fraction(self) -> float:
        """Returns the share of time spent waiting for room since the last call; 0 if chunks are written elsewhere."""
        return 0.0

    def run(self) -> None:
        from impala.acting import actors, remote
        from impala.launching import processes

        report, self._environments = Reporter(self._learners[0], self._index, self._incarnation), []
        try:
            lanes = [self._lane(lane) for lane in range(self._config.actor.num_lanes)]
            processes.begin(self._stop)
            self._stop.doing = "starting"  # until every lane has reset its environments
            for count, episodes in enumerate(actors.interleave(actor.steps(seed) for actor, seed in lanes)):
                if count == len(lanes):
                    self._stop.doing = "running"
                if self._stop.is_set():
                    break
                if self._tells_episodes:
                    report.add(episodes)
                if report.is_due():
                    report.send(actors.total_fractions((actor for actor, _ in lanes), self._blocked_fraction()))
        except remote.Stopped:
            pass
        finally:
            close_all(self._environments)
        processes.finish()

    def _lane(self, lane: int) -> tuple:
        config, actor, index = self._config, self._config.actor, self._index
        task, seed = config.task_of(index, lane), lane_seed(config, self._incarnation, index, lane)
        n, num_threads = actor.num_lane_environments, actor.num_lane_threads
        environment = make_environment(config, n, num_threads=num_threads, task=task, first_seed=seed)
        self._environments.append(environment)
        origin = lane_origin(config, self._incarnation, index, lane)
        return self._make_actor(environment, origin, seed), seed

    def _request(self, learner, method: str, name: tuple[int, ...], fields: Callable[[], tuple]) -> Callable:
        """Returns the configured way to ask `learner`; see `requesting.request_to`."""
        return request_to(
            learner, method, name, fields, transport=self._config.inference.transport, should_stop=self._stop.is_set
        )
