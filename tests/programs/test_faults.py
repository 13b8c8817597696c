"""What goes wrong in real runs: nodes that freeze, hang, end or are fed nonsense, and a disk that is full.

Short forms of the main faults take less than a minute in all; the others, and repetitions, are soak tests.
"""

import collections
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time

import psutil
import pytest

from impala.learning import checkpoints
from impala.monitoring import logs
from tests.faults import hostile_writer
from tests.faults.disks import full_disk, read_only, small_disk
from tests.faults.figures import within
from tests.programs.running import (
    CATCH,
    END_SECONDS,
    IMPALA,
    ONE_LIFE,
    PACED,
    ROOT,
    START_SECONDS,
    WATCHED,
    alive,
    end_of,
    ends_in_order,
    learns_on,
    node,
    press_ctrl_c,
    refused,
    restarts,
    rows,
    run,
    start,
    start_cold,
    started,
    survivors,
    table_address,
    wait_for,
    wait_until_it_trains,
)  # fmt: skip

CONFIG = """
environment: {name: "tests.faults.game:Faulty-v0"}
network: {torso: mlp, hidden_sizes: [16]}
actor: {num_environments: 16, num_lanes: 2}
learner: {unroll_length: 5, batch_size: 8, learning_rate: 1e-3}
log_period_seconds: 1.0
total_frames: 1_000_000_000
"""
SECONDS_TO_END = 15.0  # that Ctrl-C may take, whatever hangs


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Starts a run of `tests.faults.game` with a fault; returns the process and the run's folder."""

    def start_with(fault, *arguments):
        monkeypatch.setenv("IMPALA_TEST_FAULT", fault)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        (tmp_path / "faulty.yaml").write_text(CONFIG)
        folder = tmp_path / "run"
        return start("train", "--config", tmp_path / "faulty.yaml", "--run", folder, *arguments), folder

    return start_with


@pytest.mark.soak
@pytest.mark.parametrize("first, name", [("table/0", "actor/0"), (None, "learner/0")])
def test_a_frozen_node_is_named_and_ends_the_run_with_a_checkpoint(tmp_path, first, name):
    """One that comes back in time is said to be well again."""
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED, *ONE_LIFE, "--liveness-seconds", 25)
    said = Lines(process.stdout)
    wait_until_it_trains(tmp_path / "run", 5)
    if first:
        with within(15 + 5, f"{first} is frozen: it is named"):
            node(process, first).send_signal(signal.SIGSTOP)
            wait_for(lambda: said.has(f"NOTE: {first} has been silent for"), 25, "it is named")
        node(process, first).send_signal(signal.SIGCONT)
        wait_for(lambda: said.has(f"over: {first} silent"), 10, "it is back")
        updates = int(rows(tmp_path / "run")[-1]["updates"])
        wait_for(lambda: int(rows(tmp_path / "run")[-1]["updates"]) > updates + 5, 10, "it trains again")
        assert rows(tmp_path / "run")[-1]["duplicate_chunks"] == "0"
    node(process, name).send_signal(signal.SIGSTOP)
    assert process.wait(END_SECONDS) == 75, process.stderr.read()
    assert said.has(f"NOTE: {name} has been silent for")
    assert {line.split()[1] for line in said.lines if " has been silent" in line} == {name, first} - {None}
    assert said.has(f"{name} was silent for") and any("its process gave no sign of life" in line for line in said.lines)
    assert "most recent call first" in (tmp_path / "run/logs" / (name.replace("/", "-") + ".log")).read_text()
    state = checkpoints.read_state(tmp_path / "run/checkpoints")
    assert state["frames"] == int(rows(tmp_path / "run")[-1]["frames"]) > 0
    assert said.lines[-1].startswith(f"{state['frames']:,} frames, {state['updates']:,} updates")
    assert survivors(process) == []


@pytest.mark.soak
def test_a_table_that_freezes_for_a_minute_holds_all_back_and_loses_nothing(tmp_path):
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED)
    wait_until_it_trains(tmp_path / "run", 5)
    node(process, "table/0").send_signal(signal.SIGSTOP)
    time.sleep(60)
    updates = int(rows(tmp_path / "run")[-1]["updates"])
    with within(10, "a table that was frozen for a minute goes on: 20 updates more"):
        node(process, "table/0").send_signal(signal.SIGCONT)
        wait_for(lambda: int(rows(tmp_path / "run")[-1]["updates"]) > updates + 20, 30, "chunks flow again")
    last = rows(tmp_path / "run")[-1]
    assert not restarts(tmp_path / "run") and {last["duplicate_chunks"], last["missing_chunks"]} == {"0"}
    ends_in_order(process)


@pytest.mark.soak
def test_an_environment_that_hangs_is_named_and_ends_the_run(faulty):
    process, folder = faulty("hang:2000", "--liveness-seconds", 20, *ONE_LIFE)
    output, errors = process.communicate(timeout=START_SECONDS + END_SECONDS)
    assert process.returncode == 75, errors
    assert "NOTE: actor/0 has been silent for" in output and "an environment that hangs?" in output
    assert "game.py" in (folder / "logs/actor-0.log").read_text(), "the stacks say where"
    (kept,) = [row for row in logs.read_csv(folder / "notices.csv") if row["notice"] == "actor/0 silent"]
    assert kept["state"] == "begins" and "an environment that hangs?" in kept["text"]
    assert checkpoints.read_state(folder / "checkpoints")["updates"] > 0


@pytest.mark.soak
def test_an_environment_that_hangs_ends_an_evaluation_and_costs_a_comparison_its_cell(faulty, tmp_path, monkeypatch):
    """Both step it in a process of their own, in which nobody else watches."""
    process, folder = faulty("none:0", "--total-frames", 5_000, "--liveness-seconds", 10)
    process.communicate(timeout=START_SECONDS + END_SECONDS)
    says = "environment.name: 'tests.faults.game:Faulty-v0' is silent for 10 s, liveness_seconds, while it is "
    monkeypatch.setenv("IMPALA_NODE_PROCESS", "1")  # else the game has no fault
    monkeypatch.setenv("IMPALA_TEST_FAULT", "hang:2000")
    result = run("evaluate", folder, "--episodes", 10_000, timeout=120)
    assert (result.returncode, result.stderr) == (75, f"{says}played; expected an answer\n")
    (tmp_path / "game.yaml").write_text(CONFIG + "liveness_seconds: 10.0\n")
    (tmp_path / "grid.yaml").write_text(
        "tasks: {game: {scale: [0.0, 1.0], total_frames: 100_000}}\nschemes: [vtrace]\nlearning_rates: [1e-3]\n"
        "entropy_costs: [0.01]\nnum_seeds: 1\n"
    )
    result = run("compare", "--config", tmp_path / "grid.yaml", "--output", tmp_path / "out", timeout=240)
    assert result.returncode == 1 and result.stderr.count(f"{says}stepped by a cell of the grid") == 3, result.stderr
    assert "final game vtrace replay 0 lag 0" in result.stderr and "BrokenProcessPool" in result.stderr


@pytest.mark.soak
def test_an_actor_whose_environment_hangs_is_replaced(faulty):
    process, folder = faulty("hang:2000", "--liveness-seconds", 20)
    wait_for(lambda: stands_still(folder), START_SECONDS, "a hang")
    with within(20 + 10, "an environment is seen to hang: after liveness_seconds, 20, its actor is given up"):
        wait_for(lambda: restarts(folder), START_SECONDS, "it is given up")
    learns_on(folder)
    assert {row["node"] for row in restarts(folder)} == {"actor/0"}
    assert "game.py" in (folder / "logs/actor-0.log").read_text(), "the stacks say where"
    ends_in_order(process)


@pytest.mark.soak
def test_an_environment_that_hangs_in_the_learners_own_process_is_noticed_too(tmp_path, monkeypatch):
    monkeypatch.setenv("IMPALA_TEST_FAULT", "hang:3000")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = ["--environment.name", "tests.faults.game:Faulty-v0", "--evaluator.num-episodes", 0, "--target-return", "null"]
    command = ["train", "dqn_catch", *options, "--run", tmp_path / "run", "--liveness-seconds", 20, *ONE_LIFE]
    output, errors = start(*command).communicate(timeout=START_SECONDS + END_SECONDS)
    assert "NOTE: learner/0 has been silent for" in output, errors
    assert "game.py" in (tmp_path / "run/logs/learner-0.log").read_text(), "the stacks say where"


@pytest.mark.soak
@pytest.mark.parametrize("program, more", [("impala", []), ("impala", ["--actor.num-actors", 3]), ("dqn", [])])
def test_a_node_that_calls_launchpads_stop_ends_the_run_in_order(tmp_path, monkeypatch, program, more):
    """As Ctrl-C does: by an actor's environment, and by the one that DQN's learner has in its own process.

    Several may call it, one after the other: as a second Ctrl-C that would end the learner before its checkpoint.
    """
    monkeypatch.setenv("IMPALA_TEST_FAULT", "stop:3000")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "faulty.yaml").write_text(CONFIG)
    command, folder = {
        "impala": ["--config", tmp_path / "faulty.yaml"],
        "dqn": ["dqn_catch", "--environment.name", "tests.faults.game:Faulty-v0", "--evaluator.num-episodes", 0],
    }[program], tmp_path / "run"  # fmt: skip
    process = start("train", *command, "--run", folder, "--target-return", "null", *more)
    output, errors = process.communicate(timeout=START_SECONDS + END_SECONDS)
    assert process.returncode == 0 and survivors(process) == [], errors
    assert "a node has called lp.stop()" in output
    assert checkpoints.read_state(folder / "checkpoints")["frames"] == int(rows(folder)[-1]["frames"]) > 0
    assert restarts(folder) == []


@pytest.mark.soak
def test_an_environment_that_leaks_is_said(faulty):
    process, _ = faulty("leak:2000")
    said = Lines(process.stdout)
    wait_for(lambda: said.has("NOTE: actor/0's memory grew from"), START_SECONDS, "its memory grew")
    press_ctrl_c(process)
    assert process.wait(END_SECONDS) == 0


@pytest.mark.parametrize("config, keys", [
    ("catch", []), pytest.param("a3c_catch", ["--server.num-shards", "1"], marks=pytest.mark.soak),
    pytest.param("seed_catch", [], marks=pytest.mark.soak), pytest.param("catch", ["--num-learners", "2"], marks=pytest.mark.soak),
])  # fmt: skip
def test_ten_updates_that_are_not_finite_end_the_run_and_nothing_is_started_again(tmp_path, config, keys):
    environment = ["--environment.name", "tests.faults.huge:Catch", "--loss.reward-clipping", "none", "--target-return", "null"]
    result = run("train", config, "--run", tmp_path / "run", *environment, *keys)
    assert result.returncode == 1 and "10 " in result.stderr and "in a row" in result.stderr, result.stderr
    assert restarts(tmp_path / "run") == [] and "start again" not in result.stdout + result.stderr
    assert (tmp_path / "run/not_finite/0/000002.npz").exists(), "its first batches are kept"


@pytest.mark.soak
@pytest.mark.parametrize(
    "fault, status", [("exit:2000", "status 0"), ("sys_exit:2000", "status"), ("raise:2000", "status 1")]
)
def test_who_ends_unasked_is_named_with_its_own_log(faulty, fault, status):
    process, _ = faulty(fault, *ONE_LIFE)
    wait_for(lambda: node_runs(process, "actor/0"), START_SECONDS, "its start")
    wait_for(lambda: not node_runs(process, "actor/0"), START_SECONDS, "its end")
    with within(SECONDS_TO_END, f"an actor's environment ends its process ({fault}), without restarts: the run has ended"):
        errors = end_of(process)
    assert process.returncode == 1
    assert f"actor/0 ended with {status}" in errors and "logs/actor/0" in errors and "learner/0" not in errors
    assert fault != "raise:2000" or "the game is broken" in errors


@pytest.mark.soak
@pytest.mark.parametrize("fault, status, words", [("sys_exit:3000", 1, "SystemExit"), ("exit:3000", 0, "The end of ")])
def test_an_environment_that_ends_the_learners_own_process_does_not_end_the_run_as_done(tmp_path, monkeypatch, fault, status, words):
    monkeypatch.setenv("IMPALA_TEST_FAULT", fault)
    done = run("train", "dqn_catch", "--environment.name", "tests.faults.game:Faulty-v0", "--run", tmp_path / "run",
               "--evaluator.num-episodes", 0, "--target-return", "null", *ONE_LIFE)  # fmt: skip
    assert done.returncode == 1 and f"learner/0 ended with status {status}" in done.stderr and words in done.stderr
    if status:  # C's exit lets nothing be saved
        saved = checkpoints.read_state(tmp_path / "run/checkpoints")
        assert saved["updates"] > 0 and f"{saved['frames']:,} frames, " in done.stdout.splitlines()[-1]


def stands_still(folder):
    """Whether it trained and no frame comes any more; at the beginning there is none either."""
    last = rows(folder)[-1:]
    return bool(last) and int(last[0]["updates"]) > 0 and last[0]["frames_per_second"] == "0"


def node_runs(process, name):
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        return name in dict(alive(children))


@pytest.mark.soak
def test_an_actor_whose_environment_keeps_the_interpreter_ends_with_a_killed_launcher(faulty):
    process, folder = faulty("hold:2000")
    wait_for(lambda: stands_still(folder), START_SECONDS, "a hang")
    with within(SECONDS_TO_END, "the launcher is killed while an environment keeps the interpreter: no process is left"):
        process.kill()
        wait_for(lambda: not survivors(process), END_SECONDS, "the end of the nodes")


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["hang:0", "hold:-1"])
def test_ctrl_c_ends_what_hangs_while_it_starts(faulty, fault):
    process, folder = faulty(fault)
    wait_for(lambda: (folder / "metrics.csv").exists(), START_SECONDS, "the learner has begun")
    with within(SECONDS_TO_END, f"Ctrl-C while an environment hangs as it starts ({fault}): the run has ended"):
        press_ctrl_c(process)
        errors = end_of(process)
    assert (process.returncode, errors) == (130, "")
    assert survivors(process) == []


@pytest.mark.soak
def test_a_second_ctrl_c_ends_at_once(faulty):
    process, folder = faulty("hang:2000")
    wait_for(lambda: stands_still(folder), START_SECONDS, "a hang")
    press_ctrl_c(process)
    time.sleep(2)
    assert process.poll() is None, "the actor has time to end"
    with within(5, "a second Ctrl-C while an environment hangs: the run has ended"):
        press_ctrl_c(process)
        errors = end_of(process)
    assert (process.returncode, errors) == (130, "")
    assert survivors(process) == []


@pytest.mark.soak
def test_ctrl_c_ends_threads_that_hang_with_the_process(faulty):
    process, folder = faulty("hang:2000", "--threads")
    wait_for(lambda: stands_still(folder), START_SECONDS, "a hang")
    with within(SECONDS_TO_END, "Ctrl-C with --threads while an environment hangs: the run has ended"):
        press_ctrl_c(process)
        errors = end_of(process)
    assert process.returncode == 0 and "actor/0: not known to have ended" in errors
    assert checkpoints.read_state(folder / "checkpoints")["updates"] > 0


@pytest.mark.parametrize("library", ["pydantic_core", "numpy"])
def test_an_early_ctrl_c_is_one_line(tmp_path, library):
    """While the command line is imported, and while the environment is checked."""
    process = start_cold(*CATCH, "--run", tmp_path / "run", *WATCHED)
    wait_for(lambda: library in open(f"/proc/{process.pid}/maps").read(), START_SECONDS, "an import")
    with within(SECONDS_TO_END, f"Ctrl-C while {library} is imported: the command has ended"):
        press_ctrl_c(process)
        errors = end_of(process)
    assert (process.returncode, errors) == (130, "interrupted before anything began\n")
    assert survivors(process) == []


@pytest.mark.soak
def test_a_terminal_that_is_closed_costs_neither_checkpoint_nor_status(tmp_path):
    """Not only its SIGHUP: nothing can be written to it any more."""
    terminal, its_end = os.openpty()

    def take_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup ignore it, and so would the run
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*IMPALA, *CATCH, "--run", str(tmp_path / "run"), *WATCHED], cwd=ROOT, stdin=its_end, stdout=its_end,
        stderr=its_end, start_new_session=True, preexec_fn=take_terminal,
    )  # fmt: skip
    started.append(process)
    os.close(its_end)
    threading.Thread(target=_read_until_closed, args=(terminal,), daemon=True).start()
    wait_until_it_trains(tmp_path / "run", 5)
    os.close(terminal)
    assert process.wait(END_SECONDS) == 0
    state = checkpoints.read_state(tmp_path / "run/checkpoints")
    assert state["frames"] == int(rows(tmp_path / "run")[-1]["frames"]) > 0


@pytest.mark.soak
def test_a_pipe_that_nobody_reads_holds_up_neither_restarts_nor_the_end(tmp_path):
    """As `impala train catch | less` on which nobody presses a key."""
    theirs, ours = os.pipe()
    command = [sys.executable, "-m", "impala", *map(str, CATCH), "--run", tmp_path / "run", *map(str, WATCHED)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=ours)
    wait_until_it_trains(tmp_path / "run", 5)
    filler = os.open(f"/proc/self/fd/{ours}", os.O_WRONLY | os.O_NONBLOCK)  # which leaves the run's end as it is
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(filler, b"x")
    node(process, "actor/0").kill()
    wait_for(lambda: restarts(tmp_path / "run"), 30, "its actor is started again")
    learns_on(tmp_path / "run")
    with within(SECONDS_TO_END, "nobody reads the output, SIGTERM: the run has ended"):
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) == 0
    for descriptor in (theirs, ours, filler):
        os.close(descriptor)
    assert checkpoints.read_state(tmp_path / "run" / "checkpoints")["updates"] > 0 and survivors(process) == []


def _read_until_closed(terminal):
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


HOSTILE = dict(action="action", task="task", version="version", episode="episode", origin="origin") | dict.fromkeys(
    ("number", "observation", "logits", "reward"), "number"
)  # what is written, and the reason that is counted


@pytest.mark.parametrize("num_updates", [10, pytest.param(1_000, marks=pytest.mark.soak)])
def test_hostile_chunks_are_dropped_and_counted_and_training_goes_on(tmp_path, num_updates):
    process = start(*CATCH, "--run", tmp_path / "run", *WATCHED, "--log-period-seconds", 0.5)
    wait_until_it_trains(tmp_path / "run")

    def are_counted(*reasons):
        counted = collections.Counter(reasons)
        return set(rows(tmp_path / "run")[-1]["unsound_reasons"].split()) == {f"{r}:{n}" for r, n in counted.items()}

    address = table_address(process)
    assert hostile_writer.write(address, *HOSTILE, "unknown") == ["unknown"], "Reverb knows its tables"
    wait_for(lambda: are_counted(*HOSTILE.values()), START_SECONDS, "each of them is counted")
    for number, kind in enumerate(("unreadable", "short", "missing"), 1):  # takes those along that are fetched with it
        assert hostile_writer.write(address, kind) == []
        wait_for(lambda: are_counted(*HOSTILE.values(), *number * ["unreadable"]), 60, "that too")  # noqa: B023
    updates = int(rows(tmp_path / "run")[-1]["updates"])
    wait_until_it_trains(tmp_path / "run", updates + num_updates)
    press_ctrl_c(process)
    output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 0, errors
    assert "were unsound and dropped (" in output
    assert rows(tmp_path / "run")[-1]["skipped_updates"] == "0"


@pytest.mark.parametrize("gets_room", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_full_disk_is_said_within_seconds_and_costs_what_it_says(gets_room):
    """With room again, the same run saves again, and one that is started anew resumes."""
    with small_disk(4_000) as disk:
        folder = disk / "run"
        process = start(*CATCH, "--run", folder, *WATCHED, "--checkpoint-period-seconds", 2)
        said = Lines(process.stdout)
        saved = wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
        assert any("of disk" in line and "MB are free: a long run will fill the disk" in line for line in said.lines)
        if gets_room:
            with full_disk(disk):
                wait_for(lambda: said.has("NOTE: no checkpoint could be written for"), 20, "that one failed")
            frames = checkpoints.read_state(folder / "checkpoints")["frames"]
            wait_for(lambda: checkpoints.read_state(folder / "checkpoints")["frames"] > frames, 20, "there is room again")
            said.lines.clear()
        with full_disk(disk):
            with within(20, "a disk is full, checkpoints every 2 s: it is told"):
                wait_for(lambda: said.has("NOTE: no checkpoint could be written for"), 30, "one failed")
            press_ctrl_c(process)
            assert process.wait(END_SECONDS) == 75
        errors = process.stderr.read()
        assert "the last checkpoint could not be written: No space left on device" in errors
        *_, done, lost = said.lines
        frames = int(done.partition(" frames, ")[0].replace(",", ""))
        kept = checkpoints.read_state(folder / "checkpoints")
        assert kept["frames"] >= saved["frames"] > 0 and frames > kept["frames"]
        assert lost.startswith(f"{frames - kept['frames']:,} of these frames are lost: the newest checkpoint is of update")
        assert survivors(process) == []
        if not gets_room:
            return
        process = start(*CATCH, *PACED, "--run", folder, "--target-return", 2, "--total-frames", kept["frames"] + 5_000)
        errors = end_of(process)
        assert process.returncode == 0, errors
        assert checkpoints.read_state(folder / "checkpoints")["frames"] >= kept["frames"] + 5_000


@pytest.mark.soak
def test_a_run_ends_once_checkpoints_have_failed_for_too_long_and_is_not_begun_again():
    with small_disk(4_000) as disk:
        folder = disk / "run"
        limits = ("--checkpoint-period-seconds", 2, "--unsaved-seconds", 10)
        process = start(*CATCH, "--run", folder, *WATCHED, *limits)
        wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
        with full_disk(disk), within(10 + 20, "a disk is full, unsaved_seconds is 10: the run has ended"):
            errors = process.communicate(timeout=60)[1]
        assert process.returncode == 75
        assert "no checkpoint could be written for 10 s, unsaved_seconds; the last checkpoint could not be" in errors
        assert restarts(folder) == [] and survivors(process) == []


def test_a_disk_without_room_for_one_checkpoint_is_refused(tmp_path):
    with small_disk(1_000) as disk:
        (disk / "filler").write_bytes(bytes(700_000))
        process = start(*CATCH, "--run", disk / "run", *WATCHED, "--network.hidden-sizes", "[512, 512]")
        errors = process.communicate(timeout=START_SECONDS)[1]
        assert process.returncode == 2 and len(errors.splitlines()) == 1, errors
        assert "MB are free there, and one checkpoint takes" in errors
        with full_disk(disk):
            process = start(*CATCH, "--run", disk / "other", *WATCHED)
            errors = process.communicate(timeout=START_SECONDS)[1]
        assert process.returncode == 2 and len(errors.splitlines()) == 1, errors
        assert "No space left on device" in errors


def test_a_disk_that_may_only_be_read_is_refused(capsys):
    with small_disk(1_000) as disk, read_only(disk):
        (line,) = refused(capsys, *CATCH, "--run", disk / "run")
        assert "Read-only file system" in line


class Lines:
    """What a stream has said so far."""

    def __init__(self, stream):
        self.lines: list[str] = []
        threading.Thread(target=lambda: self.lines.extend(iter(stream.readline, "")), daemon=True).start()

    def has(self, start: str) -> bool:
        return any(line.startswith(start) for line in self.lines)
