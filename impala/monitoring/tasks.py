"""One run, several tasks: frames, episodes and returns of each, in tasks.csv."""

import collections
import math
from pathlib import Path
from typing import Any

import numpy as np

from impala.monitoring.logs import CsvLog
from impala.monitoring.scores import fitness, human_normalised, summary
from impala.types import Episode

TASK_COLUMNS = (
    "updates", "wall_seconds", "task", "environment", "frames", "episodes", "return_mean", "human_normalised",
)  # fmt: skip
SUMMARY_COLUMNS = ("human_normalised_median", "human_normalised_iqm", "capped_mean")
WINDOW = 100  # episodes in return_mean; fewer until so many have ended


class TaskLog:
    """Counts frames and returns by task; with several tasks, writes a row for each every period.

    Args:
      folder: of the run.
      names: of the environments.
      frames_per_step: emulator frames per agent step.
      state: of the checkpoint resumed from, or {}.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], *, frames_per_step: int, state: dict):
        self._names, self._frames_per_step = names, frames_per_step
        self._frames = np.array(state.get("task_frames", np.zeros(len(names))), np.int64)
        self._episodes = np.array(state.get("task_episodes", np.zeros(len(names))), np.int64)
        self._scores = [collections.deque(scores, WINDOW) for scores in state.get("task_scores", [[]] * len(names))]
        self._log = None
        if len(names) > 1:
            self._log = CsvLog(
                folder / "tasks.csv", TASK_COLUMNS, last=dict(updates=int(state["updates"])) if state else {},
                num_together=len(names),
            )

    def add_update(self, chunks: dict[str, np.ndarray]) -> None:
        """Counts the frames of chunks [B] by `task`: their `num_valid`, 0 if `is_replayed`."""
        steps = np.where(chunks["is_replayed"] > 0, 0, chunks["num_valid"])
        np.add.at(self._frames, chunks["task"].astype(int), np.rint(steps).astype(np.int64) * self._frames_per_step)

    def add_episodes(self, episodes: list[Episode]) -> None:
        """Counts finished episodes."""
        for episode in episodes:
            self._episodes[episode.task] += 1
            if math.isfinite(episode.score):
                self._scores[episode.task].append(episode.score)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each task."""
        rows = []
        for index, (name, scores) in enumerate(zip(self._names, self._scores)):
            mean = float(np.mean(scores)) if scores else None
            rows.append(dict(
                task=index, environment=name, frames=int(self._frames[index]), episodes=int(self._episodes[index]),
                return_mean=mean, human_normalised=None if mean is None else human_normalised(name, mean),
            ))  # fmt: skip
        return rows

    def fitness(self) -> float | None:
        """Returns `scores.fitness` of the tasks' returns; None before there are 100 episodes of each."""
        if min(map(len, self._scores)) < WINDOW:
            return None
        return fitness({row["environment"]: row["return_mean"] for row in self.rows()})

    def write(self, *, updates: int, wall_seconds: float) -> list[dict[str, Any]]:
        """Ends a period and returns its rows."""
        rows = self.rows()
        if self._log:
            self._log.write(*(row | dict(updates=updates, wall_seconds=round(wall_seconds, 2)) for row in rows))
        return rows

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold for the counters to go on."""
        scores = [list(scores) for scores in self._scores]
        return dict(task_frames=self._frames.tolist(), task_episodes=self._episodes.tolist(), task_scores=scores)

    @property
    def num_failed(self) -> int:
        """Rows that could not be written."""
        return self._log.num_failed if self._log else 0

    def close(self) -> None:
        if self._log:
            self._log.close()


def summary_columns(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Returns `SUMMARY_COLUMNS` over the tasks' rows; None while one of them has no human-normalised score."""
    normalised = {row["environment"]: row["human_normalised"] for row in rows}
    if None in normalised.values():
        return dict.fromkeys(SUMMARY_COLUMNS)
    return dict(zip(SUMMARY_COLUMNS, summary(normalised).values()))
