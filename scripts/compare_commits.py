#!/usr/bin/env python
"""Frames per second of two checkouts, in turn: scripts/compare_commits.py OTHER WORD… → docs/results/commits/table.csv.

OTHER is a checkout of another commit with its own .venv. Each round runs every WORD's configuration three times: by
OTHER's code; by this code with OTHER's configuration; by this code with its own. Frames are counted over `--seconds`,
from `--start` seconds after the first update on. Where OTHER's file does not say how pixels are normalised, this code
is told OTHER's default (`--normalisation`). On an otherwise idle machine.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--normalisation", default="mean")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--start", type=float, default=12.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    options, table = parser.parse_args(), []
    here, other = Path.cwd(), options.other.resolve()
    as_other = ("--network.normalisation", options.normalisation)
    for number in range(options.rounds):
        for word in options.words:
            row = dict(round=number, configuration=word)
            for arm, code, file, extra in (
                ("other", other, other, ()),
                ("same_configuration", here, other, as_other),
                ("own_configuration", here, here, ()),
            ):
                path = file / "configs" / f"{word}.yaml"
                row |= {f"{arm}_{key}": value for key, value in measured(code, path, extra, options).items()}
            table.append(row)
            print(row, flush=True)
            write(table, RESULTS)
    for word in options.words:
        for arm in ("same_configuration", "own_configuration"):
            for what in ("frames_per_second", "first_update"):
                ratios = [row[f"{arm}_{what}"] / row[f"other_{what}"] for row in table if row["configuration"] == word]
                print(f"{word}, {arm}, {what}: {interval(ratios)}")


def measured(code: Path, config: Path, extra: tuple[str, ...], options) -> dict[str, float]:
    """Returns the seconds from the command to the first update, and the frames per second after the start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            code / ".venv/bin/impala", "train", "--config", config, "--run", folder, "--log-period-seconds", "0.5",
            "--total-frames", "2000000000", "--learner.learning-rate-schedule", "constant", *extra,
        ]  # fmt: skip
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=code, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            first_update = until(process, folder, lambda row: float(row["updates"] or 0) > 0)[0] - began
            first = until(process, folder, lambda row: time.monotonic() > began + first_update + options.start)[1]
            end = float(first["wall_seconds"]) + options.seconds
            last = until(process, folder, lambda row: float(row["wall_seconds"]) >= end)[1]
        finally:
            process.terminate()
            process.wait(60)
    frames, seconds = (float(last[key]) - float(first[key]) for key in ("frames", "wall_seconds"))
    return dict(first_update=round(first_update, 1), frames_per_second=round(frames / seconds))


def until(process, folder, condition) -> tuple[float, dict]:
    """Waits for a newest row of metrics.csv that meets `condition`; returns the time, and the row."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        rows = logs.read_csv(Path(folder) / "metrics.csv") if (Path(folder) / "metrics.csv").exists() else []
        if rows and condition(rows[-1]):
            return time.monotonic(), rows[-1]
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
