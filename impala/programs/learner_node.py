"""What runs inside the learner's process."""

import logging
import sys
import time
from typing import Any

import numpy as np

from impala.config import Config
from impala.programs import learner_group, population
from impala.programs.compose import make_learner, make_network, make_schedules
from impala.programs.run import Run
from impala.programs.side_jobs import Periodically, Profiler, Recorder
from impala.types import Chunk, EnvironmentSpec, Episode


class LearnerNode:
    """Trains on what the table gives, serves weights, gathers metrics, checkpoints.

    One of several learners updates together with its peers; the first gathers metrics and checkpoints for all.

    Args:
      index: of this learner.
      table: `reverb.Client` of its own table.
      peers: "host:port" of every learner's server, this one's included; none for a single learner.
    """

    RPCS = ("get_weights", "frames", "report", "status")  # what others may call

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, table, peers=()):
        from impala.launching import processes

        process = run.member * config.learner.num_learners + index
        self._stop = processes.prepare("learner", process)  # before the seconds that the imports take
        import tensorflow as tf

        from impala.learning import weights
        from impala.monitoring import metrics
        from impala.replay.estimates import MemoryEstimate

        processes.set_tensorflow_threads(config.learner.num_tensorflow_threads)
        self._device = processes.learner_device(process)
        self._config, self._spec, self._run, self._table, self._index = config, spec, run, table, index
        self._group = learner_group.join(config, index, peers, self._stop) if len(peers) > 1 else None
        with tf.device(self._device):
            network = make_network(config, spec)
            self._learner = make_learner(config, network, group=self._group)
        logging.info("learning on %s", self._device)
        self._publisher = weights.Publisher(self._learner.weights)
        state = self._restore(network) if index == 0 else {}
        if self._group:
            state |= learner_group.share(self._group, network, self._learner.optimizer, state)
        self._learner.num_updates = int(state.get("updates", 0))
        if index == 0:
            self._monitor = metrics.Monitor(
                run.folder, tasks=config.environment.tasks, frames_per_step=spec.frames_per_step,
                launcher_pid=run.launcher_pid, state=state, started=run.started,
            )  # fmt: skip
        else:
            self._monitor = metrics.FrameCounter(spec.frames_per_step, state)
        self._schedules = make_schedules(config)
        self._member, self._has_copied = None, False
        self._factors = dict.fromkeys(config.population.parameters, 1.0)
        if config.population.size > 1 and index == 0:
            self._member = population.Member(config, run.member, run.folder.parent, state)
            self._factors = self._member.factors
        self._feeder, self._reports, self._held, self._is_over = None, {}, None, False
        self._totals: dict[str, float] = {}  # of `_own_counts` of all learners of a group
        self._num_dropped = 0  # chunks, with a batch of the group
        self._replay_memory = MemoryEstimate(config.replay.size) if config.num_replayed else None

    def _restore(self, network) -> dict:
        """Restores the newest sound checkpoint and returns its state."""
        from impala.launching import processes
        from impala.learning import checkpoints

        processes.hold(self._run.folder / "checkpoints.lock", self._stop)
        self._checkpoints = checkpoints.Checkpoints(
            self._run.folder / "checkpoints", num_kept=self._config.num_checkpoints,
            network=network, optimizer=self._learner.optimizer,
        )  # fmt: skip
        try:
            return self._checkpoints.restore(report=logging.warning) or {}
        except checkpoints.OtherNetwork as error:
            processes.refuse(f"{error}; use another --run, or --restart")

    # --- RPCs ---

    def get_weights(self, newer_than: int) -> tuple[int, list]:
        """Returns (version, arrays), without arrays when `newer_than` is up to date."""
        return self._publisher.get(newer_than)

    def frames(self) -> int:
        """Returns the emulator frames trained on so far."""
        return self._monitor.frames

    def report(self, actor: int, number: int, shares: dict[str, float], episodes: list) -> None:
        """Takes an actor's report; one with a number already seen is a repetition and is dropped."""
        if self._reports.get(actor, -1) < number:
            self._reports[actor] = number
            self._monitor.add_actor_report(shares, [Episode(*episode) for episode in episodes])

    def status(self) -> dict[str, Any]:
        """Returns the last row of metrics, empty before there is one, and the bounds of disk space and policy lag."""
        row = self._monitor.status()
        if row:
            row |= {"max_lag": self._config.learner.max_lag, "fitness": self._monitor.fitness()}
        replay_mb = self._replay_memory.full_mb if self._replay_memory else None
        return row | {"disk_bound_mb": self._max_bytes() / 1e6, "full_replay_mb": replay_mb}

    def _max_bytes(self) -> int:
        """Returns an upper bound of what checkpoints and CSV files take; one more of each kind is being written."""
        weights, slots = (
            100_000 + sum(int(np.prod(v.shape)) * v.dtype.size for v in variables)
            for variables in (self._learner.network.variables, self._learner.optimizer.variables())
        )
        best = 2 * weights * bool(self._config.evaluator.num_episodes)
        return (self._config.num_checkpoints + 1) * (weights + slots) + best + self._monitor.max_bytes

    def step(self) -> dict[str, float]:
        """Takes one batch and applies one update; returns its metrics, none when no batch came within a second."""
        batch = self._next_batch()
        return {} if batch is None else self._update(batch)

    def _scheduled(self) -> dict[str, float]:
        return population.scaled(self._schedules(self._monitor.frames), self._factors)

    def _update(self, batch: Chunk) -> dict[str, float]:
        with self._publisher.updating():
            result = self._learner.update(batch, **self._scheduled())
        self._monitor.add_update(result.num_updates, result.metrics, result.chunks)
        return result.metrics

    def _next_batch(self) -> Chunk | None:
        """Returns the next batch; None when none came within a second, or when the group does not go on."""
        if self._feeder is None:
            self._feeder = self._make_feeder()
        waited = 0.0
        if self._held is None:
            started = time.monotonic()
            self._held = self._feeder.get(timeout_seconds=1.0)
            waited = time.monotonic() - started
        is_ready, num_old = self._held is not None, 0.0
        if self._group:
            is_ready, waited, num_old = self._agree(waited)
        self._monitor.add_wait(waited)
        if not is_ready or self._is_over:
            return None
        batch, self._held = self._held, None
        if num_old:  # all drop theirs: one that dropped alone would wait for chunks that the others have no room for
            self._num_dropped += self._config.num_fresh // self._group.size
            return None
        return batch

    def _agree(self, waited: float) -> tuple[bool, float, float]:
        """Tells the group's other learners what is held here; returns what they hold all in all.

        Takes over what the first one's member of a population has become.

        Returns:
          whether all take this turn; otherwise none does, and those that have a batch keep it
          the mean of what they `waited`
          how many hold a batch that is too old
        """
        counts, factors = self._own_counts(), dict(has_copied=float(self._has_copied)) | self._factors
        if self._index > 0:
            factors = dict.fromkeys(factors, 0.0)
        mine = [waited, float(self._is_held_too_old()), *counts.values(), *factors.values()]
        is_ready, self._is_over, (waited, num_old, *sums) = self._group.agree(
            is_ready=self._held is not None, wants_end=self._wants_end(), counts=mine
        )
        self._totals = dict(zip(counts, sums))
        has_copied, *factors = sums[len(counts) :]
        self._factors.update(zip(self._factors, factors))
        if has_copied:
            with self._publisher.updating():
                self._group.broadcast(self._variables(), [])
            self._has_copied = False
        return is_ready, waited / self._group.size, num_old

    def _variables(self) -> list:
        return [*self._learner.network.variables, *self._learner.optimizer.variables()]

    def _is_held_too_old(self) -> bool:
        """Returns whether the lag of a fresh chunk of the batch at hand is beyond `learner.max_lag`."""
        max_lag = self._config.learner.max_lag
        if self._held is None or max_lag is None:
            return False
        fresh = self._held.weights_version.numpy()[..., ~self._held.is_replayed.numpy()]
        return self._learner.num_updates - fresh.min() > max_lag

    # --- the loop ---

    def run(self) -> None:
        from impala.launching import processes
        from impala.learning.gradients import LearnersDiffer, PeerLost

        config, jobs = self._config, self._jobs()
        profiler = Profiler(self._run.folder / "profile") if self._run.profile else None
        status = 0
        while not (self._is_over or not self._group and self._wants_end()):  # a group agrees on its end
            try:
                if not self.step():
                    self._check_table()
                elif profiler:
                    profiler.after_update()
            except PeerLost as error:  # the weights are those of the last whole update
                print(error, file=sys.stderr, flush=True)
                status = processes.EXIT_TRY_AGAIN
                break
            if self._is_over:  # all agreed on it: weights copied from now on would be the first one's alone
                break
            for job in jobs:
                job.maybe_run()
        if self._is_over and self._group:
            try:
                self._group.check_equal(self._variables())
            except (LearnersDiffer, PeerLost) as error:
                print(error, file=sys.stderr, flush=True)
                status = processes.EXIT_TRY_AGAIN if isinstance(error, PeerLost) else processes.EXIT_FAILED
        self._is_over = True
        if self._index == 0:
            if self._monitor.has_updates:
                self._log()
            self._save(last=True)
        if status == 0 and config.population.size > 1 and not self._is_target_reached():
            run = self._run
            while not self._stop.is_set() and not population.are_others_done(config, run.member, run.folder.parent):
                self._stop.wait(1.0)
        if self._index == 0:
            self._monitor.close()
        processes.finish(status)

    def _jobs(self) -> list[Periodically]:
        """What this learner does beside learning."""
        if self._index > 0:
            return []
        return [
            Periodically(self._config.log_period_seconds, self._log),
            Periodically(self._config.checkpoint_period_seconds, self._save),
            *([Periodically(1.0, self._evolve)] if self._member else []),
        ]

    def _wants_end(self) -> bool:
        is_done = self._monitor.frames >= self._config.total_frames
        return self._stop.is_set() or is_done or self._is_target_reached()

    def _is_target_reached(self) -> bool:
        target = self._config.target_return
        return target is not None and self._monitor.has_reached(target)

    def _evolve(self) -> None:
        """Takes the turn of a member of a population, when it is due."""
        monitor = self._monitor
        if not self._member.is_due(frames=monitor.frames, episodes=monitor.num_episodes):
            return
        row = dict(
            frames=monitor.frames, updates=monitor.updates, wall_seconds=monitor.wall_seconds,
            episodes=monitor.num_episodes,
        )  # fmt: skip
        self._member.evolve(row, monitor.fitness(), self._copy)

    def _copy(self, folder) -> dict[str, Any]:
        from impala.learning import checkpoints

        other = checkpoints.Checkpoints(folder, network=self._learner.network, optimizer=self._learner.optimizer)
        self._has_copied = True  # or a part, should it fail
        with self._publisher.updating():
            return other.restore(report=logging.warning, read_only=True) or {}

    def _make_feeder(self):
        from impala.replay import datasets, tables

        config, address, learner = self._config, self._table.server_address, self._config.learner
        num_fresh, num_replayed = config.num_fresh // learner.num_learners, config.num_replayed // learner.num_learners
        return self._feeder_of(
            lambda: datasets.chunks(address, tables.QUEUE, max_in_flight=num_fresh),
            batch_size=num_fresh + num_replayed,
            make_replayed=lambda: datasets.chunks(address, tables.REPLAY, max_in_flight=num_replayed),
            num_replayed=num_replayed,
        )

    def _feeder_of(self, make_chunks, **sizes):
        from impala.replay import datasets

        config = self._config
        is_recorded = config.record_chunks and self._index == 0
        return datasets.Feeder(
            make_chunks,
            num_prefetched=config.num_prefetched_batches,
            device=self._device,
            num_updates=lambda: self._learner.num_updates,
            max_lag=None if self._group else config.learner.max_lag,
            record=Recorder(self._run.folder / "chunks", config.record_chunks) if is_recorded else None,
            **sizes,
        )

    def _queue_fill(self) -> float | None:
        from impala.replay import tables

        info = self._table_info(tables.QUEUE)
        return info and info.current_size / info.max_size

    def _table_info(self, name: str):
        try:
            return self._table.server_info(timeout=2)[name]
        except Exception as error:  # the dashboard shows a gap; the training thread does not depend on it
            logging.warning("the table did not answer: %s", error)
            return None

    def _log(self) -> None:
        from impala.replay import tables

        row = self._monitor.write_row(
            scheduled=self._scheduled(), queue_fill=self._queue_fill(), counts=self._counts()
        )
        if self._replay_memory and self._replay_memory.is_open and (info := self._table_info(tables.REPLAY)):
            self._replay_memory.look(info.current_size, row["rss_table_mb"])

    def _counts(self) -> dict[str, float | None]:
        """Returns what was counted since the start, by all learners, columns of metrics.csv."""
        counts = self._totals if self._group else self._own_counts()
        return dict(skipped_updates=self._learner.num_skipped) | {name: int(count) for name, count in counts.items()}

    def _own_counts(self) -> dict[str, int]:
        """Returns what was counted since the start by this learner, and adds up over a group."""
        if self._feeder is None:
            return {}
        duplicate, missing, dropped = self._feeder.counts()
        return dict(
            duplicate_chunks=duplicate, missing_chunks=missing, dropped_chunks=dropped + self._num_dropped
        )

    def _save(self, last: bool = False) -> None:
        import tensorflow as tf

        try:
            state = self._monitor.state()
            if self._member:
                state |= self._member.state(self._monitor.fitness())
            self._checkpoints.save(self._learner.num_updates, state)
        except (OSError, tf.errors.OpError) as error:
            if last:
                raise
            logging.error("checkpoint failed, the older ones stay; will try again: %s", error)

    def _check_table(self) -> None:
        if self._queue_fill() is None:
            logging.warning("no batch, and the table is silent")
