"""Overlapping windows of steps, as `acting.windows` writes them: their spec, their table, and how they are read."""

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import reverb
import tensorflow as tf

from impala.replay import datasets, fetching, priorities, sources, table_info, tables
from impala.replay.checks import Checks
from impala.replay.estimates import MemoryEstimate
from impala.types import WINDOW_COLUMNS, ArraySpec, Chunk, map_fields

_MOST_UNREAD = 50  # batches in a row, each with a window that cannot be read


def window_spec(chunk: Chunk) -> Chunk:
    """Returns the spec of windows in the table, that of `chunk` but for `is_first`, which covers older planes too."""
    return chunk._replace(is_first=ArraySpec(chunk.observation.shape[:1], np.bool_))


def lengths(chunk: Chunk) -> dict[str, int]:
    """Returns how many of its newest steps a window holds, by column; of columns not named it holds the last one."""
    fields = window_spec(chunk)._asdict()
    return {name: fields[name].shape[0] for name in WINDOW_COLUMNS if isinstance(fields[name], ArraySpec)}


def to_chunk(arrays: dict[str, Any], *, importance_exponent: float | None = None) -> Chunk:
    """Returns drawn windows [B, …] as a time-major `Chunk` [T, B, …] of arrays, all of it replayed.

    Args:
      importance_exponent: β of `priorities.importance_weights`, where windows are drawn by priority.
    """
    observation, is_first, num_steps = arrays["observation"], arrays["is_first"], arrays["r_t"].shape[1]
    k = observation.shape[1] - num_steps
    columns = {name: np.swapaxes(arrays[name], 0, 1) for name in WINDOW_COLUMNS[2:] if name in arrays}
    return Chunk(
        **{"logits_tm1": ()} | columns,
        observation=np.swapaxes(mask_older(observation, is_first, k), 0, 1),
        is_first=np.swapaxes(is_first[:, k - 1 :], 0, 1),
        **{name: arrays.get(name, ()) for name in ("previous_action", "previous_reward", "core_state")},
        weights_version=arrays["weights_version"], origin=arrays["origin"],
        is_replayed=np.ones(len(observation), bool),
        importance=() if importance_exponent is None else np.float32(
            priorities.importance_weights(arrays["probability"], arrays["table_size"], importance_exponent)
        ),
    )  # fmt: skip


def to_tensors(
    arrays: dict[str, Any], device: str | None = None, *, importance_exponent: float | None = None
) -> Chunk:  # fmt: skip
    """Returns `to_chunk` as tensors on `device`."""
    with tf.device(device):
        return map_fields(tf.convert_to_tensor, to_chunk(arrays, importance_exponent=importance_exponent))


def mask_older(observation: np.ndarray, is_first: np.ndarray, num_stacked: int) -> np.ndarray:
    """Returns windows [B, T+k, …] whose planes are zero where they are older than the episode of time 0."""
    is_older = np.zeros(is_first.shape, bool)
    for age in range(1, num_stacked):
        at = num_stacked - 1 - age
        is_older[:, at] = is_older[:, at + 1] | is_first[:, at + 1]
    if not is_older.any():
        return observation
    observation = np.array(observation)
    observation[is_older] = 0
    return observation


def table(
    spec: Chunk, max_size: int, *, min_size: int, samples_per_insert: float | None, batch_size: int,
    priority_exponent: float | None = None,
) -> reverb.Table:  # fmt: skip
    """Returns a table of overlapping windows, whose rate limiter makes writer and reader wait for each other.

    Reading begins with `min_size` windows; from then on each is drawn `samples_per_insert` times on average. Reader or
    writer may be ahead by eight batches, or by what two batches of new windows make. Writers never wait for the removal
    of old windows: a full table drops its oldest.

    Args:
      spec: of a window; see `window_spec`.
      samples_per_insert: None lets writers and reader run as fast as they can.
      batch_size: windows that are drawn together.
      priority_exponent: α of `priorities.probabilities`; None draws uniformly.
    """
    if samples_per_insert is None:
        limiter = reverb.rate_limiters.MinSize(min_size)
    else:
        margin = max(8 * batch_size, 2 * samples_per_insert * min(min_size, batch_size))
        limiter = reverb.rate_limiters.SampleToInsertRatio(
            samples_per_insert, min_size_to_sample=min_size, error_buffer=margin
        )
    is_uniform = priority_exponent is None
    return reverb.Table(
        tables.REPLAY,
        sampler=reverb.selectors.Uniform() if is_uniform else reverb.selectors.Prioritized(priority_exponent),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=limiter,
        signature=tables.signature(spec),
    )


def batches(
    server_address: str, table: str, *, batch_size: int, checks: Checks | None = None, device: str | None = None,
    importance_exponent: float | None = None,
) -> Iterator[Chunk]:  # fmt: skip
    """Yields batches [T, B, …] of windows drawn from a table, on `device`; see `drawn` and `to_chunk`."""
    for arrays in drawn(server_address, table, batch_size=batch_size, checks=checks):
        yield to_tensors(arrays, device, importance_exponent=importance_exponent)


def drawn(
    server_address: str, table: str, *, batch_size: int, checks: Checks | None = None,
    remove: Callable[[list[int]], None] = lambda keys: None, empty: Callable[[], None] | None = None,
) -> Iterator[dict[str, np.ndarray]]:  # fmt: skip
    """Yields windows drawn from a table, [B, …] by column, and of each its `key`, `probability` and the `table_size`.

    Args:
      checks: as in `datasets.chunks`; an unsound window is left out, and the next one drawn takes its place.
      remove: takes the keys of unsound windows out of the table: with a high priority one would fill all batches. One
        that cannot be read at all stays there, since its key is not known, and costs a batch whenever it is drawn.
      empty: takes all out of a table that is spoiled: fifty batches in a row could not be read, or a window was drawn
        with a probability that is not above 0 and at most 1. One infinite priority is enough for that, and it stays so
        without the window that had it. What was drawn before is dropped.
    """
    make_fetch = functools.partial(
        fetching.fetcher, server_address, table, batch_size, info=("key", "probability", "table_size")
    )
    fetch, left, num_unread = make_fetch(), None, 0
    while True:
        try:
            arrays, num_unread = fetch(), 0
        except tf.errors.OutOfRangeError:
            return
        except tf.errors.InvalidArgumentError as error:
            if checks is None:
                raise
            checks.count("unreadable", error.message.splitlines()[0])
            num_unread += 1
            if empty and num_unread >= _MOST_UNREAD:
                empty()
                fetch, left, num_unread = make_fetch(), None, 0
            continue
        if checks and empty and not priorities.are_probabilities(arrays["probability"]):
            words = f"drawn with probability {arrays['probability'].tolist()}; expected above 0, up to 1"
            checks.count("priority", words)
            empty()
            fetch, left = make_fetch(), None
            continue
        is_sound = np.array(checks(arrays)) if checks else np.ones(batch_size, bool)
        if not is_sound.all():
            remove(arrays["key"][~is_sound].tolist())
        if not is_sound.all() or left:
            arrays = {name: array[is_sound] for name, array in arrays.items()}
            arrays = {name: np.concatenate([left[name], array]) for name, array in arrays.items()} if left else arrays
            if len(arrays["origin"]) < batch_size:
                left = arrays
                continue
            left = None  # what is too much is dropped: kept, it would make every later batch one draw older
        yield {name: array[:batch_size] for name, array in arrays.items()}


class Share(NamedTuple):
    """One learner's share of the configured numbers.

    num_fresh: steps from the beginning of a window to that of the next. num_trained: transitions that one draw of a
    window trains on.
    """

    size: int  # windows of its full table
    min_size: int  # windows before the first is drawn
    batch_size: int  # B
    num_fresh: int = 1
    num_trained: int = 1


class Windows(sources.FedSource):
    """A source whose batches are all drawn from a replay table, as fast as its rate limiter allows.

    Args:
      client: `reverb.Client` of the table's server.
      share: of this source in the configured numbers.
      checks: of the windows that come from it.
      num_prefetched: batches that may wait.
      device: where batches go.
      is_fed_with_others: whether an actor that waits for room here also feeds tables of other learners.
    """

    def __init__(
        self, client, share: Share, *, checks: Checks, num_prefetched: int, device: str,
        is_fed_with_others: bool = False,
    ):  # fmt: skip
        self._batch_size, self._device, self._share = share.batch_size, device, share
        self._is_fed_with_others = is_fed_with_others
        super().__init__(lambda: datasets.Prefetcher(self._batches, num_prefetched=num_prefetched))
        self._client, self._checks, size = client, checks, share.size * share.num_fresh
        self._memory = MemoryEstimate(size, enough=max(20_000, size // 20))
        self._lock, self._num_emptied = threading.Lock(), 0  # windows put into the table before it was emptied

    def _drawn(self) -> Iterator[dict[str, np.ndarray]]:
        return drawn(
            self._client.server_address, tables.REPLAY, batch_size=self._batch_size, checks=self._checks,
            remove=self._remove, empty=self._empty,
        )  # fmt: skip

    def _remove(self, keys: list[int]) -> None:
        try:
            self._client.mutate_priorities(tables.REPLAY, deletes=keys)
        except Exception as error:  # it will be drawn, and taken out, again
            logging.warning("%d unsound windows could not be taken out of the table: %s", len(keys), error)

    def _empty(self) -> None:
        logging.warning("the table is emptied: nothing that can be trained on is drawn from it any more")
        with self._lock:
            if (info := self._info()) is None:
                return  # it is busy, and will be found spoiled again; a count that is lost would take frames back
            try:
                self._client.reset(tables.REPLAY)  # and its counts: those of frames go on
                self._num_emptied += info.rate_limiter_info.insert_stats.completed
            except Exception as error:  # it will be found spoiled again
                logging.warning("the table could not be emptied: %s", error)

    def _batches(self) -> Iterator:
        """Yields what the feeder's thread prepares."""
        return (to_tensors(arrays, self._device) for arrays in self._drawn())

    def counts(self) -> dict[str, int]:
        return {f"unsound:{reason}": count for reason, count in self._checks.counts_by_reason().items()}

    def columns(self) -> dict[str, Any]:
        """Returns how many transitions the table holds, of how many, and how many were drawn for each that came.

        Those that came before there were `min_size` do not count.
        """
        if (info := self._info()) is None:
            return {}
        limiter, share = info.rate_limiter_info, self._share
        num_inserted = share.num_fresh * (limiter.insert_stats.completed - share.min_size)
        ratio = share.num_trained * limiter.sample_stats.completed / num_inserted if num_inserted > 0 else None
        sizes = dict(replay_size=share.num_fresh * info.current_size, replay_capacity=share.num_fresh * share.size)
        return sizes | dict(samples_per_insert=ratio)

    def num_inserted(self) -> int | None:
        """Returns how many windows were put into the table since it was started; None if it does not answer."""
        with self._lock:
            info = self._info()
            return self._num_emptied + info.rate_limiter_info.insert_stats.completed if info else None

    def fill(self) -> None:
        """Returns None: there is no queue, and `columns` says how much the table holds."""

    def is_full(self) -> bool:
        """Returns whether actors wait until more windows are drawn, and other learners wait for these actors."""
        return self._is_fed_with_others and table_info.holds_up_writers(self._info())

    def look(self, row: dict[str, Any]) -> None:
        """See `sources.Tables`."""
        if self._memory.is_open and row.get("replay_size"):
            self._memory.look(row["replay_size"], row["rss_table_mb"])

    def status(self) -> dict[str, Any]:
        return {"full_replay_mb": self._memory.full_mb}

    def _info(self):
        return table_info.info_of(self._client, tables.REPLAY)
