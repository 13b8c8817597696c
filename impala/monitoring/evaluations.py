"""evaluations.csv: the scores of a run's weights in evaluations."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from impala.monitoring import logs
from impala.monitoring.scores import human_normalised

COLUMNS = (
    "time", "updates", "frames", "environment", "episodes", "greedy", "mean", "half_interval_95", "human_normalised",
    "scores",
)  # fmt: skip
_LOCK_SECONDS = 5.0
_FEW = (12.706, 4.303, 3.182, 2.776)  # 97.5 % quantiles of Student's t with 1 to 4 degrees of freedom


def interval(scores: list[float]) -> tuple[float, float]:
    """Returns mean and half the width of its 95 % interval (Student's t)."""
    mean, freedom = float(np.mean(scores)), len(scores) - 1
    if freedom < 1:
        return mean, float("nan")
    return mean, _student(freedom) * float(np.std(scores, ddof=1)) / len(scores) ** 0.5


def _student(freedom: int) -> float:
    """Returns the 97.5 % quantile of Student's t, to 0.2 %: scipy is not installed everywhere."""
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    z = 1.959964  # and the first terms of the expansion in 1 / freedom (Abramowitz & Stegun 1964, 26.7.5)
    terms = z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return sum(term / freedom**k for k, term in enumerate(terms))


def row_of(environment: str, scores: list[float], *, updates: int, frames: int, greedy: bool) -> dict:
    """Returns the row of an evaluation."""
    mean, half = interval(scores)
    return dict(
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), updates=updates, frames=frames, environment=environment,
        episodes=len(scores), greedy=greedy, mean=mean, half_interval_95=half,
        human_normalised=human_normalised(environment, mean), scores=json.dumps(scores),
    )  # fmt: skip


def num_rows(folder: Path) -> int:
    """Returns how many rows evaluations.csv holds; 0 if it cannot be read."""
    try:
        return len(logs.read_csv(folder / "evaluations.csv"))
    except OSError:
        return 0


def append(folder: Path, row: dict) -> None:
    """Appends a row to `folder`/evaluations.csv. Raises OSError, and appends nothing, if it cannot be written."""
    path = folder / "evaluations.csv"
    with _alone_in(folder):
        _bring_columns_up_to_date(path)
        logs.append(path, [row], COLUMNS)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Waits for others that append there: a run's evaluator and `impala evaluate` may come at once."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS  # they are done in milliseconds, unless one is frozen
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            except OSError:  # a file system without locks
                pass
            break
        yield
    finally:
        os.close(descriptor)


def _bring_columns_up_to_date(path: Path) -> None:
    """Rewrites the file with `COLUMNS` if it has others, e.g. after a change of the code, or does not exist."""
    if path.exists():
        with path.open("rb") as file:
            if file.readline().rstrip() == ",".join(COLUMNS).encode():
                return
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(logs.encoded(logs.read_csv(path), COLUMNS, with_header=True))
    temporary.replace(path)
