"""The figures of a grid: learning curves, means over tasks, robustness, return over lag, and over lag × replay."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from impala.lab import scores as scores_lib
from impala.lab.grid import Block, Condition, Grid
from impala.lab.scores import Scores, interval

_MOST_COLORS = 10  # of tab10
_MOST_IN_PANEL = 6  # names of a legend; that of more stands beside the panels


def _axes(num_rows: int, num_columns: int):
    """Returns a figure and its axes, which are always a two-dimensional array."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 3.2 * num_columns, 0.6 + 2.4 * num_rows), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _colors(schemes: Sequence[str]) -> dict[str, Any]:
    """Returns the colour of each scheme, the same in every panel whichever of them are done."""
    import matplotlib

    colors = matplotlib.colormaps["tab20" if len(schemes) > _MOST_COLORS else "tab10"].colors
    return dict(zip(schemes, itertools.cycle(colors)))


def _legend(figure, axis, schemes: Sequence[str]) -> None:
    """Names all schemes: within `axis` if they are few, else beside the panels."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=color, label=scheme) for scheme, color in _colors(schemes).items()]
    if len(schemes) > _MOST_IN_PANEL:
        figure.legend(handles=lines, loc="outside right upper", fontsize=7)
    else:
        axis.legend(handles=lines, fontsize=7)


def _panels(scores: Scores, tasks: Sequence[str], x_label: str, draw):
    """Draws a panel for each condition (row) and task (column): calls `draw(axis, block, color)` for every scheme."""
    grid, conditions = scores.grid.config, scores.grid.conditions()
    figure, axes = _axes(len(conditions), len(tasks))
    for row, condition in zip(axes, conditions):
        for axis, task in zip(row, tasks):
            for scheme, color in _colors(grid.schemes).items():
                draw(axis, Block(task, scheme, *condition), color)
            if not axis.has_data():
                axis.text(0.5, 0.5, "not done", ha="center", transform=axis.transAxes)
            axis.set_title(f"{task}\n{condition}", fontsize=9)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("return")
    for axis in axes[-1]:
        axis.set_xlabel(x_label)
    _legend(figure, axes[0, 0], grid.schemes)
    return figure


def curves(scores: Scores):
    """Draws learning curves: mean and 95 % interval over seeds, as in the table; dashed while seeds are missing."""

    def draw(axis, block, color):
        curve = scores.curves(block)
        if np.isnan(curve).all():  # also if there is none: no run has ended yet, or no episode in any
            return
        frames = (np.arange(curve.shape[1]) + 0.5) / curve.shape[1] * scores.grid.total_frames(block.task)
        seen = ~np.isnan(curve).all(axis=0)  # in some parts no episode may end, e.g. if all have one length
        frames, curve = frames[seen], curve[:, seen]
        middle, half = np.array([interval(column[~np.isnan(column)]) for column in curve.T]).T
        style = "-" if len(curve) == scores.grid.num_seeds(block.task) else "--"
        axis.plot(frames / 1e3, middle, style, color=color)
        axis.fill_between(frames / 1e3, middle - half, middle + half, color=color, alpha=0.15, lw=0)

    grid = scores.grid.config
    explores = any(map(grid.is_q_based, grid.schemes))
    return _panels(scores, list(grid.tasks), f"thousand frames{'; Q-based schemes explore' if explores else ''}", draw)


def means(scores: Scores):
    """Draws the mean over tasks, a panel for each condition; dark: interval over seeds, light: over seeds and tasks."""
    conditions = scores.grid.conditions()
    figure, axes = _axes(1, len(conditions))
    figure.set_figheight(0.9 + 0.24 * max(6, len(scores.grid.config.schemes)))
    for axis, condition in zip(axes[0], conditions):
        columns = {scheme: scores.by_task(scheme, condition) for scheme in scores.grid.config.schemes}
        found = {scheme: scores_lib.mean_of_tasks(column) for scheme, column in columns.items() if column}
        if not found:
            axis.text(0.5, 0.5, "not all tasks are done", ha="center", transform=axis.transAxes)
        for i, estimate in enumerate(found.values()):
            for ends, alpha in ((estimate.over_tasks, 0.2), (estimate.over_seeds, 0.6)):
                if ends is not None:
                    axis.barh(i, ends[1] - ends[0], left=ends[0], height=0.6, alpha=alpha, color="tab:blue")
            axis.plot([estimate.value] * 2, [i - 0.3, i + 0.3], color="black")
        axis.set_yticks(range(len(found)), list(found), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(str(condition), fontsize=9)
        axis.set_xlabel("mean over tasks of scaled returns")
        axis.grid(axis="x", alpha=0.3)
    return figure


def robustness(scores: Scores):
    """Draws the returns of the whole sweep, best setting first: how robust a scheme is (the paper's figure E.2)."""

    def draw(axis, block, color):
        if len(returns := scores.sweep(block)) == scores.grid.config.num_settings:
            axis.plot(np.arange(1, len(returns) + 1), returns, marker=".", color=color)

    swept = [name for name, task in scores.grid.config.tasks.items() if task.sweep]
    return _panels(scores, swept, "rank of the setting", draw)


def replays(grid: Grid) -> list[list[Condition]]:
    """Returns the conditions by what is replayed, those of each lag together."""
    return [list(group) for _, group in itertools.groupby(grid.conditions(), key=lambda condition: condition.replay)]


def lag(scores: Scores):
    """Draws the return over the policy lag (as the paper's figure E.1), tasks in columns, what is replayed in rows."""
    grid, of_replays = scores.grid.config, replays(scores.grid)
    figure, axes = _axes(len(of_replays), len(grid.tasks))
    for row, conditions in zip(axes, of_replays):
        for axis, task in zip(row, grid.tasks):
            for shift, (scheme, color) in zip(np.linspace(-0.1, 0.1, len(grid.schemes)), _colors(grid.schemes).items()):
                returns = [scores.finals(Block(task, scheme, *condition)) for condition in conditions]
                middle, half = np.array([interval(r) for r in returns]).T
                places, form = np.arange(len(grid.lags)) + shift, dict(marker="o", capsize=2, color=color)
                axis.errorbar(places, middle, half, **form, label=scheme)
            axis.set_xticks(range(len(grid.lags)), grid.lags)
            axis.set_title(f"{task}\n{conditions[0].replay}", fontsize=9)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("return")
    for axis in axes[-1]:
        axis.set_xlabel("policy lag, updates")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    return figure


def surface(scores: Scores):
    """Draws the return over policy lag × what is replayed as a map: tasks in rows, schemes in columns."""
    grid, of_replays = scores.grid.config, replays(scores.grid)
    names = [conditions[0].replay.replace(" of the", "\nof the") for conditions in of_replays]
    figure, axes = _axes(len(grid.tasks), len(grid.schemes))
    figure.set_size_inches(1.4 + 1.7 * len(grid.schemes), 0.6 + 1.9 * len(grid.tasks))
    for row, (task, config) in zip(axes, grid.tasks.items()):
        for axis, scheme in zip(row, grid.schemes):
            returns = np.array([
                [interval(scores.finals(Block(task, scheme, *condition)))[0] for condition in conditions]
                for conditions in of_replays
            ])  # fmt: skip
            image = axis.imshow(returns, vmin=config.scale[0], vmax=config.scale[1], origin="lower", aspect="auto")
            for (y, x), value in np.ndenumerate(returns):
                color = "black" if image.norm(value) > 0.6 else "white"  # on yellow, on blue
                axis.text(x, y, f"{value:.2g}", ha="center", va="center", fontsize=8, color=color, fontweight="bold")
            axis.set_xticks(range(len(grid.lags)), grid.lags)
            axis.set_yticks(range(len(names)), names if axis is row[0] else [], fontsize=7)
            axis.set_title(f"{scheme}\n{task}", fontsize=8)
        figure.colorbar(image, ax=row[-1])
    for axis in axes[-1]:
        axis.set_xlabel("lag, updates")
    return figure
