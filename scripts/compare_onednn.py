#!/usr/bin/env python
"""Measures programs with and without oneDNN, in turn: scripts/compare_onednn.py WORD… → docs/results/bench/onednn.json.

For each WORD, a shipped configuration, once without and once with it, for 75 seconds after a warm-up, on an otherwise
idle machine. A word may be given several times.
"""

import concurrent.futures
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path


def measured(word: str, chosen: str) -> dict:
    os.environ |= {"TF_ENABLE_ONEDNN_OPTS": chosen, "TF_CPP_MIN_LOG_LEVEL": "3"}  # before TensorFlow is imported
    from impala import bench, provenance
    from impala import config as config_lib

    config = config_lib.load(f"configs/{word}.yaml")
    steps = bench.check(config).frames_per_step
    with tempfile.TemporaryDirectory(prefix="impala-onednn-") as folder:
        rates = bench.whole.train_rate(config, Path(folder))
    return dict(
        word=word, onednn=chosen == "1", frames_per_second=steps * rates["train"],
        cpu_seconds_per_million_frames=rates["cpu_seconds_per_million_steps"] / steps,
        commit=provenance.commit(), machine=provenance.machine(), date=time.strftime("%Y-%m-%d"),
    )  # fmt: skip


def main():
    results = []
    for word in sys.argv[1:]:
        for chosen in "01":
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as alone:
                results.append(alone.submit(measured, word, chosen).result())
            print(results[-1], flush=True)
        without, with_it = (row["frames_per_second"] for row in results[-2:])
        print(f"{word}: {with_it / without:.2f} times the frames per second with oneDNN", flush=True)
        Path("docs/results/bench/onednn.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
