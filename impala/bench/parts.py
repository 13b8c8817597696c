"""Bare calls of each part: what the machine could do if nothing stood between the parts."""

import itertools
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

from impala import config as config_lib


def rate(call: Callable[[], int], seconds: float) -> float:
    """Calls `call` for `seconds`, after a warm-up of a fifth of that; returns steps per second, counted by `call`."""
    warm = time.perf_counter() + seconds / 5
    while time.perf_counter() < warm:
        call()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        steps += call()
    return steps / (time.perf_counter() - started)


def environment_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of one actor's environments with random actions on all cores; of several tasks, as many of each.

    Only Atari's take threads: of others each core steps some in a process of its own, and their rates are added.
    """
    num_tasks = len(config.environment.tasks)
    return statistics.harmonic_mean([_rate_of_task(config, task, seconds / num_tasks) for task in range(num_tasks)])


def _rate_of_task(config: config_lib.Config, task: int, seconds: float) -> float:
    if config.environment.tasks[task].startswith("atari:"):
        return _random_rate(config, task, seconds)
    count, spawn = len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(count, spawn, initializer=_keep, initargs=(spawn.Barrier(count),)) as pool:
        return sum(pool.map(_random_rate, [config] * count, [task] * count, [seconds] * count))


_all_are_ready: Any = None  # a barrier of the processes that measure at once


def _keep(barrier) -> None:
    global _all_are_ready
    _all_are_ready = barrier


def _random_rate(config: config_lib.Config, task: int, seconds: float) -> float:
    import numpy as np

    from impala import sampling

    environment = make_environment(config, config.actor.num_environments, task)
    random, n = np.random.default_rng(0), environment.num_environments
    sampler, uniform = sampling.of(environment.spec.actions), _uniform(environment.spec, n)
    environment.reset(0)
    if _all_are_ready is not None:
        _all_are_ready.wait(60)

    def step():
        environment.send(sampler.sample(uniform, random))
        environment.receive()
        return n

    return rate(step, seconds)


def inference_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of inference for all environments of one actor at once on all cores."""
    from impala.launching import processes

    processes.hide_gpus()
    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    return rate(inference_of(config), seconds)


def inference_of(config: config_lib.Config) -> Callable[[], int]:
    """Returns a call that infers for all environments of one actor, and returns their number."""
    from impala import agents
    from impala.acting import policies

    spec = make_environment(config, 1).spec
    network = agents.of(config).make_network(config, spec)
    outputs = policies.network_outputs(network)
    inputs = random_inputs(spec, config.actor.num_environments, network.core_state_shape)

    def infer():
        outputs(*inputs)
        return config.actor.num_environments

    return infer


def random_inputs(spec, n: int, core_state_shape=None) -> tuple:
    """Returns inputs of `Outputs` for n environments: random frames, in the midst of an episode."""
    import numpy as np

    (shape, dtype), (action_shape, action_dtype) = spec.observation, spec.actions.array
    window = np.random.default_rng(0).integers(0, 255, (spec.num_stacked, n, *shape)).astype(dtype)
    memory = ()
    if core_state_shape:
        state = np.zeros((n, *core_state_shape), np.float32)
        memory = np.zeros((1, n, *action_shape), action_dtype), np.zeros((1, n), np.float32), state
    return window, np.zeros((1, n), bool), *memory


def random_step(spec, n: int):
    """Returns a step of n environments: random frames, in the midst of an episode."""
    import numpy as np

    from impala.types import Step

    shape, dtype = spec.observation
    frames = np.random.default_rng(0).integers(0, 255, (n, *shape)).astype(dtype)
    return Step(frames, np.zeros(n, np.float32), np.ones(n, np.float32), np.zeros(n, bool), np.zeros(n, bool))


def learner_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of updates on a batch in memory on all cores."""
    from impala.launching import processes

    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)), config.learner.num_parallel_operations)
    return rate(update_of(config), seconds)


def update_of(config: config_lib.Config) -> Callable[[], int]:
    """Returns a call that updates on a batch in memory, and returns for how many agent steps that stands."""
    from impala import agents
    from impala.agents import shared

    spec = make_environment(config, 1).spec
    network = agents.of(config).make_network(config, spec)
    learner = agents.of(config).make_learner(config, network)
    batch = next(iter(shared.make_batches(config, network, spec, 0, 0)(random_batch(config, spec))))

    def update():
        learner.update(batch, 1e-5)
        return config.steps_per_update

    return update


def table_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of one actor's randomly played chunks, through a Reverb queue into batches; all cores."""
    import reverb

    from impala import agents
    from impala.acting import chunks
    from impala.replay import datasets, tables
    from impala.types import Origin

    unroll = random_unroll(config)
    spec, length = make_environment(config, 1).spec, config.learner.unroll_length
    chunk = agents.of(config).make_chunk_spec(config, spec)
    server = reverb.Server([tables.queue(chunk, config.queue_size)], port=None)
    address = f"localhost:{server.port}"
    stop = threading.Event()
    sink = chunks.TableSink(reverb.Client(address), [tables.QUEUE], should_stop=stop.is_set, max_pending=len(unroll))

    def write():
        for seq in itertools.count():
            if stop.is_set():
                return
            for chunk in unroll:
                chunk.origin[Origin._fields.index("seq")] = seq
            sink(unroll)

    batch_size = config.learner.batch_size
    feeder = datasets.Feeder(
        lambda: datasets.chunks(address, tables.QUEUE, max_in_flight=batch_size), batch_size=batch_size
    )
    writer = threading.Thread(target=write, daemon=True)
    writer.start()

    def read():
        assert feeder.get(timeout_seconds=60) is not None
        return batch_size * length

    try:
        return rate(read, seconds)
    finally:
        stop.set()
        feeder.stop()
        writer.join(5)


def random_unroll(config: config_lib.Config) -> list:
    """Plays unrolls of one lane with random actions; returns the chunks of one that comes after a warm-up."""
    import numpy as np

    from impala import agents
    from impala.nodes import parts
    from impala.types import Origin

    n = config.actor.num_lane_environments
    environment = make_environment(config, n)
    spec, unrolls = environment.spec, []

    behaviour = agents.of(config).make_behaviour(config, spec)

    def uniform(window, is_first, *memory):
        return *(np.zeros((n, *each.shape), each.dtype) for each in behaviour.numbers), *memory[2:]

    actor = parts.make_actor(
        environment, uniform, seed=0, unroll_length=config.learner.unroll_length, origin=Origin(0, 0, 0, 0, 0),
        sink=unrolls.append, behaviour=behaviour,
    )  # fmt: skip
    for _ in actor.steps(0):
        if len(unrolls) == 10:
            return unrolls[-1]


def _uniform(spec, n: int):
    """Parameters of n policies that are uniform over discrete actions."""
    import numpy as np

    return np.zeros((n, spec.actions.num_parameters), np.float32)


def make_environment(config: config_lib.Config, num_environments: int, task: int = 0):
    """Makes the configured environments of one task with one thread for each core."""
    from impala.nodes import parts

    return parts.make_environment(config, num_environments, num_threads=len(os.sched_getaffinity(0)), task=task)


def random_batch(config: config_lib.Config, spec, size: int | None = None):
    """Returns a batch of `size` chunks, by default as configured: random frames and floats, everything else 0."""
    import numpy as np
    import tensorflow as tf

    from impala import agents
    from impala.replay import datasets
    from impala.types import map_fields

    random = np.random.default_rng(0)

    def draw(field):
        if field.dtype == np.uint8:
            return random.integers(0, 255, field.shape).astype(np.uint8)
        if field.dtype == np.float32:
            return random.random(field.shape, dtype=np.float32)
        return np.zeros(field.shape, field.dtype)

    chunk = agents.of(config).make_chunk_spec(config, spec)
    batch = datasets.stack([map_fields(draw, chunk) for _ in range(size or config.learner.batch_size)])
    return map_fields(tf.convert_to_tensor, batch)
