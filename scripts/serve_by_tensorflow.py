#!/usr/bin/env python
"""Central inference by TensorFlow's own RPC, an alternative that was not adopted: scripts/serve_by_tensorflow.py.

Writes docs/results/bench/tensorflow_rpc.json: decisions per second of the bare network in batches of one lane, of a
`tf.function` that is registered as it is, and of one whose requests TensorFlow's batch function puts together. A
request is one lane's frames; the server keeps no state of the environments, and repeats the frame to fill the stack.
Otherwise as `impala bench --config configs/seed_pong.yaml`, with which to compare, on an otherwise idle machine.
"""

import collections
import json
import multiprocessing
import os
import socket
import time
from concurrent import futures
from pathlib import Path

from impala import config as config_lib
from impala.bench import parts

SECONDS = 12.0


def main():
    config = config_lib.load("configs/seed_pong.yaml")
    context = multiprocessing.get_context("spawn")
    result = {}
    for name in ("direct", "function", "batch_function"):  # a process each: TensorFlow's servers are not stopped
        with futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            result[name] = pool.submit(measure, config, name).result()
        print(f"{name:15} {result[name]:8,.0f} decisions/s", flush=True)
    path = Path("docs/results/bench/tensorflow_rpc.json")
    path.write_text(json.dumps(result, indent=1) + "\n")


def measure(config, name: str) -> float:
    from impala.launching import processes

    processes.hide_gpus()
    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    spec = parts.make_environment(config, 1).spec
    decide = make_function(config, spec, is_batched=name == "batch_function")
    lane = frames_of(config)
    if name == "direct":
        return parts.rate(lambda: len(decide(lane)[0].numpy()), SECONDS)
    return served(config, decide)


def make_function(config, spec, *, is_batched: bool):
    """Returns frames [n, …] → (logits, value) as a `tf.function`."""
    import tensorflow as tf

    from impala.agents.actor_critic import make_network

    network = make_network(config, spec)
    shape, dtype = spec.observation

    def decide(frames):
        stack = tf.tile(frames[None], [spec.num_stacked, *[1] * (1 + len(shape))])
        outputs = network(stack, tf.zeros([1, tf.shape(frames)[0]], tf.bool))
        return outputs.logits[0], outputs.value[0]

    if is_batched:
        decide = tf.nondifferentiable_batch_function(
            config.inference.num_at_once, config.inference.max_environments,
            round(1e6 * config.inference.timeout_seconds),
        )(decide)  # fmt: skip
    return tf.function(decide, input_signature=[tf.TensorSpec([None, *shape], dtype)], autograph=False)


def served(config, decide) -> float:
    import tensorflow as tf

    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    server = tf.distribute.experimental.rpc.Server.create("grpc", address)
    server.register("decide", decide)
    server.start()
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("l", 0) for _ in range(config.actor.num_actors)]
    callers = [context.Process(target=ask, args=(config, address, count), daemon=True) for count in counts]
    for caller in callers:
        caller.start()
    while min(count.value for count in counts) < 1_000:  # all are there, and traces are made
        if not all(caller.is_alive() for caller in callers):
            raise RuntimeError(f"a caller ended: {[caller.exitcode for caller in callers]}; expected none to")
        time.sleep(0.05)
    before, started = sum(count.value for count in counts), time.perf_counter()
    time.sleep(SECONDS)
    rate = (sum(count.value for count in counts) - before) / (time.perf_counter() - started)
    for caller in callers:
        caller.kill()
    return rate


def ask(config, address: str, count) -> None:
    """Keeps a request of every lane under way; counts environments decided for."""
    import tensorflow as tf

    lane = tf.constant(frames_of(config))
    client = tf.distribute.experimental.rpc.Client.create("grpc", address, timeout_in_ms=60_000)
    under_way = collections.deque(client.decide(lane) for _ in range(config.actor.num_lanes))
    while True:
        answer = under_way.popleft()
        if not answer.is_ok():
            raise RuntimeError(answer.get_error())
        count.value += len(answer.get_value()[0].numpy())
        under_way.append(client.decide(lane))


def frames_of(config):
    spec = parts.make_environment(config, 1).spec
    return parts.random_step(spec, config.actor.num_lane_environments).observation


if __name__ == "__main__":
    main()
