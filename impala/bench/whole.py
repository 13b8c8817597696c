"""The whole program: in its processes, and in lockstep on one core."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from impala import config as config_lib

_TRAIN_SECONDS, _WARM_UP_SECONDS = 75.0, 30.0
_MIN_SIZE = 2_000  # transitions before the first update, so that it comes within the warm-up


def own_command() -> list[str]:
    """Returns a command that runs the copy of `impala` that this process runs: `-m` prefers the current folder's.

    What it starts is killed when this process ends, however that comes: a run under test would otherwise never end.
    """
    code = f"import sys; sys.path[:] = {sys.path}; from impala import cli; from impala.launching import processes; "
    return [sys.executable, "-c", code + "processes.end_with_parent(); sys.exit(cli.main())"]


def train_rate(config: config_lib.Config, folder: Path) -> dict[str, float]:
    """Agent steps/s of the whole program in processes after a warm-up, and its CPU time, lag, waits and memory."""
    from impala.monitoring.logs import read_csv

    path = folder / "config.yaml"
    path.write_text(config_lib.dump(config))
    options = ["--log-period-seconds", "1.0", "--run", str(folder / "run")]
    options += ["--total-frames", str(10**9), "--target-return", "null"]  # it must not end by itself
    if config.replays_alone:
        least = max(_MIN_SIZE, config.learner.batch_size * config.window.fresh)
        options += ["--replay.min-size", str(min(config.replay.min_size, least))]
    process = subprocess.Popen([*own_command(), "train", "--config", str(path), *options], stdout=subprocess.DEVNULL)
    try:
        _wait(process, _WARM_UP_SECONDS)
        started, cpu_before, server_before = time.perf_counter(), cpu_seconds(process.pid), _server_cpu(process.pid)
        _wait(process, _TRAIN_SECONDS)
        elapsed = time.perf_counter() - started
        cores = (cpu_seconds(process.pid) - cpu_before) / elapsed
        server_cores = (_server_cpu(process.pid) - server_before) / elapsed
    finally:
        process.terminate()
        process.wait(60)
    rows = read_csv(folder / "run" / "metrics.csv")
    if len(rows) < 10:
        raise RuntimeError(f"the run under test wrote {len(rows)} rows of metrics; expected one a second")
    end = float(rows[-1]["wall_seconds"])
    rows = [row for row in rows if end - _TRAIN_SECONDS <= float(row["wall_seconds"]) <= end - 2]
    steps, lag = _per_second(rows, "agent_steps"), "replay_lag_mean" if config.replays_alone else "lag_mean"
    return dict(
        train=steps, cpu_seconds_per_million_steps=1e6 * cores / steps,
        learner_wait=_mean(rows, "learner_wait_fraction"), actor_blocked=_mean(rows, "actor_blocked_fraction"),
        rss_mb=max(float(row["rss_mb"]) for row in rows),
    ) | {lag: _mean(rows, lag)} | _answers(rows) | learning(rows, config) | _gradients(rows, config, server_cores)


def _per_second(rows: list[dict[str, str]], column: str) -> float:
    seconds = float(rows[-1]["wall_seconds"]) - float(rows[0]["wall_seconds"])
    return (float(rows[-1][column]) - float(rows[0][column])) / seconds


def _mean(rows: list[dict[str, str]], column: str) -> float:
    return statistics.fmean(float(row[column]) for row in rows if row[column])


def learning(rows: list[dict[str, str]], config: config_lib.Config) -> dict[str, float]:
    """Returns the learner's updates/s and what it costs to write priorities back; {} unless all data is replayed.

    priority_seconds: from an update until its priorities are in the table. learner_priority_fraction: the share of its
    time that the thread that trains spends on them.
    """
    if not config.replays_alone:
        return {}
    is_prioritised = config.has_use_for("replay.priority_exponent")
    columns = ("priority_seconds", "learner_priority_fraction") if is_prioritised else ()
    return dict(updates=_per_second(rows, "updates")) | {column: _mean(rows, column) for column in columns}


def _gradients(rows: list[dict[str, str]], config: config_lib.Config, server_cores: float) -> dict[str, float]:
    """Returns how many gradients came a second, how many updates they made, and what it took; {} without a server."""
    if not config.has_parameter_server:
        return {}
    verdicts = ("accepted", "stale", "repeated", "outlier", "nonfinite")
    return dict(
        gradients=sum(_per_second(rows, f"{verdict}_gradients") for verdict in verdicts),
        applications=_per_second(rows, "updates"), server_cores=server_cores,
        server_busy_fraction=_mean(rows, "server_busy_fraction"),
    )  # fmt: skip


def _answers(rows: list[dict[str, str]]) -> dict[str, float]:
    """Returns the longest and mean time of each second's slowest batch of inference; {} where it is not central."""
    seconds = [float(row["inference_seconds_max"]) for row in rows if row["inference_seconds_max"]]
    if not seconds:
        return {}
    return dict(inference_seconds_max=max(seconds), inference_seconds_max_mean=statistics.fmean(seconds))


def _wait(process: subprocess.Popen, seconds: float) -> None:
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise RuntimeError(f"the run under test ended by itself with status {status}; its output is above")


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time that a process and its descendants have used."""
    process = psutil.Process(pid)
    return _cpu_seconds([process, *process.children(recursive=True)])


def _server_cpu(pid: int) -> float:
    """Returns the CPU time that the shards of a run's parameter server have used; they are named after their roles."""
    from impala.launching import roles

    names = (f"{roles.SERVER.name}/", f"{roles.SHARD.name}/")
    return _cpu_seconds([one for one in psutil.Process(pid).children(recursive=True) if one.name().startswith(names)])


def _cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    times = [one.cpu_times() for one in processes]
    return sum(time.user + time.system for time in times)


def lockstep_rate(config: config_lib.Config, seconds: float, core: int | None = None) -> float:
    """Agent steps/s of lockstep training on one core, by default the first; replayed frames do not count."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if core is None else core})
    from impala import lockstep
    from impala.launching import processes

    processes.hide_gpus()
    processes.set_tensorflow_threads(1)
    if config.replays_alone:
        least = config.learner.batch_size * config.window.fresh
        config = config_lib.build(config_lib.as_data(config), {"replay.min_size": least})
    training = lockstep.of(config)
    updates, step_frames = training.updates(10**12), training.spec.frames_per_step
    started = time.perf_counter()
    while time.perf_counter() - started < seconds / 3:
        next(updates)
    started, frames = time.perf_counter(), training.frames
    while time.perf_counter() - started < seconds:
        next(updates)
    return (training.frames - frames) / step_frames / (time.perf_counter() - started)
