"""Windows into a replay table and out of it, alone; and a learner that needs no table."""

import itertools
import os

from impala import config as config_lib

_SIZE, _NUM_STEPS = 20_000, 200  # windows of the table; steps that are played once and written over and over


def insertion_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s of a lane's environments, played at random, into a Reverb table that never blocks."""
    from impala.bench.parts import rate

    server, write, n = _table(config)

    def insert():
        write()
        return n

    try:
        return rate(insert, seconds)
    finally:
        server.stop()


def sampling_rate(config: config_lib.Config, seconds: float) -> float:
    """Agent steps/s that drawing from a full table allows, at `replay.samples_per_insert` draws per transition.

    Windows are drawn by priority, with their weights of importance, where the program does so.
    """
    from impala.bench.parts import rate
    from impala.replay import datasets, tables, windows

    server, write, n = _table(config)
    for _ in range(_SIZE // n):
        write()
    feeder = datasets.Prefetcher(lambda: windows.batches(
        f"localhost:{server.port}", tables.REPLAY, batch_size=config.learner.batch_size,
        importance_exponent=_exponents(config)[1],
    ))  # fmt: skip

    def draw():
        assert feeder.get(timeout_seconds=60) is not None
        return config.steps_per_update

    try:
        return rate(draw, seconds)
    finally:
        feeder.stop()


def direct_rate(config: config_lib.Config, seconds: float) -> float:
    """Updates/s of a learner that draws from windows in its own memory and sets their priorities there; all cores."""
    import numpy as np

    from impala import agents
    from impala.bench.parts import rate
    from impala.launching import processes
    from impala.replay.memory import MemoryWindows
    from impala.replay.windows import lengths, to_tensors

    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)), config.learner.num_parallel_operations)
    (spec, n, steps), agent = _played(config), agents.of(config)
    priority_exponent, importance_exponent = _exponents(config)
    # Only what was played once: a draw by priority takes time in proportion to the size, which Reverb's does not.
    memory = MemoryWindows(
        _NUM_STEPS * n, n, lengths=lengths(agent.make_chunk_spec(config, spec)),
        priority_exponent=priority_exponent or 0.0,
    )  # fmt: skip
    for rows, ends in steps:
        memory.write(rows)
        for end in ends:
            memory.end_windows(*end)
    learner, random = agent.make_learner(config, agent.make_network(config, spec)), np.random.default_rng(0)

    def update():
        drawn = memory.sample(config.learner.batch_size, random)
        result = learner.update(to_tensors(drawn, importance_exponent=importance_exponent), 1e-5)
        if importance_exponent is not None:
            memory.update(drawn["key"], result.chunks["priority"])
        return 1

    return rate(update, seconds)


def _exponents(config: config_lib.Config) -> tuple[float | None, float | None]:
    """Returns α and β of the program's replay; None and None where it draws uniformly."""
    replay = config.replay
    is_prioritised = config.has_use_for("replay.priority_exponent")
    return (replay.priority_exponent, replay.importance_exponent) if is_prioritised else (None, None)


def _table(config: config_lib.Config):
    """Returns a `reverb.Server`, a function that writes a step of each of a lane's environments, and their number."""
    import reverb

    from impala import agents
    from impala.acting.windows import TableWindows
    from impala.replay import tables, windows

    spec, n, steps = _played(config)
    chunk = agents.of(config).make_chunk_spec(config, spec)
    table = windows.table(
        windows.window_spec(chunk), _SIZE, min_size=1, samples_per_insert=None, batch_size=config.learner.batch_size,
        priority_exponent=_exponents(config)[0],
    )  # fmt: skip
    server, actor = reverb.Server([table], port=None), config.actor
    as_actors = {}
    if config.has_use_for("actor.send_size"):
        as_actors = dict(max_pending=actor.num_steps_pending, num_together=actor.num_steps_together)
    sink = TableWindows(
        reverb.Client(f"localhost:{server.port}"), tables.REPLAY, n, lengths=windows.lengths(chunk),
        should_stop=lambda: False, **as_actors,
    )  # fmt: skip
    steps = itertools.cycle(steps)

    def write():
        rows, ends = next(steps)
        sink.write(rows)
        for end in ends:
            sink.end_windows(*end)

    return server, write, n


def _played(config: config_lib.Config):
    """Plays one lane at random.

    Returns:
      the environment's spec, how many there are, and for each step what a `windows.Sink` takes: rows, and arguments of
      `end_windows`, if any windows ended after them
    """
    import numpy as np

    from impala import agents
    from impala.acting import actors, windows
    from impala.bench.parts import make_environment
    from impala.nodes.parts import make_policy
    from impala.types import Origin

    n, steps = config.actor.num_lane_environments, []
    environment, origin = make_environment(config, n), Origin(0, 0, 0, 0, 0)
    spec = environment.spec
    agent, has_priorities = agents.of(config), config.has_use_for("replay.priority_exponent")
    behaviour = agent.make_behaviour(config, spec, explore=lambda: 1.0)
    numbers = [np.zeros((n, *each.shape), each.dtype) for each in behaviour.numbers]
    policy = make_policy(  # the last of a network's inputs is its core state
        lambda window, is_first, *memory: (*numbers, *memory[-1:]), spec, n, seed=0, behaviour=behaviour
    )  # fmt: skip
    network = agent.make_network(config, spec) if has_priorities else None
    where = dict(origin=origin, sink=_Steps(steps))
    if hasattr(agent, "make_writer"):
        writer, length = agent.make_writer(config, spec, n, behaviour=behaviour, **where), config.window.fresh
    else:
        writer, length = windows.WindowWriter(
            spec, n, length=config.agent.n_step, kept=behaviour.kept, **where,
            prioritise=agent.make_prioritise(config, network) if has_priorities else None,
        ), _NUM_STEPS  # fmt: skip
    actor = actors.Actor(environment, policy, writer, lambda: 0, unroll_length=length, origin=origin)
    for _ in actor.steps(0):
        if len(steps) >= _NUM_STEPS:
            return spec, n, steps


class _Steps:
    def __init__(self, steps: list):
        self._steps = steps

    def write(self, rows) -> None:
        self._steps.append((rows, []))

    def end_windows(self, is_window, priority) -> None:
        self._steps[-1][1].append((is_window, priority))
