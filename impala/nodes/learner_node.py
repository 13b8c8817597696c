"""What runs inside the learner's process."""

import contextlib
import itertools
import logging
import time
from typing import Any

import numpy as np

from impala.agents.actor_critic import make_chunk_spec, make_learner, make_network, make_schedules
from impala.config import Config
from impala.nodes import learner_group, population
from impala.nodes.run import Run
from impala.nodes.saving import Saver
from impala.nodes.side_jobs import Periodically, Profiler, Recorder
from impala.types import Chunk, EnvironmentSpec, Episode

_UNSOUND = "unsound_"  # before the reason, where counts of a group are summed


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
        self._num_restored = int(state.get("updates", 0))
        if self._group:
            state |= learner_group.share(self._group, network, self._learner.optimizer, state)
        self._learner.num_updates = int(state.get("updates", 0))
        if index == 0:
            self._saver = Saver(self._checkpoints, state, self._checkpoint_bytes(), self._stop)
            if not self._saver.is_there_room():
                processes.refuse(
                    f"--run {run.folder}: {self._saver.free_mb:.1f} MB are free there, and one checkpoint takes "
                    f"{self._checkpoint_bytes() / 1e6:.1f}; expected more room"
                )
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
        self._checks = None  # of what comes from a table
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
            state = self._checkpoints.restore(report=logging.warning) or {}
        except checkpoints.OtherNetwork as error:
            processes.refuse(f"{error}; use another --run, or --restart")
        except checkpoints.NoSoundCheckpoint as error:
            processes.finish(processes.EXIT_FAILED, str(error))
            raise
        if restored := self._checkpoints.restored:
            passed_over = [f"checkpoint {name} is damaged ({reason})" for name, reason in restored.passed_over]
            used = f"resumed from checkpoint {restored.path}: update {restored.updates:,}, {restored.frames:,} frames"
            self._stop.note(says=["; ".join([*passed_over[:5], used])])
        return state

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
        """Returns the last row of metrics, empty before there is one, and the bound of the policy lag."""
        row = self._monitor.status()
        if row:
            row |= {"max_lag": self._config.learner.max_lag, "fitness": self._monitor.fitness()}
        replay_mb = self._replay_memory.full_mb if self._replay_memory else None
        return row | {"full_replay_mb": replay_mb}

    def _checkpoint_bytes(self) -> int:
        """Returns an upper bound of what one checkpoint takes."""
        return 100_000 + _num_bytes(self._variables())

    def _disk_words(self) -> str:
        """Returns what checkpoints and CSV files take at most, and whether that is there; one more is being written."""
        config, weights = self._config, 100_000 + _num_bytes(self._learner.network.variables)
        checkpoints = (config.num_checkpoints + 1) * self._checkpoint_bytes()
        needed_mb = (checkpoints + 2 * weights * bool(config.evaluator.num_episodes) + self._monitor.max_bytes) / 1e6
        words = (
            f"{config.num_checkpoints} checkpoints and thinned metrics take at most {needed_mb:.0f} MB of disk; "
            "TensorBoard's events and logs come on top"
        )
        there_mb = _num_bytes_of_files(self._run.folder) / 1e6
        free_mb = self._saver.free_mb
        if free_mb is not None and free_mb + there_mb < needed_mb:
            words += f"; only {free_mb:,.0f} MB are free: a long run will fill the disk"
        return words

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
        if self._stop.doing == "starting":
            self._stop.doing = "running"
        self._note_progress()
        return result.metrics

    def _note_progress(self) -> None:
        """Keeps for the launcher how far training is: what the command's last line says."""
        facts = dict(has_trained=True, frames=self._monitor.frames, updates=self._learner.num_updates)
        if self._index == 0:
            facts |= dict(wall_seconds=self._monitor.wall_seconds, return_mean=self._monitor.return_mean)
        self._stop.note(**facts)

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

        if self._index == 0:
            self._stop.note(says=[*self._stop.facts.get("says", []), self._disk_words()])
        processes.begin(self._stop)
        self._stop.doing = "starting"  # until the first update, which is traced and may be compiled
        try:
            status, words = self._train_until_the_end()
        except BaseException:
            logging.exception("learning failed; writing what the last whole update left")
            self._is_over = True
            try:
                if self._learner.num_updates > self._num_restored:
                    self._save()
            except Exception:
                logging.exception("that could not be saved either")
            raise
        self._is_over = True
        self._stop.doing = "saving"  # until the end: a slow disk is waited for
        has_trained = self._learner.num_updates > self._num_restored
        if self._index == 0 and has_trained:
            if self._monitor.has_updates:
                self._log()
            if self._save():
                error = f"the last checkpoint could not be written: {self._saver.error}"
                status, words = processes.EXIT_TRY_AGAIN, f"{words}; {error}" if words else error
        elif status == 0 and self._stop.is_set() and not has_trained:
            status = processes.EXIT_INTERRUPTED
        if status == 0 and self._config.population.size > 1 and not self._is_target_reached():
            run, self._stop.doing = self._run, "running"
            while not self._stop.is_set() and not population.are_others_done(
                self._config, run.member, run.folder.parent
            ):
                self._stop.wait(1.0)
        if self._index == 0:
            self._monitor.close()
        processes.finish(status, words)

    def _train_until_the_end(self) -> tuple[int, str]:
        """Trains until it is time to stop; returns the process's exit status, and words where a peer was lost."""
        from impala.launching import processes
        from impala.learning.groups import LearnersDiffer, PeerLost

        jobs = self._jobs()
        profiler = Profiler(self._run.folder / "profile") if self._run.profile else None
        try:
            while True:
                wants_end = self._wants_end()  # asked by a group too, whose end is agreed on elsewhere: a sign of life
                if self._is_over or wants_end and not self._group:
                    break
                if not self.step():
                    self._check_table()
                elif profiler:
                    profiler.after_update()
                if self._is_over:  # all agreed on it: weights copied from now on would be the first one's alone
                    break
                for job in jobs:
                    job.maybe_run()
            if self._group:
                self._group.check_equal(self._variables())
        except PeerLost as error:  # the weights are those of the last whole update
            return processes.EXIT_TRY_AGAIN, str(error)
        except LearnersDiffer as error:
            return processes.EXIT_FAILED, str(error)
        return 0, ""

    def _jobs(self) -> list[Periodically]:
        """What this learner does beside learning."""
        if self._index > 0:
            return []
        return [
            Periodically(self._config.log_period_seconds, self._log),
            Periodically(self._config.checkpoint_period_seconds, self._save),
            Periodically(1.0, self._saver.look),
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
        self._checks = self._make_checks()
        num_fresh, num_replayed = config.num_fresh // learner.num_learners, config.num_replayed // learner.num_learners
        return self._feeder_of(
            lambda: datasets.chunks(address, tables.QUEUE, max_in_flight=num_fresh, checks=self._checks),
            batch_size=num_fresh + num_replayed,
            make_replayed=lambda: datasets.chunks(
                address, tables.REPLAY, max_in_flight=num_replayed, checks=self._checks
            ),
            num_replayed=num_replayed,
        )

    def _make_checks(self):
        from impala.replay import checks

        config, run = self._config, self._run
        return checks.Checks(
            make_chunk_spec(config, self._spec),
            self._spec.actions,
            checks.Source(
                config.seed, run.incarnation, config.actor.num_actors, config.actor.num_environments,
                len(config.environment.tasks),
            ),
            # An actor may have fetched from a peer that is ahead by the update that is under way here.
            lambda: self._learner.num_updates + (self._group is not None),
        )  # fmt: skip

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
        self._stop.note(silent_units=self._monitor.silent_units)
        if self._replay_memory and self._replay_memory.is_open and (info := self._table_info(tables.REPLAY)):
            self._replay_memory.look(info.current_size, row["rss_table_mb"])

    def _counts(self) -> dict[str, Any]:
        """Returns what was counted since the start, by all learners, columns of metrics.csv."""
        counts = dict(self._totals if self._group else self._own_counts())
        unsound = {name: int(counts.pop(name)) for name in list(counts) if name.startswith(_UNSOUND)}
        reasons = {name.removeprefix(_UNSOUND): count for name, count in unsound.items() if count}
        self._stop.note(unsound=reasons, lost_rows=self._monitor.num_lost_rows)
        return dict(
            skipped_updates=self._learner.num_skipped, unsound_chunks=sum(unsound.values()) if unsound else None,
            unsound_reasons=" ".join(f"{reason}:{count}" for reason, count in reasons.items()),
        ) | {name: int(count) for name, count in counts.items()}  # fmt: skip

    def _own_counts(self) -> dict[str, int]:
        """Returns what was counted since the start by this learner, and adds up over a group."""
        if self._feeder is None:
            return {}
        duplicate, missing, dropped = self._feeder.counts()
        unsound = {} if self._checks is None else self._checks.counts_by_reason()
        return dict(
            duplicate_chunks=duplicate, missing_chunks=missing, dropped_chunks=dropped + self._num_dropped
        ) | {_UNSOUND + reason: count for reason, count in unsound.items()}  # fmt: skip

    def _save(self) -> float | None:
        """Writes a checkpoint; returns after how many seconds to try again where it could not be written."""
        if self._index > 0:
            return None
        state = self._monitor.state()
        if self._member:
            state |= self._member.state(self._monitor.fitness())
        return self._saver.save(self._learner.num_updates, state)

    def _check_table(self) -> None:
        if self._queue_fill() is None:
            logging.warning("no batch, and the table is silent")


def _num_bytes_of_files(folder) -> int:
    """Returns what the checkpoints and CSV files of a run, or of a member, take already; some come and go meanwhile."""
    total = 0
    for path in itertools.chain(folder.glob("*.csv"), folder.glob("checkpoints/*/*"), folder.glob("best/*/*")):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _num_bytes(variables) -> int:
    return sum(int(np.prod(v.shape)) * v.dtype.size for v in variables)
