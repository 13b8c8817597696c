"""A node that waits for its table says so."""

import threading
from types import SimpleNamespace

import pytest

from impala.launching import beats, stopping
from impala.nodes import replaying


def test_a_table_that_does_not_answer_is_said_once(monkeypatch):
    """Behind a firewall nobody would know: each question is a sign of life."""
    monkeypatch.delenv(beats.ADDRESS_VARIABLE, raising=False)
    now, pulse = [0.0], beats.Pulse("actor/3", threading.Event())

    def server_info(timeout):
        now[0] += timeout
        if now[0] > 60:
            pulse.set()
        assert bool(pulse.facts.get("says")) == (now[0] > 32), "half a minute after it began, about"
        raise RuntimeError("connection refused")

    monkeypatch.setattr(replaying, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(pulse, "wait", lambda seconds: pulse.is_set())
    table = SimpleNamespace(server_info=server_info, server_address="10.0.0.7:20001")
    with pytest.raises(stopping.Stopped, match="before the table answered"):
        replaying.wait_for_server(table, pulse)
    (said,) = pulse.facts["says"]
    assert said.startswith("actor/3: the table at 10.0.0.7:20001 has not answered for 30 s; it may be")
