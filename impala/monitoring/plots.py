"""`impala plot RUN…`: the curves of runs as a PNG."""

from collections.abc import Sequence
from pathlib import Path

from impala import config as config_lib
from impala.monitoring.logs import read_csv

_PANELS = (
    ("return_mean", "return, mean of 100 episodes"),
    ("lag_mean", "policy lag, updates"),
    ("entropy", "entropy, nats"),
    ("rho_clipped_fraction", "fraction of ρ > 1"),
    ("frames_per_second", "frames / s"),
    ("rss_mb", "resident memory, MB"),
)


def draw(folders: Sequence[Path], output: Path) -> Path:
    """Draws return, lag, entropy, clipping, speed and memory of runs over frames and writes `output`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
    titles = []
    for folder in folders:
        rows = read_csv(folder / "metrics.csv")
        titles.append(f"{folder.name}: {float(rows[-1]['wall_seconds']) / 60:.0f} min" if rows else folder.name)
        for axis, (column, label) in zip(axes.flat, _PANELS):
            points = [(float(r["frames"]) / 1e6, float(r[column])) for r in rows if r.get(column)]
            if points:
                axis.plot(*zip(*points), label=folder.name, linewidth=1.4)
            axis.set(ylabel=label, xlabel="million frames")
            axis.grid(alpha=0.3)
        episodes = read_csv(folder / "episodes.csv")
        axes[0, 0].scatter(
            [float(e["frames"]) / 1e6 for e in episodes], [float(e["score"]) for e in episodes],
            s=2, alpha=0.12, color="grey", zorder=0,
        )  # fmt: skip
    if len(folders) > 1:
        axes[0, 0].legend()
    figure.suptitle(", ".join(titles))
    temporary = output.with_name(f"{output.stem}.tmp{output.suffix or '.png'}")
    figure.savefig(temporary, dpi=110)
    plt.close(figure)
    temporary.replace(output)
    return output


def main(folders: Sequence[Path], output: Path | None) -> int:
    """The command `impala plot`."""
    problems = [
        f"{f}: holds no metrics.csv; expected a run folder" for f in folders if not (f / "metrics.csv").exists()
    ]
    if output and not output.parent.is_dir():
        problems.append(f"--output {output}: no such folder; expected a file in one that exists")
    if problems:
        raise config_lib.ConfigError(problems)
    print(draw(folders, output or folders[0] / "curves.png"))
    return 0
