"""Runs `impala …` for real and waits for what it does."""

import collections
import contextlib
import csv
import io
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from impala import cli
from tests import warm

ROOT = Path(__file__).parents[2]
IMPALA = [sys.executable, "-m", "impala"]
CATCH = ["train", "--config", "configs/catch.yaml"]
ENDLESS = ["--total-frames", "2000000000", "--target-return", "2"]
PACED = ["--environment.name", "tests.programs.paced:Catch"]
WATCHED = [*ENDLESS, *PACED]  # needs little of the machine meanwhile
ONE_LIFE = ["--restarts.max-in-a-row", "0"]  # a death ends the run
START_SECONDS, END_SECONDS = 200, 150  # never reached: a loaded machine took 80 to start; four roles may take 35 to end

WHOLE_OR_RESUMED = ["whole", pytest.param("resumed", marks=pytest.mark.soak)]  # how a fixture's run came to its end

started: list[subprocess.Popen] = []  # what a test began; ended with it


def run(*arguments, timeout=300, cwd=ROOT, **environment):
    """Runs to the end, in the folder `cwd`; returns the completed process with its output as text."""
    return warm.run(_impala(arguments), timeout=timeout, cwd=cwd, env={**os.environ, **environment})


def start(*arguments):
    """Starts in a session of its own, so that a signal can be sent to all of it as a terminal does."""
    return _start(warm.Popen, _impala(arguments))


def start_cold(*arguments):
    """The same by the interpreter itself, which has to import everything."""
    return _start(subprocess.Popen, [sys.executable, *_impala(arguments)])


def _start(popen, command):
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    process = popen(
        command, cwd=ROOT, env=environment, text=True, start_new_session=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(process)
    return process


def _impala(arguments) -> list[str]:
    return ["-m", "impala", *map(str, arguments)]


def kill_all():
    """Ends whatever `start` started and still runs."""
    while started:
        process = started.pop()
        for pid in survivors(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def wait_for(condition, seconds, what):
    """Polls until `condition` holds; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def rows(folder):
    from impala.monitoring.logs import read_csv

    return read_csv(Path(folder) / "metrics.csv")


def wait_until_it_trains(folder, num_updates=1):
    def is_training():
        written = rows(folder)
        return len(written) >= 2 and int(written[-1]["updates"]) >= num_updates

    wait_for(is_training, START_SECONDS, f"{num_updates} updates")


def end_of(process):
    """Waits for the end; returns what it said on standard error."""
    return process.communicate(timeout=END_SECONDS)[1]


def press_ctrl_c(process):
    """Sends SIGINT to every process of the session, as a terminal does."""
    os.killpg(process.pid, signal.SIGINT)


def interrupted_and_resumed(folder, *arguments, first=(), meanwhile=lambda process: None):
    """Ends a run by Ctrl-C and goes on with it to its end; returns the first one's last row and the second, completed.

    Arguments in `first` are for the first one alone; `meanwhile` is called with it once it trains.
    """
    process = start(*arguments, "--run", folder, "--target-return", 2, *first)
    wait_until_it_trains(folder)
    meanwhile(process)
    press_ctrl_c(process)
    errors = end_of(process)
    assert process.returncode == 0, errors
    assert not survivors(process)
    return rows(folder)[-1], run(*arguments, "--run", folder)


def ended(how, folder, *arguments, first=()):
    """Runs to the end at once, or as `interrupted_and_resumed` does: see `WHOLE_OR_RESUMED`.

    Returns what `interrupted_and_resumed` does, with a first row of zeros if nothing was interrupted.
    """
    if how == "resumed":
        interrupted, result = interrupted_and_resumed(folder, *arguments, first=first)
        assert int(interrupted["updates"]) > 0
    else:
        interrupted, result = collections.defaultdict(lambda: "0"), run(*arguments, "--run", folder)
    assert result.returncode == 0 and ("resuming" in result.stdout) == (how == "resumed"), result.stderr
    return interrupted, result


def evaluated_and_exported(folder, output, names):
    """Evaluates a run on Catch and exports it, in this process; checks the score and what the model answers."""
    import tensorflow as tf

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["evaluate", str(folder), "--episodes", "32"]) == 0
        assert cli.main(["export", str(folder), "--output", str(output)]) == 0
    # At random −0.6. Weights a few updates after a perfect evaluation may be at a bad moment: 0.75, 0.3 have been seen.
    assert float(printed.getvalue().split()[0]) > 0
    model = tf.saved_model.load(str(output))  # holds what `act` refers to
    answer = model.act(tf.zeros([1, 2, 10, 5]), tf.ones([1, 2], tf.bool))
    assert set(answer) == names and answer[min(names)].shape == (2, 3)


def mean_staleness(folder):
    """Returns the median over groups of rows of a parameter server, each of 30 gradients or more.

    The median, for in a run of seconds the first gradients, and what a checkpoint separates, would weigh on a mean. A
    slow machine makes a few gradients a row.
    """
    means, counts = [], collections.Counter()
    for row in rows(folder):
        counts.update({int(k): int(n) for k, n in (pair.split(":") for pair in row["staleness_histogram"].split())})
        if counts.total() >= 30:
            means.append(sum(k * n for k, n in counts.items()) / counts.total())
            counts.clear()
    return statistics.median(means)


def restarts(folder):
    """Returns the rows of restarts.csv."""
    path = folder / "restarts.csv"
    return list(csv.DictReader(path.open())) if path.exists() else []


def refused(capsys, *arguments):
    """Runs the command in this process, which must end with status 2; returns what it printed to stderr, line by line."""
    assert cli.main(list(map(str, arguments))) == 2
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors and output == ""
    return errors.splitlines()


def learns_on(folder):
    """Waits until a run that was launched again is further than it ever was."""
    top = max(int(rows(folder)[-1]["frames"]), int(restarts(folder)[-1]["frames"]))
    wait_for(lambda: int(rows(folder)[-1]["frames"]) > top + 1000, START_SECONDS, "it is beyond its death")


def has_played(folder, actor: int, frames: int) -> bool:
    """Whether the newest 200 episodes of an actor are of rows of metrics beyond `frames`."""
    with (Path(folder) / "episodes.csv").open() as file:
        newest = [row for row in csv.DictReader(file) if row["actor"] == str(actor) and row["weights_version"]][-200:]
    return len(newest) == 200 and min(int(row["frames"]) for row in newest) > frames


def has_learned(folder):
    """Waits until Catch is played well."""
    wait_for(lambda: float(rows(folder)[-1]["return_mean"] or 0) > 0.8, START_SECONDS, "a return above 0.8")


def ends_in_order(process):
    """Presses Ctrl-C; returns what the run said until it ended with a checkpoint."""
    press_ctrl_c(process)
    output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 0, errors
    assert survivors(process) == []
    return output


def node(process, name):
    """Returns the node's process; its name is what the node called itself."""
    children = psutil.Process(process.pid).children(recursive=True)
    return next(child for child_name, child in alive(children) if child_name == name)


def alive(processes):
    """Returns name and process of each that runs; one that ended, also between two looks at it, is left out."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.name(), process))
    return found


def survivors(process):
    """Returns the processes of the session that still run; one that has ended takes the rest along within a second."""
    deadline = time.monotonic() + 1.0
    while left := [p.pid for p in psutil.process_iter() if _session(p) == process.pid]:
        if process.poll() is None or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def _session(process):
    """Returns the session of a process that runs; None for one that ended, also between two looks at it."""
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
    except (ProcessLookupError, psutil.NoSuchProcess):
        return None


def played_by(folder, everyone, *arguments):
    """Runs, and draws from the replay table, once something was evaluated, until windows of `everyone` have come.

    Returns the (actor, environment) of all that came, `everyone` or not; an actor may begin late.
    """
    process = start(*arguments, "--run", folder, "--target-return", 2)
    import reverb

    from impala.replay import tables
    from impala.types import Origin

    wait_for((folder / "evaluations.csv").exists, START_SECONDS, "an evaluation")
    client, seen, deadline = reverb.Client(table_address(process)), set(), time.monotonic() + 60
    while not seen >= everyone and time.monotonic() < deadline:
        samples = client.sample(tables.REPLAY, 400, emit_timesteps=False, unpack_as_table_signature=True)
        origins = [Origin(*sample.data["origin"].tolist()) for sample in samples]
        seen |= {(origin.actor, origin.environment) for origin in origins}
    ends_in_order(process)
    return seen


def table_address(process):
    """Returns where the run's Reverb server listens, which anybody who can reach the port may write to."""
    (port,) = {c.laddr.port for c in node(process, "table/0").net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return f"localhost:{port}"
