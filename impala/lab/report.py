"""What a grid found: a table in the form of the paper's Table 2, and the figures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from impala.lab import figures
from impala.lab.grid import Block, Grid
from impala.lab.scores import Scores, condition_name, improvement, interquartile_means, interval


def table(scores: Scores) -> str:
    """Returns a table for each condition, schemes by tasks, like the paper's Table 2; and one of its sweep."""
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
        if scores.grid.num_sweep:
            lines += ["", "The whole sweep, one seed: median (lowest to highest).", ""]
            lines += [f"| | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
            for scheme in grid.schemes:
                sweeps = [scores.sweep(Block(task, scheme, fraction, lag)) for task in tasks]
                cells = [_spread(returns, scores.grid.num_sweep) for returns in sweeps]
                lines.append(f"| `{scheme}` | {' | '.join(cells)} |")
    return "\n".join(lines).strip() + "\n"


def _mean(scores: Scores, block: Block) -> str:
    returns, num_diverged = scores.finals(block), scores.num_diverged(block)
    if not len(returns):
        return "–"
    mean, half = interval(returns)
    text = f"{mean:.3g} ± {half:.2g}" if len(returns) > 1 else f"{mean:.3g}"
    num_seeds = scores.grid.config.num_seeds
    missing = f" ({len(returns)} of {num_seeds} seeds)" if len(returns) < num_seeds else ""
    return text + missing + (f", {num_diverged} runs diverged" if num_diverged else "")


def _spread(returns: np.ndarray, num_sweep: int) -> str:
    if not len(returns):
        return "–"
    missing = f", {len(returns)} of {num_sweep}" if len(returns) < num_sweep else ""
    return f"{np.median(returns):.3g} ({returns[-1]:.3g} to {returns[0]:.3g}{missing})"


def _improvements(matrices: dict[str, np.ndarray]) -> list[str]:
    """Returns how likely a seed of the first scheme (V-trace if present) beats one of another, one line for each."""
    first = "vtrace" if "vtrace" in matrices else next(iter(matrices), None)
    return [
        "P(`{}` > `{}`) = {:.2f} [{:.2f}, {:.2f}]  ".format(first, scheme, *improvement(matrices[first], matrix))
        for scheme, matrix in matrices.items()
        if scheme != first
    ]


def _provenance(rows: Sequence[dict]) -> str:
    """Returns which commits, on which days and machines, trained the rows, and how long that took in all."""
    commits, days, machines = (sorted({row[name] for row in rows}) for name in ("commit", "date", "machine"))
    hours = sum(float(row["wall_seconds"]) for row in rows) / 3600
    return (
        f"{len(rows)} runs of {hours:.1f} hours on one core in all, {' to '.join(dict.fromkeys((days[0], days[-1])))}; "
        f"commits {', '.join(commits)}; {'; '.join(machines)}."
    )


def write(grid: Grid, rows: Sequence[dict], folder: Path) -> list[Path]:
    """Writes table.md and the figures of whatever is finished; returns the paths."""
    scores = Scores(grid, rows)
    paths = [folder / "table.md"]
    paths[0].write_text("\n".join([table(scores), *([_provenance(scores.all_rows)] if scores.all_rows else [])]) + "\n")
    drawn = {"curves.png": figures.curves, "iqm.png": figures.interquartile_means}
    if grid.num_sweep:
        drawn["robustness.png"] = figures.robustness
    if len(grid.config.lags) > 1:
        drawn["lag.png"] = figures.lag
    for name, draw in drawn.items():
        figure = draw(scores)
        figure.savefig(folder / name, dpi=120)
        paths.append(folder / name)
    return paths


