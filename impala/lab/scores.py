"""The scores of a grid and their statistics: what counts, means and medians over tasks, comparisons, their intervals.

Each number over tasks has two intervals, of 95 %. One shows what other seeds would change, the other what other tasks
of the same kind might change, too; with fewer than three tasks nothing can be said of others. Of means and their
differences both are Student's, the first with Welch's degrees of freedom, since resampling covers too little where
there are five seeds or tasks. Of other numbers they are percentile bootstraps over the seeds of each task (Agarwal et
al. 2021, arXiv:2108.13264), and over tasks and seeds, and do cover too little. All take the settings that were chosen
as given. Schemes share their seeds, which Welch's test does not use: where a seed's runs resemble each other, it finds
too few differences rather than too many. Tasks may have different numbers of seeds.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from impala.lab.grid import FINAL, SWEEP, Block, Cell, Condition, Grid, Setting, cell_of

_NUM_BOOTSTRAP = 2000
_LEAST_TASKS = 3  # that say something of other tasks
Interval = tuple[float, float]


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
        self._rows: dict[tuple[Block, str], dict[Cell, dict]] = {}
        for cell in grid.cells(self._returns):
            if cell in rows:
                self._rows.setdefault((cell.block, cell.phase), {})[cell] = rows[cell]

    @property
    def all_rows(self) -> list[dict]:
        """The rows that belong to the grid."""
        return [row for rows in self._rows.values() for row in rows.values()]

    def rows(self, block: Block, phase: str) -> list[dict]:
        """Returns a block's rows of one phase."""
        return list(self._rows.get((block, phase), {}).values())

    def sweep(self, block: Block) -> np.ndarray:
        """Returns the mean over seeds of every setting of the sweep whose runs are all done, best first."""
        by_setting: dict[Setting, list[float]] = {}
        for cell in self._rows.get((block, SWEEP), {}):
            by_setting.setdefault((cell.learning_rate, cell.entropy), []).append(self._returns[cell])
        num_seeds = self.grid.config.num_sweep_seeds
        return np.sort([np.mean(returns) for returns in by_setting.values() if len(returns) == num_seeds])[::-1]

    def settings(self, block: Block) -> list[Setting]:
        """Returns the settings that count, best first; [] before the sweep is done."""
        return self.grid.settings(block, self._returns)

    def finals(self, block: Block) -> np.ndarray:
        """Returns the score of every seed whose runs are all done."""
        return np.array([np.mean(returns) for returns in self._by_seed(block, self._returns.__getitem__)])

    def curves(self, block: Block) -> np.ndarray:
        """Returns the learning curve of every seed of `finals`, [seeds, points], NaN where no episode ended.

        A run that diverged is at the task's 0 from where its curve ends.
        """
        return np.array([_mean_of_finite(curves) for curves in self._by_seed(block, self._curve)])

    def areas(self, block: Block) -> np.ndarray:
        """Returns the mean of every such curve: how good a seed was on average, from the first frame to the last.

        Where no episode ended, what was known before holds; before the first, and if none ended at all, the task's 0.
        """
        zero = self.grid.config.tasks[block.task].scale[0]
        return np.array([_carried(curve, zero).mean() for curve in self.curves(block)])

    def _by_seed(self, block: Block, value) -> Iterator[list]:
        """Yields `value(cell)` of all settings of a seed, for every seed whose runs are all done."""
        by_seed: dict[int, list] = {}
        for cell in self._rows.get((block, FINAL), {}):
            by_seed.setdefault(cell.seed, []).append(value(cell))
        return (values for _, values in sorted(by_seed.items()) if len(values) == self.grid.num_best)

    def _curve(self, cell: Cell) -> np.ndarray:
        row = self._rows[cell.block, FINAL][cell]
        curve = np.array([float(x) for x in row["curve"].split()])
        if row["status"] != "done":
            end = int(float(row["frames"]) / self.grid.total_frames(cell.task) * len(curve))
            curve[end:] = self.grid.config.tasks[cell.task].scale[0]
        return curve

    def num_diverged(self, block: Block) -> int:
        """Returns how many of the runs that count diverged."""
        return sum(row["status"] != "done" for row in self.rows(block, FINAL))

    def num_skipped(self, scheme: str) -> int:
        """Returns how many updates of a scheme's runs that count were not finite, and so skipped."""
        blocks = (block for block, phase in self._rows if block.scheme == scheme and phase == FINAL)
        return sum(int(row["skipped_updates"] or 0) for block in blocks for row in self.rows(block, FINAL))

    def by_task(
        self, scheme: str, condition: Condition, value: Callable[[Block], np.ndarray] | None = None
    ) -> list[np.ndarray] | None:  # fmt: skip
        """Returns `value`, by default `finals`, of every task, scaled, [seeds] each; None while runs are missing."""
        columns = []
        for task in self.grid.config.tasks:
            column = self.grid.scaled(task, (value or self.finals)(Block(task, scheme, *condition)))
            if len(column) < self.grid.num_seeds(task):
                return None
            columns.append(column)
        return columns


class Estimate(NamedTuple):
    """A number over tasks, with its intervals over seeds, and over seeds and tasks."""

    value: float
    over_seeds: Interval | None  # where a task has one seed only
    over_tasks: Interval | None  # with too few tasks


def mean_of_tasks(one: Sequence[np.ndarray]) -> Estimate:
    """Returns the mean over tasks of the means over seeds, of [seeds] for each task."""
    return _of_student([seeds.mean() for seeds in one], one)


def median_of_tasks(one: Sequence[np.ndarray]) -> Estimate:
    """Returns the median over tasks of the means over seeds, of [seeds] for each task."""
    return _estimate(np.median, _means, one)


def difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> Estimate:
    """Returns the mean over tasks of the mean of `one` less that of `other`, [seeds] for each task."""
    return _of_student([x.mean() - y.mean() for x, y in zip(one, other)], one, other)


def p_value(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Returns the p-value of Welch's test: how likely a `difference` as large is if the true one is 0.

    It is 1 where a task has one seed only, which says nothing of how far others lie from it.
    """
    from scipy import stats

    if _has_single(one, other):
        return 1.0
    error, freedom = _error(one, other)
    value = np.mean([x.mean() - y.mean() for x, y in zip(one, other)])
    return float(2 * stats.t.sf(abs(value) / error, freedom)) if error else float(value == 0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for how many they are (Holm 1979)."""
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted.tolist()


def _of_student(of_tasks: Sequence[float], *groups: Sequence[np.ndarray]) -> Estimate:
    """Returns the mean of numbers of tasks, means over the seeds in `groups` or their differences, with intervals."""
    from scipy import stats

    error, freedom = _error(*groups)
    value, half = float(np.mean(of_tasks)), float(stats.t.ppf(0.975, freedom) * error) if error else 0.0
    over_seeds, over_tasks = None if _has_single(*groups) else (value - half, value + half), None
    if len(of_tasks) >= _LEAST_TASKS:  # they differ by their seeds, too: never less than over seeds
        most = max(half, float(stats.t.ppf(0.975, len(of_tasks) - 1) * stats.sem(of_tasks)))
        over_tasks = (value - most, value + most)
    return Estimate(value, over_seeds, over_tasks)


def _has_single(*groups: Sequence[np.ndarray]) -> bool:
    return any(len(seeds) < 2 for group in groups for seeds in group)


def _error(*groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """Returns the standard error of a mean over tasks of means over seeds, and its degrees of freedom (Welch).

    A task with a single seed adds nothing.
    """
    samples = [seeds for group in groups for seeds in group if len(seeds) > 1]
    parts = np.array([np.var(seeds, ddof=1) / len(seeds) for seeds in samples])
    if not parts.any():
        return 0.0, 1.0
    freedom = np.sum(parts) ** 2 / np.sum(parts**2 / [len(seeds) - 1 for seeds in samples])
    return float(np.sqrt(np.sum(parts)) / len(groups[0])), float(freedom)


def improvement(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> Estimate:
    """Returns the probability that a seed of `one` beats one of `other`, ties counting half, mean over tasks."""
    return _estimate(np.mean, _shares_of_wins, one, other)


def _means(samples: np.ndarray) -> np.ndarray:
    return samples.mean(axis=1)


def _shares_of_wins(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns how often a seed of `one` [R, S] beats one of `other` [R, S′]: [R]."""
    one, other = one[:, :, None], other[:, None, :]
    return ((one > other) + 0.5 * (one == other)).mean(axis=(1, 2))


def _estimate(reduce, value, *groups: Sequence[np.ndarray]) -> Estimate:
    """Reduces over tasks the `value` of their seeds; every call resamples from the same seed.

    Args:
      reduce: (numbers, axis) → the number over tasks.
      value: of one or two arrays of samples [R, seeds] → [R].
      groups: of one scheme or two: [seeds] for each task.
    """
    random = np.random.default_rng(0)
    tasks = list(zip(*groups))
    point = np.array([value(*(seeds[None] for seeds in task))[0] for task in tasks])  # [tasks]

    def resampled(task, number=_NUM_BOOTSTRAP) -> np.ndarray:  # [number]
        return value(*(random.choice(seeds, (number, len(seeds))) for seeds in task))

    drawn = np.array([resampled(task) for task in tasks])  # [tasks, R]
    of_tasks, picks = np.empty_like(drawn), random.integers(len(tasks), size=drawn.shape)
    for place, picked in zip(of_tasks, picks):  # a task that is drawn twice has other seeds each time
        for index, task in enumerate(tasks):
            place[picked == index] = resampled(task, np.count_nonzero(picked == index))
    over_seeds, over_tasks = (
        tuple(float(x) for x in np.percentile(reduce(numbers, axis=0), [2.5, 97.5])) for numbers in (drawn, of_tasks)
    )
    return Estimate(
        float(reduce(point, axis=0)), None if _has_single(*groups) else over_seeds,
        over_tasks if len(tasks) >= _LEAST_TASKS else None,
    )  # fmt: skip


def interval(returns: np.ndarray) -> tuple[float, float]:
    """Returns the mean and half the width of its 95 % interval (Student's t)."""
    from scipy import stats

    if len(returns) < 2:
        return float(np.mean(returns)) if len(returns) else np.nan, np.nan
    half = stats.t.ppf(0.975, len(returns) - 1) * np.std(returns, ddof=1) / len(returns) ** 0.5
    return float(np.mean(returns)), float(half)


def _carried(curve: np.ndarray, first: float) -> np.ndarray:
    """Returns a curve whose NaNs are the last number before them, those at the beginning `first`."""
    known = np.maximum.accumulate(np.where(np.isnan(curve), -1, np.arange(len(curve))))
    return np.where(known < 0, first, curve[known])


def _mean_of_finite(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the mean over rows, NaNs left out; NaN where all rows are NaN."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
        return np.nanmean(rows, axis=0)
