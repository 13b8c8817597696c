#!/usr/bin/env python
"""Kills or freezes a random node of a local run now and then: scripts/kill_at_random.py runs/soak --every 300

Each kill or freeze is appended to kills.csv in the run's folder; the launcher's restarts.csv, beside it, says what
became of the node.
"""

import argparse
import contextlib
import csv
import random
import re
import signal
import sys
import time
from pathlib import Path

import psutil

HOW = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that trains")
    parser.add_argument("--every", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--for", type=float, default=7200.0, metavar="SECONDS", dest="duration")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, end = random.Random(options.seed), time.monotonic() + options.duration
    while time.monotonic() + options.every < end:
        time.sleep(options.every)
        nodes = nodes_of(options.run)
        if not nodes:
            print(f"{options.run}: no node runs; expected the folder of a run that trains here", file=sys.stderr)
            return 1
        node, how = chance.choice(sorted(nodes)), chance.choice(sorted(HOW))
        try:
            nodes[node].send_signal(HOW[how])
        except psutil.NoSuchProcess:  # it ended by itself just now
            continue
        keep(options.run / "kills.csv", time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), node=node, how=how)
        print(f"{how} {node}", flush=True)
    return 0


def nodes_of(run: Path) -> dict[str, psutil.Process]:
    """Returns the processes of a run's nodes by name, found as children of the process that holds the run's lock."""
    nodes = {}
    with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it is no run, or has ended
        holder = re.search(r"process (\d+)", (run / "lock").read_text())
        for child in psutil.Process(int(holder[1])).children() if holder else ():
            with contextlib.suppress(psutil.NoSuchProcess):  # it is gone
                if re.fullmatch(r"[a-z]+/\d+", child.name()):
                    nodes[child.name()] = child
    return nodes


def keep(path: Path, **row) -> None:
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    sys.exit(main())
