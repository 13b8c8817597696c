"""What is wrong with this machine, and the command that fixes each thing.

Packages that may crash or hang (TensorFlow, Reverb, Launchpad and what they are linked against) are tried in separate
processes, two at a time, so that a segmentation fault is a line of the report and not its end.
"""

import functools
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.text import Text

import impala
from impala.monitoring import machine

PROBE_SECONDS = 90
_PIP = f"{sys.executable} -m pip"
_CHECKOUT = next((f for f in [Path(impala.__file__).resolve().parents[1]] if (f / "Makefile").exists()), None)


class Check(NamedTuple):
    """One line of the report."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    remedy: str  # a command; empty where all is well


class Probe(NamedTuple):
    """A script for a process of its own; the check's detail is the last line that it prints, or a version."""

    package: str  # whose version that is, and what to reinstall if the script fails
    script: str


_PROBES = {
    "numpy": Probe("numpy==1.26.4", "import numpy; numpy.linalg.inv(numpy.eye(8))"),
    "tensorflow": Probe("tensorflow==2.15.1", """
import tensorflow as tf; tf.linalg.matmul(tf.eye(8), tf.eye(8))
print("GPUs:", len(tf.config.list_physical_devices("GPU")))
print(tf.__version__)"""),
    "reverb": Probe("dm-reverb==0.14.0", "import reverb"),
    "gymnasium": Probe("gymnasium==1.4.0", "import gymnasium"),
    "ale_py": Probe("ale-py==0.12.1", "import ale_py; ale_py.ALEInterface()"),
    "launchpad": Probe("dm-launchpad==0.5.2", """
import impala.launching, launchpad
launchpad.Program("doctor").add_node(launchpad.CourierNode(object), label="node")"""),
    "RPC stand-in": Probe("grpcio==1.85.1", """
import numpy as np
from impala.launching.rpc import client, server
echo = server.Server(port=None, thread_pool_size=2, address="127.0.0.1")
echo.Bind("echo", lambda x: x)
echo.Start()
sent = np.arange(6, dtype=np.float32).reshape(2, 3)
received = client.Client(f"127.0.0.1:{echo.port}", call_timeout=20).echo(sent)
echo.Stop()
assert received.dtype == sent.dtype and (received == sent).all(), received
print("an array went to a server and came back")"""),
    "Reverb server": Probe("dm-reverb==0.14.0", """
import os, numpy as np, reverb
server = reverb.Server([reverb.Table.queue("queue", max_size=1)])
client = reverb.Client(f"127.0.0.1:{server.port}")
client.insert([np.ones(3)], {"queue": 1.0})
assert next(client.sample("queue"))[0].data[0].sum() == 3
print("a queue was started, written and sampled", flush=True)
os._exit(0)"""),
    "ROMs": Probe("ale-py==0.12.1", """
from ale_py import roms
print(*(roms.get_rom_path(game).name for game in ("pong", "breakout")))"""),
}  # fmt: skip
_PINS = {"numpy": (2, "1.26.4"), "protobuf": (5, "4.25.9"), "setuptools": (81, "80.10.2")}  # below this; a good one


def checks() -> Iterator[Check]:
    """Look at the machine, one thing after the other; a check that breaks is itself a failed check."""
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        outcomes = {name: pool.submit(run_probe, probe.script) for name, probe in _PROBES.items()}
        probed = [functools.partial(_probed, name, outcome) for name, outcome in outcomes.items()]
        probed.append(functools.partial(_gpus, outcomes["tensorflow"]))
        for look in (_interpreter, _pins, *probed, _network, _resources):
            try:
                yield from look()
            except Exception as error:
                yield Check("doctor", "fail", f"{type(error).__name__}: {error}", _build_anew())
    finally:
        pool.shutdown(cancel_futures=True)


def main() -> int:
    """Print one line for each check and return 1 if one failed, else 0."""
    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    counts = dict.fromkeys(styles, 0)
    for check in checks():
        counts[check.status] += 1
        line = Text.assemble((f"{check.status:5}", styles[check.status]), f"{check.name:17}", check.detail)
        console.print(line.append(f"  fix: {check.remedy}" if check.remedy else ""))
    console.print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed")
    return int(counts["fail"] > 0)


def run_probe(script: str) -> tuple[str, str]:
    """Run a script in a fresh interpreter; return what it printed, and what went wrong or ''."""
    # A training run may own the GPU's memory.
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "grpc_proxy": ""}
    same_path = f"import sys; sys.path[:] = {sys.path}\n"  # else it might import a checkout in the current folder
    command, environ = [sys.executable, "-c", same_path + script], {**os.environ, **quiet}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {PROBE_SECONDS} s"
    if done.returncode < 0:
        return done.stdout, f"killed by {signal.Signals(-done.returncode).name}"
    last_words = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return done.stdout, last_words if done.returncode else ""


def _check(name: str, good: bool, detail: str, remedy: str, otherwise: str = "fail") -> Check:
    return Check(name, "ok" if good else otherwise, detail, "" if good else remedy)


def _interpreter() -> Iterator[Check]:
    found = f"{sys.implementation.name} {platform.python_version()}, {sys.platform} {platform.machine()}"
    good = re.fullmatch(r"cpython 3\.10\.\S+, linux x86_64", found) is not None
    yield _check("Python", good, found, _build_anew(python="/path/to/python3.10"))


def _build_anew(python: str = "") -> str:
    """Returns the command that makes a sound environment: from a checkout, or from the user's wheel."""
    if _CHECKOUT:
        return f"cd {_CHECKOUT} && rm -rf .venv && make" + (f" PYTHON={python}" if python else "")
    return f"{python or 'python3.10'} -m venv NEW && NEW/bin/pip install impala-{impala.__version__}-py3-none-any.whl"


def _pins() -> Iterator[Check]:
    for name, (below, pin) in _PINS.items():
        version = _version(name)
        good = version is not None and int(version.split(".")[0]) < below
        yield _check(f"{name} < {below}", good, version or "not installed", f"{_PIP} install {name}=={pin}")
    both = None not in (_version("tensorflow"), _version("tensorflow-cpu"))
    detail = "tensorflow-cpu, too: both write the same folder" if both else "no tensorflow-cpu beside it"
    remedy = f"{_PIP} uninstall -y tensorflow-cpu && {_reinstall('tensorflow==2.15.1')}"
    yield _check("TensorFlow, once", not both, detail, remedy)


def _reinstall(package: str) -> str:
    return f"{_PIP} install --force-reinstall --no-deps {package}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _probed(name: str, outcome: Future) -> Iterator[Check]:
    output, error = outcome.result()
    package = _PROBES[name].package
    detail = error or (output.strip().splitlines() or [_version(package.split("==")[0])])[-1]
    yield _check(name, not error, detail, _reinstall(package))


def _gpus(tensorflow: Future) -> Iterator[Check]:
    found = re.search(r"^GPUs: (\d+)$", tensorflow.result()[0], re.MULTILINE)
    seen = int(found[1]) if found else 0
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        listing = ""
    present = listing.count("GPU ")
    detail = f"TensorFlow sees {seen}" + ("" if seen else f", nvidia-smi {present}; training runs on the CPU")
    remedy = f"{_PIP} install 'impala[gpu]'"
    if _CHECKOUT:
        remedy = f"cd {shlex.quote(str(_CHECKOUT))} && {_PIP} install -c constraints.txt -e '.[gpu]'"
    yield _check("GPUs", seen > 0 or not present, detail, remedy, otherwise="warn")


def _network() -> Iterator[Check]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield _check("ports", True, f"127.0.0.1:{listener.getsockname()[1]} could be bound", "")
    except OSError as error:
        yield _check("ports", False, f"127.0.0.1: {error}", "ip link set lo up")


def _resources() -> Iterator[Check]:
    warn = functools.partial(_check, otherwise="warn")
    memory = machine.available_memory() / 2**30
    yield warn("memory", memory >= 4, f"{memory:.1f} GiB available", "ps aux --sort=-rss | head")
    cores = len(os.sched_getaffinity(0))
    yield warn("cores", cores >= 2, f"{cores} for this process", "taskset -cp 0-$(($(nproc --all) - 1)) $$")
    disk = shutil.disk_usage(".").free / 2**30
    yield warn("disk", disk >= 5, f"{disk:.1f} GiB free here", "du -sh runs/* | sort -h")
