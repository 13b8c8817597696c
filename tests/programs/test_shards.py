"""Several shards of a parameter server: a checkpoint holds the same gradients of all of them; and the death of one."""

import functools
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest

from impala import config as config_lib
from impala.learning import checkpoints
from impala.learning.server import Push, Verdict
from impala.nodes import exchanging, server_node
from tests.programs.running import WATCHED, node, restarts, start, wait_for, wait_until_it_trains

NUM_WORKERS, NUM_PUSHES = 4, 60


def test_a_checkpoint_of_two_shards_is_of_one_moment_while_workers_push(tmp_path, two_shards):
    made = config_lib.load("configs/a3c_catch.yaml", {"server.num_shards": 2, "actor.num_actors": NUM_WORKERS})
    server, shard = two_shards(made, tmp_path)
    shards = (server, shard)
    random = [np.random.default_rng(worker) for worker in range(NUM_WORKERS)]

    def part(worker, number, of):
        gradients = [np.full(shape, 0.01 * worker, np.float32) for shape in of.server.shapes]
        return of.server.push(Push(worker, 0, number, of.server.version, gradients, 20))

    def work(worker):
        with futures.ThreadPoolExecutor(2) as sending:  # a worker's parts reach the shards in any order
            for number in range(NUM_PUSHES):
                order = random[worker].permutation(2)
                for one in [sending.submit(part, worker, number, shards[index]) for index in order]:
                    one.result(60)

    were_apart = False
    with futures.ThreadPoolExecutor(NUM_WORKERS) as pool:
        working = [pool.submit(work, worker) for worker in range(NUM_WORKERS)]
        while not all(one.done() for one in working):
            were_apart |= server.server.version != shard.server.version
            with server._hold():
                assert server.server._judged == shard.server._judged
                assert server.server.version == shard.server.version
                held = [variable.numpy() for variable in server.network.trainable_variables]
                for of, state in zip(server._shards, (server.server.read(), shard.server.read())):
                    for tensor, array in zip(of.tensors, state[2], strict=True):
                        np.testing.assert_array_equal(held[tensor], array)
        for one in working:
            one.result(0)
    assert were_apart, "without a pause the shards have different gradients"
    assert server.server.version == shard.server.version == NUM_WORKERS * NUM_PUSHES, "and none was lost"


def test_pushes_wait_for_a_copy_and_not_for_the_disk(tmp_path, two_shards, monkeypatch):
    made = config_lib.load("configs/a3c_catch.yaml", {"server.num_shards": 2, "actor.num_actors": 1})
    server, shard = two_shards(made, tmp_path)

    def push(of, number):
        return of.server.push(Push(0, 0, number, of.server.version, [np.ones(shape, np.float32) for shape in of.server.shapes], 20))

    def slow(num_updates, state):
        """A write to disk, in the midst of which both shards get a gradient."""
        with futures.ThreadPoolExecutor(2) as sending:
            seen.append([one.result(10) for one in [sending.submit(push, of, 1) for of in (server, shard)]])
        return save(num_updates, state)

    assert [push(of, 0) for of in (server, shard)] == 2 * [Verdict.ACCEPTED]
    save, seen = server.head._saver.save, []
    monkeypatch.setattr(server.head._saver, "save", slow)
    server.head.save()
    assert seen == [2 * [Verdict.ACCEPTED]] and server.server.version == shard.server.version == 2
    assert checkpoints.read_state(tmp_path / "checkpoints")["updates"] == 1, "of the moment before"


def test_a_gradient_that_never_reaches_a_shard_is_waited_for_once(tmp_path, two_shards, monkeypatch, caplog):
    """Its worker has died, and on a cluster may be away for hours."""
    monkeypatch.setattr(server_node, "_CATCH_UP_SECONDS", 1.5)
    made = config_lib.load("configs/a3c_catch.yaml", {"server.num_shards": 2, "actor.num_actors": 2})
    server, shard = two_shards(made, tmp_path)

    def push(of, worker, life, number):
        return of.server.push(Push(worker, life, number, of.server.version, [np.ones(shape, np.float32) for shape in of.server.shapes], 20))

    def moment():
        began = time.monotonic()
        with server._moment():
            return time.monotonic() - began

    assert push(server, 0, 0, 5) is Verdict.ACCEPTED and moment() >= 1.5 and caplog.text.count("only some of the shards") == 1
    assert [push(of, 1, 0, 0) for of in (server, shard)] == 2 * [Verdict.ACCEPTED]
    assert max(moment(), moment()) < 1.0
    assert push(server, 0, 1, 1) is Verdict.ACCEPTED and moment() >= 1.5, "another one"
    assert push(shard, 0, 1, 1) is Verdict.ACCEPTED and moment() < 1.0 and caplog.text.count("only some of the shards") == 2


def test_all_shards_of_a_barrier_hear_of_what_takes_the_place_of_a_lost_gradient(tmp_path, two_shards, monkeypatch):
    """Worker 0 died when its gradient had reached the first shard only; worker 1 waits at the second one."""
    monkeypatch.setattr(server_node, "_CATCH_UP_SECONDS", 20.0)
    made = config_lib.load("configs/a3c_catch.yaml", {"server.num_shards": 2, "actor.num_actors": 2, "server.barrier": True})
    shards = server, _ = two_shards(made, tmp_path)

    def push(of, worker, life, number, version, is_finite=True):
        gradients = [np.ones(shape, np.float32) for shape in of.server.shapes]
        return of.server.push(Push(worker, life, number, version, gradients, 20, is_finite))

    def request(of, pool, number, head, *arrays):
        answer = pool.submit(push, of, 0, 1, number, int(head[0]), bool(head[2] & 1))
        return SimpleNamespace(wait=lambda seconds: bool(futures.wait([answer], seconds).done), result=lambda: [[answer.result(0), 0, 0]])

    with futures.ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(push, of, worker, 0, 1, 0) for of, worker in zip([server, *shards], (0, 1, 1))]
        wait_for(lambda: server.server.version == 1, 10, "the first shard's round")
        requests = [functools.partial(request, of, pool) for of in shards]
        exchange = exchanging.Exchange(requests, server._shards, [1, 0], frames_per_step=1, should_stop=lambda: False)
        exchange.agree(lambda: [of.server.version for of in shards])
        assert [one.result(10) for one in waiting] == 3 * [Verdict.ACCEPTED] and exchange.versions == [1, 1]
        began = time.monotonic()
        with server._moment():
            assert time.monotonic() - began < 5 and shards[0].server._judged == shards[1].server._judged


def test_what_a_server_holds_is_saved_whatever_ends_it(tmp_path, two_shards, monkeypatch):
    made = config_lib.load("configs/a3c_catch.yaml", {"server.num_shards": 2, "actor.num_actors": 1, "log_period_seconds": 0.1})
    server, shard = two_shards(made, tmp_path)
    monkeypatch.setattr(server, "_log", lambda: 1 / 0)
    for of in (server, shard):
        of.server.push(Push(0, 0, 1, 0, [np.ones(shape, np.float32) for shape in of.server.shapes], 20))
    with pytest.raises(ZeroDivisionError):
        server.run()
    assert checkpoints.read_state(tmp_path / "checkpoints")["updates"] == 1


@pytest.mark.soak
def test_all_nodes_start_again_within_seconds_of_a_shards_death(tmp_path):
    """The first can save nothing more, and should not wait for the one that is gone."""
    folder = tmp_path / "run"
    two = ["--server.num-shards", 2, "--checkpoint-period-seconds", 2]
    process = start("train", "--config", "configs/a3c_catch.yaml", "--run", folder, *WATCHED, *two)
    wait_until_it_trains(folder, 5)
    time.sleep(3.0)  # there is a checkpoint
    node(process, "shard/0").kill()
    began = time.monotonic()
    wait_for(lambda: restarts(folder), 90, "all have ended")
    assert time.monotonic() - began < 15, "30 s: the first shard waited for a copy from the one that is gone"
