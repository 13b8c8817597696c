#!/usr/bin/env python
"""How long a start takes, and how long a node that is killed is missed: scripts/time_returns.py → docs/results/returns.

Runs Catch, Pong, and Catch with two learners on this machine and on a Ray cluster of one host, three times each.
Measured in seconds, from outside, by the run's metrics.csv, which grows every half second:

  first update    from the command to the first row with an update
  actor_acts      from SIGKILL of the only actor to two batches more; now and then these are ones that it left behind
  actor           the same to 20 batches, more than it can have left behind
  learner         from SIGKILL of the first learner to more frames than there ever were

Writes table.csv, a row for each run. On an otherwise idle machine.
"""

import argparse
import contextlib
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from impala.launching import processes
from impala.learning import checkpoints
from impala.monitoring import logs

RESULTS = Path("docs/results/returns")
CASES = (
    ("catch", False, 1), ("pong", False, 1), ("catch", False, 2),
    ("catch", True, 1), ("pong", True, 1), ("catch", True, 2),
)
OPTIONS = ("--log-period-seconds", "0.5", "--checkpoint-period-seconds", "5", "--total-frames", "2000000000",
           "--target-return", "1000")  # fmt: skip
PATIENCE = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="of the configurations, this one")
    options, table = parser.parse_args(), []
    for number in range(options.rounds):
        for word, on_cluster, num_learners in [case for case in CASES if options.only in (None, case[0])]:
            with tempfile.TemporaryDirectory() as folder, place(on_cluster) as where:
                seconds = measured(word, Path(folder) / "run", (*where, "--num-learners", str(num_learners)))
            case = dict(configuration=word, learners=num_learners, where="cluster" if on_cluster else "local")
            table.append(dict(round=number) | case | seconds)
            print(table[-1], flush=True)
    write(table, RESULTS)


def write(table: list[dict], folder: Path, name: str = "table.csv") -> None:
    """Writes the rows into a file of a folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0])
        writer.writeheader()
        writer.writerows(table)


@contextlib.contextmanager
def place(on_cluster: bool):
    """Yields the options that name a cluster of one host; none for a local run."""
    if not on_cluster:
        yield ()
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=6, include_dashboard=False))
    try:
        yield ("--cluster", cluster.address)
    finally:
        cluster.shutdown()


def measured(word: str, folder: Path, arguments: tuple[str, ...]) -> dict[str, float]:
    """Runs a configuration, kills its actor, then its learner; returns the seconds of each."""
    command = [sys.executable, "-m", "impala", "train", word, "--run", str(folder), *OPTIONS, *arguments]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=processes.end_with_parent
    )  # fmt: skip
    try:
        until(process, lambda: last(folder, "updates") > 0)
        seconds = {"first_update": time.monotonic() - began}
        rate = steady(process, folder)
        seconds["actor_acts"], seconds["actor"] = missed(process, folder, "actor/0", 2 * rate, 20 * rate)
        until(process, lambda: checkpoints.read_state(folder / "checkpoints"))
        (seconds["learner"],) = missed(process, folder, "learner/0", 1)
    finally:
        process.terminate()
        process.wait(60)
    return {name: round(value, 1) for name, value in seconds.items()}


def steady(process, folder: Path) -> float:
    """Waits until ten seconds have passed since the first update; returns the frames of an update."""
    end = time.monotonic() + 10
    until(process, lambda: time.monotonic() > end)
    return last(folder, "frames") / last(folder, "updates")


def missed(process, folder: Path, name: str, *more: float) -> list[float]:
    """Kills a node; returns the seconds until the run has so many more frames than it ever had."""
    node(name).kill()
    began = time.monotonic()
    until(process, lambda: any(row["node"] == name for row in logs.read_csv(folder / "restarts.csv")))
    top = max(last(folder, "frames"), *(int(row["frames"]) for row in logs.read_csv(folder / "restarts.csv")))
    seconds = []
    for by in more:
        until(process, lambda by=by: last(folder, "frames") >= top + by)
        seconds.append(time.monotonic() - began)
    return seconds


def node(name: str) -> psutil.Process:
    """Returns the process that calls itself so, whoever started it: there must be one run on this machine."""
    return max((p for p in psutil.process_iter() if p.name() == name), key=lambda p: p.create_time())


def last(folder: Path, column: str) -> int:
    written = logs.read_csv(folder / "metrics.csv")
    return int(written[-1][column] or 0) if written else 0


def until(process, condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the run ended" if process.poll() is not None else f"not within {PATIENCE:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
