"""Handlers that gather calls: several callers' arguments go through one call of the function, stacked.

The first caller of a batch waits for others, at most `timeout`; then it runs the function for all of them.
Numpy arrays and scalars are stacked along a new first axis, other plain values gathered in a list, tuples and
dicts batched element by element. The function returns a batched result, which is taken apart in the same way.
"""

import datetime
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class BatchMismatchError(SystemError):
    """Calls that cannot be batched together; crosses the wire as INTERNAL, like every SystemError."""


class BatchedHandler:
    """A callable that gathers up to `batch_size` concurrent calls into one."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        batch_size: int,
        max_parallelism: int,
        timeout_seconds: float,
        pad_batch: bool,
    ):
        """See `BuildBatchedHandlerWrapper`."""
        if batch_size < 1 or max_parallelism < 1 or timeout_seconds < 0:
            numbers = f"{batch_size=}, {max_parallelism=} and {timeout_seconds=}"
            raise ValueError(f"{numbers} of {name}; expected 1 or more, 1 or more, and no negative time")
        self.name = name
        self.batch_size = batch_size
        self._function = function
        self._max_parallelism = max_parallelism
        self._timeout_seconds = timeout_seconds
        self._pad_batch = pad_batch
        self._condition = threading.Condition()
        self._open_batch: _Batch | None = None
        self._num_running = 0

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Join the open batch and return this call's share of its result; an error goes to all callers."""
        with self._condition:
            batch = self._open_batch
            is_first = batch is None
            if is_first:
                batch = self._open_batch = _Batch()
            index = len(batch.calls)
            batch.calls.append((args, kwargs))
            if len(batch.calls) == self.batch_size:
                self._close(batch)
        if is_first:
            self._lead(batch)
        batch.done.wait()
        if batch.error is not None:
            raise batch.error
        return batch.results[index]

    def _lead(self, batch: "_Batch") -> None:
        is_running = False
        try:
            with self._condition:
                self._condition.wait_for(lambda: batch.is_closed, self._timeout_seconds)
                # While others run, the batch keeps filling.
                self._condition.wait_for(lambda: self._num_running < self._max_parallelism)
                self._close(batch)
                self._num_running += 1
                is_running = True
            batch.results = self._run(batch.calls)
        except BaseException as error:  # an interrupted wait, too: the others must not wait for ever
            batch.error = error
        finally:
            with self._condition:
                self._close(batch)
                self._num_running -= is_running
                self._condition.notify_all()
            batch.done.set()

    def _close(self, batch: "_Batch") -> None:
        batch.is_closed = True
        if self._open_batch is batch:
            self._open_batch = None
        self._condition.notify_all()

    def _run(self, calls: list[tuple[tuple, dict]]) -> list[Any]:
        padding = self.batch_size - len(calls) if self._pad_batch else 0
        calls = calls + calls[:1] * padding
        first_args, first_kwargs = calls[0]
        if any(len(args) != len(first_args) for args, _ in calls):
            raise BatchMismatchError(f"calls of {self.name} in one batch have different numbers of arguments")
        if any(kwargs.keys() != first_kwargs.keys() for _, kwargs in calls):
            raise BatchMismatchError(f"calls of {self.name} in one batch have different keyword arguments")
        args = [_batch(values) for values in _transpose([args for args, _ in calls], len(first_args))]
        kwargs = {key: _batch([kwargs[key] for _, kwargs in calls]) for key in first_kwargs}
        return _unbatch(self._function(*args, **kwargs), len(calls))


class _Batch:
    def __init__(self):
        self.calls: list[tuple[tuple, dict]] = []
        self.results: list[Any] = []
        self.error: BaseException | None = None
        self.is_closed = False
        self.done = threading.Event()


def BuildBatchedHandlerWrapper(  # pylint: disable=invalid-name
    name: str,
    handler: Callable[..., Any],
    batch_size: int,
    max_parallelism: int,
    timeout: datetime.timedelta | float,
    pad_batch: bool,
) -> BatchedHandler:
    """Wrap a function so that concurrent calls are gathered.

    Args:
      name: the method's name, for messages and `CallHandler`.
      handler: takes batched arguments, returns a batched result.
      batch_size: maximum number of calls in a batch. Each holds a thread of the server while it waits.
      max_parallelism: maximum number of batches that run at once.
      timeout: how long the first caller waits for others; a number counts milliseconds. (For calls within the
        process Launchpad's decorator passes `timeout.microseconds / 1000`: whole seconds arrive as 0.)
      pad_batch: fill up a batch that is not full with copies of its first call, whose results are dropped.

    Raises:
      ValueError: a batch size or parallelism below 1, or a negative timeout.
    """
    is_delta = isinstance(timeout, datetime.timedelta)
    return BatchedHandler(
        name,
        handler,
        batch_size=batch_size,
        max_parallelism=max_parallelism,
        timeout_seconds=timeout.total_seconds() if is_delta else timeout / 1000,
        pad_batch=pad_batch,
    )


def _batch(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, (np.ndarray, np.generic)):
        kinds = {(type(value), getattr(value, "dtype", None), np.shape(value)) for value in values}
        if len(kinds) > 1:
            raise ValueError(f"arrays to be batched differ in type, dtype or shape: {kinds}")
        return np.stack(values)
    if any(type(value) is not type(first) for value in values):
        raise BatchMismatchError(f"values to be batched differ in type: {sorted({type(v).__name__ for v in values})}")
    if isinstance(first, tuple):
        if len({len(value) for value in values}) > 1:
            raise BatchMismatchError("tuples to be batched differ in length")
        return _rebuild(first, [_batch(items) for items in _transpose(values, len(first))])
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise BatchMismatchError("dicts to be batched differ in their keys")
        return {key: _batch([value[key] for value in values]) for key in first}
    return list(values)


def _unbatch(result: Any, size: int) -> list[Any]:
    if result is None:
        return [None] * size
    if isinstance(result, tuple):
        return [_rebuild(result, items) for items in _transpose([_unbatch(item, size) for item in result], size)]
    if isinstance(result, dict):
        columns = [_unbatch(item, size) for item in result.values()]
        return [dict(zip(result, items, strict=True)) for items in _transpose(columns, size)]
    if not isinstance(result, (list, np.ndarray)) or (isinstance(result, np.ndarray) and result.ndim == 0):
        raise ValueError(f"a batched function returned a {type(result).__name__}, which cannot be taken apart")
    if len(result) != size:
        raise ValueError(f"a batched function returned {len(result)} results for {size} calls")
    return list(result)


def _transpose(columns: Sequence[Sequence[Any]], size: int) -> list[tuple]:
    return list(zip(*columns, strict=True)) if columns else [()] * size


def _rebuild(like: tuple, items: Sequence[Any]) -> tuple:
    return type(like)._make(items) if hasattr(like, "_fields") else tuple(items)
