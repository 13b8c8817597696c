"""More file descriptors than `select.select` can ask about."""

import contextlib
import os
import resource
import socket
import subprocess
import sys

import pytest

from impala.launching import descriptors
from tests.programs.running import ROOT


@pytest.fixture
def pair():
    """A pair of sockets whose numbers are above 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1_100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        one, other = socket.socketpair()
        assert one.fileno() > 1_024
        with one, other:
            yield one, other


def test_what_there_is_to_read_and_room_to_write_are_seen(pair):
    one, other = pair
    assert not descriptors.can_read(one, 0.01) and descriptors.can_write(one)
    other.send(b"x")
    assert descriptors.can_read(one, 0.0) and one.recv(9) == b"x"
    other.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            other.send(b"x" * 65_536)
    assert not descriptors.can_write(other)
    other.close()
    assert descriptors.can_read(one, 0.0), "that the other side is gone"


@pytest.mark.parametrize("hard, most", [(2_000, 2_000), (100_000, 65_536)])
def test_the_limit_is_raised_as_far_as_the_system_allows(hard, most):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip(f"this system allows fewer than {hard:,}")
    code = (
        f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))\n"
        "from impala.launching import descriptors\ndescriptors.raise_limit()\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"({most}, {hard})\n", done.stderr
