"""A call that returns a future, and the schedule of attempts, which blocking calls use too."""

import random
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc

from impala.launching.rpc.status import StatusNotOk

_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 2.0


class Schedule:
    """When to try again, and how long that may go on."""

    def __init__(self, timeout_seconds: float | None):
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._pause_seconds = _FIRST_PAUSE_SECONDS

    def remaining_seconds(self) -> float | None:
        """Return what is left of the timeout, at least 0; None without a timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def next_pause_seconds(self) -> float:
        """Return how long to wait now: twice as long each time, up to 2 s, and not past the deadline."""
        pause = self._pause_seconds * random.uniform(0.5, 1.0)  # sixty actors must not retry at the same moment
        self._pause_seconds = min(2 * self._pause_seconds, _MAX_PAUSE_SECONDS)
        remaining = self.remaining_seconds()
        return pause if remaining is None else min(pause, remaining)


class _Held:
    """What a call holds on to until its future is done.

    The future refers to this object for ever, as a callback, so this must not refer to the future: in a cycle the
    result, which may be megabytes of weights, would stay until the garbage collector runs.
    """

    def __init__(self, send: Callable[[], grpc.Future]):
        self.send: Callable[[], grpc.Future] | None = send
        self.attempt: grpc.Future | None = None

    def release(self, future: futures.Future) -> None:
        """Drops `send` and the attempt, which it cancels if the future was cancelled."""
        attempt, self.attempt, self.send = self.attempt, None, None
        if future.cancelled() and attempt is not None:
            attempt.cancel()


class PendingCall:
    """Makes attempts, each after the end of the last, until one completes the future."""

    def __init__(
        self,
        send: Callable[[], grpc.Future],
        receive: Callable[[grpc.Future], Any],
        is_repeatable: Callable[[StatusNotOk], bool],
        schedule: Schedule,
    ):
        """Make the first attempt.

        Args:
          send: starts an attempt.
          receive: takes an attempt that has ended; returns its result or raises its StatusNotOk.
          is_repeatable: says whether to try again after a status.
          schedule: says when.
        """
        self.future: futures.Future = futures.Future()
        self._held = _Held(send)
        self._receive = receive
        self._is_repeatable = is_repeatable
        self._schedule = schedule
        self._start()
        self.future.add_done_callback(self._held.release)

    def _start(self) -> None:
        try:
            send = self._held.send
            if send is None:  # the future was cancelled between two attempts
                return
            self._held.attempt = attempt = send()
        except Exception as error:  # the channel was closed
            self._complete(self.future.set_exception, error)
            return
        attempt.add_done_callback(self._on_end)
        if self.future.cancelled():  # while it was being sent
            attempt.cancel()

    def _on_end(self, attempt: grpc.Future) -> None:
        if self.future.cancelled():
            return
        try:
            result = self._receive(attempt)
        except StatusNotOk as status:
            if self._is_repeatable(status):
                timer = threading.Timer(self._schedule.next_pause_seconds(), self._start)
                timer.daemon = True
                try:
                    timer.start()
                except RuntimeError:  # the system refuses another thread
                    self._complete(self.future.set_exception, status)
            else:
                self._complete(self.future.set_exception, status)
        except Exception as error:  # gRPC would only log it, and the caller would wait for ever
            self._complete(self.future.set_exception, error)
        else:
            self._complete(self.future.set_result, result)

    def _complete(self, setter: Callable[[Any], None], value: Any) -> None:
        try:
            setter(value)
        except futures.InvalidStateError:  # cancelled at this very moment
            pass
