#!/usr/bin/env python
"""Frames per second of two checkouts, in turn: scripts/compare_commits.py OTHER WORD… → docs/results/commits/table.csv.

OTHER is a checkout of another commit with its own .venv. Each round runs every WORD's configuration by OTHER's code, by
this code with OTHER's configuration and, of words in `--own`, by this code with its own. Frames are counted over
`--seconds`, from `--start` seconds after the first row of metrics.csv with an update; a row comes every three seconds.
Where OTHER's file does not say how pixels are normalised, this code is told OTHER's default (`--normalisation`). With
`--starts` it is the seconds from the command to the first update instead, in starts.csv. On an otherwise idle machine.
"""

import argparse
import contextlib
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
    parser.add_argument("--starts", action="store_true")
    options, table = parser.parse_args(), []
    here, other = Path.cwd(), options.other.resolve()
    measure, what, name = measured, "frames_per_second", "table.csv"
    if options.starts:
        measure, what, name = started, "seconds", "starts.csv"
    columns = [column.replace("frames_per_second", what) for column in COLUMNS]
    as_other = ("--network.normalisation", options.normalisation)
    for number in range(options.rounds):
        for word in options.words:
            row = dict.fromkeys(columns) | dict(round=number, configuration=word)
            arms = [("other", other, other, ()), ("same_configuration", here, other, as_other)]
            arms += [("own_configuration", here, here, ())] if word in options.own else []
            for arm, code, file, extra in arms:
                path = file / "configs" / f"{word}.yaml"
                row[f"{arm}_{what}"] = measure(code, path, extra, options)
            table.append(row)
            print(row, flush=True)
            write(table, RESULTS, name)
    for word in options.words:
        for arm in ("same_configuration", "own_configuration")[: 1 + (word in options.own)]:
            rows = [row for row in table if row["configuration"] == word]
            ratios = [row[f"{arm}_{what}"] / row[f"other_{what}"] for row in rows]
            print(f"{word}, {arm}: {interval(ratios)}")


def measured(code: Path, config: Path, extra: tuple[str, ...], options) -> int:
    """Returns the frames per second of a run after its start."""
    with running(code, config, "--log-period-seconds", "3", *extra) as (process, folder):
        updated = until(process, folder, has_update)
        first = until(process, folder, lambda row: seconds(row) >= seconds(updated) + options.start)
        last = until(process, folder, lambda row: seconds(row) >= seconds(first) + options.seconds)
    return round((int(last["frames"]) - int(first["frames"])) / (seconds(last) - seconds(first)))


def started(code: Path, config: Path, extra: tuple[str, ...], options) -> float:
    """Returns the seconds from the command to a row of metrics.csv with an update."""
    began = time.monotonic()
    with running(code, config, "--log-period-seconds", "0.25", *extra) as (process, folder):
        until(process, folder, has_update)
        return round(time.monotonic() - began, 2)


@contextlib.contextmanager
def running(code: Path, config: Path, *extra: str):
    """Runs a configuration by the code of a checkout; yields the process and the run's folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            code / ".venv/bin/impala", "train", "--config", config, "--run", folder, "--total-frames", "2000000000",
            "--learner.learning-rate-schedule", "constant", *extra,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=code, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process, folder
        finally:
            process.terminate()
            process.wait(60)


def has_update(row: dict) -> bool:
    return float(row["updates"] or 0) > 0


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
