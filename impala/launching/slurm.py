"""Writes a batch script that runs a program on the hosts of a Slurm allocation, on a Ray cluster of its own."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from impala.config import ConfigError
from impala.launching import ray_health

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name="{name}"
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
{options}#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --output="{log}"
# Two minutes before its time is over (USR1) the run writes a checkpoint; the job is queued again, and resumes. The
# run's folder must be one that the first host of the next allocation sees too. After scancel (TERM) it stays away.
set -u
run= end=  # what the job ends for, once it is told to: the first word holds
stop() {{ [ -n "$end" ] || {{ end=$1; [ -z "$run" ] || kill -TERM "$run"; }}; }}
trap 'stop time' USR1
trap 'stop cancelled' TERM
tries={folder}.slurm.tries  # in a row that may have been worth repeating; see the end
[ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] || rm -f "$tries"
cd {here}
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY  # gRPC would send the hosts' own traffic there

# Ray refuses whoever has not this job's token; it travels in the environment, to processes of this user.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_AUTH_TOKEN

# This script runs on the first host: Ray's head and the learner stand here, the other hosts join.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# The first IPv4 address that is not the host's own: a host's name may stand for 127.0.1.1.
ip=$(printf '%s\\n' $(hostname --ip-address; hostname -I) | grep -E '^([0-9]+[.]){{3}}[0-9]+$' | grep -v -m 1 '^127[.]')
[ -n "$ip" ] || {{ echo "$first: has no IPv4 address but 127.*; expected one that other hosts reach" >&2; exit 1; }}
address=$ip:$((6379 + SLURM_JOB_ID % 1000))
ray={bin}/ray
# A host that falls silent is given up after 25 s, with Ray's own numbers after 65.
export {sooner}
"$ray" start --head --node-ip-address="${{address%:*}}" --port="${{address#*:}}" --num-cpus={cpus} --block \\
  --include-dashboard=false --disable-usage-stats &
head=$!

wait_for_ray() {{
  until timeout 30 "$ray" status --address "$address" >/dev/null 2>&1; do
    kill -0 "$head" || exit 1
    [ -z "$end" ] || break
    if [ "$SECONDS" -ge 300 ]; then
      echo "$first: Ray at $address has not answered in 300 s; expected it within 20; what it says is above" >&2
      return 75
    fi
    sleep 1
  done
  [ -z "$end" ] || return 130  # as a run that is told to end before its first update
}}
wait_for_ray; status=$?
if [ "$status" = 0 ]; then
  if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) \\
      --cpus-per-task={cpus} --exclude="$first" \\
      "$ray" start --address="$address" --num-cpus={cpus} --block --disable-usage-stats &
  fi
  {bin}/impala train {arguments} --cluster "$address" --run {folder} &
  run=$!
  [ -z "$end" ] || kill -TERM "$run"  # told to end between the two lines above
  wait "$run"
  while kill -0 "$run" 2>/dev/null; do wait "$run"; done  # `wait` returns at a signal at once, with its number
  wait "$run"; status=$?
fi
kill "$head"  # `ray stop` would end other jobs' Ray as well
# The job is queued again when its time was over and a checkpoint was written; and, up to five times in a row, where
# that may help: what it waited for may come (75), or a first update, which its time was too short for (130, or 143 if
# the run did not yet listen).
again=no
case $end$status in
  time0) rm -f "$tries"; again=yes ;;
  75 | time75 | time130 | time143)
    count=$(($(cat "$tries" 2>/dev/null || echo 0) + 1))
    echo "$count" > "$tries"
    [ "$count" -gt 5 ] || again=yes ;;
esac
if [ "$again" = yes ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
"""


class Job(NamedTuple):
    """What is asked of Slurm."""

    nodes: int
    cpus: int  # of each node
    gpus: int  # of each node
    time: str  # "24:00:00"
    options: Sequence[str] = ()  # further ones of sbatch: "--partition=long"


def script(arguments: Sequence[str], folder: Path, job: Job, bin: Path) -> str:
    """Returns the script.

    Args:
      arguments: of `impala train`, without --run and --cluster.
      folder: of the run.
      bin: folder of the commands `impala` and `ray`, at the same path on all hosts.

    Raises:
      ConfigError: sbatch would read something else in the folder's name than is meant.
    """
    if not re.fullmatch(r'([^"\\%\n]*/)?[\w.+ -]+', str(folder.resolve())):
        raise ConfigError([
            f"--run {str(folder)!r}: sbatch would not read its path as it is; expected a name of letters, digits, "
            "spaces, '.', '_', '+' and '-', below folders without '\"', '\\' and '%'"
        ])  # fmt: skip
    options = [f"--gpus-per-node={job.gpus}"] * bool(job.gpus) + list(job.options)
    return _SCRIPT.format(
        name=f"impala-{folder.name}", nodes=job.nodes, cpus=job.cpus, time=job.time, here=shlex.quote(str(Path.cwd())),
        options="".join(f"#SBATCH {option}\n" for option in options), folder=shlex.quote(str(folder.resolve())),
        log=f"{folder.resolve()}.slurm.log",  # beside it: a run refuses a folder that holds anything but a run
        sooner=" ".join(f"{name}={value}" for name, value in ray_health.SOONER.items()),
        bin=shlex.quote(str(bin)), arguments=shlex.join(map(str, arguments)),
    )  # fmt: skip


def submit(path: Path) -> str:
    """Hands a script to sbatch; returns what that says.

    Raises:
      ConfigError: there is no Slurm here, or it refuses the script.
    """
    try:
        done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError([f"--submit: {error}; expected a host on which sbatch runs"]) from None
    if done.returncode:
        raise ConfigError([f"--submit: {(done.stderr or done.stdout).strip()}; expected what this Slurm allows"])
    return done.stdout.strip()
