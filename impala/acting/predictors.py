"""A queue of requests for predictions and the threads that answer them (GA3C, Babaeizadeh et al. 2016, section 4).

    agent ──▶ prediction queue ──▶ predictor threads: all waiting, one call of the network ──▶ each request its rows

No request waits for others: a predictor takes those that are queued, and those that arrive meanwhile are the next
batch, whereas `inference.Gatherer` waits for a batch to fill.
"""

import collections
import threading
import time

from impala.acting.crews import Crew
from impala.acting.inference import BatchLog, compute_together
from impala.acting.policies import Outputs


class Predictors:
    """An `Outputs` for many threads at once, computed by the N_P predictor threads of `crew`.

    Args:
      outputs: the network, as in `Gatherer`; called by several threads at once.
      max_environments: largest N of a batch; one request's environments are never divided.
      num_threads: N_P.
      queue_size: maximum number of requests that wait; when it is full, callers wait for room.
    """

    _SLICE_SECONDS = 0.2

    def __init__(self, outputs: Outputs, *, max_environments: int, num_threads: int, queue_size: int):
        if max_environments < 1:
            raise ValueError(f"max_environments={max_environments}; expected 1 or more")
        if queue_size < 1:
            raise ValueError(f"queue_size={queue_size}; expected 1 or more requests")
        self._outputs, self._max, self._queue_size = outputs, max_environments, queue_size
        self._requests: collections.deque[_Request] = collections.deque()
        self._changed = threading.Condition()
        self.log = BatchLog()
        self.crew = Crew(self._answer, num_threads, name="predictor")

    def __call__(self, window, is_first, *memory) -> tuple:
        """Returns the outputs for this caller's environments. Raises what the network raised."""
        request = _Request((window, is_first, *memory))
        with self._changed:
            self._changed.wait_for(lambda: len(self._requests) < self._queue_size)
            self._requests.append(request)
            self._changed.notify_all()
        request.done.wait()
        if request.error is not None:
            raise request.error
        return request.rows

    def _answer(self) -> None:
        """Waits for a request, takes it and all behind it that fit into a batch, and answers them."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._requests, self._SLICE_SECONDS):
                return
            taken = [self._requests.popleft()]
            size = taken[0].size
            while self._requests and size + self._requests[0].size <= self._max:
                taken.append(self._requests.popleft())
                size += taken[-1].size
            self._changed.notify_all()
        try:
            rows = compute_together(self._outputs, [request.inputs for request in taken])
            self.log.add(size, time.perf_counter() - taken[0].started)
            for request, its_rows in zip(taken, rows):
                request.rows = its_rows
        except BaseException as error:  # raised in every waiting caller
            for request in taken:
                request.error = error
        finally:
            for request in taken:
                request.done.set()


class _Request:
    def __init__(self, inputs: tuple):
        self.inputs, self.size, self.started = inputs, inputs[1].shape[1], time.perf_counter()
        self.done, self.error, self.rows = threading.Event(), None, ()
