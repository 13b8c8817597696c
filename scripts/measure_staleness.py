#!/usr/bin/env python
"""Measures how stale A3C's gradients are: scripts/measure_staleness.py → docs/results/staleness/.

Runs `a3c_catch` with 1, 2, 4 and 8 workers, a minute each, and counts the updates between reading the parameters and
applying the gradient. The counts of all gradients after the first ten seconds are kept in results.csv.
"""

import csv
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from impala import bench, provenance
from impala import config as config_lib
from impala.monitoring.logs import read_csv

OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "staleness"
WORKERS = (1, 2, 4, 8)
SECONDS, WARM_UP_SECONDS = 75.0, 10.0  # from the start of the command; after the first row
NAMES = ("workers", "expected", "mean", "p95", "max", "histogram", "gradients", "commit", "machine", "date")


def measured(num_workers: int) -> Counter[int]:
    """Returns how many gradients were so many updates stale."""
    changes = {
        "actor.num_actors": num_workers, "actor.num_environments": 8, "learner.batch_size": 8,
        "log_period_seconds": 1.0, "target_return": None, "total_frames": 10**9,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="impala-staleness-") as folder:
        path, run = Path(folder) / "config.yaml", Path(folder) / "run"
        path.write_text(config_lib.dump(config_lib.load("configs/a3c_catch.yaml", changes)))
        command = [*bench.whole.own_command(), "train", "--config", str(path), "--run", str(run)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(SECONDS)
        process.terminate()
        process.wait(60)
        rows = read_csv(run / "metrics.csv")
    begun, counts = float(rows[0]["wall_seconds"]) + WARM_UP_SECONDS, Counter()
    for row in rows:
        if float(row["wall_seconds"]) > begun:
            pairs = (pair.split(":") for pair in row["staleness_histogram"].split())
            counts += Counter({int(stale): int(count) for stale, count in pairs})
    return counts


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    rows = []
    for num_workers in WORKERS:
        counts = measured(num_workers)
        stale = np.repeat(list(counts), list(counts.values()))
        rows.append(dict(
            workers=num_workers, expected=num_workers - 1, mean=f"{stale.mean():.4g}",
            p95=int(np.percentile(stale, 95)), max=stale.max(),
            histogram=" ".join(f"{n}:{counts[n]}" for n in sorted(counts)), gradients=stale.size,
            commit=provenance.commit(), machine=provenance.machine(), date=time.strftime("%Y-%m-%d"),
        ))  # fmt: skip
        print(rows[-1], flush=True)
    with (OUTPUT / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, NAMES)
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, OUTPUT / "staleness.png")


def draw(rows: list[dict], output: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0, 3.2), layout="constrained")
    for axis, row in zip(figure.subplots(1, len(rows)), rows):
        counts = Counter({int(n): int(count) for n, count in (pair.split(":") for pair in row["histogram"].split())})
        axis.bar(list(counts), [count / counts.total() for count in counts.values()], width=0.9)
        axis.axvline(row["expected"], color="black", ls="--", lw=1.0, label="W − 1")
        axis.set(title=f"{row['workers']} workers: {row['mean']}", xlabel="updates", ylabel="share of gradients")
        axis.legend(fontsize=8)
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
