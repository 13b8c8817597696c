#!/usr/bin/env python
"""What a run on three hosts prints, one of which is lost: scripts/three_hosts.py → docs/results/three_hosts.

Three Ray hosts on this machine: the first has room for the learner and its table, the others for one actor of Catch
each. One of these is killed while it trains; another comes half a minute later; in the end the run is interrupted.
Writes output.txt and, of the run's folder, restarts.csv.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray.cluster_utils import Cluster

from impala.monitoring.logs import read_csv

RESULTS = Path("docs/results/three_hosts")
ARGUMENTS = ("train", "catch", "--actor.num-actors", "2", "--actor.num-environments", "16", "--target-return", "2",
             "--total-frames", "2000000000", "--log-period-seconds", "5")  # fmt: skip
PATIENCE = 120.0


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=2, include_dashboard=False))
    hosts = [cluster.add_node(num_cpus=1) for _ in range(2)]
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as parent, (RESULTS / "output.txt").open("w") as output:
        folder = Path(parent) / "run"
        output.write(f"$ impala {' '.join(ARGUMENTS)} --cluster {cluster.address}\n")
        output.flush()
        command = [sys.executable, "-m", "impala", *ARGUMENTS, "--cluster", cluster.address, "--run", str(folder)]
        process = subprocess.Popen(command, stdout=output, stderr=output)
        until(lambda: len(read_csv(folder / "metrics.csv")) >= 4)
        cluster.remove_node(hosts.pop(), allow_graceful=False)
        until(lambda: (folder / "restarts.csv").exists())
        time.sleep(30)
        hosts.append(cluster.add_node(num_cpus=1))
        time.sleep(30)
        process.terminate()
        assert process.wait(PATIENCE) == 0
        shutil.copy(folder / "restarts.csv", RESULTS)
    cluster.shutdown()


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.5)


if __name__ == "__main__":
    main()
