"""From a table to time-major batches, in a thread of its own.

Reverb's blocking calls swallow signals and outlive a dead server, so only the feeder thread makes them; the training
thread takes batches from a bounded queue with a time limit.
"""

import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from impala.replay.checks import Checks
from impala.replay.duplicates import Deduplicator
from impala.replay.fetching import fetcher
from impala.types import Chunk, Origin


def chunks(
    server_address: str, table: str, *, max_in_flight: int, checks: Checks | None = None
) -> Iterator[Chunk]:
    """Yields chunks of arrays from a table, from a queue in order; blocks until the next `max_in_flight` are there.

    Args:
      checks: count and drop unsound chunks. If an item is no chunk at all, the chunks fetched together with it are
        lost too. Without checks such an item raises InvalidArgumentError, and every chunk is let through.
      max_in_flight: chunks fetched at once, which costs less than half of fetching one by one. They have left the
        table, so each adds to the policy lag: use the batch size. Once one was left out, here or by the `Feeder`,
        batches end within a fetch, and up to `max_in_flight` − 1 chunks wait for one update more.
    """
    fetch = fetcher(server_address, table, max_in_flight)
    while True:
        try:
            arrays = fetch()
        except tf.errors.OutOfRangeError:
            return
        except tf.errors.InvalidArgumentError as error:  # about one item, now used up: the next may be sound
            if checks is None:
                raise
            checks.count("unreadable", error.message.splitlines()[0])
            continue
        is_sound = checks(arrays) if checks else max_in_flight * [True]
        for i in range(max_in_flight):
            if is_sound[i]:
                yield Chunk(**dict.fromkeys(Chunk._fields, ()) | {name: array[i] for name, array in arrays.items()})


WITHOUT_TIME = {"previous_action", "previous_reward", "origin", "core_state", "is_replayed"}


def stack(chunks: list[Chunk], device: str | None = None) -> Chunk:
    """Stacks B chunks on the axis after time: into tensors [T, B, …] on `device`, fields without time into [B, …]."""
    with tf.device(device):
        return Chunk(*(
            tf.convert_to_tensor(np.stack([*map(np.asarray, field)], axis=_axis_of_chunks(name, field[0])))
            if not isinstance(field[0], tuple)
            else ()
            for name, field in zip(Chunk._fields, zip(*chunks))
        ))  # fmt: skip


def _axis_of_chunks(name: str, field) -> int:
    if name == "weights_version":
        return np.ndim(field)  # [T] where inference is central
    return 0 if name in WITHOUT_TIME else 1


def marked(chunk: Chunk, *, is_replayed: bool) -> Chunk:
    """Returns `chunk` marked as replayed or fresh."""
    return chunk._replace(is_replayed=np.bool_(is_replayed))


class Prefetcher:
    """Runs an iterator of batches in a thread of its own and hands them over through a bounded queue.

    Args:
      make_batches: makes the iterator; called in that thread.
      num_prefetched: batches that may wait in the queue; the thread holds one more. Each is an update of policy lag.
    """

    def __init__(self, make_batches: Callable[[], Iterator[Chunk]], *, num_prefetched: int = 1):
        self._make_batches = make_batches
        self._batches: queue.Queue = queue.Queue(maxsize=num_prefetched)
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def get(self, timeout_seconds: float) -> Chunk | None:
        """Returns the next batch, or None if none comes in time. Raises what the thread raised."""
        try:
            return self._batches.get(timeout=timeout_seconds)
        except queue.Empty:
            if self._error is not None:
                raise self._error from None
            return None

    def stop(self) -> None:
        """Ends the thread when it next wakes; does not wait for it, since it may sit in a Reverb call for ever."""
        self._stopped.set()

    def _run(self):
        try:
            for batch in self._make_batches():
                while not self._stopped.is_set():
                    try:
                        self._batches.put(batch, timeout=0.5)
                        break
                    except queue.Full:
                        continue
                if self._stopped.is_set():
                    return
            if not self._stopped.is_set():
                raise RuntimeError("the table's stream ended; expected it to go on until the run stops")
        except BaseException as error:  # handed to the training thread, which ends the run
            self._error = error


class Feeder(Prefetcher):
    """A `Prefetcher` of batches of fresh chunks and, if `num_replayed` is not 0, replayed ones.

    Args:
      make_chunks: makes the iterator of fresh chunks; called in the feeder's thread.
      batch_size: B.
      make_replayed: makes the iterator of replayed chunks, which may repeat themselves.
      num_replayed: of the B chunks of each batch.
      num_prefetched: see `Prefetcher`.
      device: where batches are stacked, so that they are there before the learner asks.
      record: called with every fresh chunk that is no duplicate, for `--record-chunks`.
      num_updates: done so far by the learner.
      max_lag: a fresh chunk is dropped if it would be trained on more than so many updates after its oldest version. An
        update is assumed to be under way: if none is, a chunk of exactly this lag is dropped, too.
    """

    def __init__(
        self, make_chunks: Callable[[], Iterator[Chunk]], *, batch_size: int,
        make_replayed: Callable[[], Iterator[Chunk]] | None = None, num_replayed: int = 0, num_prefetched: int = 1,
        device: str | None = None, record=None, num_updates: Callable[[], int] = lambda: 0, max_lag: int | None = None,
    ):  # fmt: skip
        self._make_chunks, self._device, self._record = make_chunks, device, record
        self._make_replayed, self._num_replayed = make_replayed, num_replayed
        self._num_fresh = batch_size - num_replayed
        self._num_updates, self._max_lag, self.num_dropped = num_updates, max_lag, 0
        self.deduplicator = Deduplicator()
        super().__init__(self._collect, num_prefetched=num_prefetched)  # last, as it starts the thread

    def counts(self) -> dict[str, int]:
        """Returns how many chunks came twice, are missing, and were dropped for their age."""
        seen = self.deduplicator
        return dict(duplicate_chunks=seen.num_duplicates, missing_chunks=seen.num_gaps, dropped_chunks=self.num_dropped)

    def _collect(self) -> Iterator[Chunk]:
        collected, replayed = [], None
        for chunk in self._make_chunks():
            if self._stopped.is_set():
                return
            if not self.deduplicator.is_new(Origin(*np.asarray(chunk.origin).tolist())):
                continue
            if self._record:
                self._record(chunk)
            collected.append(marked(chunk, is_replayed=False))
            if len(collected) == self._num_fresh:
                young = [chunk for chunk in collected if not self._is_too_old(chunk)]
                self.num_dropped += len(collected) - len(young)
                collected = young
            if len(collected) == self._num_fresh:
                if self._num_replayed:
                    replayed = replayed or self._make_replayed()
                    collected += [marked(next(replayed), is_replayed=True) for _ in range(self._num_replayed)]
                yield stack(collected, self._device)
                collected = []

    def _is_too_old(self, chunk: Chunk) -> bool:
        if self._max_lag is None:
            return False
        num_ahead = self._batches.qsize() + 1  # batches before this chunk's: those that wait, and the one in training
        return self._num_updates() + num_ahead - int(np.min(chunk.weights_version)) > self._max_lag
