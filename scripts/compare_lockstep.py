#!/usr/bin/env python
"""Sets the program in its processes beside lockstep at one lag: scripts/compare_lockstep.py → docs/results/placement/.

For each task, scheme, period of weights and seed the program runs in its processes, and its lag is measured; then the
same configuration runs in lockstep with the mean of that lag, rounded. The return of both is that of the episodes that
ended in the last tenth of the frames. What is measured is kept in results.csv as it comes; runs that are there are not
made again.
"""

import csv
import itertools
import multiprocessing
import subprocess
import tempfile
import time
from concurrent import futures
from pathlib import Path

import numpy as np

from impala import bench, provenance
from impala import config as config_lib
from impala.lab import cells
from impala.monitoring.logs import read_csv

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "placement"
FRAMES = {"catch": 400_000, "minatar_breakout": 600_000}  # as in configs/lab/lag.yaml, whose one setting this is
PERIODS = (1, 20, 160)  # unrolls between two fetches of weights
SCHEMES, SEEDS = ("vtrace", "none"), (0, 1, 2)
NAMES = (
    "task", "scheme", "period", "seed", "lag", "lag_p95", "kl", "distributed", "kl_in_lockstep", "lockstep", "commit",
    "machine", "date",
)  # fmt: skip
COLOURS = {"vtrace": "tab:blue", "none": "tab:red"}


def configuration(task: str, scheme: str, period: int, seed: int) -> config_lib.Config:
    changes = {
        "loss.correction": scheme, "actor.weight_period": period, "seed": seed, "total_frames": FRAMES[task],
        "log_period_seconds": 1.0,
    }  # fmt: skip
    return config_lib.load(f"configs/lab/{task}.yaml", changes)


def distributed(config: config_lib.Config) -> dict[str, float]:
    """Trains in processes; returns lag and KL(μ‖π), means over updates, and the return at the end."""
    with tempfile.TemporaryDirectory(prefix="impala-placement-") as folder:
        path, run = Path(folder) / "config.yaml", Path(folder) / "run"
        path.write_text(config_lib.dump(config))
        command = [*bench.whole.own_command(), "train", "--config", str(path), "--run", str(run)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows, episodes = read_csv(run / "metrics.csv"), read_csv(run / "episodes.csv")
    updates = np.diff([0, *(int(row["updates"]) for row in rows)])
    known = [index for index, row in enumerate(rows) if row["lag_mean"] and row["kl_mu_pi"]]
    mean = {
        name: np.average([float(rows[index][name]) for index in known], weights=updates[known])
        for name in ("lag_mean", "lag_p95", "kl_mu_pi")
    }
    frames, scores = ([float(row[name]) for row in episodes] for name in ("frames", "score"))
    return dict(
        lag=mean["lag_mean"], lag_p95=mean["lag_p95"], kl=mean["kl_mu_pi"],
        distributed=cells._late_mean(frames, scores, config.total_frames),
    )  # fmt: skip


def in_lockstep(config: config_lib.Config, lag: int) -> dict[str, float]:
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, spawn, initializer=cells.prepare_worker) as pool:
        result = pool.submit(cells.run, config, lag).result()
    return dict(lockstep=result["return"], kl_in_lockstep=result["kl_mu_pi"])


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    kept = OUTPUT / "results.csv"
    rows = read_csv(kept) if kept.exists() else []
    facts = dict(commit=provenance.commit(), machine=provenance.machine())
    for key in itertools.product(FRAMES, SEEDS, PERIODS, SCHEMES):
        task, seed, period, scheme = key
        named = dict(task=task, scheme=scheme, period=str(period), seed=str(seed))
        if any(named.items() <= row.items() for row in rows):
            continue
        config = configuration(task, scheme, period, seed)
        found = distributed(config)
        found |= in_lockstep(configuration(task, scheme, 1, seed), round(found["lag"]))
        shown = {name: f"{value:.4g}" for name, value in found.items()}
        rows.append(named | shown | facts | dict(date=time.strftime("%Y-%m-%d")))
        print(rows[-1], flush=True)
        with kept.with_suffix(".tmp").open("w", newline="") as file:
            writer = csv.DictWriter(file, NAMES)
            writer.writeheader()
            writer.writerows(rows)
        kept.with_suffix(".tmp").replace(kept)
    (OUTPUT / "table.md").write_text("\n".join(table(rows)) + "\n")
    draw(rows, OUTPUT / "returns.png")


def table(rows: list[dict[str, str]]) -> list[str]:
    head = ("task", "scheme", "weights fetched every", "lag, mean / 95 %", "KL(μ‖π)", "in lockstep", "return")
    head += ("in lockstep",)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for task, period, scheme in itertools.product(FRAMES, PERIODS, SCHEMES):
        of = [row for row in rows if (row["task"], row["period"], row["scheme"]) == (task, str(period), scheme)]
        if not of:
            continue
        mean = {name: np.mean([float(row[name]) for row in of]) for name in ("lag", "lag_p95", "kl", "kl_in_lockstep")}
        returns = [", ".join(f"{float(row[name]):.2f}" for row in of) for name in ("distributed", "lockstep")]
        lines.append(
            f"| {task} | `{scheme}` | {period} | {mean['lag']:.1f} / {mean['lag_p95']:.0f} | {mean['kl']:.2g} | "
            f"{mean['kl_in_lockstep']:.2g} | {returns[0]} | {returns[1]} |"
        )
    facts = sorted({f"{row['commit']}, {row['date']}, {row['machine']}" for row in rows})
    return [*lines, "", f"A number of each seed. Commits and machines: {'; '.join(facts)}."]


def draw(rows: list[dict[str, str]], output: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    for axis, task in zip(figure.subplots(1, len(FRAMES)), FRAMES):
        for scheme, (name, marker) in itertools.product(SCHEMES, {"distributed": "o", "lockstep": "x"}.items()):
            of = [row for row in rows if (row["task"], row["scheme"]) == (task, scheme)]
            lags, returns = ([float(row[column]) for row in of] for column in ("lag", name))
            axis.plot(lags, returns, marker, color=COLOURS[scheme], alpha=0.8, label=f"{scheme}, {name}")
        axis.set(title=task, xlabel="policy lag, updates", ylabel="return at the end", xscale="log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
