"""`impala bench`: the rate of each part alone, the machine's bound, and how close the whole comes to it.

A part is a bare call in a process of its own with all cores: the environments' step, one inference of an actor's
batch, one update on a batch in memory, chunks through a Reverb table. One agent step costs all four, so the machine
cannot train faster than the bound

    1 / (1/env + 1/inference + 1/learner + 1/table)      agent steps per second

The parts are measured before and after the whole, in turn, and averaged: a machine that drifts drifts for both.
"""

import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

from impala import config as config_lib

_PART_SECONDS, _TRAIN_SECONDS, _WARM_UP_SECONDS = 6.0, 75.0, 30.0
_DEFAULT = {"environment": {"name": "atari:pong"}, "learner": {"unroll_length": 20, "batch_size": 4}}  # as pong.yaml


def bound(env: float, inference: float, learner: float, table: float) -> float:
    """Returns the agent steps per second of a machine that wastes nothing, from the rates of its parts alone."""
    return 1.0 / (1.0 / env + 1.0 / inference + 1.0 / learner + 1.0 / table)


def rate(call: Callable[[], int], seconds: float) -> float:
    """Calls `call` for `seconds` after a warm-up of a fifth of it; returns the steps per second that it counts."""
    warm = time.perf_counter() + seconds / 5
    while time.perf_counter() < warm:
        call()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        steps += call()
    return steps / (time.perf_counter() - started)


def environment_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of one actor's environments with random actions on all cores."""
    import numpy as np

    environment = _make_environment(config, config.actor.num_environments)
    random, n = np.random.default_rng(0), environment.num_environments
    environment.reset(0)

    def step():
        environment.send(random.integers(environment.spec.num_actions, size=n).astype(np.int32))
        environment.receive()
        return n

    return rate(step, seconds)


def inference_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of inference for all environments of one actor at once on all cores."""
    import numpy as np

    from impala.acting import policies
    from impala.launching import processes
    from impala.programs.compose import make_network

    processes.hide_gpus()
    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    spec = _make_environment(config, 1).spec
    network = make_network(config, spec)
    logits = policies.network_outputs(network)
    n = config.actor.num_environments
    shape, dtype = spec.observation
    window = np.random.default_rng(0).integers(0, 255, (spec.num_stacked, n, *shape)).astype(dtype)
    is_first = np.zeros((1, n), bool)

    def infer():
        logits(window, is_first)
        return n

    return rate(infer, seconds)


def learner_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of updates on a batch in memory on all cores."""
    from impala.launching import processes
    from impala.programs.compose import make_learner, make_network

    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    spec = _make_environment(config, 1).spec
    learner = make_learner(config, make_network(config, spec))
    batch = _random_batch(config, spec)

    def update():
        learner.update(batch, 1e-5)
        return config.steps_per_update

    return rate(update, seconds)


def vtrace_fraction(config: config_lib.Config, seconds: float) -> float:
    """Share of V-trace in the learner's step at T = 20, B = 32: its time alone over the step's time alone."""
    import tensorflow as tf

    from impala.launching import processes
    from impala.programs.compose import make_correction, make_learner, make_network

    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    sizes = {"unroll_length": 20, "batch_size": 32}
    config = config.model_copy(update={"learner": config.learner.model_copy(update=sizes)})
    spec = _make_environment(config, 1).spec
    learner = make_learner(config, make_network(config, spec))
    batch = _random_batch(config, spec)
    correction = tf.function(make_correction(config.loss), autograph=False)
    value = tf.random.normal([config.learner.unroll_length + 1, config.learner.batch_size])
    arguments = dict(
        v_tm1=value[:-1], v_t=value[1:], r_t=batch.r_t, discount_t=batch.discount_t, log_rho_tm1=0.1 * value[1:],
        mask_t=tf.ones_like(batch.r_t),
    )  # fmt: skip

    def correct():
        correction(**arguments).target_tm1.numpy()
        return 1

    def update():
        learner.update(batch, 1e-5)
        return 1

    return rate(update, seconds / 2) / rate(correct, seconds / 2)


def table_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of an actor's chunks, played at random, through a Reverb queue into batches; all cores."""
    import reverb

    from impala.acting import chunks
    from impala.replay import datasets, tables
    from impala.types import chunk_spec

    unroll = _random_unroll(config)
    spec, length = _make_environment(config, 1).spec, config.learner.unroll_length
    server = reverb.Server([tables.queue(chunk_spec(spec, length), config.replay.queue_size)], port=None)
    address = f"localhost:{server.port}"
    stop = threading.Event()
    sink = chunks.TableSink(reverb.Client(address), [tables.QUEUE], should_stop=stop.is_set, max_pending=len(unroll))

    def write():
        for seq in itertools.count():
            if stop.is_set():
                return
            for chunk in unroll:
                chunk.origin[-1] = seq
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


def _random_unroll(config: config_lib.Config) -> list:
    """Plays one unroll of one lane with random actions, after a few of warm-up; returns its chunks."""
    import numpy as np

    from impala.acting import actors, chunks, policies
    from impala.types import Origin

    n = config.actor.num_environments // config.actor.num_lanes
    environment = _make_environment(config, n)
    spec, unrolls = environment.spec, []
    uniform = lambda window, is_first: np.zeros((n, spec.num_actions), np.float32)  # noqa: E731
    actor = actors.Actor(
        environment,
        policies.Policy(uniform, spec, n, seed=0),
        chunks.UnrollWriter(
            spec, n, unroll_length=config.learner.unroll_length, origin=Origin(0, 0, 0, 0, 0), sink=unrolls.append
        ),
        lambda: 0,
        unroll_length=config.learner.unroll_length,
    )
    for _ in actor.steps(0):
        if len(unrolls) == 10:
            return unrolls[-1]


def train_rate(config: config_lib.Config, folder: Path) -> dict[str, float]:
    """Agent steps/s of the whole program through processes, its warm-up left out, and its memory."""
    from impala.monitoring.metrics import read_csv

    path = folder / "config.yaml"
    path.write_text(config_lib.dump(config))
    options = ["--total-frames", str(10**9), "--log-period-seconds", "1.0", "--run", str(folder / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "impala", "train", "--config", str(path), *options], stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(_WARM_UP_SECONDS + _TRAIN_SECONDS)
    finally:
        process.terminate()
        process.wait(60)
    rows = read_csv(folder / "run" / "metrics.csv")
    if len(rows) < 10:
        raise RuntimeError(f"the run under test wrote {len(rows)} rows of metrics; see {folder / 'run' / 'logs'}")
    end = float(rows[-1]["wall_seconds"])
    rows = [row for row in rows if end - _TRAIN_SECONDS <= float(row["wall_seconds"]) <= end - 2]
    seconds = float(rows[-1]["wall_seconds"]) - float(rows[0]["wall_seconds"])
    steps = (float(rows[-1]["agent_steps"]) - float(rows[0]["agent_steps"])) / seconds
    mean = lambda name: statistics.fmean(float(row[name]) for row in rows if row[name])  # noqa: E731
    return dict(
        train=steps, lag_mean=mean("lag_mean"), learner_wait=mean("learner_wait_fraction"),
        actor_blocked=mean("actor_blocked_fraction"), rss_mb=max(float(row["rss_mb"]) for row in rows),
    )  # fmt: skip


def _make_environment(config: config_lib.Config, num_environments: int):
    from impala import environments

    return environments.make(
        config.environment.name, num_environments=num_environments, protocol=config.environment.protocol,
        num_threads=len(os.sched_getaffinity(0)),
    )  # fmt: skip


def _random_batch(config: config_lib.Config, spec):
    import numpy as np
    import tensorflow as tf

    from impala.replay import datasets
    from impala.types import chunk_spec, map_fields

    random = np.random.default_rng(0)

    def draw(field):
        if field.dtype == np.uint8:
            return random.integers(0, 255, field.shape).astype(np.uint8)
        if field.dtype == np.float32:
            return random.random(field.shape, dtype=np.float32)
        return np.zeros(field.shape, field.dtype)

    chunk = chunk_spec(spec, config.learner.unroll_length)
    batch = datasets.stack([map_fields(draw, chunk) for _ in range(config.learner.batch_size)])
    return map_fields(tf.convert_to_tensor, batch)


_PARTS = {"env": environment_rate, "inference": inference_rate, "learner": learner_rate, "table": table_rate}


def _alone(function, *arguments):
    """Runs `function` in a fresh process, so that its TensorFlow takes all cores."""
    with futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(config: config_lib.Config, report: Callable[[str], None] = print) -> dict[str, float]:
    """Measures parts, whole, parts again, and returns all rates and what follows from them."""
    rounds = [{name: _alone(part, config, _PART_SECONDS) for name, part in _PARTS.items()}]
    report("parts measured once; now the whole")
    with tempfile.TemporaryDirectory(prefix="impala-bench-") as folder:
        whole = train_rate(config, Path(folder))
    rounds.append({name: _alone(part, config, _PART_SECONDS) for name, part in _PARTS.items()})
    result = {name: statistics.fmean(measured[name] for measured in rounds) for name in _PARTS}
    result["bound"] = bound(**result)
    result |= whole
    result["fraction_of_bound"] = result["train"] / result["bound"]
    result["table_over_train"] = result["table"] / result["train"]
    result["vtrace_fraction_of_learner"] = _alone(vtrace_fraction, config, _PART_SECONDS)
    return result


def main(arguments: list[str]) -> int:
    """The command `impala bench`."""
    overrides = config_lib.parse_overrides(arguments)
    path, output = overrides.pop("config", None), overrides.pop("json", None)
    config = config_lib.load(path, overrides) if path else config_lib.build(_DEFAULT, overrides)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    result = measure(config)
    for name in ("env", "inference", "learner", "table", "bound", "train"):
        print(f"{name:10} {result[name]:10,.0f} agent steps/s")
    print(f"the whole runs at {100 * result['fraction_of_bound']:.0f} % of the bound; "
          f"the table path alone at {result['table_over_train']:.0f} × the whole; "
          f"V-trace takes {100 * result['vtrace_fraction_of_learner']:.1f} % of the learner's step; "
          f"lag {result['lag_mean']:.1f} updates; {result['rss_mb']:,.0f} MB")  # fmt: skip
    if output:
        Path(str(output)).write_text(json.dumps(result, indent=1) + "\n")
    return 0
