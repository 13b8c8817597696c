"""What a launcher does where Ray says no, or something else answers: without a cluster."""

import contextlib
import socket
import threading
import time

import pytest

from impala.config import ConfigError
from impala.launching import ray_cluster
from tests.programs.running import CATCH, end_of, press_ctrl_c, start


@pytest.fixture
def stranger():
    """Yields (a socket that listens and by itself never answers, its address)."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening, f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("banner", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_a_port_of_something_else_is_refused_in_one_line(monkeypatch, stranger, banner):
    listening, address = stranger
    kept = []

    def greet():
        with contextlib.suppress(OSError):  # the test is over, or the caller is gone
            while True:
                kept.append(listening.accept()[0])
                kept[-1].sendall(banner)

    threading.Thread(target=greet, daemon=True).start()
    monkeypatch.setattr(ray_cluster, "_PROBE_SECONDS", 3.0)
    began = time.monotonic()
    with pytest.raises(ConfigError) as refusal:
        ray_cluster.connect(address, is_trusted=False)
    (line,) = refusal.value.lines
    assert line.startswith(f"--cluster {address}: no answer of Ray's within 3 s; expected HOST:PORT where"), line
    assert len(kept) >= 2 and time.monotonic() - began < 30


def test_ctrl_c_ends_the_wait_for_an_answer(stranger, tmp_path):
    listening, address = stranger
    process = start(*CATCH, "--cluster", address, "--run", tmp_path / "run")
    listening.settimeout(120)
    callers = [listening.accept() for _ in range(2)]  # whether the port is open; then Ray's own client
    began = time.monotonic()
    press_ctrl_c(process)
    assert end_of(process) == "interrupted before training began\n" and process.returncode == 130 and time.monotonic() - began < 10
    assert not (tmp_path / "run").exists() and callers
