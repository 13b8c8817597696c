"""Threads for the handlers: daemons, unlike concurrent.futures', so a stuck one keeps no process alive."""

import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


class DaemonPool(futures.Executor):
    """An executor of up to `num_threads` daemon threads, started as they are needed and ended with it."""

    def __init__(self, num_threads: int, name: str):
        self._num_threads = num_threads
        self._name = name
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> futures.Future:
        """Queue a call."""
        future: futures.Future = futures.Future()
        self._tasks.put((future, fn, args, kwargs))
        if not self._idle.acquire(blocking=False):
            self._add_thread()
        return future

    def _add_thread(self) -> None:
        with self._lock:
            if len(self._threads) == self._num_threads:
                return
            name = f"{self._name}-{len(self._threads)}"
            # A thread knows the queue and not the pool, so that the pool can be collected.
            thread = threading.Thread(target=_work, args=(self._tasks, self._idle), name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """End the threads once what is queued is done; returns at once."""
        for _ in self._threads:
            self._tasks.put(None)

    def __del__(self):
        self.shutdown()


def _work(tasks: queue.SimpleQueue, idle: threading.Semaphore) -> None:
    while (task := tasks.get()) is not None:
        future, fn, args, kwargs = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
        del task, future, fn, args, kwargs  # or the last request stays in memory while the thread waits
        idle.release()
