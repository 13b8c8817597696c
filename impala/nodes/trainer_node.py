"""What runs in GA3C's two kinds of processes: one predicts and trains, the others play."""

import collections
import functools
import threading

import numpy as np

from impala import agents
from impala.config import Config
from impala.nodes import feeding
from impala.nodes.learner_node import LearnerNode
from impala.nodes.parts import make_actor
from impala.nodes.random_walk import RandomWalk
from impala.nodes.remote_actor import RemoteActorNode
from impala.nodes.run import Run
from impala.nodes.side_jobs import PeriodicJob
from impala.nodes.with_learner import WithLearner
from impala.types import Chunk, EnvironmentSpec, Origin

_SLICE_SECONDS, _TAKE_SECONDS = 0.5, 0.1  # of waits for an agent's turn, and for chunks


class TrainerNode(WithLearner):
    """A `LearnerNode` that gets its batches through the RPC `train`, and also predicts for the players."""

    RPCS = (*WithLearner.RPCS, "address", "predict", "train")

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, peers=()):
        self._config, self._spec = config, spec
        self.learning = learning = LearnerNode(config, spec, run, index, make_source=self._make_source, peers=peers)
        from impala.acting import policies, predictors
        from impala.acting.crews import Gate
        from impala.launching import shared_memory
        from impala.replay.duplicates import Deduplicator

        num_learners = config.learner.num_learners
        self._deduplicator, self._accepting = Deduplicator(), threading.Lock()
        self._behaviour = agents.of(config).make_behaviour(config, spec)
        chunk = agents.of(config).make_chunk_spec(config, spec, version_per_step=True)
        self._fields = {name: tuple(field) for name, field in chunk._asdict().items() if field}
        # The model itself predicts: while an update is under way, some of the parameters may be newer than the version.
        outputs = policies.network_outputs(learning.learner.network)
        outputs = policies.with_version(outputs, lambda: learning.learner.num_updates)
        self._predictors = predictors.Predictors(
            outputs, max_environments=config.inference.max_environments,
            num_threads=config.ga3c.num_predictors, queue_size=config.ga3c.num_predictions,
        )  # fmt: skip
        num_agents = len(range(index, config.actor.num_actors, num_learners))
        self._agents = Gate(num_agents)
        sizes = dict(
            num_agents=num_agents, num_predictors=config.ga3c.num_predictors, num_trainers=config.ga3c.num_trainers
        )  # fmt: skip
        self._walk = RandomWalk(sizes, most=dict(num_agents=num_agents), apply=self._set_sizes, seed=config.seed)
        learning.jobs.append(PeriodicJob(0.0, self._predictors.crew.check))
        if period := config.ga3c.adjustment_seconds:
            learning.jobs.append(PeriodicJob(period, lambda: self._walk.adjust(learning.frames())))
        learning.counts.append(self._counts)
        learning.columns.append(lambda: self._walk.sizes | self._predictors.log.columns())
        self._address = shared_memory.new_address()
        shared_memory.Server(self._address, self._predict_in_turn)

    def _make_source(self, place: feeding.Place):
        from impala.replay.memory import MemoryQueue

        learner = self._config.learner
        self._queue = MemoryQueue(place.config.queue_size_each, should_stop=place.stop.is_set)
        self._trainers = Trainers(
            self._queue, batch_size=learner.batch_size // learner.num_learners, device=place.device,
            num_threads=self._config.ga3c.num_trainers,
        )  # fmt: skip
        return self._trainers

    # --- RPCs ---

    def predict(self, agent: tuple[int], _: int, *inputs: np.ndarray) -> tuple:
        """Returns (logits, value, …, version) for an agent's environments; () while it is not the agent's turn.

        Raises:
          remote.Refused: the inputs do not fit the environments.
        """
        from impala.acting import remote

        n = inputs[1].shape[-1] if len(inputs) > 1 and inputs[1].ndim else 0
        fields, _ = remote.network_fields(self._spec, n, self._behaviour)
        names = ("window", "is_first", "last_action", "last_reward", "core_state")[: len(fields)]
        remote.check_fields(f"agent {agent[0]}", names, inputs, fields, self._spec.name)
        return self._predictors(*inputs) if self._agents.may_pass(*agent, _SLICE_SECONDS) else ()

    def address(self) -> str:
        """Returns the address of `predict` in shared memory."""
        return self._address

    def train(self, chunks: list[tuple]) -> None:
        """Takes the chunks of an unroll; returns once the training queue has had room for them.

        Raises:
          remote.Refused: they do not fit the environments.
        """
        from impala.acting import remote

        chunks = [Chunk._make(chunk) for chunk in chunks]
        for chunk in chunks:
            arrays = [getattr(chunk, name) for name in self._fields]
            remote.check_fields("agent", list(self._fields), arrays, list(self._fields.values()), self._spec.name)
        with self._accepting:
            is_new = self._deduplicator.is_new  # a call whose answer was lost is repeated
            new = [chunk for chunk in chunks if is_new(Origin(*chunk.origin.tolist()))]
        self._queue(new)

    def _predict_in_turn(self, agent: tuple[int], number: int, inputs: list[np.ndarray]) -> tuple:
        while not (outputs := self.predict(agent, number, *inputs)):
            pass
        return outputs

    def _set_sizes(self, sizes: dict[str, int]) -> None:
        self._agents.size, self._predictors.crew.size = sizes["num_agents"], sizes["num_predictors"]
        self._trainers.size = sizes["num_trainers"]

    def _counts(self) -> dict[str, int]:
        deduplicator = self._deduplicator
        return dict(duplicate_chunks=deduplicator.num_duplicates, missing_chunks=deduplicator.num_gaps)


class Trainers:
    """A `replay.sources.Source` whose threads prepare batches at the same time; the learner takes them one by one.

    Args:
      queue: `MemoryQueue` of the chunks handed in.
      device: where batches are stacked.
      num_threads: N_T; `size` changes it.
    """

    def __init__(self, queue, *, batch_size: int, device: str, num_threads: int):
        self._queue, self._batch_size, self._device = queue, batch_size, device
        self._size, self._crew, self._changed = num_threads, None, threading.Condition()
        self._prepared: collections.deque[Chunk] = collections.deque()

    @property
    def size(self) -> int:
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._size = size
        if self._crew:
            self._crew.size = size

    def get(self, timeout_seconds: float) -> Chunk | None:
        """See `Source`."""
        from impala.acting.crews import Crew

        if self._crew is None:
            self._crew = Crew(self._prepare, self._size, name="trainer")
        self._crew.check()
        with self._changed:
            if not self._changed.wait_for(lambda: self._prepared, timeout_seconds):
                return None
            batch = self._prepared.popleft()
            self._changed.notify_all()
            return batch

    def _prepare(self) -> None:
        """Takes one turn of a trainer; begins no batch while as many wait as there are trainers."""
        from impala.replay import datasets

        with self._changed:
            if not self._changed.wait_for(lambda: len(self._prepared) < self._size, _TAKE_SECONDS):
                return
        if chunks := self._queue.take(self._batch_size, _TAKE_SECONDS):
            batch = datasets.stack([datasets.marked(chunk, is_replayed=False) for chunk in chunks], self._device)
            with self._changed:
                self._prepared.append(batch)
                self._changed.notify_all()

    def counts(self) -> dict[str, int]:
        return {}

    def columns(self) -> dict:
        return {}

    def fill(self) -> float:
        return self._queue.fill()

    def is_full(self) -> bool:
        return self.fill() >= 1.0

    def look(self, row: dict) -> None:
        pass

    def status(self) -> dict:
        return {}


class PlayerNode(RemoteActorNode):
    """Steps one agent's environments with predictions of a process that has the model, and hands in what it played."""

    def __init__(self, config: Config, run: Run, index: int, *, learners):
        super().__init__(config, run, index, learners=learners)
        from impala.acting import remote

        self._number, of = divmod(index, len(learners))  # among the agents of its learner
        self._learner = learners[of]
        self._sink = remote.Sink(remote.over_rpc(self._learner.futures.train), should_stop=self._stop.is_set)

    def _make_actor(self, environment, origin: Origin, seed: int):
        from impala.acting import remote

        spec, n = environment.spec, environment.num_environments
        behaviour = agents.of(self._config).make_behaviour(self._config, spec)
        fields = functools.partial(remote.network_fields, spec, n, behaviour)
        request = functools.partial(self._request(self._learner, "predict", (self._number,), fields), 0)
        return make_actor(
            environment, remote.Network(request, should_stop=self._stop.is_set), seed=seed, origin=origin,
            unroll_length=self._config.learner.unroll_length, sink=self._sink, behaviour=behaviour,
            version_per_step=True,
        )  # fmt: skip

    def _blocked_fraction(self) -> float:
        return self._sink.blocked_fraction()
