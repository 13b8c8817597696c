"""Writers: from steps to unrolls, and from unrolls to a table or to memory."""

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from impala.acting.behaviours import Behaviour, sampled
from impala.acting.policies import Decision
from impala.timing import TimeAccount
from impala.types import Chunk, EnvironmentSpec, Origin, Step, chunk_spec, map_fields

_FLUSH_MILLISECONDS = 500
Sink = Callable[[list[Chunk]], None]


class Writer(Protocol):
    """What an actor hands its steps to. Copies what it keeps: shared memory overwrites a step's arrays after a call."""

    def start(
        self, window: np.ndarray, step: Step, previous_action: np.ndarray, weights_version: int, core_state=()
    ) -> None:
        """Begins an unroll at `step`: `window` [k, N, …] ends with its observation, `core_state` precedes it."""

    def append(self, decision: Decision, step: Step) -> None:
        """Adds one transition: the decision, and the step that followed."""


class UnrollWriter:
    """Cuts the steps of N environments into N chunks of T transitions and hands them to `sink`.

    Consecutive chunks overlap by one observation: the last of one unroll is the first of the next, so no transition is
    lost and none is written twice.

    Args:
      behaviour: says what is kept of decisions; the same default as `FeedForwardPolicy`'s.
      version_per_step: chunks hold the version of each decision, [T], rather than one of the whole unroll.
    """

    def __init__(
        self, spec: EnvironmentSpec, num_environments: int, *, unroll_length: int, origin: Origin, sink: Sink,
        behaviour: Behaviour | None = None, version_per_step: bool = False,
    ):  # fmt: skip
        behaviour = behaviour or sampled(spec.actions)
        self._kept = tuple(behaviour.kept)
        self._specs = chunk_spec(
            spec, unroll_length, behaviour.core_state_shape, kept=behaviour.kept, version_per_step=version_per_step
        )
        self._n, self._length, self._num_stacked = num_environments, unroll_length, spec.num_stacked
        self._origin, self._sink, self._seq = origin, sink, 0

    def start(
        self, window: np.ndarray, step: Step, previous_action: np.ndarray, weights_version: int, core_state=()
    ) -> None:
        """See `Writer`; allocates new arrays, so that chunks handed on earlier do not change."""
        self._chunk = map_fields(lambda spec: np.empty((self._n, *spec.shape), spec.dtype), self._specs)  # each [N, …]
        self._t, k = 0, self._num_stacked
        self._chunk.observation[:, :k] = np.swapaxes(window, 0, 1)
        self._chunk.is_first[:, 0] = step.is_first
        self._chunk.previous_action[:] = previous_action
        self._chunk.previous_action[step.is_first] = 0
        self._chunk.previous_reward[:] = step.reward
        self._chunk.weights_version[:] = weights_version
        if self._specs.core_state:
            self._chunk.core_state[:] = core_state
        for i in range(self._n):
            origin = self._origin._replace(environment=self._origin.environment + i, seq=self._seq)
            self._chunk.origin[i] = origin

    def append(self, decision: Decision, step: Step) -> None:
        t, chunk = self._t, self._chunk
        chunk.a_tm1[:, t] = decision.action
        for name, array in zip(self._kept, decision.kept, strict=True):
            getattr(chunk, name)[:, t] = array
        if chunk.weights_version.ndim > 1:
            chunk.weights_version[:, t] = decision.version
        chunk.r_t[:, t], chunk.discount_t[:, t] = step.reward, step.discount
        chunk.observation[:, t + self._num_stacked] = step.observation
        chunk.is_first[:, t + 1] = step.is_first
        self._t += 1
        if self._t == self._length:
            self._seq += 1
            self._sink([Chunk(*(f[i] if isinstance(f, np.ndarray) else f for f in chunk)) for i in range(self._n)])


class RoundRobinSink:
    """Hands chunks round-robin to several sinks; in each of them `seq` counts an environment's chunks from 0."""

    def __init__(self, sinks: Sequence["TableSink"]):
        self._sinks, self._num_chunks = sinks, 0
        self._seqs: collections.Counter = collections.Counter()

    def __call__(self, chunks: list[Chunk]) -> None:
        shares: list[list[Chunk]] = [[] for _ in self._sinks]
        for chunk in chunks:
            index = self._num_chunks % len(self._sinks)
            source = (index, Origin(*chunk.origin.tolist())._replace(seq=0))
            chunk.origin[Origin._fields.index("seq")] = self._seqs[source]
            shares[index].append(chunk)
            self._seqs[source] += 1
            self._num_chunks += 1
        # All are written before any is waited for. Else one table would get chunks whose counterparts the others lack,
        # if this process dies in between, and learners need as many from each.
        for sink, share in zip(self._sinks, shares):
            sink.write(share)
        for sink in self._sinks:
            sink.wait()

    def blocked_fraction(self) -> float:
        """Returns the share of time spent waiting for the tables since the last call."""
        return sum(sink.blocked_fraction() for sink in self._sinks)


class TableSink:
    """Writes each chunk as one Reverb step, and as one item in each table. A full queue blocks the caller.

    Args:
      client: a `reverb.Client`.
      tables: names; all of their items share the step.
      should_stop: asked twice a second while the queue is full; True abandons the wait.
      max_pending: chunks that may be in flight when a call returns: sending overlaps with stepping. With several tables
        their items are bounded together.

    Raises (on call):
      ValueError: a chunk holds a value that is not finite; nothing of that call is written.
    """

    def __init__(self, client, tables: Sequence[str], *, should_stop: Callable[[], bool], max_pending: int = 0):
        self._writer = client.trajectory_writer(num_keep_alive_refs=1)
        self._tables, self._should_stop, self._max_pending = tables, should_stop, max_pending * len(tables)
        self._account = TimeAccount()

    def __call__(self, chunks: list[Chunk]) -> None:
        self.write(chunks)
        self.wait()

    def write(self, chunks: list[Chunk]) -> None:
        """Sends chunks on their way; does not wait for room."""
        for chunk in chunks:
            check_finite(chunk)
        for chunk in chunks:
            self._writer.append(
                {name: value for name, value in chunk._asdict().items() if not isinstance(value, tuple)}
            )
            trajectory = {name: column[-1] for name, column in self._writer.history.items()}
            for table in self._tables:
                self._writer.create_item(table, priority=1.0, trajectory=trajectory)

    def wait(self) -> None:
        """Waits until few enough items are on their way."""
        flush(self._writer, self._max_pending, self._should_stop, self._account)

    def blocked_fraction(self) -> float:
        """Returns the share of time spent waiting for the table since the last call."""
        return self._account.fraction("blocked")

    def close(self) -> None:
        """Ends the stream; items in flight are dropped."""
        self._writer.close()


def flush(writer, max_pending: int, should_stop: Callable[[], bool], account: TimeAccount) -> None:
    """Waits until at most `max_pending` items of a Reverb writer are in flight, or until it is time to stop.

    Waits in slices, since Reverb's blocking calls swallow signals; the time counts as "blocked".
    """
    from reverb import errors

    while not should_stop():
        with contextlib.suppress(errors.DeadlineExceededError), account.part("blocked"):
            return writer.flush(max_pending, timeout_ms=_FLUSH_MILLISECONDS)


def check_finite(chunk: Chunk) -> None:
    """Raises ValueError naming the first field of `chunk` with a NaN or an infinity."""
    for name, value in chunk._asdict().items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"chunk {tuple(chunk.origin)}: {name} holds a value that is not finite")
