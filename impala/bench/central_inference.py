"""Central inference alone: callers in processes of their own, whose environments take no time, ask without a pause.

The server does for a request what it does in the program: SEED's lanes remember, decide and write unrolls, GA3C's
predictors only predict. For comparison, the same network is called directly in batches as large as the server's.
"""

import multiprocessing
import os
import time
from concurrent import futures

from impala import config as config_lib

TRANSPORTS = ("shared_memory", "rpc")


def serving_rates(config: config_lib.Config, seconds: float) -> dict[str, float]:
    """Returns agent steps/s that are decided directly and over each transport, and latencies in seconds.

    direct, direct_at_once: the bare network in batches of `direct_batch`, whole lanes close to shared memory's mean
    batch, called by one thread and by as many as the server computes at once; shared_memory, rpc: rates;
    shared_memory_batch, …: mean environments in a batch; shared_memory_p50, …: percentiles of a request's time.
    """
    from impala import agents
    from impala.acting import policies
    from impala.bench import parts
    from impala.launching import processes

    processes.hide_gpus()
    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    spec = parts.make_environment(config, 1).spec
    outputs = policies.network_outputs(agents.of(config).make_network(config, spec))
    result = {}
    for transport in TRANSPORTS:
        result |= _served(config, spec, outputs, transport, seconds)
    n = config.actor.num_lane_environments
    batch = max(1, round(result["shared_memory_batch"] / n)) * n
    inputs = parts.random_inputs(spec, batch, config.network.core_state_shape)

    def infer():
        outputs(*inputs)
        return batch

    num_at_once = config.ga3c.num_predictors if _has_predictors(config) else config.inference.num_at_once
    with futures.ThreadPoolExecutor(num_at_once) as pool:
        together = [pool.submit(parts.rate, infer, seconds) for _ in range(num_at_once)]
        at_once = sum(rate.result() for rate in together)
    return result | dict(direct=parts.rate(infer, seconds), direct_at_once=at_once, direct_batch=batch)


def _has_predictors(config) -> bool:
    return config.has_use_for("ga3c.num_predictors")


def _served(config, spec, outputs, transport: str, seconds: float) -> dict[str, float]:
    import numpy as np

    from impala.launching import shared_memory
    from impala.launching.rpc import server as rpc_server

    method, log, close = (_predictors if _has_predictors(config) else _lanes)(config, spec, outputs)
    if transport == "rpc":
        num_threads = config.actor.num_actors * config.actor.num_lanes + 4
        server = rpc_server.Server(thread_pool_size=num_threads)
        server.Bind("ask", lambda name, number, *arrays: tuple(method(tuple(name), number, *arrays)))
        server.Start()
        address, stop = server.address, server.Stop
    else:
        address = shared_memory.new_address()
        server = shared_memory.Server(address, lambda name, number, arrays: method(name, number, *arrays))
        stop = server.close
    context = multiprocessing.get_context("spawn")
    begun, over, asking = context.Event(), context.Event(), context.Semaphore(0)
    count, shared = config.actor.num_actors, (begun, over, asking)
    with futures.ProcessPoolExecutor(count, mp_context=context, initializer=_keep, initargs=shared) as pool:
        callers = [pool.submit(_ask, config, spec, transport, address, index) for index in range(count)]
        try:
            for _ in callers:  # until all ask
                while not asking.acquire(timeout=0.1):
                    if failed := [caller for caller in callers if caller.done()]:
                        failed[0].result()
            time.sleep(1.0)  # batches of all of them may be larger than any before, and are traced
            log.columns()
            begun.set()
            started, before = time.perf_counter(), log.num_environments
            time.sleep(seconds)
            rate = (log.num_environments - before) / (time.perf_counter() - started)
            batch = log.columns()["inference_batch_mean"]
        finally:
            over.set()
        latencies = np.concatenate([caller.result() for caller in callers])
    stop()
    close()
    percentiles = {f"{transport}_p{p}": float(np.percentile(latencies, p)) for p in (50, 99)}
    return {transport: rate, f"{transport}_batch": batch} | percentiles


def _lanes(config, spec, outputs):
    from impala import agents
    from impala.acting import chunks, inference, remote
    from impala.acting.lanes import Lanes
    from impala.acting.policies import with_version
    from impala.nodes.parts import make_policy
    from impala.types import Origin

    gatherer = inference.Gatherer(
        with_version(outputs, lambda: 0), max_environments=config.inference.max_environments,
        timeout_seconds=config.inference.timeout_seconds, num_at_once=config.inference.num_at_once,
    )  # fmt: skip
    behaviour, length = agents.of(config).make_behaviour(config, spec), config.learner.unroll_length

    def make_writer(lane, n: int):
        origin = Origin(0, lane.actor, lane.first_environment, 0, 0)
        if config.replays_alone:  # what is written is measured with the table
            return remote.NoWriter()
        return chunks.UnrollWriter(
            spec, n, unroll_length=length, origin=origin, sink=lambda chunks: None, behaviour=behaviour,
            version_per_step=True,
        )  # fmt: skip

    lanes = Lanes(
        lambda lane, n: make_policy(gatherer, spec, n, seed=lane.actor, behaviour=behaviour), make_writer,
        unroll_length=length, spec=spec,
    )  # fmt: skip

    def step(name, number, *arrays):
        from impala.acting.remote import LaneId
        from impala.types import Step

        decision = lanes.step(LaneId(*name), number, Step(*arrays))
        return decision.action, decision.version

    return step, gatherer.log, lambda: None


def _predictors(config, spec, outputs):
    from impala.acting.policies import with_version
    from impala.acting.predictors import Predictors

    predictors = Predictors(
        with_version(outputs, lambda: 0), max_environments=config.inference.max_environments,
        num_threads=config.ga3c.num_predictors, queue_size=config.ga3c.num_predictions,
    )  # fmt: skip
    return lambda name, number, *arrays: predictors(*arrays), predictors.log, predictors.crew.close


# --- in the callers' processes

_FIRST_ROUNDS = 20  # before a caller counts as one that asks
_begun = _over = _asking = None


def _keep(begun, over, asking) -> None:
    global _begun, _over, _asking
    _begun, _over, _asking = begun, over, asking


def _ask(config, spec, transport: str, address: str, actor: int) -> list[float]:
    """Keeps a request of every lane under way until `_over` is set; returns the seconds of those since `_begun` was."""
    import functools

    from impala import agents
    from impala.acting import remote
    from impala.bench import parts
    from impala.launching import shared_memory
    from impala.launching.rpc import client as rpc_client

    n = config.actor.num_lane_environments
    if config.has_central_decisions:
        inputs, (asked, given) = parts.random_step(spec, n), remote.decision_fields(spec, n)
    else:
        behaviour = agents.of(config).make_behaviour(config, spec)
        inputs = parts.random_inputs(spec, n, behaviour.core_state_shape)
        asked, given = remote.network_fields(spec, n, behaviour)
    lanes, seconds = [], []
    for lane in range(config.actor.num_lanes):
        name = (actor, lane * n, 0, 0)
        if transport == "rpc":
            client = rpc_client.Client(address, call_timeout=60)
            lanes.append(functools.partial(remote.over_rpc(client.futures.ask), name))
        else:
            lanes.append(shared_memory.Caller(address, name, arguments=asked, results=given))
    under_way = [(time.perf_counter(), ask(0, *inputs)) for ask in lanes]
    number = 0
    while not _over.is_set():
        number += 1
        if number == _FIRST_ROUNDS:
            _asking.release()
        for index, ask in enumerate(lanes):
            started, pending = under_way[index]
            while not pending.wait(1.0):
                if _over.is_set():
                    return seconds
            pending.result()
            if _begun.is_set():
                seconds.append(time.perf_counter() - started)
            under_way[index] = time.perf_counter(), ask(number, *inputs)
    return seconds
