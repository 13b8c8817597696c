"""`impala plot RUN…`: the curves of runs as a PNG."""

from collections.abc import Sequence
from pathlib import Path

from impala import config as config_lib
from impala.monitoring.logs import number, read_csv

_PANELS = (
    ("return_mean", "return, mean of 100 episodes"),
    ("evaluation_mean", "return, newest evaluation"),
    ("lag_mean", "policy lag, updates"),
    ("replay_lag_mean", "age of what is replayed, updates"),
    ("staleness_mean", "staleness of gradients, updates"),
    ("entropy", "entropy, nats"),
    ("td_error", "error of the action values"),
    ("replay_size", "transitions in replay"),
    ("samples_per_insert", "samples per insert"),
    ("priority_p50", "priority, median"),
    ("priority_p95", "priority, 95th percentile"),
    ("priority_max", "priority, largest"),
    ("rho_clipped_fraction", "fraction of ρ > ρ̄"),
    ("policy_clipped_fraction", "fraction without a policy gradient"),
    ("penalty", "weight of the KL penalty, β"),
    ("stale_gradients", "stale gradients, refused"),
    ("outlier_gradients", "outlier gradients, refused"),
    ("frames_per_second", "frames / s"),
    ("rss_mb", "resident memory, MB"),
)
_FORMATS = (".png", ".pdf", ".svg")
_EVOLVING = ("learning_rate", "entropy_cost", "epsilon")


def draw(folders: Sequence[Path], output: Path) -> Path:
    """Draws the curves of runs over frames and writes `output`.

    Return, lag, entropy and whatever else of `_PANELS` a run's metrics hold and is not 0 throughout; then the return of
    each task, if there are several, and the hyper-parameters that evolve, if the runs are a population: a cross marks
    where a member copied another.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    labels = _labels(folders)
    metrics, tasks, evolutions = (
        [read_csv(folder / name) for folder in folders] for name in ("metrics.csv", "tasks.csv", "population.csv")
    )
    has = {column for rows in metrics for row in rows for column, value in row.items() if value and value != "0"}
    panels = [(label, metrics, column, None) for column, label in _PANELS if column in has | {"return_mean"}]
    environments = dict.fromkeys(row["environment"] for rows in tasks for row in rows)
    panels += [(f"return, {name}", tasks, "return_mean", name) for name in environments]
    evolving = [name for name in _EVOLVING if any(name in row for rows in evolutions for row in rows)]
    panels += [(name.replace("_", " "), metrics, name, None) for name in evolving]

    num_rows = -(-len(panels) // 3)
    figure, axes = plt.subplots(num_rows, 3, figsize=(13, 3.25 * num_rows), squeeze=False, constrained_layout=True)
    for axis, (quantity, tables, column, environment) in zip(axes.flat, panels):
        for label, table, copies in zip(labels, tables, evolutions):
            rows = [row for row in table if row.get(column) and row.get("environment") == environment]
            (line,) = axis.plot(_millions(rows), [number(row[column]) for row in rows], label=label, linewidth=1.4)
            if column in evolving:
                rows = [row for before, row in zip(rows, rows[1:]) if _is_copy_between(before, row, copies)]
                axis.plot(_millions(rows), [number(row[column]) for row in rows], "x", color=line.get_color())
                axis.set_yscale("log")
        axis.set(ylabel=quantity, xlabel="million frames of the task" if environment else "million frames")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    for folder in folders:
        episodes = [row for row in read_csv(folder / "episodes.csv") if {"frames", "score"} <= row.keys()]
        axes[0, 0].scatter(
            _millions(episodes), [number(e["score"]) for e in episodes], s=2, alpha=0.12, color="grey", zorder=0
        )
    if len(folders) > 1:
        axes[0, 0].legend()
    figure.suptitle(", ".join(map(_title, labels, metrics)))
    temporary = output.with_name(f"{output.stem}.tmp{output.suffix}")
    try:
        figure.savefig(temporary, dpi=110)
        temporary.replace(output)
    finally:
        plt.close(figure)
        temporary.unlink(missing_ok=True)
    return output


def _labels(folders: Sequence[Path]) -> list[str]:
    """Returns the shortest ends of the folders' paths that tell them apart."""
    paths = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, paths)) + 1):
        labels = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(labels)) == len(set(paths)):
            break
    return labels


def _millions(rows: Sequence[dict[str, str]]) -> list[float]:
    return [number(row["frames"]) / 1e6 for row in rows]


def _is_copy_between(before: dict[str, str], row: dict[str, str], evolutions: Sequence[dict[str, str]]) -> bool:
    """Returns whether the member copied another between two rows of its metrics."""
    copies = [number(each["frames"]) for each in evolutions if each["is_copied"] == "1"]
    return any(number(before["frames"]) <= frames < number(row["frames"]) for frames in copies)


def _title(label: str, rows: Sequence[dict[str, str]]) -> str:
    return f"{label}: {number(rows[-1]['wall_seconds']) / 60:.0f} min" if rows else label


def _has_rows(folder: Path) -> bool:
    rows = read_csv(folder / "metrics.csv")
    return bool(rows) and {"frames", "wall_seconds"} <= rows[0].keys()


def main(folders: Sequence[Path], output: Path) -> int:
    """The command `impala plot`."""
    problems = []
    for folder in [folder for folder in folders if not (folder / "metrics.csv").is_file()]:
        near = Path("runs") / folder
        hint = f"did you mean {near}?" if (near / "metrics.csv").is_file() else "expected a run folder"
        problems.append(f"{folder}: holds no metrics.csv; {hint}")
    problems += [
        f"{f / 'metrics.csv'}: has no rows with frames and seconds; expected a run's that has begun to train"
        for f in folders if not problems and not _has_rows(f)
    ]  # fmt: skip
    if not problems and not output.parent.is_dir():
        problems.append(f"--output {output}: no such folder; expected a file in one that exists")
    if output.suffix.lower() not in _FORMATS or output.is_dir():
        problems.append(f"--output {output}: expected a file whose name ends in {', '.join(_FORMATS)}")
    if problems:
        raise config_lib.ConfigError(problems)
    print(draw(folders, output))
    return 0
