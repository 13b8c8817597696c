"""What runs inside the learner's process."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from impala import agents
from impala.config import Config
from impala.launching import processes, roles
from impala.nodes import feeding, learner_group, population
from impala.nodes.head import Follower, Head
from impala.nodes.run import Run
from impala.nodes.saving import save_after_failure
from impala.nodes.side_jobs import PeriodicJob, Profiler, Recorder
from impala.types import Chunk, EnvironmentSpec


class LearnerNode:
    """Trains on the batches of its source and serves weights; the first of several has the `Head` of the run.

    To extend it, hold a `LearnerNode` and add to its `after_agreement`, `after_update`, `at_end`, `jobs`, `counts` and
    `columns`.

    Args:
      index: of this learner.
      make_source: (`feeding.Place`, and `table` if there is one) → `sources.Source`.
      table: `reverb.Client` of its own table.
      peers: "host:port" of every learner's server, this one's included; none for a single learner.
    """

    RPCS = ("get_weights", "frames", "report", "evaluated", "status")  # what others may call

    def __init__(
        self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *,
        make_source: Callable = feeding.from_tables, table=None, peers: Sequence[str] = (),
    ):  # fmt: skip
        process = run.member * config.learner.num_learners + index
        self.stop = processes.prepare(roles.LEARNER, process)  # first: the imports take seconds
        import tensorflow as tf

        from impala.learning import weights

        processes.set_tensorflow_threads(config.learner.num_tensorflow_threads, config.learner.num_parallel_operations)
        self.device = processes.learner_device(process)
        self._config, self._run, self.is_over = config, run, False
        self._group = learner_group.join(config, index, peers, self.stop)
        with tf.device(self.device):
            network = agents.of(config).make_network(config, spec)
            self.learner = agents.of(config).make_learner(config, network, group=self._group if peers else None)
        logging.info("learning on %s", self.device)
        self._publisher = weights.Publisher(self.learner.weights)
        trackables = dict(network=network, optimizer=self.learner.optimizer)
        self.head = (
            Follower(config, spec, run, self.stop, self._num_updates) if index
            else Head(config, spec, run, self.stop, trackables=trackables, num_updates=self._num_updates)
        )  # fmt: skip
        self.learner.num_updates, self.head.monitor.frames = learner_group.share(
            self._group, self._variables(), self.head.state, self.stop
        )
        self._schedules, self._has_copied = agents.of(config).make_schedules(config), False
        place = feeding.Place(config, spec, run, index, self.stop, self.device, self._num_updates)
        self._source = make_source(place) if table is None else make_source(place, table)
        self._held: Chunk | None = None  # a batch that waits for the peers to have theirs
        self._relief = learner_group.Relief(self._source.is_full)
        self._record_skipped = Recorder(run.folder / f"not_finite/{index}", 3)  # to look at what was wrong with them
        self._num_dropped, self.totals = 0, {}  # chunks of batches that `_next_batch` dropped; all learners' counts
        self.after_agreement: list[Callable[[], None]] = []  # whenever `totals` are new
        self.after_update: list[Callable[[Any], None]] = []  # called with an update's `learners.Result`
        self.at_end: list[Callable[[], None]] = []  # after the last checkpoint
        self.jobs: list[PeriodicJob] = []
        self.counts: list[Callable[[], dict[str, int]]] = [self._source.counts]  # see `sources.Source`
        self.columns: list[Callable] = [self._source.columns, *agents.exploration_columns(config)]

    def _num_updates(self) -> int:
        return self.learner.num_updates

    def _variables(self) -> list:
        return [*self.learner.network.variables, *self.learner.optimizer.variables()]

    # --- RPCs ---

    def get_weights(self, newer_than: int) -> tuple[int, list]:
        """Returns (version, arrays), without arrays when `newer_than` is up to date."""
        return self._publisher.get(newer_than)

    def frames(self) -> int:
        """Returns the run's emulator frames so far: those trained on, or those played if all data is replayed."""
        return self.head.monitor.frames

    def report(self, actor: int, number: int, shares: dict[str, float], episodes: list) -> None:
        """See `Head`."""
        self.head.report(actor, number, shares, episodes)

    def evaluated(self, mean: float, num_updates: int) -> None:
        """See `Head`."""
        self.head.evaluated(mean, num_updates)

    def status(self) -> dict[str, Any]:
        """See `Head`."""
        return self.head.status() | self._source.status()

    # --- an update ---

    def step(self) -> dict[str, float]:
        """Takes one batch and applies one update; returns its metrics, {} if `_next_batch` returned None."""
        batch = self._next_batch()
        return {} if batch is None else self._update(batch)

    def _next_batch(self) -> Chunk | None:
        """Returns the next batch; None if none came within a second, or the group does not take this turn."""
        started, wants_end = time.monotonic(), self._wants_end()
        if self._held is None:
            try:
                self._held = self._source.get(timeout_seconds=0.0 if wants_end else 1.0)
            except Exception:
                # Whoever signals the whole group of processes ends the table, too, perhaps first.
                wants_end = wants_end or self.stop.wait(1.0)
                if not wants_end:
                    raise
        is_ready, num_old = self._agree(wants_end)
        self.head.monitor.add_wait(time.monotonic() - started)  # for this learner's batch, then for its peers'
        is_turn = is_ready and not self.is_over
        if is_turn:
            self._relief.end_wait()
        if is_turn and not num_old:
            batch, self._held = self._held, None
            return batch
        # If one is too old, all learners drop theirs: one alone would wait for actors that the others' queues block.
        if is_turn or not self.is_over and self._relief.is_due(self._held):
            self._drop_held()
        return None

    def _drop_held(self) -> None:
        self._held = None
        self._num_dropped += self._config.num_fresh // self._group.size

    def _wants_end(self) -> bool:
        return self.stop.is_set() or self.head.is_done()  # `stop.is_set` is also a sign of life

    def _agree(self, wants_end: bool) -> tuple[bool, float]:
        """Agrees with the group's other learners whether to update now.

        Takes over the first learner's hyper-parameters, and its weights if it has copied those of another member.

        Returns:
          whether all take this turn; otherwise none does, and those that have a batch keep it
          how many hold a batch that is too old
        """
        counts, factors = self._own_counts(), dict(has_copied=float(self._has_copied)) | self.head.factors
        if self._group.index > 0:
            factors = dict.fromkeys(factors, 0.0)
        mine = [float(self._is_held_too_old()), *counts.values(), *factors.values()]
        is_ready, self.is_over, (num_old, *sums) = self._group.agree(
            is_ready=self._held is not None, wants_end=wants_end, counts=mine
        )
        self.totals = {name: int(total) for name, total in zip(counts, sums)}
        for job in self.after_agreement:
            job()
        has_copied, *factors = sums[len(counts) :]
        self.head.factors.update(zip(self.head.factors, factors))
        if has_copied:
            with self._publisher.updating():
                self._group.broadcast(self._variables(), [])
            self._has_copied = False
        return is_ready, num_old

    def _is_held_too_old(self) -> bool:
        """Returns whether the lag of a fresh chunk of the held batch exceeds `learner.max_lag`."""
        max_lag = self._config.learner.max_lag
        if self._held is None or max_lag is None:
            return False
        fresh = self._held.weights_version.numpy()[..., ~self._held.is_replayed.numpy()]
        return self.learner.num_updates - fresh.min() > max_lag

    def _own_counts(self) -> dict[str, int]:
        counts = {name: count for count_all in self.counts for name, count in count_all().items()}
        return counts | {"dropped_chunks": counts.get("dropped_chunks", 0) + self._num_dropped}

    def _scheduled(self) -> dict[str, float]:
        return population.scaled(self._schedules(self.head.monitor.frames), self.head.factors)

    def _update(self, batch: Chunk) -> dict[str, float]:
        with self._publisher.updating():
            result = self.learner.update(batch, **self._scheduled())
        if not result.applied:
            self._record_skipped(batch)
        self.head.monitor.add_update(result.num_updates, result.metrics, result.chunks)
        self.stop.doing = "running"
        self.head.note_progress()
        for job in self.after_update:
            job(result)
        return result.metrics

    # --- the loop ---

    def run(self) -> None:
        self.head.begin()
        processes.begin(self.stop)
        self.stop.doing = "starting"  # until the first update, which is traced and may be compiled
        try:
            status, words = self._train_until_the_end()
        except BaseException:
            self.is_over = True
            save_after_failure(self.head)
            raise
        self.is_over = True
        self.stop.doing = "saving"  # until the end: the launcher waits for a slow disk
        ending = self.head.end(status, words, self._log)
        for job in self.at_end:
            job()
        processes.finish(*ending)

    def _train_until_the_end(self) -> tuple[int, str]:
        """Trains until it is time to stop; returns the process's exit status, and the reason if a peer was lost."""
        from impala.learning.groups import LearnersDiffer, PeerLost
        from impala.learning.learners import NonFiniteUpdates

        jobs = [*self.head.jobs(self._log, self._copy), *self.jobs]
        profilers = [Profiler(self._run.folder / "profile")] * self._run.profile
        self.after_update += profilers
        try:
            while True:
                self.step()
                if self.is_over:  # all agreed to end: weights copied from now on would reach the first learner only
                    break
                for job in jobs:
                    job.maybe_run()
            self._group.check_equal(self._variables())
        except PeerLost as error:  # the weights are those of the last whole update
            self.stop.note(lost_peer=True)
            return processes.EXIT_TRY_AGAIN, str(error)
        except (LearnersDiffer, NonFiniteUpdates) as error:
            self.stop.note(ends_run=isinstance(error, NonFiniteUpdates))  # no restart helps
            return processes.EXIT_FAILED, str(error)
        finally:
            for profiler in profilers:
                profiler.close()
        return 0, ""

    def _log(self) -> None:
        columns = {name: value for columns_of in self.columns for name, value in columns_of().items()}
        row = self.head.log(
            scheduled=self._scheduled(), fill=self._source.fill(),
            columns=dict(skipped_updates=self.learner.num_skipped) | columns | self.totals,
        )  # fmt: skip
        self._source.look(row)

    def _copy(self, folder) -> dict[str, Any]:
        """Takes over weights and optimizer from another member's checkpoints; returns the state that goes with them."""
        from impala.learning import checkpoints

        other = checkpoints.Checkpoints(folder, network=self.learner.network, optimizer=self.learner.optimizer)
        self._has_copied = True  # set first: a failed restore may have copied a part
        with self._publisher.updating():
            return other.restore(report=logging.warning, read_only=True) or {}
