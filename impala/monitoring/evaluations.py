"""evaluations.csv: the scores of a run's weights in evaluations."""

import json
import os
import time
from pathlib import Path

import numpy as np

from impala.monitoring.logs import append_whole, encoded, read_csv
from impala.monitoring.scores import human_normalised

COLUMNS = (
    "time", "updates", "frames", "environment", "episodes", "greedy", "mean", "half_interval_95", "human_normalised",
    "scores",
)  # fmt: skip


def interval(scores: list[float]) -> tuple[float, float]:
    """Returns mean and half the width of its 95 % interval (normal approximation)."""
    mean = float(np.mean(scores))
    half = 1.96 * float(np.std(scores, ddof=1)) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
    return mean, half


def row_of(environment: str, scores: list[float], *, updates: int, frames: int, greedy: bool) -> dict:
    """Returns the row of an evaluation."""
    mean, half = interval(scores)
    return dict(
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), updates=updates, frames=frames, environment=environment,
        episodes=len(scores), greedy=greedy, mean=mean, half_interval_95=half,
        human_normalised=human_normalised(environment, mean), scores=json.dumps(scores),
    )  # fmt: skip


def append(folder: Path, row: dict) -> None:
    """Appends a row to `folder`/evaluations.csv. Raises OSError, and appends nothing, if it cannot be written."""
    path = folder / "evaluations.csv"
    _bring_columns_up_to_date(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        append_whole(descriptor, encoded([row], COLUMNS))
    finally:
        os.close(descriptor)


def _bring_columns_up_to_date(path: Path) -> None:
    """Rewrites the file with `COLUMNS` if it has others, e.g. after a change of the code, or does not exist."""
    if path.exists():
        with path.open("rb") as file:
            if file.readline().rstrip() == ",".join(COLUMNS).encode():
                return
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(encoded(read_csv(path), COLUMNS, with_header=True))
    temporary.replace(path)
