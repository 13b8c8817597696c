#!/usr/bin/env python
"""Frames per second of two checkouts, in turn: scripts/compare_commits.py OTHER WORD… → docs/results/commits/table.csv.

OTHER is a checkout of another commit with its own .venv. Each round runs every WORD's configuration by OTHER's code, by
this code with OTHER's configuration and, of words in `--own`, by this code with its own. Frames are counted over
`--seconds`, from `--start` seconds after the first row of metrics.csv with an update; a row comes every three seconds.
Where OTHER's file does not say how pixels are normalised, this code is told OTHER's default (`--normalisation`). On an
otherwise idle machine.
"""

import argparse
import math
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from time_returns import write

from impala.monitoring import logs

RESULTS = Path("docs/results/commits")
PATIENCE = 300.0
COLUMNS = (
    "round", "configuration", "other_frames_per_second", "same_configuration_frames_per_second",
    "own_configuration_frames_per_second",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--own", nargs="*", default=[])
    parser.add_argument("--normalisation", default="mean")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--start", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=24.0)
    options, table = parser.parse_args(), []
    here, other = Path.cwd(), options.other.resolve()
    as_other = ("--network.normalisation", options.normalisation)
    for number in range(options.rounds):
        for word in options.words:
            row = dict.fromkeys(COLUMNS) | dict(round=number, configuration=word)
            arms = [("other", other, other, ()), ("same_configuration", here, other, as_other)]
            arms += [("own_configuration", here, here, ())] if word in options.own else []
            for arm, code, file, extra in arms:
                path = file / "configs" / f"{word}.yaml"
                row[f"{arm}_frames_per_second"] = measured(code, path, extra, options)
            table.append(row)
            print(row, flush=True)
            write(table, RESULTS)
    for word in options.words:
        for arm in ("same_configuration", "own_configuration")[: 1 + (word in options.own)]:
            rows = [row for row in table if row["configuration"] == word]
            ratios = [row[f"{arm}_frames_per_second"] / row["other_frames_per_second"] for row in rows]
            print(f"{word}, {arm}: {interval(ratios)}")


def measured(code: Path, config: Path, extra: tuple[str, ...], options) -> int:
    """Returns the frames per second of a run after its start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            code / ".venv/bin/impala", "train", "--config", config, "--run", folder, "--log-period-seconds", "3",
            "--total-frames", "2000000000", "--learner.learning-rate-schedule", "constant", *extra,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=code, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            updated = until(process, folder, lambda row: float(row["updates"] or 0) > 0)
            first = until(process, folder, lambda row: seconds(row) >= seconds(updated) + options.start)
            last = until(process, folder, lambda row: seconds(row) >= seconds(first) + options.seconds)
        finally:
            process.terminate()
            process.wait(60)
    return round((int(last["frames"]) - int(first["frames"])) / (seconds(last) - seconds(first)))


def seconds(row: dict) -> float:
    return float(row["wall_seconds"])


def until(process, folder, condition) -> dict:
    """Waits for a newest row of metrics.csv that meets `condition`; returns it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        rows = logs.read_csv(Path(folder) / "metrics.csv")
        if rows and condition(rows[-1]):
            return rows[-1]
        time.sleep(0.1)
    raise SystemExit(f"the run ended with {process.poll()}, or took more than {PATIENCE:.0f} s")


def interval(ratios: list[float]) -> str:
    """Returns the geometric mean of ratios and its 95 % interval, Student's, of their logarithms."""
    from scipy import stats

    logarithms = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logarithms)
    half = stats.t.ppf(0.975, len(ratios) - 1) * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"


if __name__ == "__main__":
    main()
