"""Launchpad on top of the stand-in, in processes of their own: its flags and signals are global."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest

from impala.launching import rpc
from impala.launching.rpc.client import Client

PROGRAM = pathlib.Path(__file__).with_name("program.py")


@pytest.fixture
def environment(tmp_path):
    """As a user's shell has it: no path set, another current directory, logs of our own."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"LAUNCHPAD_LOGGING_DIR": str(tmp_path / "logs")}


def run(code, environment, cwd):
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_launchpad_is_imported_without_tensorflow(environment, tmp_path):
    code = """
import sys
from impala.launching import rpc
rpc.install()
import courier, launchpad
from courier.handlers.python import pybind
assert courier.__file__.startswith(rpc.SHIM_PATH), courier.__file__
from impala.launching.rpc.client import Client
assert launchpad.CourierClient is courier.Client is Client
print(sorted(set(courier.__all__)), "tensorflow" in sys.modules)
"""
    assert run(code, environment, tmp_path) == "['Client', 'Server', 'StatusNotOk', 'list_methods'] False\n"


def test_launchpad_is_imported_in_this_process():
    rpc.install()
    import launchpad

    assert launchpad.CourierClient is Client


def test_child_processes_find_it_too(environment, tmp_path):
    code = """
import os, subprocess, sys
from impala.launching import rpc
rpc.install()
subprocess.run([sys.executable, "-c", "import launchpad, courier; print(courier.__file__)"], check=True)
"""
    assert run(code, environment, tmp_path).startswith(rpc.SHIM_PATH)


def test_the_stand_in_brings_the_copy_that_it_belongs_to(environment, tmp_path):
    """As in a process that Launchpad starts, where the current folder holds another copy."""
    (tmp_path / "impala").mkdir()
    (tmp_path / "impala/__init__.py").write_text("raise ImportError('the other copy')")
    code = "import courier, impala, types; print(impala.__file__); from impala.launching import rpc; print(rpc.SHIM_PATH)"
    lines = run(code, environment | {"PYTHONPATH": rpc.SHIM_PATH}, tmp_path).splitlines()
    assert lines == [str(pathlib.Path(rpc.SHIM_PATH).parents[2] / "__init__.py"), rpc.SHIM_PATH]


def test_two_copies_that_meet_are_named(environment, tmp_path):
    other = tmp_path / "impala/launching/rpc/shim/courier"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    code = f"""
import sys
sys.path.insert(0, {str(other.parent)!r})
import courier
sys.path.insert(0, {str(pathlib.Path(rpc.SHIM_PATH).parents[3])!r})
try:
    import impala.launching
except RuntimeError as error:
    print(error)
"""
    assert run(code, environment, "/").startswith(f"two copies of impala meet: {rpc.SHIM_PATH} and {other}")


def test_the_stand_in_is_light_to_import(environment, tmp_path):
    code = "import sys\nfrom impala.launching import rpc\nprint('grpc' in sys.modules, 'numpy' in sys.modules)"
    assert run(code, environment, tmp_path) == "False False\n"


def test_the_folder_holds_courier_and_nothing_that_could_shadow():
    names = {name for name in os.listdir(rpc.SHIM_PATH) if name != "__pycache__"}
    assert names == {"courier"}


@pytest.fixture
def clean_paths(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "/one", rpc.SHIM_PATH, "/two"])
    monkeypatch.delitem(sys.modules, "courier", raising=False)


@pytest.mark.parametrize(
    "before, after",
    [(None, []), ("", []), ("/a", ["/a"]), ("/a:/b", ["/a", "/b"]), (f"/a:{rpc.SHIM_PATH}:/b", ["/a", "/b"])],
)
def test_install_comes_first_and_once(clean_paths, monkeypatch, before, after):
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    for _ in range(2):
        rpc.install()
        assert sys.path == [rpc.SHIM_PATH, "", "/one", "/two"]
        assert os.environ["PYTHONPATH"] == ":".join([rpc.SHIM_PATH, *after])


@pytest.mark.parametrize("file", ["/site-packages/courier/__init__.py", None, rpc.SHIM_PATH + "x/courier.py"])
def test_install_after_the_real_courier_is_refused(clean_paths, monkeypatch, file):
    module = types.ModuleType("courier")
    module.__file__ = file
    monkeypatch.setitem(sys.modules, "courier", module)
    monkeypatch.setenv("PYTHONPATH", "/a")
    with pytest.raises(RuntimeError, match="before launchpad"):
        rpc.install()
    assert os.environ["PYTHONPATH"] == "/a" and sys.path[0] == ""


@pytest.mark.parametrize("launch_type", ["test_mt", "local_mt", "local_mp"])
@pytest.mark.parametrize("with_token", [False, True], ids=["open", "token"])
def test_a_program_passes_arrays_and_stops(environment, tmp_path, launch_type, with_token):
    if with_token:
        rpc.new_token(tmp_path / "token")
        environment["IMPALA_RPC_TOKEN_FILE"] = str(tmp_path / "token")
    result = tmp_path / "result.json"
    command = [sys.executable, str(PROGRAM), launch_type, str(result)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    logs = [path.read_text() for path in sorted((tmp_path / "logs").rglob("*")) if path.is_file()]
    assert result.exists(), "\n".join([done.stdout, done.stderr, *logs])
    assert json.loads(result.read_text()) == {
        "added": [[1, 2, 3], [4, 5, 6]],
        "dtype": "float32",
        "doubled": [[0, 0], [2, 2]],
        "batch": [2, 2],
        "client": "impala.launching.rpc.client",
        "tensorflow": False,
    }
    assert done.returncode == 0, done.stderr
