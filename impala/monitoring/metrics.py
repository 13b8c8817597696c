"""The numbers of one run: what learner and actors report, gathered and written once a period.

The monitor lives with the learner: frames are counted where they are trained on, or by a replay table as they come, and
actors report to it.
"""

import collections
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from impala.monitoring.logs import MAX_BYTES, CsvLog, TensorBoard
from impala.monitoring.tasks import SUMMARY_COLUMNS, WINDOW, TaskLog, summary_columns
from impala.types import Episode

LOSS_COLUMNS = (
    "loss", "policy_loss", "value_loss", "entropy", "value", "advantage_mean", "advantage_std", "log_rho_mean",
    "log_rho_max", "rho_clipped_fraction", "c_clipped_fraction", "effective_sample_size", "kl_mu_pi", "trace_length",
    "explained_variance", "value_correction", "rejected_fraction", "policy_clipped_fraction", "grad_norm",
)
Q_COLUMNS = (
    "td_error", "exploration_epsilon", "exploration_epsilon_first", "exploration_epsilon_middle",
    "exploration_epsilon_last", "exploration_epsilon_actors", "exploration_noise",
    "replay_size", "replay_capacity", "samples_per_insert",
    "evaluation_mean",
    "priority_p50", "priority_p95", "priority_max", "priority_seconds", "priority_round_trip_seconds",
    "gone_priority_fraction", "learner_priority_fraction",
    "unsound_priorities", "inserted_windows", "played_steps",
)  # fmt: skip
SERVER_COLUMNS = (
    "accepted_gradients", "stale_gradients", "repeated_gradients", "nonfinite_gradients", "outlier_gradients",
    "server_busy_fraction", "target_copies",
    "staleness_mean", "staleness_expected", "staleness_max", "staleness_histogram", "surrogate_clip", "penalty",
)  # fmt: skip
UNIT_COLUMNS = ("silent_units", "dormant_units")
LAG_COLUMNS = ("lag_mean", "lag_p95", "lag_max", "lag_histogram", "replay_lag_mean", "replay_lag_max")
COLUMNS = (
    "frames", "agent_steps", "updates", "wall_seconds", "frames_per_second", "updates_per_second", "return_mean",
    "episodes", *SUMMARY_COLUMNS, *LAG_COLUMNS, *LOSS_COLUMNS, "learning_rate", "entropy_cost", "epsilon",
    *UNIT_COLUMNS, *Q_COLUMNS, *SERVER_COLUMNS, "learner_wait_fraction",
    "actor_environment_fraction", "actor_inference_fraction", "actor_table_fraction", "actor_blocked_fraction",
    "actor_weights_fraction",
    "queue_fill", "inference_batch_mean", "inference_seconds_max", "num_agents", "num_predictors", "num_trainers",
    "skipped_updates", "duplicate_chunks", "missing_chunks", "dropped_chunks", "dropped_unrolls", "unsound_chunks",
    "unsound_reasons", "rss_mb",
    "rss_learner_mb", "rss_actors_mb", "rss_table_mb", "rss_launcher_mb", "verdict",
)  # fmt: skip
EPISODE_COLUMNS = ("frames", "updates", "wall_seconds", *Episode._fields)
_NUM_EVALUATIONS = 2  # that must all reach a target return
_UPDATES_APART = 100  # at least, of the weights of two evaluations; else both are of nearly the same policy
_NUM_ROWS_SILENT = 12


def verdict(*, learner_wait: float, actor_blocked: float, queue_fill: float) -> str:
    """Returns who waits for whom, from fractions of time and the queue's fill, all in [0, 1].

    Learner-bound: writers wait, and the learner does not, or waits less and the queue is full. Actor-bound: the learner
    waits, and writers do so less than half as much. Table-bound: else, if both wait: the table itself is slow.
    """
    learner_waits, actors_wait = learner_wait > 0.05, actor_blocked > 0.05
    if actors_wait and learner_wait < actor_blocked and (queue_fill > 0.8 or not learner_waits):
        return "learner-bound"
    if learner_waits and actor_blocked < 0.5 * learner_wait:
        return "actor-bound"
    return "table-bound" if learner_waits and actors_wait else "balanced"


def lag_columns(lags: np.ndarray, largest: np.ndarray, is_replayed: np.ndarray) -> dict[str, Any]:
    """Returns the columns `LAG_COLUMNS` from each chunk's policy lags: the mean over its steps and the `largest`.

    lag_histogram: "0:3 1:5 2:9 4:1", the fresh chunks in bins that begin at 0, 1, 2, 4, 8, …
    """
    row: dict[str, Any] = dict.fromkeys(LAG_COLUMNS)
    fresh, replayed = lags[~is_replayed], lags[is_replayed]
    if len(fresh):
        row |= dict(lag_mean=float(np.mean(fresh)), lag_p95=float(np.percentile(fresh, 95)))
        row["lag_max"] = float(np.max(largest[~is_replayed]))
        first = np.where(fresh >= 1, 2 ** np.floor(np.log2(np.maximum(fresh, 1))), 0).astype(int)
        row["lag_histogram"] = " ".join(f"{bin_}:{count}" for bin_, count in zip(*np.unique(first, return_counts=True)))
    if len(replayed):
        row |= dict(replay_lag_mean=float(np.mean(replayed)), replay_lag_max=float(np.max(largest[is_replayed])))
    return row


def _mean_or_max(name: str, values: list[float]) -> float:
    """Returns the mean, or for a `…_max` the maximum, over the updates that measured it; NaN if none did."""
    measured = np.array(values)[~np.isnan(values)]
    if not len(measured):
        return float("nan")
    return float((np.max if name.endswith("_max") else np.mean)(measured))


class FrameCounter:
    """Counts the frames of a learner that leaves all other metrics to the first of its peers."""

    def __init__(self, frames_per_step: int):
        self._frames_per_step, self.frames = frames_per_step, 0

    def add_update(self, updates: int, metrics: dict[str, float], chunks: dict) -> None:
        self.add_steps(int(round(metrics.get("num_transitions", 0))))

    def add_steps(self, count: int) -> None:
        self.frames += count * self._frames_per_step

    def add_wait(self, seconds: float) -> None:
        pass


class Monitor:
    """Gathers what learner and actors report and writes one row a period.

    Args:
      folder: of the run.
      tasks: names of the environments.
      frames_per_step: emulator frames per agent step.
      measure_memory: returns megabytes of the run's processes by role, and their `total`.
      state: of the checkpoint resumed from (`frames`, `wall_seconds`, …), or {}.
      started: `time.monotonic()` of the launch, so that start-up counts in wall_seconds.
      target_is_evaluated: a target return is compared with evaluations, since training episodes explore.
    """

    def __init__(
        self, folder: Path, *, tasks: tuple[str, ...], frames_per_step: int, state: dict, started: float,
        measure_memory: Callable[[], Mapping[str, float]], target_is_evaluated: bool = False,
    ):  # fmt: skip
        self._target_is_evaluated = target_is_evaluated
        self._frames_per_step, self._measure_memory = frames_per_step, measure_memory
        self._wall_before, self._started = float(state.get("wall_seconds", 0.0)), started
        self.frames = int(state.get("frames", 0))
        self.updates = int(state.get("updates", 0))
        self.num_episodes = int(state.get("episodes", 0))
        self._scores = collections.deque(maxlen=WINDOW)
        self._take_scores(state.get("scores", []))
        # Each is the worst of those of nearly the same weights, whose first were of update `_evaluated`.
        self._evaluations = collections.deque(state.get("evaluations", []), maxlen=_NUM_EVALUATIONS)
        self._evaluated: int | None = state.get("evaluated")
        self._evaluation_mean = state.get("evaluation_mean", self._evaluations[-1] if self._evaluations else None)
        last = dict(updates=self.updates, frames=self.frames) if state else {}
        self._metrics = CsvLog(folder / "metrics.csv", COLUMNS, last=last)
        self._episodes = CsvLog(folder / "episodes.csv", EPISODE_COLUMNS, last=last)
        self._tasks = TaskLog(folder, tasks, frames_per_step=frames_per_step, state=state)
        self._tensorboard = TensorBoard(folder)
        self._lock = threading.Lock()
        self._last_row: dict[str, Any] = {}
        self._is_over = False
        self._silent_units = collections.deque(maxlen=_NUM_ROWS_SILENT)  # by layer, of the last rows
        self._begin_period()

    def _begin_period(self):
        self._period_started = time.monotonic()
        self._frames_at_start, self._updates_at_start = self.frames, self.updates
        self._losses: list[dict] = []
        self._lags: list[np.ndarray] = []
        self._largest_lags: list[np.ndarray] = []
        self._is_replayed: list[np.ndarray] = []
        self._actor_shares: list[dict] = []
        self._waited = 0.0

    @property
    def wall_seconds(self) -> float:
        return self._wall_before + time.monotonic() - self._started

    @property
    def has_progressed(self) -> bool:
        """Whether an update or a frame came since the last row."""
        return bool(self._losses) or self.frames > self._frames_at_start

    def _take_scores(self, scores: Iterable[float]) -> None:
        self._scores.extend(scores)  # the mean is asked for once an update, far more often than an episode ends
        self._return_mean = float(np.mean(self._scores)) if len(self._scores) == WINDOW else None

    @property
    def return_mean(self) -> float | None:
        """Mean score of the last 100 episodes, None before there are 100."""
        return self._return_mean

    @property
    def evaluation_mean(self) -> float | None:
        """Mean score of the newest evaluation, None before there is one."""
        return self._evaluation_mean

    @property
    def evaluated(self) -> int | None:
        """The update of the weights that were evaluated last; of several that are near each other the first."""
        return self._evaluated

    def has_reached(self, target: float) -> bool:
        """Returns whether `return_mean` (with `target_is_evaluated`, both last evaluations) reached `target`.

        A single evaluation may be luck: DQN's on Catch went from 1.0 to 0.3 in 31 updates before it settled, and once
        from 1.0, at updates 69 and 70, to −0.5 at 90. Once the target is reached, no more episodes count, so that the
        last row shows it. False until there is an update to write.
        """
        with self._lock:
            if self._target_is_evaluated:
                reached = min(self._evaluations) if len(self._evaluations) == _NUM_EVALUATIONS else None
            else:
                reached = self.return_mean
            if self._losses and reached is not None:
                self._is_over = self._is_over or reached >= target
            return self._is_over

    def fitness(self) -> float | None:
        """Returns what members of a population are compared by; None before there are 100 episodes of every task."""
        with self._lock:
            return self._tasks.fitness()

    def episodes_of_tasks(self) -> list[int]:
        """Returns how many episodes of each task have ended."""
        with self._lock:
            return [row["episodes"] for row in self._tasks.rows()]

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold for the counters to go on."""
        with self._lock:
            return dict(
                frames=self.frames,
                wall_seconds=self.wall_seconds,
                episodes=self.num_episodes,
                scores=list(self._scores),
                evaluations=list(self._evaluations),
                evaluated=self._evaluated,
                evaluation_mean=self._evaluation_mean,
                **self._tasks.state(),
            )

    def add_update(self, updates: int, metrics: dict[str, float], chunks: dict[str, np.ndarray]) -> None:
        """Counts one update, which `updates` includes, and its `chunks`, columns [B]; see `learners.Result`."""
        with self._lock:
            self.frames += int(round(metrics.get("num_transitions", 0))) * self._frames_per_step
            self.updates = updates
            self._losses.append(metrics)
            for lags, version in ((self._lags, "weights_version"), (self._largest_lags, "oldest_version")):
                # A table that outlived its learner may hold steps of later versions than were saved.
                lags.append(np.maximum(0, updates - 1 - chunks[version]))
            self._is_replayed.append(chunks["is_replayed"] > 0)
            self._tasks.add_update(chunks)

    def add_steps(self, count: int) -> None:
        """Counts transitions that were played; for a run whose frames are those played, not those trained on."""
        with self._lock:
            self.frames += count * self._frames_per_step

    def add_evaluation(self, mean: float, updates: int) -> None:
        """Takes the mean score of the evaluator's newest episodes; with several tasks, the mean over tasks.

        One that is not finite is not taken, as with episodes. Those of weights within 100 `updates` are one for the
        target, the worst of them: the policy is nearly the same, as after a resume, or the same, as where an evaluator
        is started again.
        """
        with self._lock:
            if self._is_over or not math.isfinite(mean):
                return
            self._evaluation_mean = mean
            if self._evaluations and self._evaluated is not None and updates < self._evaluated + _UPDATES_APART:
                self._evaluations[-1], self._evaluated = min(mean, self._evaluations[-1]), min(updates, self._evaluated)
            else:
                self._evaluations.append(mean)
                self._evaluated = updates

    def add_wait(self, seconds: float) -> None:
        """Counts time for which the learner had no batch."""
        with self._lock:
            self._waited += seconds

    def add_actor_report(self, shares: dict[str, float], episodes: list[Episode]) -> None:
        """Counts finished episodes and an actor's shares of time since its last report, if it sent any."""
        with self._lock:
            self._actor_shares += [shares] if shares and not self._is_over else []
        self.add_episodes(episodes)

    def add_episodes(self, episodes: list[Episode]) -> None:
        """Counts finished episodes."""
        with self._lock:
            if self._is_over:
                return
            self.num_episodes += len(episodes)
            # A broken environment may have a score that is not finite, which no checkpoint could hold.
            self._take_scores(episode.score for episode in episodes if math.isfinite(episode.score))
            self._tasks.add_episodes(episodes)
            now = dict(frames=self.frames, updates=self.updates, wall_seconds=round(self.wall_seconds, 2))
            self._episodes.write(*(now | episode._asdict() for episode in episodes))

    @property
    def max_bytes(self) -> int:
        """Upper bound of the CSV files, with the copy of one that is being thinned."""
        return 4 * MAX_BYTES

    @property
    def silent_units(self) -> dict[str, float]:
        """By layer, the smallest share in the last twelve rows, since one batch may show one situation; {} before."""
        if len(self._silent_units) < _NUM_ROWS_SILENT:
            return {}
        return {layer: min(row[layer] for row in self._silent_units) for layer in self._silent_units[-1]}

    @property
    def num_lost_rows(self) -> int:
        """Rows that could not be written, of all files."""
        return sum(log.num_failed for log in (self._metrics, self._episodes, self._tasks, self._tensorboard))

    def status(self) -> dict[str, Any]:
        """Returns the last row written, for the dashboard."""
        with self._lock:
            return dict(self._last_row)

    def write_row(
        self, *, scheduled: dict[str, float], queue_fill: float | None, counts: dict[str, float | None]
    ) -> dict[str, Any]:
        """Ends a period: writes its row to metrics.csv and TensorBoard and returns it."""
        memory = self._measure_memory()
        with self._lock:
            lags = np.concatenate(self._lags) if self._lags else np.array([], int)
            tasks = self._tasks.write(updates=self.updates, wall_seconds=self.wall_seconds)
            is_replayed = np.concatenate(self._is_replayed) if self._lags else np.array([], bool)
            row = self._row(memory, lags, is_replayed) | summary_columns(tasks) | counts | scheduled
            row["queue_fill"] = queue_fill
            prefixes = [f"{column}/" for column in UNIT_COLUMNS]
            units = {prefix + layer: x for prefix in prefixes for layer, x in self._units(prefix).items()}
            row["verdict"] = None if row.get("server_busy_fraction") is not None else verdict(
                learner_wait=row["learner_wait_fraction"],
                actor_blocked=(row["actor_blocked_fraction"] or 0.0) + (row["actor_weights_fraction"] or 0.0),
                queue_fill=queue_fill if queue_fill is not None else 0.0,
            )
            self._last_row = row | {"tasks": tasks}
            self._metrics.write({name: row[name] for name in COLUMNS if name in row})  # an own agent may have others
            self._begin_period()
        by_task = {f"tasks/{task['environment']}/return_mean": task["return_mean"] for task in tasks if len(tasks) > 1}
        self._tensorboard.write(row | by_task | units, lags[~is_replayed])
        return row

    def _row(self, memory, lags, is_replayed):
        elapsed = max(time.monotonic() - self._period_started, 1e-9)
        largest = np.concatenate(self._largest_lags) if self._lags else lags
        measured = self._losses[0] if self._losses else {}
        losses = {
            name: _mean_or_max(name, [m[name] for m in self._losses]) if name in measured else None
            for name in (*LOSS_COLUMNS, "td_error")
        }
        shares = {
            f"actor_{name}_fraction": float(np.mean([s.get(name, 0.0) for s in self._actor_shares]))
            if self._actor_shares
            else None
            for name in ("environment", "inference", "table", "blocked", "weights")
        }
        frames_per_second = (self.frames - self._frames_at_start) / elapsed
        return losses | shares | self._unit_columns() | lag_columns(lags, largest, is_replayed) | {
            "frames": self.frames,
            "agent_steps": self.frames // self._frames_per_step,
            "updates": self.updates,
            "wall_seconds": self.wall_seconds,
            "frames_per_second": frames_per_second,
            "updates_per_second": (self.updates - self._updates_at_start) / elapsed,
            "return_mean": self.return_mean,
            "evaluation_mean": self.evaluation_mean,
            "episodes": self.num_episodes,
            "learner_wait_fraction": min(self._waited / elapsed, 1.0),
            "rss_mb": memory.get("total"),
            "rss_learner_mb": memory.get("learner"),
            "rss_actors_mb": memory.get("actor"),
            "rss_table_mb": memory.get("table"),
            "rss_launcher_mb": memory.get("launcher"),
        }  # fmt: skip

    def _unit_columns(self) -> dict[str, str]:
        """Returns shares of units by layer, "conv_1:0.06 dense:0.41", over the period's updates that measured them."""
        columns = {"silent_units": self._units("silent_units/"), "dormant_units": self._units("dormant_units/")}
        if columns["silent_units"]:
            self._silent_units.append(columns["silent_units"])
        return {name: " ".join(f"{layer}:{x:.2f}" for layer, x in shares.items()) for name, shares in columns.items()}

    def _units(self, prefix: str) -> dict[str, float]:
        names = [name for name in (self._losses[0] if self._losses else ()) if name.startswith(prefix)]
        means = {name.removeprefix(prefix): _mean_or_max(name, [m[name] for m in self._losses]) for name in names}
        return {layer: mean for layer, mean in means.items() if mean == mean}

    def close(self) -> None:
        """Closes the files; what actors report from now on counts for nothing."""
        with self._lock:
            self._is_over = True
        self._metrics.close()
        self._episodes.close()
        self._tasks.close()
        self._tensorboard.close()
