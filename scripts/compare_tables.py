#!/usr/bin/env python
"""Compares the kinds of tables for fresh chunks on one task: scripts/compare_tables.py → docs/results/tables/table.md.

Runs `impala train` for each kind and seed, one after the other, on an otherwise idle machine; a run that is there is
not repeated. The kinds can differ only where the queue fills, so besides the configured run, whose learner waits for
actors, there is one whose actors wait for the learner.
"""

import statistics
import subprocess
import sys
from pathlib import Path

from impala.monitoring.logs import read_csv
from impala.replay.tables import FRESH

SEEDS, FRAMES = range(3), 400_000
SETTINGS = {
    "actor-bound": [],
    # Four small chunks an update: the learner is the slow one, and the queue of 256 stands full before it.
    "learner-bound": ["--learner.batch-size", "4", "--learner.num-tensorflow-threads", "1", "--actor.num-actors", "2",
                      "--replay.queue-size", "256", "--learner.learning-rate", "1e-3"],
}  # fmt: skip


def main():
    root, output = Path("runs/tables"), Path("docs/results/tables")
    output.mkdir(parents=True, exist_ok=True)
    names = ["", "table", "frames/s", "lag, mean", "p95", "largest", "queue fill", "chunks lost",
             "frames to a return of 0.9", "return at the end"]  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for setting, options in SETTINGS.items():
        for kind in FRESH:
            runs = [run(root / setting / f"{kind}_{seed}", kind, seed, options) for seed in SEEDS]
            columns = [statistics.fmean(values) for values in zip(*runs)]
            *_, needed, ends = zip(*runs)
            frames, lag, p95, largest, fill, lost, learned, end = columns
            lines.append(
                f"| {setting} | `{kind}` | {frames:,.0f} | {lag:.1f} | {p95:.1f} | {largest:.0f} | {fill:.2f} | "
                f"{lost:,.0f} | {learned:,.0f} ({min(needed):,.0f} to {max(needed):,.0f}) | "
                f"{end:.2f} ({min(ends):.2f} to {max(ends):.2f}) |"
            )
    (output / "table.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def run(folder: Path, kind: str, seed: int, options: list[str]) -> list[float]:
    """Trains, or reads what was trained; returns the columns of the table."""
    rows = read_csv(folder / "metrics.csv")
    if not rows or int(rows[-1]["frames"]) < FRAMES:
        subprocess.run(
            [sys.executable, "-m", "impala", "train", "--config", "configs/catch.yaml", "--run", str(folder),
             "--replay.queue-kind", kind, "--seed", str(seed), "--total-frames", str(FRAMES), "--target-return", "2",
             *options],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        rows = read_csv(folder / "metrics.csv")
    late = [row for row in rows if int(row["frames"]) > 0.25 * FRAMES and row["lag_mean"]]
    mean = lambda name: statistics.fmean(float(row[name]) for row in late if row[name])  # noqa: E731
    learned = next(row for row in rows if row["return_mean"] and float(row["return_mean"]) >= 0.9)
    return [
        mean("frames_per_second"), mean("lag_mean"), mean("lag_p95"), max(float(row["lag_max"]) for row in late),
        mean("queue_fill"), float(rows[-1]["missing_chunks"]), float(learned["frames"]), float(rows[-1]["return_mean"]),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
