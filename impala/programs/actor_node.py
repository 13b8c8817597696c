"""What runs inside an actor's process."""

import time

import numpy as np

from impala.config import Config
from impala.programs.compose import make_actor, make_environment, make_network
from impala.programs.run import Run
from impala.types import EnvironmentSpec, Episode, Origin


class ActorNode:
    """Steps one actor's environments in lanes, writes chunks, fetches weights, reports to the learner.

    Args:
      tables: a `reverb.Client` for each learner.
      reports: RPC client of the `LearnerNode` that gathers metrics.
      weights: RPC client of the one that weights are fetched from.
    """

    _REPORT_SECONDS = 1.0

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int, *, tables, reports, weights):
        from impala.launching import processes
        from impala.learning import learners
        from impala.learning.weights import Fetcher

        self._stop = processes.prepare("actor", run.member * config.actor.num_actors + index)
        processes.set_tensorflow_threads(config.actor.num_tensorflow_threads)
        self._config, self._spec, self._run, self._index = config, spec, run, index
        self._reports = reports
        for table in tables:
            table.server_info(timeout=60)  # a writer would wait for a missing server for ever
        self._network = make_network(config, spec)
        variables = list(self._network.trainable_variables)
        self._fetcher = Fetcher(
            weights.futures.get_weights, lambda w: learners.assign_weights(variables, w),
            should_stop=self._stop.is_set,
        )
        self._lanes = self._make_lanes(tables)

    def _make_lanes(self, clients) -> list:
        from impala.acting import chunks, policies
        from impala.replay import tables

        actor, length = self._config.actor, self._config.learner.unroll_length
        num_each = actor.num_environments // actor.num_lanes
        lanes = []
        names = [tables.QUEUE, tables.REPLAY] if self._config.replay.fraction else [tables.QUEUE]
        max_pending = max(1, num_each // len(clients))
        self._sink = chunks.InTurn([
            chunks.TableSink(client, names, should_stop=self._stop.is_set, max_pending=max_pending)
            for client in clients
        ])  # fmt: skip
        num_threads = max(1, actor.num_environment_threads // actor.num_lanes)
        outputs = policies.network_outputs(self._network)
        for lane in range(actor.num_lanes):
            task = self._config.task_of(self._index, lane)
            origin = Origin(self._config.seed, self._index, lane * num_each, self._run.incarnation, 0, task)
            lanes.append(make_actor(
                make_environment(self._config, num_each, num_threads, task), outputs,
                seed=self._seed(lane), unroll_length=length, origin=origin, sink=self._sink,
                # The lanes share one network: the first brings it up to date for all of them.
                sync_weights=self._fetcher.sync if lane == 0 else lambda: self._fetcher.version,
                core_state_shape=self._network.core_state_shape,
            ))  # fmt: skip
        return lanes

    def _seed(self, lane: int) -> int:
        """Distinct for every lane of every actor in every launch."""
        entropy = [self._config.seed, self._run.incarnation, self._index, lane]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] % 2**30)

    def run(self) -> None:
        from impala.acting import actors
        from impala.launching import processes

        num_lanes, length = self._config.actor.num_lanes, self._config.learner.unroll_length
        loops = [actor.steps(self._seed(lane)) for lane, actor in enumerate(self._lanes)]
        report = _Reporter(self._reports, self._index, self._REPORT_SECONDS)
        for count, episodes in enumerate(actors.interleave(loops)):
            if self._stop.is_set():
                break
            report.add(episodes)
            if count % (num_lanes * (length + 1)) == num_lanes * length:  # the unrolls' last step has begun
                self._fetcher.prefetch()
            if report.is_due():
                report.send(self._shares())
        processes.finish()

    def _shares(self) -> dict[str, float]:
        shares = [actor.account.fractions() for actor in self._lanes]
        total = {name: sum(s.get(name, 0.0) for s in shares) for name in set().union(*shares)}
        return total | {"blocked": self._sink.blocked_fraction()}


class _Reporter:
    """Sends episodes and shares of time to the learner; what was not acknowledged is sent again."""

    def __init__(self, learner, index: int, period_seconds: float):
        self._learner, self._index, self._period = learner, index, period_seconds
        self._waiting: list[Episode] = []
        self._sent: list[Episode] | None = None  # not acknowledged
        self._future, self._number, self._due = None, -1, time.monotonic() + period_seconds

    def add(self, episodes: list[Episode]) -> None:
        self._waiting += episodes

    def is_due(self) -> bool:
        return time.monotonic() > self._due and (self._future is None or self._future.done())

    def send(self, shares: dict[str, float]) -> None:
        self._due = time.monotonic() + self._period
        if self._future is not None and self._future.exception() is None:
            self._sent = None
        if self._sent is None:  # else the same again under the same number: it may have come through after all
            self._sent, self._waiting, self._number = self._waiting, [], self._number + 1
        episodes = [tuple(episode) for episode in self._sent]
        self._future = self._learner.futures.report(self._index, self._number, shares, episodes)
