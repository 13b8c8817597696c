#!/usr/bin/env python
"""What watching over a run costs: scripts/supervision.py → docs/results/supervision.

Pong on this machine, in turn locally, locally while a Ray cluster of one host does nothing, and on that cluster. The
last two differ by what supervision costs there: Ray takes its own share of the cores in both. Counted over two minutes,
after a start of half a minute: the processor time of whatever is not a node (the launcher with its dashboard, the fork
server; Ray's raylet, its server of the cluster's state, its worker for each node and all else that it starts), as a
share of all cores, and the run's frames per second. A node's own signs of life, one datagram a second, count as the
node's. Before the run, for half a minute: what Ray takes with as many actors that do nothing, and a driver that waits.

Writes table.csv, a row for each run, and processes.csv, each kind of process. On an otherwise idle machine.
"""

import argparse
import collections
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from time_returns import place, write

from impala.monitoring.logs import read_csv

RESULTS = Path("docs/results/supervision")
NODE = re.compile(r"(actor|learner|table|evaluator|relay|server|shard)/\d+")
NUM_NODES, START_SECONDS, PATIENCE = 3, 30.0, 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120.0)
    options, table, kinds = parser.parse_args(), [], []
    for number in range(options.rounds):
        for arm in ("local", "beside_ray", "cluster"):
            with contextlib.ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                where = stack.enter_context(place(arm != "local"))
                with idle_actors(where):
                    idle = during(START_SECONDS)
                    if arm == "beside_ray":
                        rate, run = measured(folder / "run", (), options.seconds)
                if arm != "beside_ray":
                    rate, run = measured(folder / "run", where, options.seconds)
            key = dict(round=number, where=arm)
            kinds += [key | dict(kind=kind) | percents(run[kind], idle[kind]) for kind in run | idle]
            table.append(key | percents(sum(run.values()), sum(idle.values())) | dict(frames_per_second=rate))
            print(table[-1], flush=True)
    write(table, RESULTS)
    write(kinds, RESULTS, "processes.csv")


@contextlib.contextmanager
def idle_actors(where: tuple[str, ...]):
    """Keeps an idle actor of Ray's for each node of the run; does nothing without a cluster."""
    if not where:
        yield
        return
    import ray

    class Idle:
        def ready(self) -> bool:
            return True

    with ray.init(where[-1], log_to_driver=False, logging_level="ERROR"):
        actors = [ray.remote(Idle).options(num_cpus=1).remote() for _ in range(NUM_NODES)]
        ray.get([actor.ready.remote() for actor in actors])
        time.sleep(5.0)
        yield


def percents(run: float, idle: float) -> dict[str, float]:
    return dict(supervision_percent=round(run, 2), idle_percent=round(idle, 2))


def measured(folder: Path, where: tuple[str, ...], seconds: float) -> tuple[int, collections.Counter]:
    """Trains Pong; returns its frames per second, and what watching over it takes, in percent of all cores by kind."""
    command = [sys.executable, "-m", "impala", "train", "pong", "--run", str(folder), "--total-frames", "2000000000",
               "--target-return", "1000", "--log-period-seconds", "5", *where]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not newest(folder)["updates"]:
            assert time.monotonic() < deadline and process.poll() is None, f"no update within {PATIENCE:.0f} s"
            time.sleep(0.5)
        time.sleep(START_SECONDS)
        first = newest(folder)
        shares = during(seconds)
        last = newest(folder)
    finally:
        process.terminate()
        process.wait(120)
    return round((last["frames"] - first["frames"]) / (last["wall_seconds"] - first["wall_seconds"])), shares


def during(seconds: float) -> collections.Counter:
    """Returns percents of all cores, by kind of process, that whatever is not a node takes in the next seconds."""
    before, began = cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = cpu_seconds(), time.monotonic() - began
    shares = collections.Counter()
    for pid, (kind, used) in after.items():
        shares[kind] += 100 * (used - before.get(pid, (kind, 0.0))[1]) / elapsed / os.cpu_count()
    return shares


def newest(folder: Path) -> dict[str, float]:
    *_, row = [dict(updates=0, frames=0, wall_seconds=0), *read_csv(folder / "metrics.csv")]
    return {name: float(row[name]) for name in ("frames", "updates", "wall_seconds")}


def cpu_seconds() -> dict[int, tuple[str, float]]:
    """Returns kind and processor time of each process that this one started but nodes and what they started.

    This process counts, too: while actors idle it is Ray's driver, and else it sleeps.
    """
    found = {os.getpid(): ("driver", sum(psutil.Process().cpu_times()[:2]))}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            line = [process, *process.parents()]
            if not any(NODE.fullmatch(each.name()) for each in line):
                found[process.pid] = kind_of(process), sum(process.cpu_times()[:2])
    return found


def kind_of(process: psutil.Process) -> str:
    """Returns the name of a program, or what its command says: the launcher, a fork server, a part of Ray's."""
    words = process.cmdline()
    if "impala" in words:
        return "launcher"
    named = next((Path(word).stem for word in words[1:] if word.endswith(".py")), process.name())
    return named.split("(")[0].strip()


if __name__ == "__main__":
    main()
