"""The batch script on a real Slurm of two hosts on this machine: `apt install slurmctld slurmd slurm-client munge`, as root."""

import contextlib
import os
import platform
import shutil
import subprocess
import time

import pytest

from impala.learning import checkpoints
from tests.faults.figures import within
from tests.programs.running import ENDLESS, ROOT, rows, run, wait_for

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.geteuid() != 0, reason="a Slurm of one's own needs root"),
    pytest.mark.skipif(not shutil.which("slurmctld") or not shutil.which("munged"), reason="no slurmctld, or no munge, here"),
]
CONFIG = """
ClusterName=test
SlurmctldHost={host}
SlurmctldPort=16817
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/pgid
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
SlurmUser=root
StateSaveLocation={folder}/state
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=h1 NodeHostname={host} NodeAddr=127.0.0.1 Port=16821 CPUs=4 State=UNKNOWN
NodeName=h2 NodeHostname={host} NodeAddr=127.0.0.1 Port=16822 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=h1,h2 Default=YES MaxTime=INFINITE State=UP
"""


def call(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    path = folder / "slurm.conf"
    path.write_text(CONFIG.format(folder=folder, host=platform.node().partition(".")[0]))
    os.environ["SLURM_CONF"] = str(path)
    os.makedirs("/run/munge", exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    daemons = [subprocess.Popen(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--foreground", "--force"])]
    time.sleep(1)
    daemons.append(subprocess.Popen(["slurmctld", "-D", "-f", path]))
    time.sleep(2)
    daemons += [subprocess.Popen(["slurmd", "-D", "-f", path, "-N", name]) for name in ("h1", "h2")]
    wait_for(lambda: "2   idle" in call("sinfo"), 30, "two idle hosts")
    yield folder
    call("scancel", "--user=root")
    time.sleep(3)
    for daemon in reversed(daemons):
        daemon.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(10)
        daemon.kill()
        daemon.wait()


def test_a_job_trains_on_two_hosts_ends_with_a_checkpoint_and_resumes_when_it_is_queued_again(slurm):
    folder = slurm / "run"
    done = run(
        "cluster", "slurm", "catch", "--nodes", 2, "--cpus", 3, "--time", "00:20:00", "--run", folder, "--submit",
        "--actor.num-actors", 4, "--actor.num-environments", 8, *ENDLESS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = done.stdout.split()[-1]
    log = slurm / "run.slurm.log"
    wait_for(lambda: len(rows(folder)) > 5, 120, "it trains")
    with within(60, "a job on Slurm gets SIGUSR1: it has ended with a checkpoint"):
        call("scancel", "--signal=USR1", "--batch", job)  # as before the end of its time
        wait_for(lambda: "RUNNING" not in call("scontrol", "show", "job", job), 60, "it ends")
    saved = checkpoints.read_state(folder / "checkpoints")["updates"]
    assert saved == int(rows(folder)[-1]["updates"]) > 0
    assert "Restarts=1" in call("scontrol", "show", "job", job), "it is in the queue again"
    wait_for(lambda: f"resumed from checkpoint {saved:010}" in log.read_text(), 300, "it resumes")
    wait_for(lambda: int(rows(folder)[-1]["updates"]) > saved, 60, "it goes on")
    assert call("pgrep", "-c", "-x", "raylet").strip() == "2", "one on each host"
    with within(60, "a job on Slurm gets scancel: it has ended with a checkpoint"):
        call("scancel", job)
        wait_for(lambda: "CANCELLED" in call("scontrol", "show", "job", job) and not call("squeue", "--noheader"), 60, "it ends")
    assert checkpoints.read_state(folder / "checkpoints")["updates"] == int(rows(folder)[-1]["updates"]) > saved
    time.sleep(5)
    assert not call("squeue", "--noheader"), "it does not come back"


def test_what_slurm_refuses_is_said_in_a_line(slurm):
    done = run("cluster", "slurm", "catch", "--option=--partition=none", "--run", slurm / "other", "--submit")
    assert done.returncode == 2 and "--submit:" in done.stderr and done.stderr.count("\n") <= 2, done.stderr
    assert str(ROOT) in (slurm / "other.sbatch").read_text()
