"""A server or clients of central inference in a process of their own, over shared memory: `python -m … serve|ask|predict`."""

import sys
import threading
import time

import numpy as np

from impala.acting import behaviours, chunks, inference, policies, predictors, remote
from impala.acting.lanes import Lanes
from impala.launching import shared_memory
from impala.replay.memory import MemoryQueue
from impala.types import ArraySpec, Discrete, EnvironmentSpec, Origin, Step

T, N = 5, 16  # steps of an unroll, environments of a client
SPEC = EnvironmentSpec("numbers", ArraySpec((2,), np.float32), actions=Discrete(3))


def network(window, is_first):
    """Outputs that tell whose step they are for: value = version = 1000 · who + which."""
    who, which = window[-1, :, 0], window[-1, :, 1]
    number = 1000 * who + which % 1000
    return np.zeros((len(who), 3), np.float32), number.astype(np.float32), number.astype(np.int64)


def step_of(who: int, which: int, is_first: bool = False, n: int = N) -> Step:
    """The step number `which` of a client; a hundred of them are an episode."""
    observation = np.tile(np.array([who, which], np.float32), (n, 1))
    return Step(
        observation, np.ones(n, np.float32), np.ones(n, np.float32), np.full(n, is_first or which % 100 == 0),
        np.full(n, which % 100 == 99),
    )  # fmt: skip


class Central:
    """Lanes that are served at `address`, and the queue that their unrolls go to."""

    def __init__(
        self, address: str, *, queue_size: int = 1000, max_environments: int = 64, timeout_seconds: float = 0.001,
        outputs=network,
    ):  # fmt: skip
        self.queue = MemoryQueue(queue_size)
        self.gatherer = inference.Gatherer(outputs, max_environments=max_environments, timeout_seconds=timeout_seconds)
        self.num_episodes = 0
        self.lanes = Lanes(
            lambda lane, n: policies.FeedForwardPolicy(self.gatherer, SPEC, n, seed=lane.actor), self._make_writer,
            unroll_length=T, spec=SPEC, on_episodes=self._count,
        )  # fmt: skip
        self._counting = threading.Lock()
        self.server = shared_memory.Server(address, self._act)

    def _act(self, name, number, step):
        decision = self.lanes.step(remote.LaneId(*name), number, Step(*step))
        return decision.action, decision.version

    def _make_writer(self, lane, n):
        origin = Origin(0, lane.actor, lane.first_environment, lane.life, 0)
        return chunks.UnrollWriter(
            SPEC, n, unroll_length=T, origin=origin, sink=self.queue, version_per_step=True
        )

    def _count(self, episodes):
        with self._counting:
            self.num_episodes += len(episodes)


def caller(address: str, who: int, life: int = 0, n: int = N) -> shared_memory.Caller:
    asked, given = remote.decision_fields(SPEC, n)
    return shared_memory.Caller(address, remote.LaneId(who, 0, life), arguments=asked, results=given)


def ask(address: str, first: int, num_clients: int, num_requests: int, life: int = 0, n: int = N) -> list[float]:
    """Keeps a request of each client under way; every answer must be its own and of its last request.

    Returns the seconds that each took.
    """
    clients, seconds = [caller(address, first + i, life, n) for i in range(num_clients)], []
    started = [time.perf_counter()] * num_clients
    for which in range(num_requests + 1):
        for i, client in enumerate(clients):
            if which:
                while not client.wait(1.0):
                    assert time.perf_counter() - started[i] < 60, "no answer"
                version = client.result()[1]
                assert version.tolist() == [1000 * (first + i) + (which - 1) % 1000] * n, "another one's answer"
                seconds.append(time.perf_counter() - started[i])
            if which < num_requests:
                started[i] = time.perf_counter()
                client(which, *step_of(first + i, which, is_first=which == 0, n=n))
    return seconds


class Predicting:
    """GA3C's predictors, served at `address`."""

    def __init__(self, address: str, outputs=network):
        self.predictors = predictors.Predictors(outputs, max_environments=64, num_threads=2, queue_size=8)
        self.server = shared_memory.Server(address, lambda name, number, arrays: self.predictors(*arrays))

    def close(self):
        self.server.close()
        self.predictors.crew.close()


def predict(address: str, who: int, num_requests: int) -> None:
    """Asks for one prediction after the other; every answer must be its own."""
    asked, given = remote.network_fields(SPEC, N, behaviours.sampled(SPEC.actions))
    client = shared_memory.Caller(address, (who,), arguments=asked, results=given)
    for which in range(num_requests):
        step = step_of(who, which)
        client(which, step.observation[None], step.is_first[None])
        assert client.wait(60.0)
        assert client.result()[1].tolist() == [1000 * who + which % 1000] * N, "another one's answer"


def main():
    mode, address = sys.argv[1:3]
    if mode == "serve":
        central = Central(address)
        print("SERVING", flush=True)
        for number, chunk in enumerate(central.queue.chunks()):
            if number % N == 0:
                print(*chunk.origin.tolist(), int(chunk.is_first[0]), int(chunk.observation[0, 1]), flush=True)
    elif mode == "predict":
        predict(address, *map(int, sys.argv[3:]))
    else:
        first, num_clients, num_requests, life, *n = map(int, sys.argv[3:])
        seconds = ask(address, first, num_clients, num_requests, life, *n)
        print(len(seconds), *np.percentile(seconds, [50, 99]), flush=True)


if __name__ == "__main__":
    main()
