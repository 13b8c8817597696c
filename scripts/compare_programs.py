#!/usr/bin/env python
"""Measures every program on Pong, one after the other: scripts/compare_programs.py → docs/results/programs/table.md.

Each runs twice for 75 seconds after a warm-up, as `impala bench` runs it, in rounds, on an otherwise idle machine.
Frames are the emulator's, four a step. What is measured is kept in results.json as it comes; programs that are there
are not measured again.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from impala import bench, provenance
from impala import config as config_lib

CONFIGURATIONS = {
    "IMPALA": "pong", "SEED RL, V-trace": "seed_pong", "GA3C": "ga3c_pong", "DQN": "dqn_pong", "Ape-X DQN": "apex_pong",
    "SEED RL, R2D2": "r2d2_pong", "IMPALA, action values": "q_unrolls_pong",
    "A3C": "a3c_pong", "DPPO": "dppo_pong", "Gorila": "gorila_pong", "Ape-X DPG, on Pendulum": "apex_dpg_pendulum",
}  # fmt: skip
ROUNDS = 2
HEAD = ("program", "configuration", "frames/s", "CPU seconds per million frames", "bytes between processes per frame",
        "age of what is learned, updates", "memory, MB")  # fmt: skip


def main():
    output = Path("docs/results/programs")
    output.mkdir(parents=True, exist_ok=True)
    kept = output / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else []
    for number in range(ROUNDS):
        for name, word in CONFIGURATIONS.items():
            if any((row["name"], row["round"]) == (name, number) for row in results):
                continue
            results.append({"name": name, "round": number} | measured(word))
            kept.write_text(json.dumps(results, indent=1) + "\n")
            print(results[-1], flush=True)
    (output / "table.md").write_text("\n".join(table(results)) + "\n")


def measured(word: str) -> dict:
    config = config_lib.load(f"configs/{word}.yaml")
    frames_per_step = bench.check(config).frames_per_step
    with tempfile.TemporaryDirectory(prefix="impala-programs-") as folder:
        rates = bench.whole.train_rate(config, Path(folder))
    return dict(
        word=word, frames_per_second=frames_per_step * rates["train"],
        cpu_seconds=rates["cpu_seconds_per_million_steps"] / frames_per_step,
        bytes=sum(bench._alone(bench._traffic, config).values()),
        age=rates.get("lag_mean", rates.get("replay_lag_mean")), memory=rates["rss_mb"],
        commit=provenance.commit(), machine=provenance.machine(), date=time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def table(results: list[dict]) -> list[str]:
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for name, word in CONFIGURATIONS.items():
        rows = [row for row in results if row["name"] == name]
        mean = {key: statistics.fmean(row[key] for row in rows) for key in ("cpu_seconds", "bytes", "age", "memory")}
        rates = "; ".join(f"{row['frames_per_second']:,.0f}" for row in rows)
        lines.append(
            f"| {name} | `{word}` | {rates} | {mean['cpu_seconds']:,.0f} | {mean['bytes']:,.0f} | {mean['age']:,.1f} | "
            f"{mean['memory']:,.0f} |"
        )
    facts = sorted({f"{row['commit']}, {row['date']}, {row['machine']}" for row in results})
    return [*lines, "", f"Commits and machines: {'; '.join(facts)}."]


if __name__ == "__main__":
    main()
