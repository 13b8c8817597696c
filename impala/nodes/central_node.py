"""What runs in the two kinds of processes of central inference: who decides for all, and who steps environments."""

import functools
import math
import queue

from impala.agents.actor_critic import make_behaviour, make_network
from impala.config import Config
from impala.nodes.learner_node import LearnerNode
from impala.nodes.parts import lane_seed
from impala.nodes.remote_actor import RemoteActorNode
from impala.nodes.reporter import Reporter
from impala.nodes.run import Run
from impala.types import EnvironmentSpec, Episode, Origin, Step


class CentralNode(LearnerNode):
    """A `LearnerNode` that decides for its actors and writes their unrolls.

    Args:
      first: RPC client of the first of several learners, which is told of episodes; None in that one.
    """

    RPCS = (*LearnerNode.RPCS, "address", "act")

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, peers=(), first=None):
        super().__init__(config, spec, run, index, table=None, peers=peers)
        import tensorflow as tf

        from impala.acting import inference, lanes, policies
        from impala.launching import shared_memory
        from impala.replay.memory import MemoryQueue

        num_learners, num_actors = config.learner.num_learners, config.actor.num_actors
        self._behaviour = make_behaviour(config, spec)
        self._num_lanes = len(range(index, num_actors * config.actor.num_lanes, num_learners))
        self._queue = MemoryQueue(math.ceil(config.queue_size / num_learners), should_stop=self._stop.is_set)
        with tf.device(self._device):
            acting = make_network(config, spec)
        # A copy decides, since an update writes one parameter after the other; it is renewed between two batches.
        pairs = list(zip(acting.trainable_variables, self._learner.network.trainable_variables, strict=True))
        self._copy_weights = tf.function(lambda: [mine.assign(theirs) for mine, theirs in pairs], autograph=False)
        outputs = policies.with_version(policies.network_outputs(acting), lambda: self._acting_version)
        self._gatherer = inference.Gatherer(
            outputs, max_environments=config.inference.max_environments,
            timeout_seconds=config.inference.timeout_seconds, num_at_once=config.inference.num_at_once,
        )  # fmt: skip
        self._renew()
        self._episodes: queue.SimpleQueue[list[Episode]] = queue.SimpleQueue()
        self._reporter = Reporter(first, num_actors + index) if first else None
        self._lanes = lanes.Lanes(
            self._make_policy, self._make_writer, unroll_length=config.learner.unroll_length,
            on_episodes=self._episodes.put if first else self._monitor.add_episodes, spec=spec,
        )  # fmt: skip
        self._address = shared_memory.new_address()
        shared_memory.Server(self._address, lambda lane, number, step: self.act(lane, number, *step))

    def _make_policy(self, lane, num_environments: int):
        index = lane.first_environment // num_environments
        from impala.acting import policies

        return policies.make(
            self._gatherer, self._spec, num_environments, behaviour=self._behaviour,
            seed=lane_seed(self._config, lane.incarnation, lane.actor, index),
        )  # fmt: skip

    def _make_writer(self, lane, num_environments: int):
        from impala.acting import chunks

        return chunks.UnrollWriter(
            self._spec, num_environments, unroll_length=self._config.learner.unroll_length, sink=self._queue,
            origin=Origin(self._config.seed, lane.actor, lane.first_environment, lane.life, 0, lane.task),
            behaviour=self._behaviour, version_per_step=True,
        )  # fmt: skip

    def address(self) -> str:
        """Returns where `act` is served by shared memory."""
        return self._address

    def act(self, lane, number: int, *step) -> tuple:
        """Takes a step of a lane of environments; returns the actions, and the version that decided on each."""
        from impala.acting.remote import LaneId

        decision = self._lanes.step(LaneId(*lane), number, Step(*step))
        return decision.action, decision.version

    def step(self) -> dict[str, float]:
        """See `LearnerNode`; then renews the weights that decide."""
        metrics = super().step()
        if metrics:
            self._renew()
        if self._reporter and self._reporter.is_due():
            for _ in range(self._episodes.qsize()):
                self._reporter.add(self._episodes.get())
            self._reporter.send({})
        return metrics

    def _renew(self) -> None:
        with self._gatherer.paused():
            self._copy_weights()
            self._acting_version = self._learner.num_updates

    def _make_feeder(self):
        learner = self._config.learner
        return self._feeder_of(self._queue.chunks, batch_size=learner.batch_size // learner.num_learners)

    def _queue_fill(self) -> float:
        return self._queue.fill()

    def _counts(self) -> dict[str, float]:
        # A lane is held back here, inside `act`: its actor takes that for a slow decision.
        blocked = dict(actor_blocked_fraction=self._queue.blocked_fraction() / self._num_lanes)
        return super()._counts() | self._gatherer.log.columns() | blocked

    def _own_counts(self) -> dict[str, int]:
        return super()._own_counts() | dict(dropped_unrolls=self._lanes.num_dropped_unrolls)


class StepperNode(RemoteActorNode):
    """Steps one actor's environments with what the learners' processes decide; episodes are counted there."""

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
