"""Several learners alone, on batches in memory: what updating together costs."""

import contextlib
import multiprocessing
import os
import socket
import time
from concurrent import futures

from impala import config as config_lib
from impala.bench import parts

_NUM_WARM_UP = 10  # updates


def learners_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of all configured learners, which update together on batches in memory and share all cores."""
    num_learners = config.learner.num_learners
    if num_learners == 1:
        return parts.learner_rate(config, seconds)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(num_learners)]
        addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    with futures.ProcessPoolExecutor(num_learners, mp_context=multiprocessing.get_context("spawn")) as pool:
        rates = [pool.submit(_rate_in_group, config, index, addresses, seconds) for index in range(num_learners)]
        return rates[0].result()


def _rate_in_group(config: config_lib.Config, index: int, addresses: list[str], seconds: float) -> float:
    from impala import agents
    from impala.launching import peers, processes
    from impala.nodes.learner_group import make_group

    size = config.learner.batch_size // len(addresses)
    num_threads = max(1, len(os.sched_getaffinity(0)) // len(addresses))
    processes.set_tensorflow_threads(num_threads, config.learner.num_parallel_operations)
    processes.learner_device(index)
    peers.meet(index, addresses, seconds=60, should_stop=lambda: False)
    group = make_group(config, index, addresses)
    spec = parts.make_environment(config, 1).spec
    learner = agents.of(config).make_learner(config, agents.of(config).make_network(config, spec), group=group)
    batch = parts.random_batch(config, spec, size)

    def update(until: float = 0.0):
        learner.update(batch, 1e-5)
        return group.agree(is_ready=True, wants_end=time.perf_counter() > until)[1]

    for _ in range(_NUM_WARM_UP):
        update()
    started, num_updates, is_over = time.perf_counter(), 0, False
    while not is_over:
        is_over = update(started + seconds)
        num_updates += 1
    return num_updates * config.steps_per_update / (time.perf_counter() - started)
