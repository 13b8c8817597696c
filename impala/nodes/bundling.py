"""A bundle (Nair et al. 2015): it acts, keeps what it played in a replay, and computes gradients from what it draws."""

from collections.abc import Sequence

import numpy as np

from impala import agents
from impala.config import Config
from impala.nodes.feeding import Place
from impala.nodes.parts import lane_origin, lane_seed, make_environment, make_policy
from impala.nodes.working import BaseWorker
from impala.types import EnvironmentSpec, map_fields, zeros


class Bundle(BaseWorker):
    """A worker with a replay of its own, in memory, or with one that all workers share.

    Once it has added its replay's `num_first` windows, it draws `replay.samples_per_insert` windows for each one that
    it adds.

    Args:
      replay: its `TableReplay`, if all workers share a table; None: a replay of its own.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, index: int, incarnation: int = 0, *, replay=None):
        from impala.acting import actors
        from impala.learning.outliers import Outliers

        super().__init__(config, spec, index, incarnation)
        agent, actor = agents.of(config), config.actor
        self._exploration = agent.make_exploration(config, spec)
        self._outliers, self._refused = Outliers(config.server.outlier_deviations), False
        self._num_steps = self._num_drawn = 0  # steps since the last accepted gradient; batches drawn
        self._target = -1  # number of the θ⁻ in use
        self._replay = replay or MemoryReplay(config, spec, _generator(config, index, incarnation))
        loops = []
        for lane in range(actor.num_lanes):
            self.lanes.append(self._make_lane(lane))
            loops.append(self.lanes[-1].steps(lane_seed(config, incarnation, index, lane)))
        self._steps = actors.interleave(loops)
        # Traced before anything is played, so that the names of its metrics are known.
        self._differentiator(_blank(config, spec), **self._scheduled())

    def _make_lane(self, lane: int):
        from impala.acting import actors, policies, windows

        config, agent = self._config, agents.of(self._config)
        n, seed = config.actor.num_lane_environments, lane_seed(config, self._incarnation, self.index, lane)
        environment = make_environment(config, n, num_threads=config.actor.num_lane_threads, first_seed=seed)
        self._environments.append(environment)
        origin = lane_origin(config, self._incarnation, self.index, lane)
        behaviour = agent.make_behaviour(config, self._spec, explore=self.epsilon)
        policy = make_policy(
            policies.network_outputs(self.network), self._spec, n, seed=seed, behaviour=behaviour
        )  # fmt: skip
        writer = windows.WindowWriter(
            self._spec, n, length=config.agent.n_step, origin=origin, sink=self._replay.lane(lane * n),
            on_steps=self._count, kept=behaviour.kept,
        )  # fmt: skip
        return actors.Actor(environment, policy, writer, lambda: self.version, unroll_length=1, origin=origin)

    def _count(self, num_steps: int) -> None:
        self._num_steps += num_steps

    def epsilon(self) -> float:
        """Returns the probability of a random action now."""
        return self._exploration(self._frames + self._num_steps * self._spec.frames_per_step)

    def batch(self):
        """Returns windows from the replay if it is time to learn from some, else None."""
        num_due = (self._replay.num_inserted - self._replay.num_first) * self._config.replay.samples_per_insert
        if num_due < self._num_drawn * self._config.learner.batch_size:
            return None
        if (batch := self._replay.draw()) is not None:
            self._num_drawn += 1
        return batch

    def differentiate(self, batch):
        """See `BaseWorker`; also checks whether the loss is an outlier."""
        gradient = super().differentiate(batch)
        self._refused = self._outliers(float(gradient.metrics[self.metrics.index("loss")]))
        return gradient

    def num_transitions(self, gradient) -> int:
        """Returns the steps played since the last gradient that was accepted."""
        self._num_sent = self._num_steps
        return self._num_sent

    def is_outlier(self, gradient) -> bool:
        """See `BaseWorker`."""
        return self._refused

    def answered(self, verdict: int) -> None:
        """Forgets the steps that went with an accepted gradient; those of a refused one go with the next."""
        from impala.learning.server import Verdict

        if verdict in (Verdict.ACCEPTED, Verdict.REPEATED):  # what is repeated was accepted, its answer lost
            self._num_steps -= self._num_sent

    @property
    def is_dated(self) -> bool:
        """See `BaseWorker`: with the first batch, before which it filled its replay."""
        return self._num_drawn == 1

    @property
    def wants_target(self) -> bool:
        """Whether the server has renewed θ⁻ since this worker fetched it."""
        return self._newest_target != self._target

    def assign_target(self, number: int, arrays: Sequence) -> None:
        """See `BaseWorker`."""
        for variable, array in zip(self.network.target_variables, arrays, strict=True):
            variable.assign(array)
        self._target = number


class MemoryReplay:
    """A worker's own replay.

    `num_first` windows are added before any is drawn.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, random: np.random.Generator):
        from impala.replay.memory import MemoryWindows
        from impala.replay.windows import lengths

        self._random, self._batch_size, self.num_first = random, config.learner.batch_size, config.replay.min_size
        self._windows = MemoryWindows(
            config.replay.size, config.actor.num_environments,
            lengths=lengths(agents.of(config).make_chunk_spec(config, spec)),
        )  # fmt: skip

    @property
    def num_inserted(self) -> int:
        """Windows that this worker has added."""
        return self._windows.num_inserted

    def lane(self, first: int):
        """Returns a sink for the environments from `first` on."""
        return self._windows.lane(first)

    def draw(self):
        """Returns a batch of windows; a `TableReplay` returns None if none comes in time."""
        from impala.replay.windows import to_tensors

        return to_tensors(self._windows.sample(self._batch_size, self._random))


class TableReplay:
    """One worker's access to a table that all workers fill and draw from.

    `num_first` is the worker's share of the windows without which the table gives none; 0 if it holds them already.

    Args:
      place: the worker's, as if it were a learner.
      table: `reverb.Client` of the table's server.
    """

    _DRAW_SECONDS = 0.2

    def __init__(self, place: Place, table):
        from impala.nodes import replaying

        self._place, self._table, min_size = place, table, place.config.replay.min_size
        is_filled = replaying.wait_for(table, place.stop).current_size >= min_size
        self.num_first = 0 if is_filled else min_size / place.config.actor.num_actors
        self._source, self.num_inserted, self._patience = replaying.from_replay(place, table), 0, 0.0

    def lane(self, first: int):
        """See `MemoryReplay`."""
        from impala.acting.windows import TableWindows
        from impala.replay import tables
        from impala.replay.windows import lengths

        config = self._place.config
        sink = TableWindows(
            self._table, tables.REPLAY, config.actor.num_lane_environments,
            lengths=lengths(agents.of(config).make_chunk_spec(config, self._place.spec)),
            should_stop=self._place.stop.is_set,
        )  # fmt: skip
        return _Counted(sink, self)

    def draw(self):
        """See `MemoryReplay`."""
        batch = self._source.get(self._patience)
        if batch is not None:  # until then other workers may have to fill the table, and this one plays on
            self._patience = self._DRAW_SECONDS
        return batch


class _Counted:
    """A sink that counts the windows of a `TableReplay`."""

    def __init__(self, sink, replay: TableReplay):
        self._sink, self._replay, self.write = sink, replay, sink.write

    def end_windows(self, is_window: np.ndarray, priority: np.ndarray) -> None:
        self._sink.end_windows(is_window, priority)
        self._replay.num_inserted += int(np.sum(is_window))


def _generator(config: Config, index: int, incarnation: int) -> np.random.Generator:
    return np.random.default_rng([config.seed, 1, *((index, incarnation) if index or incarnation else ())])


def _blank(config: Config, spec: EnvironmentSpec):
    """Returns a batch of windows of zeros."""
    import tensorflow as tf

    from impala.replay import datasets

    window = zeros(agents.of(config).make_chunk_spec(config, spec))
    batch = datasets.stack(config.learner.batch_size * [datasets.marked(window, is_replayed=True)])
    return map_fields(tf.convert_to_tensor, batch)
