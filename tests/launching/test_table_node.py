"""A table whose worker has ended is found, and takes its run no further down than to its newest checkpoint."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import reverb

from impala.launching import local, table_node


@pytest.fixture
def server():
    serving = reverb.Server([
        reverb.Table("replay", reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1)),
        reverb.Table.queue("queue", 10),
    ])  # fmt: skip
    yield serving
    threading.Thread(target=serving.stop, daemon=True).start()  # a dead worker would keep it


def write(client, table, priority):
    with client.trajectory_writer(num_keep_alive_refs=1, validate_items=False) as writer:
        writer.append({"x": np.float32(1)})
        writer.create_item(table, priority, {"x": writer.history["x"][-1:]})
        writer.flush(timeout_ms=1_000)


def looks(client, workers, count, meanwhile=lambda: None):
    found = []
    for _ in range(count):
        meanwhile()
        time.sleep(0.05)
        found.append(workers.dead(client.server_info(timeout=5)))
    return found


def test_an_idle_a_busy_and_a_full_table_live(server):
    client, workers = reverb.Client(f"localhost:{server.port}"), table_node.Workers()
    assert looks(client, workers, 8) == 8 * [None]
    assert looks(client, workers, 8, lambda: write(client, "replay", 1.0)) == 8 * [None]
    assert looks(client, workers, 8, lambda: list(client.sample("replay", 1))) == 8 * [None]
    for _ in range(10):
        write(client, "queue", 1.0)
    with pytest.raises(Exception, match="Flush"):  # noqa: B017, DeadlineExceededError has no public name
        write(client, "queue", 1.0)
    assert looks(client, workers, 8) == 8 * [None]


@pytest.mark.soak
def test_a_web_proxy_is_not_asked_for_a_table(server, tmp_path):
    """As on the hosts of companies and universities; Reverb would wait for it until its deadline."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    bare = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    code = f"import reverb; reverb.Client('localhost:{server.port}').server_info(timeout=5)"
    for more, status in (({}, 1), (local.node_environment("", tmp_path), 0)):
        done = subprocess.run([sys.executable, "-c", code], env=bare | proxies | more, capture_output=True, check=False)
        assert done.returncode == status, done.stderr[-1000:]


@pytest.mark.parametrize("answers, ends", [([False] * 30, True), (([False] * 29 + [True]) * 2, False)])
def test_a_server_that_does_not_answer_its_own_process_is_taken_for_dead(monkeypatch, answers, ends):
    """Actors and learner wait for it, each of them alive: nobody else would end it."""
    left, ended, said = [*answers], [], {}

    class Ended(Exception):
        pass

    def server_info(timeout):
        if not left.pop(0):
            raise RuntimeError("Deadline Exceeded")
        return {}

    def finish(status, words):
        ended.append((status, words))
        raise Ended

    monkeypatch.setattr(table_node.processes, "finish", finish)
    served = SimpleNamespace(localhost_client=lambda: SimpleNamespace(server_info=server_info))
    stop = SimpleNamespace(wait=lambda seconds: not left, note=said.update)
    watching = table_node.TableNode(lambda: [])._watch
    with pytest.raises(Ended) if ends else contextlib.nullcontext():
        assert watching(served, table_node.Workers(), stop, float("inf"))
    assert ended == ([(75, "the table server did not answer its own process 30 times in a row")] if ends else [])
    assert said == (dict(says=[ended[0][1]]) if ends else {})


def test_one_priority_below_zero_ends_a_table_and_is_found(server):
    client, workers = reverb.Client(f"localhost:{server.port}"), table_node.Workers()
    write(client, "replay", 1.0)
    with pytest.raises(Exception, match="Flush"):  # noqa: B017
        write(client, "replay", -1.0)
    found = looks(client, workers, 8)
    assert found[:6] == 6 * [None] and found[6:] == 2 * ["replay"]
