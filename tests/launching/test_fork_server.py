"""Processes that are forked from one that has imported what they need."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from impala.launching import fork_server, local, roles

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path):
    with local.signals_blocked():
        made = fork_server.ForkServer(
            ["json", "numpy", "no_such_module"], str(tmp_path), os.environ | {"OF_THE_SERVER": "1"}
        )
    yield made
    made.close()


@pytest.fixture
def start(server, tmp_path):
    """Starts a script; returns the child and a function that waits for its end and returns its output."""

    def start_it(code, *arguments, should_stop=lambda: False, **environment):
        script, log = tmp_path / "script.py", tmp_path / "log"
        script.write_text(code)
        with log.open("w") as output:
            child = server.start(
                [sys.executable, str(script), *arguments], os.environ | environment, output, should_stop
            )
        return child, lambda: (child.wait(30), log.read_text())

    return start_it


def test_a_child_uses_the_starters_copy_of_this_package_whatever_is_installed(tmp_path):
    copy, script = tmp_path / "elsewhere", tmp_path / "script.py"
    shutil.copytree(Path(fork_server.__file__).parents[1], copy / "impala", ignore=shutil.ignore_patterns("__pycache__"))
    script.write_text("import impala.launching.roles as roles; print(roles.__file__)")
    environment = os.environ | {"PYTHONPATH": str(copy / "impala/launching/rpc/shim")}
    with local.signals_blocked():
        server = fork_server.ForkServer(["json"], str(tmp_path), environment)
    with (tmp_path / "log").open("w") as output:
        child = server.start([sys.executable, str(script)], environment, output, lambda: False)
    assert child.wait(30) == 0
    assert (tmp_path / "log").read_text().strip() == str(copy / "impala/launching/roles.py")
    server.close()


TELL = """
import json, os, signal, sys
modules = [name for name in ("json", "decimal") if name in sys.modules]
import tests_own_module
print(json.dumps(dict(
    argv=sys.argv, modules=modules, mine=os.environ.get("MINE"), no_more=os.environ.get("OF_THE_SERVER"), parent=os.getppid(), session=os.getsid(0), name=__name__,
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), other=tests_own_module.WORD, folder=os.getcwd(),
)))
print("an error", file=sys.stderr)
sys.exit(3)
"""


def test_a_child_is_as_one_that_was_started_for_its_script(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # after the server was started
    (tmp_path / "tests_own_module.py").write_text("WORD = 'from the folder of the script'")
    child, end = start(TELL, "--one", MINE="its own")
    status, output = end()
    first, error = output.splitlines()
    said = json.loads(first)
    assert (status, error) == (3, "an error") and child.returncode == child.poll() == 3
    assert said["argv"] == [str(tmp_path / "script.py"), "--one"] and said["name"] == "__main__"
    assert (
        (said["mine"], said["no_more"]) == ("its own", None)
        and said["folder"] == str(tmp_path)
        and said["session"] == os.getsid(0)
    )
    assert said["other"] == "from the folder of the script"
    assert said["parent"] == os.getpid()
    assert said["modules"] == ["json"], "what the server has; and not what this process has"
    assert said["blocked"] == sorted(local._BLOCKED), "until the node decides what they do"


def test_signals_statuses_and_deadlines_are_those_of_popen(start):
    child, _ = start("import time; time.sleep(1e6)")
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    child.kill()
    assert child.wait(30) == -signal.SIGKILL
    child.send_signal(signal.SIGTERM)  # to nobody
    child, end = start("raise SystemError('as it is')")
    status, output = end()
    assert status == 1 and output.endswith("SystemError: as it is\n")


def test_children_draw_numbers_of_their_own(start):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    outputs = [start(code)[1]()[1].split() for _ in range(2)]
    assert set(outputs[0]).isdisjoint(outputs[1])


def test_children_outlive_the_server_but_not_their_starter(tmp_path):
    """Whether the starter is killed or the server."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\nfrom impala.launching import processes\nprocesses.end_with_parent()\n"
        "print(os.getpid(), flush=True)\ntime.sleep(1e6)"
    )
    code = f"""
import ctypes, os, sys, time
from impala.launching import fork_server
server = fork_server.ForkServer(["json"], {str(tmp_path)!r}, os.environ)
child = server.start([sys.executable, {str(script)!r}], os.environ, sys.stdout, lambda: False)
is_subreaper = ctypes.c_int(-1)
ctypes.CDLL(None).prctl(37, ctypes.byref(is_subreaper), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
assert is_subreaper.value == 0, "orphans of others are not its own"
server._process.kill()
server._process.wait()
time.sleep(0.2)
assert child.poll() is None
time.sleep(1e6)
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    node = psutil.Process(int(starter.stdout.readline()))
    assert node.ppid() == starter.pid
    time.sleep(1.0)
    assert starter.poll() is None and node.is_running()
    starter.kill()
    starter.wait()
    assert node.wait(10) is None or not node.is_running()


def test_where_the_server_is_gone_nobody_is_started(server, start):
    assert start("")[1]()[0] == 0
    assert start("", should_stop=lambda: True)[0] is not None, "once it is ready nobody waits"
    server._process.kill()
    server._process.wait()
    assert start("")[0] is None
    assert start("")[0] is None, "and again"


def test_who_wants_an_end_does_not_wait_for_a_server_that_is_frozen(server, start):
    assert start("")[1]()[0] == 0
    server._process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert start("", should_stop=lambda: True)[0] is None and time.monotonic() - began < 5.0
    assert server._process.poll() is not None


def test_who_wants_an_end_does_not_wait_for_imports(tmp_path):
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    with local.signals_blocked():
        server = fork_server.ForkServer(["slow"], str(tmp_path), os.environ)
    argv = [sys.executable, str(tmp_path / "slow.py")]
    with (tmp_path / "log").open("w") as output:
        began = time.monotonic()
        assert server.start(argv, os.environ, output, should_stop=lambda: True) is None
        assert time.monotonic() - began < 20 and server._process.poll() is not None
        assert server.start(argv, os.environ, output, should_stop=lambda: False) is None, "it is given up"


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_server_ends_with_its_starter(is_killed):
    """Also while another process holds the starter's end of what connects the two."""
    code = f"""
import os, sys, time
from impala.launching import fork_server
server = fork_server.ForkServer(["json"], {str(Path(__file__).parent)!r}, os.environ)
other = os.fork()
if not other:
    time.sleep(60)
    os._exit(0)
print(server._process.pid, other, flush=True)
sys.stdin.read()
"""
    starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    server, other = map(psutil.Process, map(int, starter.stdout.readline().split()))
    time.sleep(2.0)  # it is ready
    if is_killed:
        starter.kill()
    starter.stdin.close()
    starter.wait(30)
    assert is_killed or not server.is_running(), "it has been waited for"
    psutil.wait_procs([server], timeout=10)
    assert not server.is_running() and other.is_running()
    other.kill()


def _write_what_it_sees(path):
    path.write_text(str(os.environ.get("CUDA_VISIBLE_DEVICES")))


@pytest.mark.parametrize("imports", [(), ("json",)])
def test_nodes_but_the_learner_see_no_gpu(tmp_path, imports, monkeypatch):
    """Forked or not, and whoever is started first."""
    import launchpad as lp

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # unlike what the tests themselves run with
    program = lp.Program("sees")
    for label in ("actor", "learner", "table"):
        with program.group(label):
            program.add_node(lp.PyNode(_write_what_it_sees, tmp_path / label))
    of_all = (roles.ACTOR, roles.LEARNER, roles.TABLE)
    nodes = local.launch(program, tmp_path, roles.Roles(role._replace(imports=imports) for role in of_all))
    deadline = time.monotonic() + 60
    while nodes.left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {type(process) is fork_server.Child for process in nodes._by_name.values()} == {bool(imports)}
    said = {label: (tmp_path / label).read_text() for label in ("actor", "learner", "table")}
    assert said == {"actor": "", "learner": "-1", "table": ""}


def test_nodes_start_in_the_order_in_which_they_were_asked_for_last():
    """An actor may wait for its start when the learner dies, whose group starts before it."""
    nodes = object.__new__(local.Processes)
    nodes._due = {}
    for name in ("actor/0", "learner/0", "actor/0"):
        nodes.start_again(name, 0.0)
    assert list(nodes._due) == ["learner/0", "actor/0"]


def test_nodes_are_started_without_a_server_that_is_gone(tmp_path, monkeypatch):
    import launchpad as lp

    monkeypatch.setattr(local, "_servers", {})
    program = lp.Program("again")
    with program.group("actor"):
        program.add_node(lp.PyNode(_write_what_it_sees, tmp_path / "actor"))
    role = roles.ACTOR._replace(imports=("json",))
    nodes = local.launch(program, tmp_path, roles.Roles([role]))
    assert nodes._by_name["actor/0"].wait(60) == 0 and (tmp_path / "actor").exists()
    (tmp_path / "actor").unlink()
    local._servers[role.imports]._process.kill()
    nodes.start_again("actor/0", 9.0)
    nodes.start_again("actor/0", 0.0)  # again, while it waits
    nodes.start_due(lambda name: 2)
    assert nodes._by_name["actor/0"].wait(60) == 0 and (tmp_path / "actor").exists()
    assert not isinstance(nodes._by_name["actor/0"], fork_server.Child)


def test_what_cannot_be_removed_of_an_earlier_launch_does_not_keep_nodes_from_starting(tmp_path, monkeypatch):
    """An environment may leave files of another user in its temporary folder, or a game server that has one open."""
    stuck = local.make_scratch(tmp_path)
    monkeypatch.setattr(local.shutil, "rmtree", lambda *_, **__: None)
    another = local.make_scratch(tmp_path)
    monkeypatch.undo()
    assert stuck.is_dir() and another.is_dir() and another != stuck and another.stat().st_mode & 0o777 == 0o700
    last = local.make_scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [last]


def _say_where_and_what() -> None:
    sys.stdout.write("→")
    Path(os.environ["TMPDIR"], "said").write_text(os.getcwd())


@pytest.mark.parametrize("imports", [(), ("json",)])
def test_a_node_starts_where_the_folder_is_gone_and_prints_what_its_locale_lacks(tmp_path, imports, monkeypatch):
    import launchpad as lp

    program = lp.Program("says")
    with program.group("actor"):
        program.add_node(lp.PyNode(_say_where_and_what))
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(local, "_servers", {})
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("LC_ALL", "POSIX")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    monkeypatch.setenv("PYTHONUTF8", "0")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    nodes = local.launch(program, tmp_path, roles.Roles([roles.ACTOR._replace(imports=imports)]))
    monkeypatch.chdir(ROOT)
    assert nodes._by_name["actor/0"].wait(60) == 0, (tmp_path / "logs/actor/0").read_text()
    (said,) = (tmp_path / "logs").glob("scratch-*/said")
    assert said.read_text() == "/" and (tmp_path / "logs/actor/0").read_text() == "?"


def test_a_child_puts_temporary_files_where_it_is_told_to(tmp_path):
    """What the server has imported may have looked up an earlier launch's folder, which is gone."""
    (tmp_path / "now").mkdir()
    with local.signals_blocked():
        server = fork_server.ForkServer(["absl.testing.absltest"], str(tmp_path), os.environ | {"TMPDIR": "/var/tmp"})
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text("import tempfile; print(tempfile.gettempdir())")
    with log.open("w") as output:
        environment = os.environ | {"TMPDIR": str(tmp_path / "now")}
        child = server.start([sys.executable, str(script)], environment, output, lambda: False)
    assert child.wait(30) == 0 and log.read_text() == f"{tmp_path / 'now'}\n"
    server.close()
