"""What several agents have in common."""

import functools
import inspect
from collections.abc import Callable, Iterator

import numpy as np

from impala import devices, own
from impala.config import Config, ConfigError, LossConfig
from impala.types import Chunk, EnvironmentSpec


def check_torso(torso: str, spec: EnvironmentSpec) -> None:
    """Raises ConfigError if a built-in torso does not take the environment's observations."""
    if own.is_own(torso):
        return
    shape = spec.observation.shape
    if spec.parts:
        parts = ", ".join(f"{name} {part.shape}" for name, part in spec.parts)
        raise ConfigError([
            f"network.torso: {torso!r} takes one array, and {spec.name} has observations of several parts ({parts}); "
            f"expected {own.FORM}, which takes them apart"
        ])  # fmt: skip
    takes = {"mlp": "vectors and boards", "minatar": "boards [height, width, channels]"}.get(torso, "stacked frames")
    is_frame, is_board = len(shape) == 2 and spec.num_stacked > 1, len(shape) == 3 and spec.num_stacked == 1
    if not {"mlp": spec.num_stacked == 1, "minatar": is_board}.get(torso, is_frame):
        expected = "minatar or mlp" if is_board else "shallow, nature or resnet" if is_frame else "mlp"
        raise ConfigError([
            f"network.torso: {torso!r} takes {takes}, and {spec.name} has observations of shape {shape}; "
            f"expected {expected}"
        ])  # fmt: skip
    if is_frame and any(size % 4 for size in shape):
        raise ConfigError([
            f"network.torso: {torso!r} takes frames whose height and width are multiples of 4, and {spec.name} has "
            f"{shape}; expected frames of another size, or {own.FORM}"
        ])  # fmt: skip


def notes(config: Config, spec: EnvironmentSpec) -> list[str]:
    """Returns a line if a torso that takes numbers as they are gets bytes, which are likely of 0 to 255."""
    torso, tasks = config.network.torso, config.environment.tasks
    is_plain = config.has_use_for("network.torso") and torso in ("mlp", "minatar")
    if not is_plain or spec.observation.dtype != np.uint8 or all(name.startswith("minatar:") for name in tasks):
        return []
    return [
        f"network.torso={torso} takes observations as they are, and {spec.name} has bytes; if they go up to 255, let "
        "the environment return float32 of 0 to 1 instead"
    ]


def bound(function: Callable, loss: LossConfig) -> Callable:
    """Binds those parameters of `function` that the configuration has under the same name."""
    names = inspect.signature(function).parameters.keys() & type(loss).model_fields.keys() - {"correction"}
    return functools.partial(function, **{name: getattr(loss, name) for name in names})


def uses_bfloat16(config: Config, *, on_cpu: bool) -> bool:
    """Returns whether torsos compute in bfloat16: as configured, but in float32 where this machine has none of it."""
    if not config.network.bfloat16:  # before it looks for a GPU, which takes a while
        return False
    return devices.processor_has_bfloat16() or not on_cpu and devices.num_gpus() > 0


def make_optimizer(config: Config, variables):
    """Makes the configured optimizer of a network's trainable variables."""
    from impala.learning import optimizers

    learner = config.learner
    return optimizers.make(
        learner.optimizer, variables, epsilon=learner.epsilon, adam_beta1=learner.adam_beta1,
        rmsprop_decay=learner.rmsprop_decay, rmsprop_momentum=learner.rmsprop_momentum,
    )  # fmt: skip


def make_differentiator(config: Config, network, loss: Callable, forward: Callable | None = None):
    """Composes the half of a learner that computes gradients, as configured."""
    from impala.learning import differentiators

    return differentiators.Differentiator(
        network, loss, forward=forward, max_grad_norm=config.learner.max_grad_norm,
        jit_compile=config.learner.jit_compile,
    )  # fmt: skip


def make_statistics(config: Config, spec: EnvironmentSpec):
    """Returns the `learning.statistics.Statistics` that an agent's workers share; most share nothing but parameters."""
    from impala import agents
    from impala.learning.statistics import NOTHING

    agent = agents.of(config)
    return agent.make_statistics(config, spec) if hasattr(agent, "make_statistics") else NOTHING


def use_statistics(config: Config, network, statistics, state) -> None:
    """Gives a network those statistics that it uses, if any."""
    from impala import agents

    if statistics.size:
        agents.of(config).use_statistics(network, statistics, state)


def make_batches(config: Config, network, spec: EnvironmentSpec, index: int, incarnation: int):
    """Returns what makes a worker's batches of an iteration's unrolls; for most agents a single batch, used once."""
    from impala import agents

    agent = agents.of(config)
    if hasattr(agent, "make_batches"):
        return agent.make_batches(config, network, spec, index, incarnation)
    return SingleBatch()


class SingleBatch:
    """An iteration's unrolls as one batch; see `learning.epochs.Epochs`."""

    state = newest = np.zeros(0)
    num_batches = 1

    def __call__(self, unroll: Chunk, *, measures_kl: bool = True) -> Iterator[Chunk]:
        yield unroll

    def take(self) -> np.ndarray:
        return np.zeros(0)

    def put_back(self, taken: np.ndarray) -> None:
        pass


def schedule_end(config: Config, total_frames: int | None) -> int:
    """Returns the frame at which schedules end: `learner.learning_rate_frames`, else the total, given or configured."""
    return config.learner.learning_rate_frames or total_frames or config.total_frames


def make_schedules(config: Config, total_frames: int | None = None) -> Callable[[int], dict[str, float]]:
    """Returns frames → learning rate and the optimizer's ε; see `agents.actor_critic`."""
    from impala.learning.optimizers import SCHEDULES

    learner = config.learner
    total = schedule_end(config, total_frames)
    learning_rate = SCHEDULES[learner.learning_rate_schedule](learner.learning_rate, total)
    return lambda frames: dict(learning_rate=learning_rate(frames), epsilon=learner.epsilon)


def renewing(network, period: int) -> Callable:
    """Returns a job for after each update: renews the copy of a `networks.target.Pair` every `period` updates."""

    def renew(result):
        if result.num_updates % period == 0:
            network.renew()

    return renew
