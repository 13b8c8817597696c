#!/usr/bin/env python
"""Draws Pong with a node killed or frozen every five minutes beside undisturbed runs, and prints what was lost.

scripts/draw_soak.py    # docs/results/soak/{,undisturbed}, docs/results/pong/seed_*/ → docs/results/soak/beside.png
"""

import datetime
from pathlib import Path

from impala.monitoring.logs import read_csv as rows_of

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SOAK = RESULTS / "soak"


def curve(folder: Path) -> tuple[list[float], list[float]]:
    """Returns millions of frames and returns, from where there are any."""
    rows = [row for row in rows_of(folder / "metrics.csv") if row["return_mean"]]
    return [float(row["frames"]) / 1e6 for row in rows], [float(row["return_mean"]) for row in rows]


def draw() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axis = figure.subplots()
    for index, folder in enumerate(sorted((RESULTS / "pong").glob("seed_*"))):
        label = None if index else "five seeds on another machine, ended at 18"
        axis.plot(*curve(folder), color="0.75", lw=0.8, label=label)
    axis.plot(*curve(SOAK / "undisturbed"), color="black", lw=1.4, label="the same commit and seed, undisturbed")
    axis.plot(*curve(SOAK), color="tab:red", lw=1.4, label="a node killed or frozen every five minutes")
    for index, row in enumerate(rows_of(SOAK / "restarts.csv")):
        axis.axvline(float(row["frames"]) / 1e6, color="tab:red", lw=0.4, label=None if index else "a restart")
    axis.set(xlabel="million frames", ylabel="return, mean of the last 100 training episodes")
    axis.legend(loc="lower right")
    figure.savefig(SOAK / "beside.png", dpi=110)


def table() -> str:
    """Returns a line for each restart: what was killed or frozen, the seconds until it was noticed, what it cost."""
    metrics = rows_of(SOAK / "metrics.csv")
    lines = ["| node | how | until it is started again | frames lost |", "|---|---|---|---|"]
    killed = rows_of(SOAK / "kills.csv")
    for row in rows_of(SOAK / "restarts.csv"):
        kill = max((each for each in killed if each["time"] <= row["time"]), key=lambda each: each["time"])
        at, died = (datetime.datetime.strptime(each["time"], "%Y-%m-%dT%H:%M:%S%z") for each in (row, kill))
        seconds = (at - died).total_seconds()
        lines.append(f"| {kill['node']} | {kill['how']} | {seconds:.0f} s | {int(row['lost_frames']):,} |")
    frames, wall = float(metrics[-1]["frames"]), float(metrics[-1]["wall_seconds"])
    lost = sum(int(row["lost_frames"]) for row in rows_of(SOAK / "restarts.csv"))
    sum_up = f"{len(killed)} kills and freezes; {frames:,.0f} frames kept, {lost:,} lost, in {wall / 60:.0f} minutes"
    return "\n".join([*lines, "", sum_up])


if __name__ == "__main__":
    print(table())
    draw()
