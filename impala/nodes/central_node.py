"""What runs in the two kinds of processes of central inference: one decides for all, the others step environments."""

import functools
import queue

from impala import agents
from impala.config import Config
from impala.nodes import feeding
from impala.nodes.learner_node import LearnerNode
from impala.nodes.parts import lane_seed, make_policy
from impala.nodes.remote_actor import RemoteActorNode
from impala.nodes.reporter import Reporter
from impala.nodes.run import Run
from impala.nodes.side_jobs import PeriodicJob
from impala.nodes.with_learner import WithLearner
from impala.types import EnvironmentSpec, Episode, Origin, Step


class CentralNode(WithLearner):
    """A `LearnerNode` that also decides for its actors and writes their unrolls.

    Args:
      first: RPC client of the first of several learners, which is told of episodes; None in that one.
    """

    RPCS = (*WithLearner.RPCS, "address", "act")

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, peers=(), first=None):
        self._config, self._spec = config, spec
        self.learning = learning = LearnerNode(config, spec, run, index, make_source=self._make_source, peers=peers)
        import tensorflow as tf

        from impala.acting import inference, lanes, policies
        from impala.launching import shared_memory
        from impala.traces import Traced

        num_learners, num_actors = config.learner.num_learners, config.actor.num_actors
        self._behaviour = agents.of(config).make_behaviour(config, spec)
        self._num_lanes = len(range(index, num_actors * config.actor.num_lanes, num_learners))
        with tf.device(learning.device):
            acting = agents.of(config).make_network(config, spec)
        # A copy of the network decides, since an update writes one parameter after the other; it is renewed between two
        # batches of inference.
        pairs = list(zip(acting.trainable_variables, learning.learner.network.trainable_variables, strict=True))

        def copy_weights() -> None:
            for mine, theirs in pairs:
                mine.assign(theirs)

        self._copy_weights = Traced(copy_weights)
        outputs = policies.with_version(policies.network_outputs(acting), lambda: self._acting_version)
        self._gatherer = inference.Gatherer(
            outputs, max_environments=config.inference.max_environments,
            timeout_seconds=config.inference.timeout_seconds, num_at_once=config.inference.num_at_once,
        )  # fmt: skip
        self._renew()
        self._episodes: queue.SimpleQueue[list[Episode]] = queue.SimpleQueue()
        self._reporter = Reporter(first, num_actors + index) if first else None
        self._lanes = lanes.Lanes(
            self._make_policy, self._make_writer, unroll_length=self._unroll_length(),
            on_episodes=self._episodes.put if first else learning.head.monitor.add_episodes, spec=spec,
        )  # fmt: skip
        learning.after_update.append(self._renew)
        learning.jobs += [PeriodicJob(0.0, self._tell)] if first else []
        learning.counts.append(lambda: dict(dropped_unrolls=self._lanes.num_dropped_unrolls))
        learning.columns.append(self._columns)
        self._address = shared_memory.new_address()
        shared_memory.Server(self._address, lambda lane, number, step: self.act(lane, number, *step))

    def _unroll_length(self) -> int:
        return self._config.learner.unroll_length

    def _make_source(self, place: feeding.Place):
        from impala.replay.memory import MemoryQueue

        self._queue = MemoryQueue(place.config.queue_size_each, should_stop=place.stop.is_set)
        return feeding.from_memory(place, self._queue)

    def _make_behaviour(self, lane, num_environments: int):
        return self._behaviour

    def _make_policy(self, lane, num_environments: int):
        index = lane.first_environment // num_environments
        return make_policy(
            self._gatherer, self._spec, num_environments, behaviour=self._make_behaviour(lane, num_environments),
            seed=lane_seed(self._config, lane.incarnation, lane.actor, index),
        )  # fmt: skip

    def _make_writer(self, lane, num_environments: int):
        from impala.acting import chunks

        # The incarnation is the lane's life, which rises whenever its client restarts: nobody checks these chunks.
        return chunks.UnrollWriter(
            self._spec, num_environments, unroll_length=self._config.learner.unroll_length, sink=self._queue,
            origin=Origin(
                run=self._config.seed, actor=lane.actor, environment=lane.first_environment, incarnation=lane.life,
                seq=0, task=lane.task,
            ),
            behaviour=self._behaviour, version_per_step=True,
        )  # fmt: skip

    def address(self) -> str:
        """Returns the address of `act` in shared memory."""
        return self._address

    def act(self, lane, number: int, *step) -> tuple:
        """Takes a step of a lane of environments; returns the actions, and the version that decided on each."""
        from impala.acting.remote import LaneId

        decision = self._lanes.step(LaneId(*lane), number, Step(*step))
        return decision.action, decision.version

    def _renew(self, result=None) -> None:
        """Copies the learner's weights into the network that decides."""
        with self._gatherer.paused():
            self._copy_weights()
            self._acting_version = self.learning.learner.num_updates

    def _tell(self) -> None:
        if self._reporter.is_due():
            for _ in range(self._episodes.qsize()):
                self._reporter.add(self._episodes.get())
            self._reporter.send({})

    def _columns(self) -> dict[str, float]:
        # A full queue blocks a lane here, inside `act`; to its actor that looks like a slow decision.
        blocked = dict(actor_blocked_fraction=self._blocked_fraction() / self._num_lanes)
        return self._gatherer.log.columns() | blocked

    def _blocked_fraction(self) -> float:
        return self._queue.blocked_fraction()


class StepperNode(RemoteActorNode):
    """Steps one actor's environments with actions that the learners' processes decide; those also count episodes."""

    _tells_episodes = False

    def _make_actor(self, environment, origin: Origin, seed: int):
        from impala.acting import actors, remote

        actor, life = self._config.actor, remote.new_life(origin.incarnation)
        lane = self._index * actor.num_lanes + origin.environment // actor.num_lane_environments
        learner = self._learners[lane % len(self._learners)]
        name = remote.LaneId(origin.actor, origin.environment, life, origin.task)
        fields = functools.partial(remote.decision_fields, environment.spec, environment.num_environments)
        client = remote.Client(self._request(learner, "act", name, fields), should_stop=self._stop.is_set)
        return actors.Actor(
            environment, client, remote.NoWriter(), lambda: 0, unroll_length=self._config.learner.unroll_length
        )
