"""What a grid found: a table in the shape of the paper's Table 2, learning curves, robustness, and statistics.

Interquartile means with stratified bootstrap intervals and the probability of improvement are rliable's (Agarwal et al.
2021, arXiv:2108.13264), on returns scaled to each task's 0 and 1.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from impala.lab.grid import FINAL, SWEEP, Block, Grid, cell_of

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

    def rows(self, block: Block, phase: str) -> list[dict]:
        """Returns a block's rows of one phase."""
        return [row for cell, row in self._rows.items() if (cell.block, cell.phase) == (block, phase)]

    def sweep(self, block: Block) -> np.ndarray:
        """Returns the returns of the sweep, best first."""
        returns = [self._returns[cell] for cell in self._rows if (cell.block, cell.phase) == (block, SWEEP)]
        return np.sort(returns)[::-1]

    def finals(self, block: Block) -> np.ndarray:
        """Returns the score of every seed whose runs are all done."""
        by_seed: dict[int, list[float]] = {}
        for cell in self._rows:
            if (cell.block, cell.phase) == (block, FINAL):
                by_seed.setdefault(cell.seed, []).append(self._returns[cell])
        num_settings = self.grid.num_settings
        return np.array([np.mean(returns) for _, returns in sorted(by_seed.items()) if len(returns) == num_settings])

    def num_diverged(self, block: Block) -> int:
        """Returns how many of the runs that count did not come to an end with finite weights."""
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

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "random_state is deprecated", FutureWarning)  # of arch, under rliable
        return library.get_interval_estimates(
            scores, aggregate, reps=_NUM_BOOTSTRAP, random_state=np.random.RandomState(0)
        )


def improvement(one: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Returns the probability that a seed of `one` beats a seed of `other`, with its 95 % interval."""
    from rliable import metrics

    points, intervals = _estimates(
        {"pair": (one, other)}, lambda x, y: np.array([metrics.probability_of_improvement(x, y)])
    )
    return float(points["pair"][0]), *map(float, intervals["pair"][:, 0])


def table(scores: Scores) -> str:
    """Returns a table a condition, schemes in rows, tasks in columns, as the paper's Table 2; and one of the sweep."""
    grid, tasks = scores.grid.config, list(scores.grid.config.tasks)
    settings = f"the {scores.grid.num_settings} best settings" if scores.grid.num_settings > 1 else "one setting"
    lines = [
        f"Mean return of {settings}, ± half the 95 % interval over {grid.num_seeds} seeds. "
        "A run that diverged counts as the task's 0."
    ]
    for fraction, lag in scores.conditions():
        matrices = {s: scores.matrix(s, fraction, lag) for s in grid.schemes}
        complete = {scheme: matrix for scheme, matrix in matrices.items() if matrix is not None}
        means = interquartile_means(complete) if complete else {}
        lines += ["", f"**{condition_name(fraction, lag).capitalize()}**", ""]
        lines += [f"| | {' | '.join(tasks)} | IQM, scaled |", f"|---|{'---|' * (len(tasks) + 1)}"]
        for scheme in grid.schemes:
            cells = [_mean(scores, Block(task, scheme, fraction, lag)) for task in tasks]
            iqm = "{:.3f} [{:.3f}, {:.3f}]".format(*means[scheme]) if scheme in means else "–"
            lines.append(f"| `{scheme}` | {' | '.join(cells)} | {iqm} |")
        lines += ["", *improvements] if (improvements := _improvements(complete)) else []
        if scores.grid.sweep(next(scores.grid.blocks())):
            lines += ["", "The whole sweep, one seed: median (lowest to highest).", ""]
            lines += [f"| | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
            for scheme in grid.schemes:
                cells = [_spread(scores.sweep(Block(task, scheme, fraction, lag))) for task in tasks]
                lines.append(f"| `{scheme}` | {' | '.join(cells)} |")
    return "\n".join(lines).strip() + "\n"


def _mean(scores: Scores, block: Block) -> str:
    returns, num_diverged = scores.finals(block), scores.num_diverged(block)
    if not len(returns):
        return "–"
    mean, half = interval(returns)
    text = f"{mean:.3g} ± {half:.2g}" if len(returns) > 1 else f"{mean:.3g}"
    missing = f" ({len(returns)} seeds)" if len(returns) < scores.grid.config.num_seeds else ""
    return text + missing + (f", {num_diverged} runs diverged" if num_diverged else "")


def _spread(returns: np.ndarray) -> str:
    return f"{np.median(returns):.3g} ({returns[-1]:.3g} to {returns[0]:.3g})" if len(returns) else "–"


def _improvements(matrices: dict[str, np.ndarray]) -> list[str]:
    """How likely a seed of the first scheme (V-trace where it takes part) beats one of each other, one line each."""
    first = "vtrace" if "vtrace" in matrices else next(iter(matrices), None)
    return [
        "P(`{}` > `{}`) = {:.2f} [{:.2f}, {:.2f}]  ".format(first, scheme, *improvement(matrices[first], matrix))
        for scheme, matrix in matrices.items()
        if scheme != first
    ]


def write(grid: Grid, rows: Sequence[dict], folder: Path) -> list[Path]:
    """Writes table.md and the figures of whatever is finished; returns the paths."""
    scores = Scores(grid, rows)
    paths = [folder / "table.md"]
    paths[0].write_text(table(scores))
    figures = {"curves.png": curves, "iqm.png": iqm_figure, "robustness.png": robustness}
    if len(grid.config.lags) > 1:
        figures["lag.png"] = lag_figure
    for name, draw in figures.items():
        figure = draw(scores)
        figure.savefig(folder / name, dpi=120)
        paths.append(folder / name)
    return paths


def _axes(num_rows: int, num_columns: int):
    """A grid of axes that always is two-dimensional."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 3.2 * num_columns, 0.6 + 2.4 * num_rows), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _panels(scores: Scores, x_label: str, draw):
    """Draws a row a condition, a column a task: `draw(axis, block)` for every scheme."""
    grid, conditions = scores.grid.config, list(scores.conditions())
    figure, axes = _axes(len(conditions), len(grid.tasks))
    for row, (fraction, lag) in zip(axes, conditions):
        for axis, task in zip(row, grid.tasks):
            for scheme in grid.schemes:
                draw(axis, Block(task, scheme, fraction, lag))
            axis.set_title(f"{task}\n{condition_name(fraction, lag)}", fontsize=9)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("return")
    for axis in axes[-1]:
        axis.set_xlabel(x_label)
    if axes[0, 0].has_data():
        axes[0, 0].legend(fontsize=7)
    return figure


def curves(scores: Scores):
    """Draws learning curves: mean and 95 % interval over the runs that count."""

    def draw(axis, block):
        if not (runs := scores.rows(block, FINAL)):
            return
        curve = np.array([[float(x) for x in run["curve"].split()] for run in runs])
        frames = (np.arange(curve.shape[1]) + 0.5) / curve.shape[1] * scores.grid.total_frames(block.task)
        seen = ~np.isnan(curve).all(axis=0)  # in some parts no episode ended: all have one length, say
        frames, curve = frames[seen], curve[:, seen]
        middle, half = np.array([interval(column[~np.isnan(column)]) for column in curve.T]).T
        (line,) = axis.plot(frames / 1e3, middle, label=block.scheme)
        axis.fill_between(frames / 1e3, middle - half, middle + half, color=line.get_color(), alpha=0.15, lw=0)

    return _panels(scores, "thousand frames", draw)


def iqm_figure(scores: Scores):
    """Draws the interquartile mean over all tasks with its interval, a panel a condition."""
    conditions = list(scores.conditions())
    figure, axes = _axes(1, len(conditions))
    for axis, (fraction, lag) in zip(axes[0], conditions):
        matrices = {s: scores.matrix(s, fraction, lag) for s in scores.grid.config.schemes}
        matrices = {s: m for s, m in matrices.items() if m is not None}
        means = interquartile_means(matrices) if matrices else {}
        if not means:
            axis.text(0.5, 0.5, "not all tasks are done", ha="center", transform=axis.transAxes)
        for i, (_, (middle, low, high)) in enumerate(means.items()):
            axis.barh(i, high - low, left=low, height=0.6, alpha=0.6)
            axis.plot([middle] * 2, [i - 0.3, i + 0.3], color="black")
        axis.set_yticks(range(len(means)), list(means))
        axis.set_title(condition_name(fraction, lag), fontsize=9)
        axis.set_xlabel("interquartile mean of scaled returns")
        axis.grid(axis="x", alpha=0.3)
    return figure


def robustness(scores: Scores):
    """Draws the returns of the whole sweep, best setting first: what a scheme forgives (the paper's figure D.1)."""

    def draw(axis, block):
        axis.plot(scores.sweep(block), marker=".", label=block.scheme)

    return _panels(scores, "rank of the setting", draw)


def lag_figure(scores: Scores):
    """Draws the return over the policy lag (the paper's figure E.1), a column a task, a row a replay fraction."""
    grid = scores.grid.config
    figure, axes = _axes(len(grid.replay_fractions), len(grid.tasks))
    for row, fraction in zip(axes, grid.replay_fractions):
        for axis, task in zip(row, grid.tasks):
            for shift, scheme in zip(np.linspace(-0.1, 0.1, len(grid.schemes)), grid.schemes):
                returns = [scores.finals(Block(task, scheme, fraction, lag)) for lag in grid.lags]
                middle, half = np.array([interval(r) for r in returns]).T
                axis.errorbar(np.arange(len(grid.lags)) + shift, middle, half, marker="o", capsize=2, label=scheme)
            axis.set_xticks(range(len(grid.lags)), grid.lags)
            axis.set_title(f"{task}\n{'no' if not fraction else f'{fraction:.0%}'} replay", fontsize=9)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("return")
    for axis in axes[-1]:
        axis.set_xlabel("policy lag, updates")
    axes[0, 0].legend(fontsize=7)
    return figure
