"""What runs in a process that both acts and learns."""

import logging
import threading
import time

from impala import agents
from impala.config import Config
from impala.launching import processes
from impala.nodes.closing import close_all
from impala.nodes.learner_node import LearnerNode
from impala.nodes.parts import lane_origin, lane_seed, make_environment, make_policy
from impala.nodes.replaying import count_frames, from_replay, say_what_is_there, wait_for
from impala.nodes.run import Run
from impala.nodes.side_jobs import PeriodicJob
from impala.nodes.with_learner import WithLearner
from impala.types import EnvironmentSpec

_YIELDS = 20  # of the acting loop in one turn of its thread
_CLOSE_SECONDS = 10.0  # for the environments' last step, and to close them


class SoloNode(WithLearner):
    """A `LearnerNode` that trains on windows from a replay table, and a thread that acts and fills the table.

    Args:
      table: `reverb.Client` of the replay's server.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, *, table):
        self._config, self._spec, self._num_steps = config, spec, 0
        self._incarnation = processes.incarnation(run.incarnation)
        self.learning = learning = LearnerNode(config, spec, run, make_source=from_replay, table=table)
        from impala.acting import actors, policies

        info = wait_for(table, learning.stop)
        self._exploration, self._crew = agents.of(config).make_exploration(config, spec), None
        # The network that learns also acts: while an update is under way, some of its parameters may be newer.
        self._outputs = policies.with_version(
            policies.network_outputs(learning.learner.network), lambda: learning.learner.num_updates
        )
        self._lanes, self._sinks, self._environments, self._are_closed = [], [], [], threading.Event()
        for lane in range(config.actor.num_lanes):
            self._add_lane(lane, table)
        seeds = (lane_seed(config, self._incarnation, 0, lane) for lane in range(config.actor.num_lanes))
        self._steps = actors.interleave([actor.steps(seed) for actor, seed in zip(self._lanes, seeds)])
        learning.at_end.append(self._wait_for_environments)
        learning.jobs += [PeriodicJob(0.0, self._keep_acting), PeriodicJob(1.0, self._report)]
        count_frames(learning, "played_steps", lambda: self._num_steps)
        column = agents.of(config).EXPLORATION
        learning.columns.append(lambda: {column: self._epsilon()})
        say_what_is_there(learning, info.current_size, config.replay.min_size)

    def _epsilon(self) -> float:
        return self._exploration(self.learning.frames())

    def _add_lane(self, lane: int, table) -> None:
        from impala.acting import actors, windows
        from impala.replay import tables
        from impala.replay.windows import lengths

        config, agent = self._config, agents.of(self._config)
        n, seed = config.actor.num_lane_environments, lane_seed(config, self._incarnation, 0, lane)
        origin = lane_origin(config, self._incarnation, 0, lane)
        sink = windows.TableWindows(
            table, tables.REPLAY, n, lengths=lengths(agent.make_chunk_spec(config, self._spec)),
            should_stop=self._should_stop,
        )  # fmt: skip
        behaviour = agent.make_behaviour(config, self._spec, explore=self._epsilon)
        policy = make_policy(self._outputs, self._spec, n, seed=seed, behaviour=behaviour)
        writer = windows.WindowWriter(
            self._spec, n, length=config.agent.n_step, origin=origin, sink=sink,
            on_steps=self._count, kept=behaviour.kept,
        )  # fmt: skip
        environment = make_environment(config, n, num_threads=config.actor.num_lane_threads, first_seed=seed)
        self._environments.append(environment)
        self._sinks.append(sink)
        self._lanes.append(actors.Actor(environment, policy, writer, lambda: 0, unroll_length=_YIELDS, origin=origin))

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps

    def _should_stop(self) -> bool:
        return self.learning.stop.is_set() or self.learning.is_over

    def _keep_acting(self) -> None:
        """Starts the thread that acts, at the first call; raises the error that stopped it, if any."""
        from impala.acting.crews import Crew

        if self._crew is None:
            self._take_context = processes.launch_context()  # an environment may call `lp.stop()`
            self._crew = Crew(self._act, 1, name="actor")
        self._crew.check()

    def _act(self) -> None:
        self._take_context()
        with self.learning.stop.watched():  # an environment may hang
            for _ in range(_YIELDS):
                if self._should_stop():
                    self._close_environments()
                    time.sleep(0.1)  # or else it would spin while the last checkpoint is written
                    return
                if episodes := next(self._steps):
                    self.learning.head.monitor.add_episodes(episodes)

    def _close_environments(self) -> None:
        """Called by the thread that steps them, if there is one."""
        if not self._are_closed.is_set():
            close_all(self._environments)
            self._are_closed.set()

    def _wait_for_environments(self) -> None:
        if self._crew is None:
            self._close_environments()
        elif not self._are_closed.wait(_CLOSE_SECONDS):
            logging.warning("environments are not closed: they neither step nor close within %.0f s", _CLOSE_SECONDS)

    def _report(self) -> None:
        from impala.acting import actors

        blocked = sum(sink.blocked_fraction() for sink in self._sinks)
        self.learning.head.monitor.add_actor_report(actors.total_fractions(self._lanes, blocked), [])

    def run(self) -> None:
        """See `LearnerNode`."""
        try:
            super().run()
        finally:
            if self._crew is not None:
                self._crew.close()
