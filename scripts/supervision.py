#!/usr/bin/env python
"""What watching over a run costs: scripts/supervision.py → docs/results/supervision.

Pong on this machine, locally and on a Ray cluster of one host, in turn. Counted over two minutes, after a start of
half a minute: the processor time of whatever is not a node (the launcher with its dashboard, the fork server; Ray's
raylet, its server of the cluster's state, its worker for each node and all else that it starts), as a share of all
cores, and the run's frames per second. A node's own signs of life, one datagram a second, count as the node's.

Writes table.csv, a row for each run. On an otherwise idle machine.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from time_returns import place, write

from impala.monitoring.logs import read_csv

RESULTS = Path("docs/results/supervision")
NODE = re.compile(r"(actor|learner|table|evaluator)/\d+")
START_SECONDS, PATIENCE = 30.0, 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0)
    options, table = parser.parse_args(), []
    for number in range(options.rounds):
        for on_cluster in (False, True):
            with tempfile.TemporaryDirectory() as folder, place(on_cluster) as where:
                row = measured(Path(folder) / "run", where, options.seconds)
            table.append(dict(round=number, where="cluster" if on_cluster else "local") | row)
            print(table[-1], flush=True)
    write(table, RESULTS)


def measured(folder: Path, where: tuple[str, ...], seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "impala", "train", "pong", "--run", str(folder), "--total-frames", "2000000000",
               "--target-return", "1000", "--log-period-seconds", "5", *where]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not newest(folder)["updates"]:
            assert time.monotonic() < deadline and process.poll() is None, f"no update within {PATIENCE:.0f} s"
            time.sleep(0.5)
        time.sleep(START_SECONDS)
        before, began, first = cpu_seconds(process.pid), time.monotonic(), newest(folder)
        time.sleep(seconds)
        after, ended, last = cpu_seconds(process.pid), time.monotonic(), newest(folder)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)
    share = 100 * (sum(after.values()) - sum(before.get(pid, 0.0) for pid in after)) / (ended - began) / os.cpu_count()
    rate = (last["frames"] - first["frames"]) / (last["wall_seconds"] - first["wall_seconds"])
    return dict(supervision_percent=round(share, 2), frames_per_second=round(rate))


def newest(folder: Path) -> dict[str, float]:
    rows = read_csv(folder / "metrics.csv") if (folder / "metrics.csv").exists() else []
    *_, row = [dict(updates=0, frames=0, wall_seconds=0), *rows]
    return {name: float(row[name]) for name in ("frames", "updates", "wall_seconds")}


def cpu_seconds(launcher: int) -> dict[int, float]:
    """Returns the processor time of all processes of the run and of Ray but the nodes and what they started."""
    found = {}
    for process in [psutil.Process(launcher), *psutil.Process().children(recursive=True)]:
        try:
            line = [process, *process.parents()]
            if not any(NODE.fullmatch(each.name()) for each in line):
                found[process.pid] = sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            pass
    return {pid: seconds for pid, seconds in found.items() if pid != os.getpid()}


if __name__ == "__main__":
    main()
