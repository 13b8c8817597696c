"""Nodes that hang, or cannot be ended or started: what a launcher does with real processes of this machine."""

import errno
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from impala import training
from impala.launching import beats, local, restarts, supervising
from impala.launching.commands import Command
from impala.launching.roles import Role, Roles

ROLES = Roles([
    Role("actor", turn=0, tells=False, returns_alone=True), Role("learner", turn=1, tells=True, is_head=True),
])  # fmt: skip


class Listener:
    """Hears nothing of nodes that `hang`, until they are started again."""

    def __init__(self, *hang):
        self.hang, self.begun = {*hang}, set()

    def begin_anew(self, name):
        if name in self.begun:
            self.hang.discard(name)
        self.begun.add(name)

    def node(self, name):
        facts = dict(has_trained=True, saved_updates=1, saved_frames=1, frames=1)
        return beats.Node(300.0 * (name in self.hang), name in self.hang, "running", 1.0, facts)

    def has_heard(self, name):
        return True

    def close(self):
        pass


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Starts processes that sleep, of which some hang; ends them."""
    monkeypatch.setattr(local.commands, "argv", lambda data, task: ["sh", "-c", "trap '' USR2; exec sleep 600"])
    monkeypatch.setattr(restarts, "_FIRST_SECONDS", 0.1)
    made = []

    def launch(*names, hang):
        starts = [Command(name, None, 0, ()) for name in names]
        for kind in ("actor", "learner"):
            (tmp_path / kind).mkdir(exist_ok=True)
        environment = {local.stopping.VARIABLE: str(tmp_path / "stop")}
        holder = SimpleNamespace(close=lambda: None)
        made.append(local.Processes(starts, ROLES, tmp_path, Listener(*hang), environment, holder, lambda: False))
        return made[-1]

    yield launch
    for nodes in made:
        nodes.kill()


def watch(nodes, until, *, max_per_hour=60, seconds=60):
    """Watches until `until` holds; returns the outcome, what was said, and the rows of restarts.csv."""
    rows, said, interrupts, deadline = [], [], SimpleNamespace(count=0), time.monotonic() + seconds

    def on_tick():
        assert time.monotonic() < deadline, said
        interrupts.count = 2 if until() else 0

    watching = supervising.Supervisor(
        nodes, interrupts, on_tick=on_tick, say=said.append, new_incarnation=lambda name: 2, liveness_seconds=20.0,
        restarts=restarts.Restarts(max_in_a_row=5, max_per_hour=max_per_hour, write=rows.extend),
    )  # fmt: skip
    return watching._watch(), said, rows


def test_nodes_that_hang_together_start_again_together_and_count_once(launched):
    """One after the other, at a second or more each, they would wait for minutes, and use an hour's restarts up."""
    actors = [f"actor/{index}" for index in range(12)]
    nodes = launched(*actors, "learner/0", hang=actors)
    before, began = {name: process.pid for name, process in nodes._by_name.items()}, time.monotonic()
    _, said, rows = watch(nodes, lambda: all(nodes._by_name[name].pid != before[name] for name in actors), max_per_hour=2)
    assert time.monotonic() - began < 10
    assert sorted(row["node"] for row in rows) == sorted(actors) and all("was silent for 300 s" in row["cause"] for row in rows)
    assert nodes._by_name["learner/0"].pid == before["learner/0"] and not any("the run ends" in line for line in said)


class Kept:
    """A process that the kernel keeps, whatever it is sent: it waits for a disk."""

    def __init__(self, process):
        self.process, self.num_kills, self.is_kept, self.pid = process, 0, True, process.pid

    def poll(self):
        return None if self.is_kept else -9

    def kill(self):
        self.num_kills += 1

    def wait(self, timeout):
        raise subprocess.TimeoutExpired("sleep", timeout)

    def send_signal(self, number):
        pass


def test_a_node_that_no_signal_ends_is_given_up_once_and_replaced(launched, monkeypatch):
    monkeypatch.setattr(local, "_REAP_SECONDS", 0.2)
    nodes = launched("actor/0", "learner/0", hang=["actor/0"])
    kept = nodes._by_name["actor/0"] = Kept(nodes._by_name["actor/0"])
    _, said, rows = watch(nodes, lambda: nodes._by_name["actor/0"] is not kept)
    assert len(rows) == 1 and sum("it starts again" in line for line in said) == 1
    assert nodes._by_name["actor/0"] is not kept and nodes._held == [kept]
    num_kills = kept.num_kills
    nodes.kill()
    assert kept.num_kills == num_kills + 1, "with the others, in case that the kernel lets it go"
    kept.is_kept = False
    kept.process.kill()
    nodes._start("actor/0")
    assert nodes._held == []


SOCKETS = """
import multiprocessing, tempfile
from multiprocessing import connection
connection.Listener(family="AF_UNIX").close()
one = multiprocessing.get_context("forkserver").Process(target=print)
one.start()
one.join()
open(tempfile.mkdtemp() + "/left", "w").close()
"""


def test_environments_may_make_sockets_however_long_the_path_of_a_run_is(tmp_path, monkeypatch):
    """As in the check before the launch, which has the system's temporary folder."""
    monkeypatch.setattr(local.tempfile, "tempdir", tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    run = tmp_path / ("a" * 60) / "run"
    run.mkdir(parents=True)
    scratch = local.make_scratch(run)
    short = local.short_path_to(scratch)
    assert len(str(short)) < 50 < len(str(scratch)) and local.short_path_to(short) == short
    done = subprocess.run([sys.executable, "-c", SOCKETS], env={**os.environ, "TMPDIR": str(short)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(scratch.glob("*/left")), "what is left there lies in the run's folder"
    shutil.rmtree(scratch)
    again = local.short_path_to(local.make_scratch(run))
    assert again.exists() and not short.parent.exists(), "a link that leads nowhere is removed"
    shutil.rmtree(local.tempfile.tempdir)


def test_what_is_another_users_in_the_temporary_folder_costs_nothing(tmp_path, monkeypatch):
    """Nobody but root may look into a folder of mode 0700 that is somebody else's."""
    temporary = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setattr(local.tempfile, "tempdir", temporary)
    (Path(temporary) / "impala-tmp-theirs").mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_symlink", refuse)
    run = tmp_path / ("long" * 30)
    run.mkdir()
    assert len(str(local.short_path_to(run))) < 60
    monkeypatch.undo()
    shutil.rmtree(temporary)


@pytest.mark.parametrize("error, num_calls, raised", [
    (OSError(errno.EAGAIN, "no"), 3, None), (RuntimeError("can't start new thread"), 3, None),
    (OSError(errno.EACCES, "no"), 1, PermissionError), (RuntimeError("another"), 1, RuntimeError),
])  # fmt: skip
def test_all_nodes_start_again_though_the_machine_refuses_one_for_a_moment(monkeypatch, error, num_calls, raised):
    calls = []

    def launch():
        calls.append(time.monotonic())
        if len(calls) < 3:
            raise error
        return "launched"

    monkeypatch.setattr(supervising, "START_SECONDS", 0.1)
    interrupts = SimpleNamespace(count=0)
    if raised:
        with pytest.raises(raised):
            training._patiently(launch, interrupts, print)
    else:
        assert training._patiently(launch, interrupts, print) == "launched"
    assert len(calls) == num_calls
    monkeypatch.setattr(supervising, "STARTS_SECONDS", 0.0)
    if not raised:
        with pytest.raises(OSError):  # which the run ends with
            calls.clear()
            training._patiently(launch, interrupts, print)
        monkeypatch.undo()
        with pytest.raises(OSError):
            calls.clear()
            training._patiently(launch, SimpleNamespace(count=1), print)
        assert time.monotonic() - calls[0] < 3, "Ctrl-C is heard"


class Refusing:
    """Nodes of which one is due, and cannot be started `num_failures` times."""

    roles, can_start_again, keeps_addresses, wants_end = ROLES, True, True, False

    def __init__(self, number, num_failures):
        self.errors, self.is_stopped = [OSError(number, "no")] * num_failures, False

    def start_due(self, new_incarnation):
        if self.errors:
            raise self.errors.pop()

    def stop(self, should_kill):
        self.is_stopped = True

    def ended(self):
        return {}

    nodes = names = left = lambda self: {}


@pytest.mark.parametrize("number, num_failures, ends", [
    (errno.ENOMEM, 3, False), (errno.EAGAIN, 1, False), (errno.ENOMEM, 1000, True), (errno.ENOENT, 1, True),
])  # fmt: skip
def test_a_machine_that_refuses_a_process_for_a_moment_costs_no_run(monkeypatch, number, num_failures, ends):
    monkeypatch.setattr(supervising, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(supervising, "START_SECONDS", 0.02)
    monkeypatch.setattr(supervising, "STARTS_SECONDS", 0.5)
    nodes, count = Refusing(number, num_failures), itertools.count()
    said, interrupts = [], SimpleNamespace(count=0)

    def on_tick():
        interrupts.count = 2 * (next(count) > 200)

    watching = supervising.Supervisor(
        nodes, interrupts, on_tick=on_tick, say=said.append, new_incarnation=None, restarts=None
    )
    watching._end = lambda: "interrupted"
    outcome = watching._watch()
    assert nodes.is_stopped == ends and (outcome.status == 75) == ends
    assert sum("no node can be started (" in line for line in said) == (number != errno.ENOENT)
    assert any("no node can be started any more" in line for line in said) == ends
