"""What a grid found: tables in the form of the paper's Table 2, comparisons of schemes, and the figures."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from impala.lab import figures
from impala.lab import scores as scores_lib
from impala.lab.grid import FINAL, Block, Condition, Grid, Setting
from impala.lab.scores import Estimate, Scores, interval


def table(scores: Scores) -> str:
    """Returns, for each condition: schemes by tasks, like the paper's Table 2; schemes compared; areas; the sweep."""
    grid = scores.grid.config
    settings = f"the {scores.grid.num_best} best settings" if scores.grid.num_best > 1 else "one setting"
    numbers = sorted({scores.grid.num_seeds(task) for task in grid.tasks})
    lines = [
        f"Mean return of {settings}, ± half the 95 % interval over {' or '.join(map(str, numbers))} "
        f"seed{_s(numbers[-1])}. "
        "A run that diverged counts as the task's 0, or less if it was worse. Over tasks, returns are scaled to each "
        "task's 0 and 1, and numbers have two 95 % intervals: over seeds [ ], and over seeds and tasks ( ). Those of "
        "medians and probabilities are bootstraps, which cover less with so few seeds; one of no width is left out."
    ]
    explores = " Training episodes of Q-based schemes explore." * any(map(grid.is_q_based, grid.schemes))
    skipped = [f"{count} of `{scheme}`" for scheme in grid.schemes if (count := scores.num_skipped(scheme))]
    lines += ["", f"Updates that were not finite, and so skipped: {', '.join(skipped) or 'none'}."]
    for condition in scores.grid.conditions():
        lines += ["", f"**{str(condition).capitalize()}**", "", *_ages(scores, condition)]
        lines += _by_task(scores, condition, scores.finals)
        lines += _comparisons(scores, condition)
        lines += ["", f"Mean return over the whole run.{explores}", "", *_by_task(scores, condition, scores.areas)]
        lines += _sweep(scores, condition)
    return "\n".join(lines).strip() + "\n"


def _by_task(scores: Scores, condition: Condition, value: Callable[[Block], np.ndarray]) -> list[str]:
    """Returns schemes by tasks, with mean and median over tasks."""
    tasks = list(scores.grid.config.tasks)
    lines = _head([*tasks, "mean, scaled", "median, scaled"])
    for scheme in scores.grid.config.schemes:
        cells = [_mean(scores, Block(task, scheme, *condition), value) for task in tasks]
        columns = scores.by_task(scheme, condition, value)
        for over_tasks in (scores_lib.mean_of_tasks, scores_lib.median_of_tasks):
            cells.append(_text(over_tasks(columns)) if columns else "–")
        lines.append(f"| `{scheme}` | {' | '.join(cells)} |")
    return lines


def _ages(scores: Scores, condition: Condition) -> list[str]:
    """Returns how old the replayed chunks were, for conditions with replay whose runs say it."""
    ages = []
    for task in scores.grid.config.tasks:
        blocks = (Block(task, scheme, *condition) for scheme in scores.grid.config.schemes)
        of_task = [float(row.get("replay_age") or "nan") for block in blocks for row in scores.rows(block, FINAL)]
        if np.isfinite(of_task).any():
            ages.append(f"{task} {np.nanmean(of_task):,.0f}")
    return [f"Mean age of what is replayed, in updates: {', '.join(ages)}.", ""] if ages else []


def _comparisons(scores: Scores, condition: Condition) -> list[str]:
    """Returns how the first scheme (V-trace if present) compares with every other one; of the same runs with one."""
    columns = {scheme: scores.by_task(scheme, condition) for scheme in scores.grid.config.schemes}
    complete = {scheme: column for scheme, column in columns.items() if column}
    first = "vtrace" if "vtrace" in complete else next(iter(complete), None)
    if len(complete) < 2:
        return []
    runs = {name: of_ends + scores.by_task(name, condition, scores.areas) for name, of_ends in complete.items()}
    alike: dict[str, list[str]] = {}  # the schemes whose runs are the same, by the one that stands for them
    for name in dict.fromkeys([first, *complete]):
        other = next((other for other in alike if all(map(_are_same, runs[name], runs[other]))), name)
        alike.setdefault(other, []).append(f"`{name}`")
    pairs = {name: (complete[first], complete[name]) for name in alike if name != first}
    lines, words = [], []
    if pairs:
        adjusted = scores_lib.holm([scores_lib.p_value(*pair) for pair in pairs.values()])
        lines += ["", *_head([f"`{first}` less this, scaled", f"P(a seed of `{first}` beats one of this)"])]
        for (scheme, pair), p in zip(pairs.items(), adjusted):
            less, wins = scores_lib.difference(*pair), scores_lib.improvement(*pair)
            lines.append(f"| `{scheme}` | {_text(less)}{' †' if p < 0.05 else ''} | {_text(wins)} |")
        several = f" for {len(pairs)} comparisons together (Welch's test, Holm's correction)."
        words.append("†: not 0 over seeds, at 5 %" + (several if len(pairs) > 1 else " (Welch's test)."))
    if same := [", ".join(names) for names in alike.values() if len(names) > 1]:
        words.append(f"The same runs{', compared once' * bool(pairs)}: {'; '.join(same)}.")
    return [*lines, "", " ".join(words)]


def _s(number: int) -> str:
    """Returns the ending of a plural."""
    return "s" * (number != 1)


def _are_same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other, equal_nan=True)  # NaN where no episode ended


def _sweep(scores: Scores, condition: Condition) -> list[str]:
    """Returns what the sweep found on the tasks that are swept, and which settings it chose."""
    grid, num_settings = scores.grid.config, scores.grid.config.num_settings
    tasks = [task for task in grid.tasks if grid.tasks[task].sweep]
    if num_settings == 1:
        return []
    seeds = f"{grid.num_sweep_seeds} seeds a setting" if grid.num_sweep_seeds > 1 else "one seed"
    lines = ["", f"The whole sweep, {seeds}: median (lowest to highest).", ""]
    lines += _head(tasks)
    chosen = {}
    for scheme in grid.schemes:
        blocks = [Block(task, scheme, *condition) for task in grid.tasks]
        chosen[scheme] = [scores.settings(block) for block in blocks]
        cells = [_spread(scores.sweep(block), num_settings) for block in blocks if block.task in tasks]
        lines.append(f"| `{scheme}` | {' | '.join(cells)} |")
    swept = [index for index, task in enumerate(grid.tasks) if task in tasks]  # the others take what these chose
    every = [(scheme, setting) for scheme, found in chosen.items() for index in swept for setting in found[index]]
    rates, others = (sum(edges) for edges in zip(*(scores.grid.at_edge(*one) for one in every))) if every else (0, 0)
    second = "entropy cost" + " or ε" * any(map(grid.is_q_based, grid.schemes))
    edges = f"{rates} and {others} of {len(every)} at an edge of the sweep (*)"
    lines += ["", f"Chosen, learning rate / {second}; {edges}.", ""]
    lines += _head(grid.tasks)
    for scheme, of_tasks in chosen.items():
        cells = [
            ", ".join(_setting(scores.grid, scheme, setting) for setting in of_task) or "–" for of_task in of_tasks
        ]
        lines.append(f"| `{scheme}` | {' | '.join(cells)} |")
    return lines


def _head(names: Iterable[str]) -> list[str]:
    names = list(names)
    return [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]


def _setting(grid: Grid, scheme: str, setting: Setting) -> str:
    return " / ".join(f"{x:g}{'*' * is_edge}" for x, is_edge in zip(setting, grid.at_edge(scheme, setting)))


def _text(estimate: Estimate) -> str:
    text = f"{estimate.value:.3f}"
    for ends, form in ((estimate.over_seeds, " [{:.3f}, {:.3f}]"), (estimate.over_tasks, " ({:.3f}, {:.3f})")):
        text += form.format(*ends) if ends is not None and ends[0] < ends[1] else ""
    return text


def _mean(scores: Scores, block: Block, value: Callable[[Block], np.ndarray]) -> str:
    returns, num_diverged = value(block), scores.num_diverged(block)
    if not len(returns):
        return "–"
    mean, half = interval(returns)
    text = f"{mean:.3g} ± {half:.2g}" if len(returns) > 1 else f"{mean:.3g}"
    num_seeds = scores.grid.num_seeds(block.task)
    missing = f" ({len(returns)} of {num_seeds} seeds)" if len(returns) < num_seeds else ""
    return text + missing + (f", {num_diverged} run{_s(num_diverged)} diverged" if num_diverged else "")


def _spread(returns: np.ndarray, num_settings: int) -> str:
    if not len(returns):
        return "–"
    missing = f", {len(returns)} of {num_settings}" if len(returns) < num_settings else ""
    return f"{np.median(returns):.3g} ({returns[-1]:.3g} to {returns[0]:.3g}{missing})"


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
    text = "\n".join([table(scores), *([_provenance(scores.all_rows)] if scores.all_rows else [])]) + "\n"
    paths[0].write_text(text, encoding="utf-8")
    drawn = {"curves.png": figures.curves, "means.png": figures.means}
    if grid.config.num_settings > 1:
        drawn["robustness.png"] = figures.robustness
    if len(grid.config.lags) > 1:
        drawn["lag.png"] = figures.lag
        if len(figures.replays(grid)) > 1:
            drawn["surface.png"] = figures.surface
    for name in {"robustness.png", "lag.png", "surface.png"} - drawn.keys():  # of a grid with more conditions
        (folder / name).unlink(missing_ok=True)
    for name, draw in drawn.items():
        figure = draw(scores)
        figure.savefig(folder / name, dpi=120)
        paths.append(folder / name)
    return paths
