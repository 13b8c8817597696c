"""The scores of a grid and their statistics: what counts, its intervals, interquartile means.

Interquartile means with stratified bootstrap intervals and the probability of improvement are rliable's (Agarwal et al.
2021, arXiv:2108.13264), on returns scaled to each task's 0 and 1.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from impala.lab.grid import FINAL, SWEEP, Block, Cell, Grid, cell_of

_NUM_BOOTSTRAP = 2000


class Scores:
    """The results of a grid, by block.

    A block's score is the mean over its best settings, seed by seed: those settings share their seeds, so the seeds are
    the independent repetitions that intervals are taken over.

    Args:
      grid: says which rows count, and for how much.
      rows: of results.csv.
    """

    def __init__(self, grid: Grid, rows: Sequence[dict]):
        self.grid = grid
        rows = {cell: row for row in rows if grid.has(cell := cell_of(row))}
        self._returns = {cell: grid.score(cell, row) for cell, row in rows.items()}
        self._rows = {cell: rows[cell] for cell in grid.cells(self._returns) if cell in rows}

    @property
    def all_rows(self) -> list[dict]:
        """The rows that belong to the grid."""
        return list(self._rows.values())

    def rows(self, block: Block, phase: str) -> list[dict]:
        """Returns a block's rows of one phase."""
        return [row for cell, row in self._rows.items() if (cell.block, cell.phase) == (block, phase)]

    def sweep(self, block: Block) -> np.ndarray:
        """Returns the returns of the sweep, best first."""
        returns = [self._returns[cell] for cell in self._rows if (cell.block, cell.phase) == (block, SWEEP)]
        return np.sort(returns)[::-1]

    def finals(self, block: Block) -> np.ndarray:
        """Returns the score of every seed whose runs are all done."""
        by_seed = self._by_seed(block, lambda cell: self._returns[cell])
        return np.array([np.mean(returns) for returns in by_seed])

    def curves(self, block: Block) -> np.ndarray:
        """Returns the learning curve of every such seed, [seeds, points], NaN where no episode ended.

        A run that diverged is at the task's 0 from where its curve ends.
        """
        return np.array([_mean_of_finite(curves) for curves in self._by_seed(block, self._curve)])

    def _by_seed(self, block: Block, value) -> Iterator[list]:
        """Yields `value(cell)` of all settings of a seed, for every seed whose runs are all done."""
        by_seed: dict[int, list] = {}
        for cell in self._rows:
            if (cell.block, cell.phase) == (block, FINAL):
                by_seed.setdefault(cell.seed, []).append(value(cell))
        return (values for _, values in sorted(by_seed.items()) if len(values) == self.grid.num_settings)

    def _curve(self, cell: Cell) -> np.ndarray:
        row = self._rows[cell]
        curve = np.array([float(x) for x in row["curve"].split()])
        if row["status"] != "done":
            end = int(float(row["frames"]) / self.grid.total_frames(cell.task) * len(curve))
            curve[end:] = self.grid.config.tasks[cell.task].scale[0]
        return curve

    def num_diverged(self, block: Block) -> int:
        """Returns how many of the runs that count diverged."""
        return sum(row["status"] != "done" for row in self.rows(block, FINAL))

    def scaled(self, task: str, returns: np.ndarray) -> np.ndarray:
        low, high = self.grid.config.tasks[task].scale
        return (returns - low) / (high - low)

    def conditions(self) -> Iterator[tuple[float, int]]:
        """Yields (replay fraction, lag)."""
        for fraction in self.grid.config.replay_fractions:
            for lag in self.grid.config.lags:
                yield fraction, lag

    def matrix(self, scheme: str, fraction: float, lag: int) -> np.ndarray | None:
        """Returns scaled scores [seeds, tasks]; None while runs are missing."""
        columns = [
            self.scaled(task, self.finals(Block(task, scheme, fraction, lag))) for task in self.grid.config.tasks
        ]
        complete = all(len(column) == self.grid.config.num_seeds for column in columns)
        return np.stack(columns, axis=1) if complete else None


def condition_name(fraction: float, lag: int) -> str:
    replay = "no replay" if not fraction else f"{fraction:.0%} replay"
    return f"{replay}, lag {lag}"


def interval(returns: np.ndarray) -> tuple[float, float]:
    """Returns the mean and half the width of its 95 % interval (Student's t)."""
    from scipy import stats

    if len(returns) < 2:
        return float(np.mean(returns)) if len(returns) else np.nan, np.nan
    half = stats.t.ppf(0.975, len(returns) - 1) * np.std(returns, ddof=1) / len(returns) ** 0.5
    return float(np.mean(returns)), float(half)


def interquartile_means(matrices: dict[str, np.ndarray]) -> dict[str, tuple[float, float, float]]:
    """Returns {name: (IQM, lower, upper)} of scaled scores [seeds, tasks], with 95 % stratified bootstrap intervals."""
    from rliable import metrics

    points, intervals = _estimates(matrices, lambda x: np.array([metrics.aggregate_iqm(x)]))
    return {name: (float(points[name][0]), *map(float, intervals[name][:, 0])) for name in matrices}


def _estimates(scores: dict, aggregate) -> tuple[dict, dict]:
    """Returns rliable's point and interval estimates, the same ones at every call."""
    from rliable import library

    with _seeded(0):
        return library.get_interval_estimates(scores, aggregate, reps=_NUM_BOOTSTRAP)


@contextlib.contextmanager
def _seeded(seed: int):
    """Seeds NumPy's global generator during the block: rliable draws from it, whatever `random_state` it is given."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def _mean_of_finite(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean over rows, NaNs left out; NaN where all rows are NaN."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        return np.nanmean(rows, axis=0)


def improvement(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Returns the probability that a seed of `one` beats a seed of `other`, with its 95 % interval."""
    points, intervals = _estimates({"pair": (one, other)}, lambda x, y: np.array([_share_of_wins(x, y)]))
    return float(points["pair"][0]), *map(float, intervals["pair"][:, 0])


def _share_of_wins(one: np.ndarray, other: np.ndarray) -> float:
    """Returns what rliable's `probability_of_improvement` does, for [seeds, tasks] each, a hundred times as fast."""
    one, other = one[:, None], other[None]
    return float(np.mean((one > other) + 0.5 * (one == other)))
