"""A node's process as a host of a cluster runs it."""

import os
import signal
import subprocess
import tempfile
import time

import psutil
import pytest

from impala import config as config_lib
from impala.launching import addresses, commands, node_host, stopping
from impala.launching.shared_memory import machine
from impala.nodes import placing
from tests.programs.running import ROOT, wait_for


def talk():
    print("words " * 500_000, end="the last one", flush=True)


def job_of(function, folder, current_folder, imports=()):
    """Returns what a host needs to run a function as a node: the job and the pickle."""
    import launchpad as lp

    program = lp.Program("talks")
    program.add_node(lp.PyNode(function), label="talker")
    (command,) = commands.of(program, folder, stopper=stopping.stop, bind=addresses.LookedUp)
    job = node_host.Job(
        command.name, 1, command.task, "a token", {}, 0.0, machine(), sees_gpu=False, imports=imports, prepares=bool(imports),
        incarnation=None, memory="", current_folder=str(current_folder),
    )  # fmt: skip
    return job, command.data.read_bytes()


def answers_until_the_end(host, log_at=0):
    answers = []

    def has_ended():
        answers.append(host.status(answers[-1].log_at + len(answers[-1].log) if answers else log_at))
        return answers[-1].exit_status is not None

    wait_for(has_ended, 60, "it ended")
    return answers


def answers_of(function, folder, current_folder, first_asked=0.0):
    """Lets a host run a function as a node; returns what it answered until the node had ended."""
    host = node_host.NodeHost()
    host.start(*job_of(function, folder, current_folder))
    try:
        time.sleep(first_asked)
        return answers_until_the_end(host)
    finally:
        host.end()


def log_of(answers):
    return b"".join(answer.log for answer in answers).decode()


def test_what_a_node_wrote_arrives_whole_before_its_end_is_told(tmp_path):
    answers = answers_of(talk, tmp_path, ROOT, first_asked=5.0)  # it has ended by then
    log = log_of(answers)
    assert answers[-1].exit_status == 0 and len(answers) >= 4 and log.count("words") == 500_000
    assert log.endswith("the last one")


def test_of_a_node_that_writes_faster_than_it_is_asked_the_older_part_is_left_out(tmp_path):
    """Its end would be told megabytes later."""
    def shout():
        print("words " * 3_000_000, end="the last one", flush=True)

    host = node_host.NodeHost()
    host.start(*job_of(shout, tmp_path, ROOT))
    try:
        wait_for(lambda: host._process.poll() is not None, 60, "it has written all")
        answers = answers_until_the_end(host)
    finally:
        host.end()
    log = log_of(answers)
    assert answers[-1].exit_status == 0 and len(log) <= 1_000_000 and log.endswith("the last one")
    assert answers[0].log_at == 18_000_012 - len(log)


def test_a_node_has_ended_once_it_is_known_what_it_said_last(tmp_path, monkeypatch):
    """Who has ended is asked no more: an end without its reason would be taken for a death."""
    monkeypatch.setattr(node_host, "_HEARING_SECONDS", 60.0)
    host, began = node_host.NodeHost(), None
    host.start(*job_of(os.getpid, tmp_path, ROOT))
    node = host._listener.node

    def late(name):  # the thread that hears gets no processor for a moment
        return node(name)._replace(facts={"status": 0} if began and time.monotonic() - began > 0.4 else {})

    monkeypatch.setattr(host._listener, "node", late)
    try:
        wait_for(lambda: host.status().is_begun and host._process.poll() is not None, 60, "its process has ended")
        assert host.status().exit_status is None
        began = time.monotonic()
        assert answers_until_the_end(host)[-1].node.facts == {"status": 0} and time.monotonic() - began < 30
        host._ended_at, began = time.monotonic() - 2 * node_host._HEARING_SECONDS, None
        assert host.status().exit_status == 0, "of one that can say nothing any more it is known, too"
    finally:
        host.end()


def test_a_node_finds_the_users_modules_in_the_launchers_current_folder(tmp_path):
    (tmp_path / "words_of_one.py").write_text("SAID = 'found'")

    def tell():  # within a function, so that it travels by value
        import words_of_one

        print(words_of_one.SAID)

    answers = answers_of(tell, tmp_path, tmp_path)
    assert answers[-1].exit_status == 0 and log_of(answers) == "found\n"


def test_a_node_starts_where_that_folder_is_missing(tmp_path):
    def tell():
        import os

        print(os.getcwd())

    answers = answers_of(tell, tmp_path, tmp_path / "elsewhere")
    assert answers[-1].exit_status == 0 and log_of(answers) == f"{os.getcwd()}\n"


@pytest.fixture
def slow_modules(tmp_path, monkeypatch):
    """Returns a job, and its pickle, that tells which process has imported a module that takes two seconds."""
    (tmp_path / "slow_words.py").write_text("import os, time; time.sleep(2); BY = os.getpid()")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}:{tmp_path}")

    def tell():
        import os

        import slow_words

        print(slow_words.BY, os.getpid(), os.getppid(), os.getcwd())

    return job_of(tell, tmp_path, tmp_path, imports=("slow_words",))


def test_a_node_that_starts_again_has_its_modules_at_once(slow_modules, tmp_path):
    host, said, log_at = node_host.NodeHost(), [], 0
    try:
        for _ in range(2):
            host.start(*slow_modules)
            first = host.status()
            answers = answers_until_the_end(host, log_at)
            log_at += len(log_of(answers))
            said.append((*log_of(answers).split(), first.is_begun))
            assert answers[-1].exit_status == 0
    finally:
        host.end()
    (by, one, parent, folder, was_begun), (by_again, other, _, _, was_begun_again) = said
    assert (parent, folder) == (str(os.getpid()), str(tmp_path)) and len({by, one, other}) == 3
    assert by == by_again, "the module, which takes two seconds, was imported once"
    assert (was_begun, was_begun_again) == (False, True)
    assert not psutil.pid_exists(int(by)), "the server ends with its host"


def test_a_node_that_is_to_end_while_its_modules_are_imported_is_never_started(slow_modules):
    host = node_host.NodeHost()
    try:
        host.start(*slow_modules)
        host.signal(signal.SIGCONT)
        assert host.status().exit_status is None
        host.signal(signal.SIGTERM)
        assert (host.status().exit_status, host.status().is_begun) == (-signal.SIGTERM, False)
        time.sleep(3.0)
        assert not host.status().is_begun
        host.clear()
        host.start(*slow_modules)
        assert answers_until_the_end(host)[-1].exit_status == 0
    finally:
        host.end()


def test_a_node_starts_though_its_modules_cannot_be_kept(slow_modules):
    host = node_host.NodeHost()
    try:
        host.start(*slow_modules)
        host._server._process.kill()
        assert answers_until_the_end(host)[-1].exit_status == 0
    finally:
        host.end()


def test_what_other_hosts_wrote_into_a_shared_folder_is_left_alone(tmp_path, monkeypatch):
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = node_host.NodeHost()._scratch
    left = ours.with_name(ours.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    with monkeypatch.context() as there:
        there.setattr(node_host, "machine", lambda: "another")
        of_others = node_host.NodeHost()._scratch
    dead_there = of_others.with_name(of_others.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    left.mkdir()
    of_others.rename(dead_there)
    of_others.mkdir()
    node_host._sweep()
    assert {*tmp_path.iterdir()} == {ours, of_others, dead_there}, "no process here has that number"


def test_the_users_modules_are_compared_environments_among_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    keys = {"environment.name": "worlds_of_one:Make", "network.torso": "torsos_of_one:Wide"}
    placement = placing.placement(config_lib.build({}, keys))
    words, spreads = placement.own_words, placement.spreads
    assert spreads("relay/1") and not spreads("actor/1"), "a relay on a host of another's brings no wire of its own"
    assert words == [*keys.items()]
    absent = node_host.facts(words)
    for word in keys.values():
        (tmp_path / f"{word.partition(':')[0]}.py").write_text("one")
    mine = node_host.facts(words)
    (tmp_path / "worlds_of_one.py").write_text("other")
    (line,) = node_host.differences(mine, node_host.facts(words))
    assert line.startswith("environment.name worlds_of_one:Make is ")
    lines = node_host.differences(mine, absent)
    assert len(lines) == 2 and all(" is missing there and " in line for line in lines), lines


def test_built_in_environments_are_no_modules_of_the_users():
    config = config_lib.build({}, {"environment.name": ["atari:pong", "my_games:Maze-v0"], "actor.num_actors": 2})
    assert config.own_words == [("environment.name", "my_games:Maze-v0")]
