"""evaluations.csv: what a run's weights reached when they were played to be scored."""

import csv
import json
import time
from pathlib import Path

import numpy as np

from impala.monitoring.logs import read_csv
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


def append(
    folder: Path, environment: str, scores: list[float], *, updates: int, frames: int, greedy: bool
) -> dict:
    """Appends a row to `folder`/evaluations.csv and returns it."""
    mean, half = interval(scores)
    row = dict(
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), updates=updates, frames=frames, environment=environment,
        episodes=len(scores), greedy=greedy, mean=mean, half_interval_95=half,
        human_normalised=human_normalised(environment, mean), scores=json.dumps(scores),
    )  # fmt: skip
    path = folder / "evaluations.csv"
    _bring_columns_up_to_date(path)
    with path.open("a", newline="") as file:
        csv.DictWriter(file, COLUMNS).writerow(row)
    return row


def _bring_columns_up_to_date(path: Path) -> None:
    """Writes the file anew with `COLUMNS` where it has others, as after a change of the code, or does not exist."""
    if path.exists() and path.open().readline().rstrip().split(",") == list(COLUMNS):
        return
    rows, temporary = read_csv(path), path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    temporary.replace(path)
