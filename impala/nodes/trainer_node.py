"""What runs in GA3C's two kinds of processes: who predicts and trains, and who plays."""

import collections
import contextlib
import functools
import math
import queue
import threading
import time

import numpy as np

from impala.agents.actor_critic import make_behaviour, make_chunk_spec
from impala.config import Config
from impala.nodes.learner_node import LearnerNode
from impala.nodes.parts import make_actor
from impala.nodes.random_walk import RandomWalk
from impala.nodes.remote_actor import RemoteActorNode
from impala.nodes.run import Run
from impala.nodes.side_jobs import Periodically
from impala.types import Chunk, EnvironmentSpec, Origin

_SLICE_SECONDS, _TAKE_SECONDS = 0.5, 0.1  # of waits for one's turn, and for chunks


class TrainerNode(LearnerNode):
    """A `LearnerNode` whose batches come through its own RPC `train`, and which predicts for the agents."""

    RPCS = (*LearnerNode.RPCS, "address", "predict", "train")

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, peers=()):
        super().__init__(config, spec, run, index, table=None, peers=peers)
        from impala.acting import policies, predictors
        from impala.acting.crews import Crew, Gate
        from impala.launching import shared_memory
        from impala.replay.datasets import Deduplicator
        from impala.replay.memory import MemoryQueue

        num_learners = config.learner.num_learners
        self._queue = MemoryQueue(math.ceil(config.queue_size / num_learners), should_stop=self._stop.is_set)
        self._deduplicator, self._accepting = Deduplicator(), threading.Lock()
        chunk = make_chunk_spec(config, spec, version_per_step=True)
        self._behaviour = make_behaviour(config, spec)
        self._fields = {name: tuple(field) for name, field in chunk._asdict().items() if field}
        # The model itself predicts: while an update is under way, some of the parameters may be newer than the version.
        outputs = policies.network_outputs(self._learner.network)
        outputs = policies.with_version(outputs, lambda: self._learner.num_updates)
        self._predictors = predictors.Predictors(
            outputs, max_environments=config.inference.max_environments,
            num_threads=config.ga3c.num_predictors, queue_size=config.ga3c.num_predictions,
        )  # fmt: skip
        self._address = shared_memory.new_address()
        shared_memory.Server(self._address, self._predict_in_turn)
        self._turn, self._results = threading.Lock(), queue.SimpleQueue()
        self._prepared: collections.deque[Chunk] = collections.deque()  # batches; peers may not have theirs yet
        self._trainers: Crew | None = None
        num_agents = dict(num_agents=len(range(index, config.actor.num_actors, num_learners)))
        self._agents = Gate(num_agents["num_agents"])
        sizes = dict(num_predictors=config.ga3c.num_predictors, num_trainers=config.ga3c.num_trainers)
        self._walk = RandomWalk(num_agents | sizes, most=num_agents, apply=self._set_sizes, seed=config.seed)

    # --- RPCs ---

    def predict(self, agent: tuple[int], _: int, *inputs: np.ndarray) -> tuple:
        """Returns (logits, value, …, version) for an agent's environments; nothing while it is not its turn.

        Raises:
          remote.Refused: the inputs are of other environments.
        """
        from impala.acting import remote

        n = inputs[1].shape[-1] if len(inputs) > 1 and inputs[1].ndim else 0
        fields, _ = remote.network_fields(self._spec, n, self._behaviour)
        names = ("window", "is_first", "last_action", "last_reward", "core_state")[: len(fields)]
        remote.check_fields(f"agent {agent[0]}", names, inputs, fields, self._spec.name)
        return self._predictors(*inputs) if self._agents.may_pass(*agent, _SLICE_SECONDS) else ()

    def address(self) -> str:
        """Returns where `predict` is served by shared memory."""
        return self._address

    def train(self, chunks: list[tuple]) -> None:
        """Takes the chunks of an unroll; returns when the training queue had room for them.

        Raises:
          remote.Refused: they are of other environments.
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

    def step(self) -> dict[str, float]:
        """Waits for an update of the trainers; returns its metrics, none when none came within a second."""
        from impala.acting.crews import Crew

        if self._trainers is None:
            self._trainers = Crew(self._train, self._walk.sizes["num_trainers"], name="trainer")
        self._trainers.check()
        self._predictors.crew.check()
        try:
            return self._results.get(timeout=1.0)
        except queue.Empty:
            return {}

    def _predict_in_turn(self, agent: tuple[int], number: int, inputs: list[np.ndarray]) -> tuple:
        while not (outputs := self.predict(agent, number, *inputs)):
            pass
        return outputs

    # --- the crews and their sizes ---

    def _train(self) -> None:
        """One turn of a trainer."""
        from impala.replay import datasets

        learner, num_trainers, started = self._config.learner, self._walk.sizes["num_trainers"], time.monotonic()
        chunks = []
        if len(self._prepared) < num_trainers:
            chunks = self._queue.take(learner.batch_size // learner.num_learners, _TAKE_SECONDS)
        waited = (time.monotonic() - started) / num_trainers
        if not self._group:
            self._monitor.add_wait(waited)
            if not chunks:
                return
        batches = []
        if chunks:
            marked = [datasets.marked(chunk, is_replayed=False) for chunk in chunks]
            batches = [datasets.stack(marked, self._device)]
        with self._turn:
            self._prepared += batches
            if self._is_over:
                return
            self._held = self._prepared[0] if self._prepared else None
            if self._group:
                is_ready, waited, _ = self._agree(waited)
                self._monitor.add_wait(waited)
            else:
                is_ready, self._is_over = self._held is not None, self._wants_end()
            if is_ready and not self._is_over:
                self._results.put(self._update(self._prepared.popleft()))

    def _set_sizes(self, sizes: dict[str, int]) -> None:
        self._agents.size, self._predictors.crew.size = sizes["num_agents"], sizes["num_predictors"]
        self._trainers.size = sizes["num_trainers"]

    def _jobs(self) -> list[Periodically]:
        period = self._config.ga3c.adjustment_seconds
        return [*super()._jobs(), *([Periodically(period, self._adjust)] if period else [])]

    def _adjust(self) -> None:
        self._walk.adjust(self._monitor.frames)

    def _log(self) -> None:
        with self._trainers_paused():
            super()._log()

    def _save(self) -> float | None:
        with self._trainers_paused():
            return super()._save()

    def _trainers_paused(self):
        return self._trainers.paused() if self._trainers else contextlib.nullcontext()

    def _queue_fill(self) -> float:
        return self._queue.fill()

    def _counts(self) -> dict[str, float | None]:
        return super()._counts() | self._walk.sizes | self._predictors.log.columns()

    def _own_counts(self) -> dict[str, int]:
        deduplicator = self._deduplicator
        return dict(duplicate_chunks=deduplicator.num_duplicates, missing_chunks=deduplicator.num_gaps)


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
        behaviour = make_behaviour(self._config, spec)
        fields = functools.partial(remote.network_fields, spec, n, behaviour)
        request = functools.partial(self._request(self._learner, "predict", (self._number,), fields), 0)
        return make_actor(
            environment, remote.Network(request, should_stop=self._stop.is_set), seed=seed, origin=origin,
            unroll_length=self._config.learner.unroll_length, sink=self._sink, behaviour=behaviour,
            version_per_step=True,
        )  # fmt: skip

    def _blocked_fraction(self) -> float:
        return self._sink.blocked_fraction()
