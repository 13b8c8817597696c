#!/usr/bin/env python
"""PPO on Pong beside Stable-Baselines3's: scripts/compare_ppo.py PYTHON → docs/results/bench/ppo_peers.json.

PYTHON is an interpreter that has stable-baselines3, ale-py and opencv-python-headless. Each round runs, one after the
other, on an otherwise idle machine: `impala train ppo_baselines`, the same transitions by two workers of four
environments each, the latter in bfloat16 where the processor has it, and Stable-Baselines3's PPO with its environments
in one process and in one each. All have eight environments, 128 steps, four passes in minibatches of 256 and the Nature
network, and but for the third of ours compute in float32, as Stable-Baselines3 always does. Frames are the emulator's,
four a step, counted from ten seconds after the first update, or from the end of the first iteration.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

from compare_commits import measured

from impala import devices, provenance

CONFIG = Path("configs/ppo_baselines.yaml").resolve()
TWO_WORKERS = ("--actor.num-actors", "2", "--actor.num-environments", "4", "--learner.batch-size", "4",
               "--actor.num-lanes", "1", "--actor.num-tensorflow-threads", "1")  # fmt: skip
NARROW = "impala, two workers, bfloat16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    options, rates = parser.parse_args(), {}
    ours = SimpleNamespace(start=10.0, seconds=options.seconds)
    arms = {"impala, one worker": (), "impala, two workers": TWO_WORKERS}
    if devices.processor_has_bfloat16():
        arms[NARROW] = (*TWO_WORKERS, "--network.bfloat16", "true")
    for number in range(options.rounds):
        for name, of_workers in arms.items():
            rates.setdefault(name, []).append(measured(Path.cwd(), CONFIG, of_workers, ours))
            print(number, name, rates[name][-1], flush=True)
        for processes in ("one", "each"):
            name = f"Stable-Baselines3, processes: {processes}"
            rate, versions = peer(options, processes)
            rates.setdefault(name, []).append(round(rate))
            print(number, name, rates[name][-1], flush=True)
    means = {name: statistics.fmean(values) for name, values in rates.items()}
    narrow = means.pop(NARROW, None)
    best = {who: max(mean for name, mean in means.items() if name.startswith(who)) for who in ("impala", "Stable")}
    result = dict(
        frames_per_second=rates, ratio=round(best["impala"] / best["Stable"], 3),
        ratio_of_bfloat16=narrow and round(narrow / best["Stable"], 3), peer=versions,
        commit=provenance.commit(), machine=provenance.machine(), date=time.strftime("%Y-%m-%d"),
    )  # fmt: skip
    Path("docs/results/bench/ppo_peers.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"ratio {result['ratio']}, of bfloat16 {result['ratio_of_bfloat16']}")


def peer(options: argparse.Namespace, processes: str) -> tuple[float, str]:
    """Returns the frames per second of Stable-Baselines3's PPO, and its version."""
    command = [options.python, "scripts/sb3_ppo.py", processes, str(options.seconds)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return told["frames_per_second"], told["versions"]


if __name__ == "__main__":
    main()
