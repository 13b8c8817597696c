"""Memory by role, of this machine's processes and of a cluster's nodes."""

import os
import subprocess
import sys

import pytest

from impala.launching import memory

ACTOR = """
import ctypes
ctypes.CDLL(None).prctl(15, b"actor/1", 0, 0, 0)  # PR_SET_NAME
held = b"1" * 50_000_000
print("ready", flush=True)
input()
"""


def test_descendants_are_counted_by_the_role_that_their_name_says():
    with subprocess.Popen([sys.executable, "-c", ACTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        found = memory.resident_mb(os.getpid())
        child.kill()
    assert found["launcher"] > 10 and 50 < found["actor"] < 100
    assert found["total"] == pytest.approx(sum(found.values()) - found["total"])


def test_nodes_of_a_cluster_are_those_that_its_launcher_has_heard_of(tmp_path, monkeypatch):
    monkeypatch.setenv(memory.FILE_VARIABLE, str(tmp_path / "memory.json"))
    assert memory.resident_mb(os.getpid()) == {}, "not there yet"
    memory.keep(tmp_path / "memory.json", {"actor/0": 100.0, "actor/1": 50.0, "server/0": 30.0, "shard/0": 20.0})
    found = memory.resident_mb(1)
    launcher = found.pop("launcher")
    assert launcher > 10 and found == {"actor": 150, "learner": 50, "total": pytest.approx(200 + launcher)}
    (tmp_path / "memory.json").write_text('{"actor')
    assert memory.resident_mb(1) == {}
    memory.keep(tmp_path / "nowhere/memory.json", {})  # a full disk, a folder that is gone: these figures are lost
