"""The script that kills nodes of a soak run: what it does when there is nothing to kill."""

import importlib.util
import os
import subprocess
import sys

import psutil
import pytest

from tests.programs.running import ROOT


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("kill_at_random", ROOT / "scripts/kill_at_random.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ended():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.parametrize("lock", [None, "", "of nobody", "process ENDED on here"])
def test_a_run_that_does_not_train_is_a_line(script, monkeypatch, capsys, tmp_path, lock):
    if lock is not None:
        (tmp_path / "lock").write_text(lock.replace("ENDED", str(ended())))
    monkeypatch.setattr(sys, "argv", ["kill_at_random.py", str(tmp_path), "--every", "0.01", "--for", "5"])
    assert script.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{tmp_path}: no node runs; expected the folder of a run that trains here"


NODE = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'actor/0', 0, 0, 0); print('named', flush=True); time.sleep(60)"


def test_a_node_is_killed_and_one_that_is_gone_is_passed_over(script, monkeypatch, capsys, tmp_path):
    (tmp_path / "lock").write_text(f"process {os.getpid()} on here")
    node = subprocess.Popen([sys.executable, "-c", NODE], stdout=subprocess.PIPE, text=True)
    assert node.stdout.readline() == "named\n"
    gone = psutil.Process(node.pid)
    assert script.nodes_of(tmp_path) == {"actor/0": gone}
    monkeypatch.setattr(script, "HOW", {"kill": 9})
    monkeypatch.setattr(sys, "argv", ["kill_at_random.py", str(tmp_path), "--every", "0.2", "--for", "0.3"])
    assert script.main() == 0 and node.wait(10) == -9
    assert capsys.readouterr().out == "kill actor/0\n"
    node.stdout.close()
    monkeypatch.setattr(script, "nodes_of", lambda _: {"actor/0": gone})
    assert script.main() == 0 and capsys.readouterr().out == ""
    assert len((tmp_path / "kills.csv").read_text().splitlines()) == 2, "the columns, and one"
