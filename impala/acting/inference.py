"""One network decides for many actors (GA3C, Babaeizadeh et al. 2016; SEED RL, Espeholt et al. 2019).

    Client: step ──▶ Lanes: Policy, Writer ──▶ Gatherer ──▶ network, one call for all
            action ◀──────── decision ◀── logits, value ◀──┘

`acting.lanes` keeps the state of each client's environments (frames, core state, unroll), so that every observation is
sent once and a client only steps environments. GA3C's agents keep that state themselves and ask for outputs alone:
`acting.predictors`.
"""

import contextlib
import threading
import time

import numpy as np

from impala.acting.policies import Outputs


class Gatherer:
    """An `Outputs` for many threads at once, whose requests go through `outputs` as one batch.

    A batch is closed when it is full or when its first caller has waited long enough; while `num_at_once` batches are
    being computed, the next one keeps filling.

    Args:
      outputs: the network, (window [k, N, …], is_first [1, N], …) → arrays [N, …].
      max_environments: largest N of a batch; one caller's environments are never divided.
      timeout_seconds: how long the first caller waits for others.
      num_at_once: batches that may be computed at the same time: with a small network, one uses the cores while
        another's threads wait for each other.
    """

    def __init__(self, outputs: Outputs, *, max_environments: int, timeout_seconds: float, num_at_once: int = 1):
        if max_environments < 1:
            raise ValueError(f"max_environments={max_environments}; expected 1 or more")
        if not timeout_seconds > 0.0:
            raise ValueError(f"timeout_seconds={timeout_seconds}; expected more than 0, or nobody waits for anybody")
        self._outputs, self._max, self._timeout = outputs, max_environments, timeout_seconds
        if num_at_once < 1:
            raise ValueError(f"num_at_once={num_at_once}; expected 1 or more")
        self._num_at_once = num_at_once
        self._condition, self._computing = threading.Condition(), threading.Semaphore(num_at_once)
        self._pausing = threading.Lock()  # two callers of `paused`, each with some of the permits, would deadlock
        self._open: _Batch | None = None
        self.log = BatchLog()

    def __call__(self, window: np.ndarray, is_first: np.ndarray, *memory: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns this caller's rows of the outputs. Raises what the network raised, in every caller of the batch."""
        n = is_first.shape[1]
        with self._condition:
            if self._open and self._open.size + n > self._max:
                self._close(self._open)
            batch, is_leader = self._open, self._open is None
            if is_leader:
                batch = self._open = _Batch()
            index = len(batch.requests)
            batch.requests.append((window, is_first, *memory))
            batch.size += n
            if batch.size >= self._max:
                self._close(batch)
            if is_leader:
                self._condition.wait_for(lambda: batch.is_closed, self._timeout)
        if is_leader:
            self._compute(batch)
        batch.done.wait()
        if batch.error is not None:
            raise batch.error
        return batch.rows[index]

    @contextlib.contextmanager
    def paused(self):
        """Computes no batch during the block, so that the block can change the network's weights."""
        with self._pausing:
            for _ in range(self._num_at_once):
                self._computing.acquire()
        try:
            yield
        finally:
            self._computing.release(self._num_at_once)

    def _close(self, batch: "_Batch") -> None:
        batch.is_closed = True
        if self._open is batch:
            self._open = None
        self._condition.notify_all()

    def _compute(self, batch: "_Batch") -> None:
        try:
            with self._computing:  # while it waits for others to be computed, this batch keeps filling
                with self._condition:
                    self._close(batch)
                batch.rows = compute_together(self._outputs, batch.requests)
                self.log.add(batch.size, time.perf_counter() - batch.started)
        except BaseException as error:  # raised in every waiting caller
            batch.error = error
        finally:
            batch.done.set()


class BatchLog:
    """Counts batches, the environments in them, and how long they took; thread-safe."""

    def __init__(self):
        self.num_batches = self.num_environments = 0
        self._lock, self._last, self._slowest = threading.Lock(), (0, 0), 0.0

    def add(self, num_environments: int, seconds: float) -> None:
        """Counts a batch, which took `seconds` from its first request to its results."""
        with self._lock:
            self.num_batches += 1
            self.num_environments += num_environments
            self._slowest = max(self._slowest, seconds)

    def columns(self) -> dict[str, float]:
        """Returns a batch's mean number of environments and the slowest batch's seconds, both since the last call."""
        with self._lock:
            batches, environments = self.num_batches - self._last[0], self.num_environments - self._last[1]
            slowest, self._last, self._slowest = self._slowest, (self.num_batches, self.num_environments), 0.0
        return dict(inference_batch_mean=environments / batches, inference_seconds_max=slowest) if batches else {}


def compute_together(outputs: Outputs, requests: list[tuple[np.ndarray, ...]]) -> list[tuple[np.ndarray, ...]]:
    """Calls `outputs` once for the inputs of several requests; returns each one's rows."""
    if len(requests) == 1:
        return [outputs(*requests[0])]
    # The environments' axis: 1 in window, is_first, last action and last reward, 0 in a core state.
    columns = zip([1, 1, 1, 1, 0], zip(*requests))
    rows = outputs(*(np.concatenate(parts, axis=axis) for axis, parts in columns))
    ends = np.cumsum([is_first.shape[1] for _, is_first, *_ in requests])[:-1]
    return list(zip(*(np.split(array, ends) for array in rows)))


class _Batch:
    """Requests on their way through the network together."""

    def __init__(self):
        self.requests, self.size, self.is_closed, self.started = [], 0, False, time.perf_counter()
        self.done, self.error, self.rows = threading.Event(), None, ()
