"""How much memory a run takes, estimated before any process starts: a run that does not fit is refused in one line.

Rough on purpose, and without TensorFlow: it catches numbers that are far too large. A run takes

    processes      0.4 GB where TensorFlow is loaded, 0.15 GB for actors without it
    environments   1 MB each, and two chunks: one that is written, one that waits for the table
    batches        their chunks, prefetched ones included, and what the backward pass keeps of each observation, float32
    tables         what they hold when full, given by the caller; of frames not what Reverb holds, which is compressed
    weights        float32; six times in a learner or a server (gradients, the optimizer's two slots, copies), once and
                   five times its share in a further shard, four times more for each further optimizer of a server,
                   twice in an actor, five times in a worker
"""

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from impala import agents
from impala.config import Config, ConfigError, flatten
from impala.launching.rpc import wire
from impala.monitoring import machine
from impala.types import WINDOW_COLUMNS, Chunk, Continuous, EnvironmentSpec, num_bytes

_TENSORFLOW_MB, _STEPPER_MB, _ENVIRONMENT_MB = 400.0, 150.0, 1.0
_LEARNER_COPIES, _OPTIMIZER_COPIES, _ACTOR_COPIES, _WORKER_COPIES = 6, 4, 2, 5
_SLOTS = {"adam": 2, "rmsprop": 2, "centered_rmsprop": 3, "adagrad": 1}  # of an optimizer, for each parameter
_WINDOW_BYTES = 900  # of Reverb's own, for a step and the window that it ends
_SHARE = 0.8  # of memory; the system needs some, too
_CONVOLUTIONS = {  # (channels, size, stride) and the dense layer behind them: networks/torsos.py
    "minatar": ([(16, 3, 1)], 128),
    "shallow": ([(16, 8, 4), (32, 4, 2)], 256),
    "nature": ([(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512),
}
_DEFAULTS = flatten(Config.model_validate({"environment": {"name": "catch"}}))


class Layer(NamedTuple):
    """The number of a layer's parameters, and of its outputs for one observation."""

    parameters: int
    outputs: int


class Part(NamedTuple):
    """What takes memory, how much, and the keys that multiply it."""

    what: str
    mb: float
    keys: tuple[str, ...]


def budget_mb() -> float:
    """Returns how much memory of this machine, or of its container, a run may take."""
    return _SHARE * machine.total_memory() / 1e6


def step_bytes(window: Chunk, num_fresh: int) -> int:
    """Returns the size of a step of overlapping windows, of which each step is written once.

    Args:
      num_fresh: steps from where a window begins to where the next one does.
    """
    columns = [getattr(window, name) for name in WINDOW_COLUMNS]
    of_step = sum(math.prod(field.shape[1:]) * np.dtype(field.dtype).itemsize for field in columns if field)
    known = window._replace(**dict.fromkeys(WINDOW_COLUMNS, ()))  # of the window as a whole
    return of_step + math.ceil(num_bytes(known) / num_fresh)


def kept_step_bytes(window: Chunk, num_fresh: int) -> int:
    """Returns what a step and the window that it ends, if any, take in a Reverb table, uncompressed."""
    return step_bytes(window, num_fresh) + _WINDOW_BYTES


def check(config: Config, spec: EnvironmentSpec, tables_mb: Mapping[str, float] = MappingProxyType({})) -> None:
    """Raises ConfigError if memory cannot hold the run, or no message the weights.

    Args:
      tables_mb: megabytes of the full tables, uncompressed, by the key that says how large they are.
    """
    parts, budget = list(_parts(config, spec)), budget_mb()
    is_in_memory = config.replays_in_workers or config.has_central_inference and not config.replays_alone
    if is_in_memory or np.dtype(spec.observation.dtype) != np.uint8:
        parts += [Part("what tables hold", mb, (key,)) for key, mb in tables_mb.items() if mb]
    total = sum(part.mb for part in parts)
    if total > budget:
        part = max(parts, key=lambda part: part.mb)
        key = most_unusual(config, part.keys)
        value, grows_mb = flatten(config)[key], sum(one.mb for one in parts if key in one.keys)
        is_linear = isinstance(value, int) and key != "network.core_size"  # whose square counts
        most = int(value * (budget - total + grows_mb) / grows_mb) if is_linear else 0
        expected = f"at most about {most}" if most > 0 else "less"
        shown = list(value) if isinstance(value, tuple) else value
        raise ConfigError([
            f"{key}={shown}: {part.what} may take {part.mb:,.0f} MB, and the run {total:,.0f} MB of {budget:,.0f}, "
            f"80 % of this machine's memory; expected {expected}"
        ])  # fmt: skip
    _check_message(config, spec)


def _check_message(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses a network whose parameters do not fit into the message in which an actor or an evaluator gets them.

    A parameter server's workers get each shard's in a message of its own; what several shards begin with and keep also
    has the states of all optimizers, and target parameters.
    """
    in_actors, what = config.has_use_for("actor.num_tensorflow_threads"), "the weights"
    size = 4 * sum(one.parameters for one in layers(config, spec))
    if config.has_parameter_server:
        num_shards = config.server.num_shards
        of_a_shard = max(size // num_shards, *(4 * one.parameters for one in layers(config, spec)))
        slots = _SLOTS[config.learner.optimizer] * (1 if config.server.shared_optimizer else config.actor.num_actors)
        of_a_shard *= 1 + (num_shards > 1) * (slots + config.replays_alone)
        if of_a_shard > size or not config.evaluator.num_episodes:
            size, what = of_a_shard, "a shard's weights and their optimizer's state" if num_shards > 1 else what
    is_sent = in_actors or config.has_parameter_server
    try:
        most = wire.max_bytes()
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if size <= most or not (is_sent or config.evaluator.num_episodes):
        return
    key = most_unusual(config, ("network.core_size", "network.hidden_sizes"))
    value = list(value) if isinstance(value := flatten(config)[key], tuple) else value
    expected = "a smaller network"
    if size < wire.GRPC_BYTES:
        expected += f", or {wire.MAX_BYTES_VARIABLE}={size + 2**20} in the environment of all processes"
    raise ConfigError([
        f"{key}={value}: {what} take {size / 1e6:,.0f} MB, and a message between processes at most "
        f"{most / 1e6:,.0f}; expected {expected}"
    ])  # fmt: skip


def most_unusual(config: Config, keys: tuple[str, ...]) -> str:
    """Returns the key whose value is the largest multiple of its default."""
    values = flatten(config)
    size = {key: sum(value) if isinstance(value := values[key], tuple) else value or 0 for key in keys}
    usual = {key: sum(value) if isinstance(value := _DEFAULTS[key], tuple) else value or 1 for key in keys}
    return max(keys, key=lambda key: size[key] / usual[key])


def layers(config: Config, spec: EnvironmentSpec) -> Iterator[Layer]:
    """Yields the network's layers, from torso to heads."""
    network, shape = config.network, spec.observation.shape
    if not config.has_use_for("network.torso"):  # a policy and a value of sizes of their own
        yield from _deterministic(config, math.prod(shape), spec.actions.num_dimensions)
        return
    if network.torso == "resnet":
        *convolutions, (_, features) = _residual(shape, spec.num_stacked)
        yield from convolutions
        sizes = (256,)
    elif network.torso in _CONVOLUTIONS:
        convolutions, units = _CONVOLUTIONS[network.torso]
        (height, width, *channels), sizes = shape, (units,)
        inputs = channels[0] if channels else spec.num_stacked
        for outputs, size, stride in convolutions:
            height, width = (max(1, (edge - size) // stride + 1) for edge in (height, width))
            yield Layer((size * size * inputs + 1) * outputs, features := height * width * outputs)
            inputs = outputs
    else:  # one that is not known here, such as a user's own, is taken as a layer of 256 units
        features = math.prod(shape) * spec.num_stacked
        sizes = network.hidden_sizes if network.torso == "mlp" else (256,)
    for units in sizes:
        yield Layer((features + 1) * units, units)
        features = units
    num_actions = spec.actions.num_parameters
    if network.core == "lstm":
        units = network.core_size
        num_fed = spec.actions.num_dimensions if isinstance(spec.actions, Continuous) else num_actions
        yield Layer(4 * units * (features + num_fed + 1 + units + 1), 6 * units)
        features = units
    yield Layer((features + 1) * (num_actions + 1), num_actions + 1)


def _deterministic(config: Config, num_features: int, num_dimensions: int) -> Iterator[Layer]:
    """The layers of a policy and of a value, whose second layer takes the action, too."""
    for sizes, num_actions in ((config.agent.policy_sizes, 0), (config.agent.value_sizes, num_dimensions)):
        features = num_features
        for index, units in enumerate((*sizes, 1 if num_actions else num_dimensions)):
            yield Layer((features + 1 + num_actions * (index == 1)) * units, units)
            features = units


def _residual(shape, inputs: int) -> Iterator[Layer]:
    """The ResNet's sections: a convolution, a max-pool, four more convolutions; the last item counts the features."""
    height, width = shape[:2]
    for channels in (16, 32, 32):
        yield Layer((9 * inputs + 1) * channels, height * width * channels)
        height, width, inputs = math.ceil(height / 2), math.ceil(width / 2), channels
        yield Layer(4 * (9 * channels + 1) * channels, 10 * height * width * channels)
    yield Layer(0, height * width * channels)


def _parts(config: Config, spec: EnvironmentSpec) -> Iterator[Part]:
    learner, actor, members = config.learner, config.actor, config.population.size
    network = list(layers(config, spec))
    chunk_mb = num_bytes(agents.of(config).make_chunk_spec(config, spec)) / 1e6
    has_weights = config.has_use_for("actor.num_tensorflow_threads")  # in the actors
    is_central = config.has_central_inference
    has_server, num_actors = config.has_parameter_server, members * actor.num_actors
    num_learners = members * (config.server.num_shards if has_server else learner.num_learners)
    has_tables = config.has_replay_table or config.has_use_for("replay.queue_kind")
    num_tables = (1 if has_server else learner.num_learners) if has_tables else 0
    num_others = members * (bool(config.evaluator.num_episodes) + num_tables) + 1
    of_actors = num_actors * (_TENSORFLOW_MB * has_weights + _STEPPER_MB * is_central)
    num_relays = members * actor.num_relays
    of_processes = ("actor.num_actors", "learner.num_learners", "population.size")
    of_processes += ("actor.num_relays",) if num_relays else ()
    of_processes += ("server.num_shards",) if has_server else ()
    yield Part(
        "processes", _TENSORFLOW_MB * (num_learners + num_others) + of_actors + _STEPPER_MB * num_relays,
        of_processes,
    )  # fmt: skip
    yield Part(
        "environments", num_actors * actor.num_environments * (_ENVIRONMENT_MB + 2 * chunk_mb),
        ("actor.num_environments", "actor.num_actors", "learner.unroll_length", "population.size"),
    )  # fmt: skip
    sizes = ("network.core_size",) if config.network.core == "lstm" else ()
    sizes += ("network.hidden_sizes",) if config.network.torso == "mlp" else ()
    # Copies of each layer's outputs: kept for the backward pass, and made by it, as measured.
    num_copies = 1 if config.network.torso == "resnet" else 3
    num_kept = num_copies * sum(one.outputs for one in network)
    num_kept += 2 * math.prod(spec.observation.shape) * spec.num_stacked
    has_unrolls = config.has_use_for("learner.unroll_length")
    lengths = ("learner.unroll_length",) if has_unrolls else ()
    length = learner.unroll_length if has_unrolls else config.agent.n_step + 1  # x_t, …, x_{t+n} by two networks
    num_at_once = learner.batch_size * (length + 1) // getattr(config.agent, "num_minibatches", 1)
    num_at_once += learner.batch_size * getattr(config.agent, "burn_in", 0)
    if is_central:  # batches of inference
        num_at_once += learner.num_learners * config.inference.max_environments
    batches_mb = learner.batch_size * chunk_mb * (2 + config.num_prefetched_batches)
    num_trained = num_actors if has_server else members  # each of a batch; several learners share theirs
    yield Part(
        "batches", num_trained * (batches_mb + num_at_once * num_kept * 4 / 1e6),
        ("learner.batch_size", "learner.num_prefetched_batches", "inference.max_environments", "population.size",
         *(("actor.num_actors",) if has_server else ()), *lengths, *sizes),
    )  # fmt: skip
    copies = _LEARNER_COPIES * num_learners + _ACTOR_COPIES * (num_actors * has_weights + num_others + num_relays)
    if has_server:  # further shards hold the network, and of a share of it what a learner holds beside that
        num_shards = config.server.num_shards
        copies -= members * (num_shards - 1) * (_LEARNER_COPIES - 1) * (1 - 1 / num_shards)
        copies += (_WORKER_COPIES - _ACTOR_COPIES) * num_actors
        copies += 0 if config.server.shared_optimizer else _OPTIMIZER_COPIES * (num_actors - members)
    yield Part(
        "weights", copies * sum(one.parameters for one in network) * 4 / 1e6,
        (*sizes, *of_processes),
    )  # fmt: skip
