"""Counts, saves and reports for a run; held by the node that has its weights."""

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from impala import agents
from impala.config import Config
from impala.launching.processes import EXIT_INTERRUPTED, EXIT_TRY_AGAIN
from impala.nodes import population
from impala.nodes.run import Run
from impala.nodes.saving import Saver
from impala.nodes.side_jobs import PeriodicJob
from impala.types import EnvironmentSpec, Episode

UNSOUND = "unsound:"  # prefix of a reason in the names of counts, which a group sums


class Head:
    """Metrics, checkpoints, the end of the run, and the place in a population.

    Restores the newest sound checkpoint; `state` is its state.

    Args:
      stop: the node's `Pulse`.
      trackables: what a checkpoint holds, by name: `network`, `optimizer` and perhaps further `optimizer_…`, others.
      num_updates: of the learner, done so far.
      hold: makes a context in which nothing is trained, and trackables that are copies of what learns are up to date.
    """

    def __init__(
        self, config: Config, spec: EnvironmentSpec, run: Run, stop, *, trackables: dict[str, Any],
        num_updates: Callable[[], int], hold: Callable = contextlib.nullcontext,
    ):  # fmt: skip
        from impala.launching import memory, processes
        from impala.monitoring import metrics

        self._config, self._run, self._stop, self._num_updates = config, run, stop, num_updates
        self._trackables, self._hold = trackables, hold
        self._reports, self._reporting = {}, threading.Lock()  # the newest number of each actor
        self.state = self._restore()
        self._num_restored = int(self.state.get("updates", 0))
        self._saver = Saver(
            self._checkpoints, self.state, self._checkpoint_bytes(), stop, patience=self._config.unsaved_seconds
        )
        if not self._saver.is_there_room():
            processes.refuse(
                f"--run {run.folder}: {self._saver.free_mb:.1f} MB are free there, and one checkpoint takes "
                f"{self._checkpoint_bytes() / 1e6:.1f}; expected more room"
            )
        self.monitor = metrics.Monitor(
            run.folder, tasks=config.environment.tasks, frames_per_step=spec.frames_per_step,
            measure_memory=lambda: memory.resident_mb(run.launcher_pid), state=self.state,
            started=processes.launched_at(run.started),
            target_is_evaluated=agents.of(config).EXPLORES_BEYOND_ITS_POLICY,
        )  # fmt: skip
        is_member = config.population.size > 1
        self._member = population.Member(config, run.member, run.folder.parent, self.state) if is_member else None
        self.factors = self._member.factors if is_member else dict.fromkeys(population.evolving(config), 1.0)

    def _restore(self) -> dict[str, Any]:
        from impala.launching import processes
        from impala.learning import checkpoints

        processes.hold(self._run.folder / "checkpoints.lock", self._stop)
        self._checkpoints = checkpoints.Checkpoints(
            self._run.folder / "checkpoints", num_kept=self._config.num_checkpoints, **self._trackables
        )
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

    # --- calls from other nodes

    def report(self, actor: int, number: int, shares: dict[str, float], episodes: list) -> None:
        """Takes an actor's report; one with a number already seen is a repetition and is dropped."""
        with self._reporting:
            is_new = self._reports.get(actor, -1) < number
            if is_new:
                self._reports[actor] = number
        if is_new:
            self.monitor.add_actor_report(shares, [Episode(*episode) for episode in episodes])

    def evaluated(self, mean: float, num_updates: int) -> None:
        """Takes the mean score of the evaluator's newest episodes, played with the weights of that update."""
        self.monitor.add_evaluation(mean, num_updates)

    def status(self) -> dict[str, Any]:
        """Returns the last row of metrics, the bound of the policy lag and the fitness; {} before the first row."""
        row = self.monitor.status()
        return row and row | {"max_lag": self._config.learner.max_lag, "fitness": self.monitor.fitness()}

    # --- how far it is

    @property
    def has_trained(self) -> bool:
        """Whether there was an update since the checkpoint that was restored."""
        return self._num_updates() > self._num_restored

    def is_done(self) -> bool:
        """Returns whether the run has reached its total frames, or its target return."""
        return self.monitor.frames >= self._config.total_frames or self._is_target_reached()

    def _is_target_reached(self) -> bool:
        target = self._config.target_return
        return target is not None and self.monitor.has_reached(target)

    def note_progress(self) -> None:
        """Tells the launcher how far training is, for the command's last line."""
        monitor = self.monitor
        self._stop.note(
            has_trained=True, frames=monitor.frames, updates=self._num_updates(), wall_seconds=monitor.wall_seconds,
            return_mean=monitor.return_mean, evaluation_mean=monitor.evaluation_mean, evaluated=monitor.evaluated,
        )  # fmt: skip

    # --- what it does while the learner learns

    def begin(self) -> None:
        """Tells the user how much disk the run will need."""
        self._stop.note(says=[*self._stop.facts.get("says", []), self._disk_words()])

    def jobs(self, log: Callable[[], None], copy: Callable) -> list[PeriodicJob]:
        """Returns the periodic jobs.

        Args:
          log: ends a period of metrics.
          copy: see `Member.evolve`.
        """
        return [
            PeriodicJob(self._config.log_period_seconds, log),
            PeriodicJob(self._config.checkpoint_period_seconds, self.save),
            PeriodicJob(1.0, self._saver.look),
            *([PeriodicJob(1.0, lambda: self._evolve(copy))] if self._member else []),
        ]

    def log(self, *, scheduled: dict[str, float], fill: float | None, columns: dict[str, Any]) -> dict[str, Any]:
        """Ends a period: writes and returns its row, with `columns`, in which counts by reason become two columns."""
        unsound = {name: int(columns.pop(name)) for name in list(columns) if name.startswith(UNSOUND)}
        reasons = {name.removeprefix(UNSOUND): count for name, count in unsound.items() if count}
        counts = dict(
            unsound_chunks=sum(unsound.values()) if unsound else None,
            unsound_reasons=" ".join(f"{reason}:{count}" for reason, count in reasons.items()),
        )
        row = self.monitor.write_row(scheduled=scheduled, queue_fill=fill, counts=columns | counts)
        self._stop.note(
            unsound=reasons, lost_rows=self.monitor.num_lost_rows, silent_units=self.monitor.silent_units
        )
        return row

    def save(self) -> float | None:
        """Writes a checkpoint; if that fails, returns after how many seconds to try again."""
        with self._hold():  # weights and counts of one moment
            num_updates, state = self._num_updates(), self.monitor.state() | {"is_done": self.is_done()}
            state["reached_return"] = self._config.target_return if self._is_target_reached() else None
        if self._member:
            state |= self._member.state(self.monitor.fitness())
        return self._saver.save(num_updates, state)

    def _evolve(self, copy: Callable) -> None:
        """Lets this member of a population evolve, if it is due."""
        monitor = self.monitor
        episodes = monitor.episodes_of_tasks()
        if not self._member.is_due(frames=monitor.frames, episodes=episodes):
            return
        row = dict(
            frames=monitor.frames, updates=monitor.updates, wall_seconds=monitor.wall_seconds,
            episodes=monitor.num_episodes,
        )  # fmt: skip
        self._member.evolve(row, episodes, monitor.fitness(), copy)

    def end(self, status: int, words: str, log: Callable[[], None]) -> tuple[int, str]:
        """Writes what is left to write; returns the status and the words to end with."""
        self._stop.note(is_done=self.is_done())  # or told to end by somebody who is not the launcher
        self._stop.send()  # before other learners have ended
        if self.has_trained or self.monitor.frames > int(self.state.get("frames", 0)):  # played, before an update
            self.note_progress()
            if self.monitor.has_progressed:
                log()
            self.save()
            if error := self._saver.last_words():
                status, words = EXIT_TRY_AGAIN, f"{words}; {error}" if words else error
        elif status == 0 and self._stop.is_set():
            status = EXIT_INTERRUPTED
        waits = status == 0 and not self._is_target_reached()
        self.monitor.close()
        if waits:
            _wait_for_other_members(self._config, self._run, self._stop)
        return status, words

    # --- bytes

    def _checkpoint_bytes(self) -> int:
        """Returns an upper bound of what one checkpoint takes."""
        optimizers = [each for name, each in self._trackables.items() if name.startswith("optimizer")]
        variables = [*self._trackables["network"].variables, *(v for each in optimizers for v in each.variables())]
        return 100_000 + 1_000 * len(variables) + _num_bytes(variables)  # a name in the index takes about 300

    def _disk_words(self) -> str:
        """Returns a line on the disk space for checkpoints (one more while writing) and CSV files; warns if short."""
        config, weights = self._config, 100_000 + _num_bytes(self._trackables["network"].variables)
        checkpoints = (config.num_checkpoints + 1) * self._checkpoint_bytes()
        needed_mb = (checkpoints + 2 * weights * bool(config.evaluator.num_episodes) + self.monitor.max_bytes) / 1e6
        words = (
            f"{config.num_checkpoints} checkpoints and thinned metrics take at most {needed_mb:.0f} MB of disk; "
            "TensorBoard's events and logs come on top"
        )
        there_mb, free_mb = _num_bytes_of_files(self._run.folder) / 1e6, self._saver.free_mb
        if free_mb is not None and free_mb + there_mb < needed_mb:
            words += f"; only {free_mb:,.0f} MB are free: a long run will fill the disk"
        return words


class Follower:
    """The head of every learner but the first, which does the rest for all: it only counts frames."""

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, stop, num_updates: Callable[[], int]):
        from impala.monitoring import metrics

        self._config, self._run, self._stop, self._num_updates = config, run, stop, num_updates
        self.state: dict[str, Any] = {}
        self.monitor = metrics.FrameCounter(spec.frames_per_step)
        self.factors = dict.fromkeys(population.evolving(config), 1.0)
        self.has_trained = False  # it never has anything to save

    def report(self, actor: int, number: int, shares: dict[str, float], episodes: list) -> None:
        """Takes nothing: actors report to the first learner."""

    def evaluated(self, mean: float, num_updates: int) -> None:
        """Takes nothing: the evaluator tells the first learner."""

    def status(self) -> dict[str, Any]:
        return {}

    def is_done(self) -> bool:
        return self.monitor.frames >= self._config.total_frames

    def note_progress(self) -> None:
        self._stop.note(has_trained=True, frames=self.monitor.frames, updates=self._num_updates())

    def begin(self) -> None:
        pass

    def jobs(self, log: Callable[[], None], copy: Callable) -> list[PeriodicJob]:
        return []

    def end(self, status: int, words: str, log: Callable[[], None]) -> tuple[int, str]:
        if status == 0 and not self._stop.facts.get("has_trained") and self._stop.is_set():
            status = EXIT_INTERRUPTED
        if status == 0:
            _wait_for_other_members(self._config, self._run, self._stop)
        return status, words


def _wait_for_other_members(config: Config, run: Run, stop) -> None:
    """In a population, waits until the others have reached their frames too: a member that ends would end the run."""
    stop.doing = "running"
    while config.population.size > 1 and not stop.is_set():
        if population.are_others_done(config, run.member, run.folder.parent):
            return
        stop.wait(1.0)


def _num_bytes_of_files(folder) -> int:
    """Returns the bytes of the checkpoints and CSV files of a run, or of a member; some may vanish meanwhile."""
    total = 0
    for path in itertools.chain(folder.glob("*.csv"), folder.glob("checkpoints/*/*"), folder.glob("best/*/*")):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _num_bytes(variables) -> int:
    return sum(int(np.prod(v.shape)) * v.dtype.size for v in variables)
