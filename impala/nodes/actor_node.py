"""What runs inside an actor's process."""

from impala import agents
from impala.config import Config
from impala.nodes.closing import close_all
from impala.nodes.parts import lane_origin, lane_seed, make_actor, make_environment
from impala.nodes.replaying import wait_for_server
from impala.nodes.reporter import Reporter
from impala.nodes.run import Run
from impala.types import EnvironmentSpec


class ActorNode:
    """Steps one actor's environments in lanes, writes chunks, fetches weights, reports to the learner.

    Args:
      tables: a `reverb.Client` for each learner.
      reports: RPC client of the `LearnerNode` that gathers metrics.
      weights: RPC client of the `LearnerNode` or `RelayNode` that weights are fetched from.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int, *, tables, reports, weights):
        from impala.launching import processes, roles
        from impala.learning.parameters import assign_weights
        from impala.learning.weights import Fetcher

        self._stop = processes.prepare(roles.ACTOR, run.member * config.actor.num_actors + index, config.actor.niceness)
        processes.set_tensorflow_threads(config.actor.num_tensorflow_threads)
        self._config, self._spec, self._index, self._environments = config, spec, index, []
        self._reports, self._incarnation = reports, processes.incarnation(run.incarnation)
        for table in tables:
            wait_for_server(table, self._stop)
        self._network = agents.of(config).make_network(config, spec, on_cpu=True)
        variables = list(self._network.trainable_variables)
        self._fetcher = Fetcher(
            weights.futures.get_weights, lambda w: assign_weights(variables, w),
            should_stop=self._stop.is_set, period=config.weight_period,
        )  # fmt: skip
        self._lanes = self._make_lanes(tables)

    def _make_lanes(self, clients) -> list:
        from impala.acting import chunks, policies
        from impala.replay import tables

        actor, length = self._config.actor, self._config.learner.unroll_length
        num_each, first = actor.num_lane_environments, self._index * actor.num_environments
        lanes = []
        names = [tables.QUEUE, tables.REPLAY] if self._config.replay.fraction else [tables.QUEUE]
        max_pending = max(1, num_each // len(clients))
        self._sink = chunks.RoundRobinSink([
            chunks.TableSink(client, names, should_stop=self._stop.is_set, max_pending=max_pending)
            for client in clients
        ])  # fmt: skip
        outputs = policies.network_outputs(self._network)
        for lane in range(actor.num_lanes):
            task, seed = self._config.task_of(self._index, lane), self._seed(lane)
            self._environments.append(make_environment(
                self._config, num_each, num_threads=actor.num_lane_threads, task=task, first_seed=seed
            ))  # fmt: skip
            lanes.append(make_actor(
                self._environments[-1], outputs, seed=seed, unroll_length=length, sink=self._sink,
                origin=lane_origin(self._config, self._incarnation, self._index, lane),
                # The lanes share one network: the first updates its weights for all of them.
                sync_weights=self._fetcher.sync if lane == 0 else lambda: self._fetcher.version,
                behaviour=agents.behaviour_of_lane(self._config, self._spec, first + lane * num_each, num_each),
            ))  # fmt: skip
        return lanes

    def _seed(self, lane: int) -> int:
        return lane_seed(self._config, self._incarnation, self._index, lane)

    def run(self) -> None:
        from impala.acting import actors
        from impala.launching import processes

        num_lanes, length = self._config.actor.num_lanes, self._lanes[0].unroll_length
        loops = [actor.steps(self._seed(lane)) for lane, actor in enumerate(self._lanes)]
        report = Reporter(self._reports, self._index, self._incarnation)
        processes.begin(self._stop)
        self._stop.doing = "starting"  # until every lane has reset its environments
        try:
            for count, episodes in enumerate(actors.interleave(loops)):
                if count == num_lanes:
                    self._stop.doing = "running"
                if self._stop.is_set():
                    break
                report.add(episodes)
                if count % (num_lanes * (length + 1)) == num_lanes * length:  # the unrolls' last step has begun
                    self._fetcher.prefetch()
                if report.is_due():
                    report.send(actors.total_fractions(self._lanes, self._sink.blocked_fraction()))
        finally:
            close_all(self._environments)
        processes.finish()
