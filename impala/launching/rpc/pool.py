"""Threads for the handlers: daemons, unlike concurrent.futures', so a stuck one keeps no process alive."""

import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


class _Waiting:
    """Counts the threads that wait for a task, less the tasks that wait for a thread."""

    def __init__(self):
        self._lock, self._num = threading.Lock(), 0

    def give(self) -> None:
        """Counts one thread more."""
        with self._lock:
            self._num += 1

    def take(self) -> bool:
        """Counts one thread less; returns whether there was one."""
        with self._lock:
            self._num -= 1
            return self._num >= 0


class DaemonPool(futures.Executor):
    """An executor of up to `num_threads` daemon threads, started as they are needed and ended with it.

    One is started at once: where the system refuses another one later, calls wait for those that there are.
    """

    def __init__(self, num_threads: int, name: str):
        self._num_threads = num_threads
        self._name = name
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._waiting = _Waiting()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._add_thread()
        self._waiting.give()

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> futures.Future:
        """Queue a call."""
        future: futures.Future = futures.Future()
        self._tasks.put((future, fn, args, kwargs))
        if not self._waiting.take() and self._add_thread():
            self._waiting.give()
        return future

    def _add_thread(self) -> bool:
        """Starts a thread, unless there are enough or the system refuses it; returns whether it did.

        Raises:
          RuntimeError: the system refuses the first one.
        """
        with self._lock:
            if len(self._threads) == self._num_threads:
                return False
            name = f"{self._name}-{len(self._threads)}"
            # A thread knows the queue and not the pool, so that the pool can be collected.
            thread = threading.Thread(target=_work, args=(self._tasks, self._waiting), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # an error of `submit` would end gRPC's thread, and so the server
                if not self._threads:
                    raise
                return False
            self._threads.append(thread)
            return True

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the threads once what is queued is done; returns at once."""
        for _ in self._threads:
            self._tasks.put(None)

    def __del__(self):
        self.shutdown()


def _work(tasks: queue.SimpleQueue, waiting: _Waiting) -> None:
    while (task := tasks.get()) is not None:
        future, fn, args, kwargs = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
        del task, future, fn, args, kwargs  # or the last request stays in memory while the thread waits
        waiting.give()
