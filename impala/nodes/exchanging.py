"""What passes between a worker and the shards of a parameter server: gradients to them, parameters back.

A message is a list of arrays, which cross through shared memory on one machine and over RPC from one to another.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from impala.config import Config, flatten
from impala.nodes import population

FINITE, OUTLIER, FILLER = 1, 2, 4  # what is said of a gradient, as bits of one number


class Facts(NamedTuple):
    """What server and worker must agree on, and the names of what comes with a gradient."""

    configuration: dict[str, str]  # value by key
    parameters: list[tuple[str, tuple[int, ...]]]  # name and shape
    metrics: list[str]
    columns: list[str]
    width: int = 0  # of a column


class Shard(NamedTuple):
    """Which tensors a shard of the server holds, and the shapes of what passes."""

    tensors: list[int]
    shapes: list[tuple[int, ...]]  # of these
    num_metrics: int
    num_columns: int
    width: int  # of a column
    num_statistics: int
    num_settings: int  # see `Answer`

    def fields(self) -> tuple[list, list]:
        """Returns shape and dtype of each array that is sent, and of each that comes back."""
        arrays = [(shape, np.float32) for shape in self.shapes]
        statistics, settings = ((self.num_statistics,), np.float64), ((self.num_settings,), np.float64)
        columns = ((self.num_columns, self.width), np.float64)
        facts = [((3,), np.int64), statistics, ((self.num_metrics,), np.float32), columns]
        return facts + arrays, [((3,), np.int64), settings, statistics, *arrays]


class Answer(NamedTuple):
    """The answer to a gradient: the newest parameters of all shards; everything else comes from the first shard.

    `settings` are the number of the newest θ⁻, how often the parameters were replaced by another member's, and factors
    of the hyper-parameters that evolve: the last two in a population.
    """

    verdict: int
    version: int
    frames: int
    arrays: list[np.ndarray]
    statistics: np.ndarray
    settings: np.ndarray


def configuration_of(config: Config) -> dict[str, str]:
    """Returns those values that server and workers must share."""
    shared = ("environment.", "agent.", "network.", "loss.", "learner.", "server.", "replay.", "program", "seed")
    shared += ("total_frames", "actor.num_actors", "actor.num_environments")
    return {key: repr(value) for key, value in flatten(config).items() if key.startswith(shared)}


def difference(mine: Facts, theirs: Facts) -> str | None:
    """Returns in words the first difference of a worker's facts from the server's, or None."""
    for key, value in mine.configuration.items():
        if theirs.configuration.get(key) != value:
            return f"{key}={theirs.configuration.get(key)}; expected {value}"
    for one, other in zip(mine.parameters, theirs.parameters):
        if one != other:
            return f"parameter {other[0]} of shape {list(other[1])}; expected {one[0]} of {list(one[1])}"
    if len(mine.parameters) != len(theirs.parameters):
        return f"{len(theirs.parameters)} parameters; expected {len(mine.parameters)}"
    return None


def parameters_of(variables: Sequence) -> list[tuple[str, tuple[int, ...]]]:
    """Returns names and shapes of a network's parameters."""
    return [(variable.name, tuple(variable.shape)) for variable in variables]


class Exchange:
    """A worker's connections to all shards.

    Args:
      requests: of each shard, (number, *arrays) → pending arrays.
      shards: of the server.
      versions: of the parameters that the worker has of each shard.
      frames_per_step: emulator frames of a transition.
      should_stop: asked while waiting for an answer; True raises `acting.remote.Stopped`.
    """

    def __init__(
        self, requests: Sequence[Callable], shards: Sequence[Shard], versions: Sequence[int], *,
        frames_per_step: int, should_stop: Callable[[], bool],
    ):  # fmt: skip
        self._requests, self._shards, self.versions = requests, shards, list(versions)
        self._frames_per_step, self._should_stop, self._number = frames_per_step, should_stop, 0

    def __call__(self, gradient, num_transitions: int, increments: np.ndarray, is_outlier: bool = False) -> Answer:
        """Sends each shard its part of a `differentiators.Gradient`; returns what they answer.

        `increments` of the statistics go to all of them: each keeps a copy, of which the first shard's is used.
        """
        from impala.acting import remote

        flags = FINITE * gradient.is_finite | OUTLIER * is_outlier
        self._number += 1
        pending = [
            request(
                self._number,
                np.array([version, num_transitions * self._frames_per_step, flags], np.int64),
                increments, gradient.metrics, gradient.columns, *(gradient.arrays[index] for index in shard.tensors),
            )
            for request, shard, version in zip(self._requests, self._shards, self.versions)
        ]  # fmt: skip
        arrays: list[Any] = [None] * sum(len(shard.tensors) for shard in self._shards)
        answers = []
        for one, shard in zip(pending, self._shards):
            answers.append(remote.result_of(one, self._should_stop))
            for index, array in zip(shard.tensors, answers[-1][3:], strict=True):
                arrays[index] = array
        self.versions = [int(head[1]) for head, *_ in answers]
        (verdict, version, frames), settings, statistics = answers[0][:3]
        return Answer(int(verdict), int(version), int(frames), arrays, statistics, settings)

    def agree(self, join: Callable[[], list[int]]) -> None:
        """Brings all shards of a barrier to one update.

        The last gradient of the worker's earlier life may have reached some shards only: the others wait for it in a
        round that is over elsewhere. One that is not finite takes its place there, so that they go on without it. The
        shards that are ahead refuse it at once, by its version: all shards have then heard of the same gradients. Where
        the others' rounds go on (`server.num_late`), versions also differ because they were read one after the other:
        a shard waits only if it stands still between two reads.

        Args:
          join: takes over the parameters again, and returns their versions.
        """
        from impala.acting import remote
        from impala.learning.server import Verdict

        before, verdicts = [-1] * len(self.versions), []
        while len(set(self.versions)) > 1 and Verdict.ENDED not in verdicts:
            if self._should_stop():
                raise remote.Stopped
            waits = [now == then and now < max(self.versions) for now, then in zip(self.versions, before)]
            if any(waits):
                self._number += 1
                pending = []
                for request, shard, version, does_wait in zip(self._requests, self._shards, self.versions, waits):
                    head = np.array([version if does_wait else -1, 0, FILLER], np.int64)
                    _, *arrays = (np.zeros(shape, dtype) for shape, dtype in shard.fields()[0])
                    pending.append(request(self._number, head, *arrays))
                verdicts = [int(remote.result_of(one, self._should_stop)[0][0]) for one in pending]
            before, self.versions = self.versions, join()


def shards_of(config: Config, shapes: Sequence[tuple[int, ...]], facts: Facts, num_statistics: int) -> list[Shard]:
    """Returns how tensors of these shapes are spread over the configured shards."""
    from impala.learning.server import partition

    parts = partition([int(np.prod(shape)) for shape in shapes], config.server.num_shards)
    return [
        Shard(
            part, [tuple(shapes[index]) for index in part], len(facts.metrics), len(facts.columns), facts.width,
            num_statistics, 2 + len(population.evolving(config)),
        ) for part in parts
    ]  # fmt: skip
