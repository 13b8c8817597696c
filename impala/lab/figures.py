"""The figures of a grid: learning curves, interquartile means, robustness, return over lag."""

import numpy as np

from impala.lab import scores as scores_lib
from impala.lab.grid import Block
from impala.lab.scores import Scores, condition_name, interval


def _axes(num_rows: int, num_columns: int):
    """Returns a figure and its axes, which are always a two-dimensional array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 3.2 * num_columns, 0.6 + 2.4 * num_rows), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _panels(scores: Scores, x_label: str, draw):
    """Draws a panel for each condition (row) and task (column): calls `draw(axis, block)` for every scheme."""
    grid, conditions = scores.grid.config, list(scores.conditions())
    figure, axes = _axes(len(conditions), len(grid.tasks))
    for row, (fraction, lag) in zip(axes, conditions):
        for axis, task in zip(row, grid.tasks):
            for scheme in grid.schemes:
                draw(axis, Block(task, scheme, fraction, lag))
            if not axis.has_data():
                axis.text(0.5, 0.5, "not done", ha="center", transform=axis.transAxes)
            axis.set_title(f"{task}\n{condition_name(fraction, lag)}", fontsize=9)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("return")
    for axis in axes[-1]:
        axis.set_xlabel(x_label)
    if axes[0, 0].has_data():
        axes[0, 0].legend(fontsize=7)
    return figure


def curves(scores: Scores):
    """Draws learning curves: mean and 95 % interval over seeds, as in the table; dashed while seeds are missing."""

    def draw(axis, block):
        if not len(curve := scores.curves(block)):
            return
        frames = (np.arange(curve.shape[1]) + 0.5) / curve.shape[1] * scores.grid.total_frames(block.task)
        seen = ~np.isnan(curve).all(axis=0)  # in some parts no episode may end, e.g. if all have one length
        frames, curve = frames[seen], curve[:, seen]
        middle, half = np.array([interval(column[~np.isnan(column)]) for column in curve.T]).T
        style = "-" if len(curve) == scores.grid.config.num_seeds else "--"
        (line,) = axis.plot(frames / 1e3, middle, style, label=block.scheme)
        axis.fill_between(frames / 1e3, middle - half, middle + half, color=line.get_color(), alpha=0.15, lw=0)

    return _panels(scores, "thousand frames", draw)


def interquartile_means(scores: Scores):
    """Draws the interquartile mean over all tasks with its interval, a panel for each condition."""
    conditions = list(scores.conditions())
    figure, axes = _axes(1, len(conditions))
    for axis, (fraction, lag) in zip(axes[0], conditions):
        matrices = {s: scores.matrix(s, fraction, lag) for s in scores.grid.config.schemes}
        matrices = {s: m for s, m in matrices.items() if m is not None}
        means = scores_lib.interquartile_means(matrices) if matrices else {}
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
    """Draws the returns of the whole sweep, best setting first: how robust a scheme is (the paper's figure E.2)."""

    def draw(axis, block):
        if len(returns := scores.sweep(block)) == scores.grid.num_sweep:
            axis.plot(np.arange(1, len(returns) + 1), returns, marker=".", label=block.scheme)

    return _panels(scores, "rank of the setting", draw)


def lag(scores: Scores):
    """Draws the return over the policy lag (the paper's figure E.1), tasks in columns, replay fractions in rows."""
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
