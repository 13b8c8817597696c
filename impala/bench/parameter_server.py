"""A parameter server: what an exchange with it costs, and what its workers would do without it."""

import functools
import multiprocessing
import threading
import time
from concurrent import futures

from impala import config as config_lib
from impala.bench.whole import lockstep_rate

TRANSPORTS = ("shared_memory", "rpc")
_REFUSED = 1  # the number of a call whose gradient is too old


def measure(config: config_lib.Config, seconds: float) -> dict[str, float]:
    """Returns bytes of an exchange, and seconds (p50, p99) of it by transport, of a pull, of what it consists of.

    In an exchange a gradient of all parameters goes to a server of one shard (a push), and the parameters come back. A
    `pull`, as when a worker joins, is of the parameters alone, over RPC. `apply` is the server's part: it checks the
    gradient and applies it; `optimizer_cpu` is the CPU time of the optimizer's arithmetic in it. `refused` is an
    exchange through shared memory whose gradient is checked and not applied: what crosses, both ways, and nothing else.
    """
    import numpy as np

    from impala import agents
    from impala.agents import shared
    from impala.launching import processes, shared_memory
    from impala.launching.rpc.client import Client
    from impala.launching.rpc.server import Server
    from impala.learning.server import ParameterServer, Push, State
    from impala.nodes import checking

    processes.hide_gpus()
    processes.set_tensorflow_threads(config.learner.num_tensorflow_threads)
    agent = agents.of(config)
    variables = agent.make_network(config, checking.check(config)).trainable_variables
    arrays = [variable.numpy() for variable in variables]
    server = ParameterServer(
        State(0, 0, arrays, []), functools.partial(shared.make_optimizer, config), agent.make_schedules(config)
    )
    numbers, lock = iter(range(10**12)), threading.Lock()

    def push(_name, call, *gradients):
        gradients = gradients[0] if len(gradients) == 1 else gradients
        with lock:
            number = next(numbers)
        server.push(Push(0, 0, number, -1 if call == _REFUSED else server.version, gradients, 0))
        return server.read()[2]

    gradients = [np.full_like(array, 1e-6) for array in arrays]
    result = {"bytes": 2.0 * sum(array.nbytes for array in arrays)}
    result["optimizer_cpu"] = _optimizer_cpu(config, variables, gradients, seconds / 4)
    fields = [(array.shape, array.dtype) for array in arrays]
    address = shared_memory.new_address()
    memory = shared_memory.Server(address, push)
    caller = shared_memory.Caller(address, (0,), arguments=fields, results=fields)

    def through_memory(call=0):
        pending = caller(call, *gradients)
        while not pending.wait(1.0):
            pass
        return pending.result()

    rpc = Server()
    rpc.Bind("push", push)
    rpc.Bind("read", server.read)
    rpc.Start()
    client = Client(f"localhost:{rpc.port}", call_timeout=60)
    calls = {
        "apply": lambda: server.push(Push(0, 0, next(numbers), 0, gradients, 0)), "shared_memory": through_memory,
        "rpc": lambda: client.push((0,), 0, *gradients), "pull": client.read,
        "refused": lambda: through_memory(_REFUSED),
    }  # fmt: skip
    result |= _quantiles(calls, 3 * seconds / 4)
    caller.close()
    memory.close()
    rpc.Stop()
    return result


def _optimizer_cpu(config: config_lib.Config, variables, gradients, seconds: float) -> float:
    """CPU seconds of all threads for one application of a gradient by the optimizer, and nothing else."""
    from impala.agents import shared
    from impala.traces import Traced

    optimizer = shared.make_optimizer(config, variables)

    def apply_all(arrays):
        optimizer.apply_gradients(list(zip(arrays, variables, strict=True)))

    apply = Traced(apply_all)
    for _ in range(5):
        apply(gradients)
    count, cpu, end = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        apply(gradients)
        count += 1
    return (time.process_time() - cpu) / count


def _quantiles(calls: dict, seconds: float) -> dict[str, float]:
    """Times all calls in turn, so that whatever else the machine does takes as much from each."""
    import numpy as np

    times, end = {name: [] for name in calls}, time.perf_counter() + seconds
    for call in calls.values():
        for _ in range(5):
            call()
    while time.perf_counter() < end or len(times[next(iter(calls))]) < 20:
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {
        f"{name}_p{share}": float(np.percentile(taken, share)) for name, taken in times.items() for share in (50, 99)
    }


def separate_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of as many processes as there are workers, each of which trains parameters of its own on a core."""
    changes = {"actor.num_actors": 1, "server.num_late": 0, "environment.name": config.environment.tasks[0]}
    alone = config_lib.build(config_lib.as_data(config), changes)
    with futures.ProcessPoolExecutor(config.actor.num_actors, mp_context=multiprocessing.get_context("spawn")) as pool:
        rates = [pool.submit(_on_a_core, alone, index, seconds) for index in range(config.actor.num_actors)]
        return sum(rate.result() for rate in rates)


def _on_a_core(config: config_lib.Config, index: int, seconds: float) -> float:
    import os

    cores = sorted(os.sched_getaffinity(0))
    return lockstep_rate(config, seconds, core=cores[index % len(cores)])
