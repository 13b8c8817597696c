"""What a learner does in addition to learning: periodic jobs, a profile, keeping the first chunks."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from impala.types import Chunk


class PeriodicJob:
    """Runs a job at most once a period; if the job returns fewer seconds than that, it runs again after these."""

    def __init__(self, seconds: float, job: Callable[[], float | None]):
        self._seconds, self._job, self._due = seconds, job, time.monotonic() + seconds

    def maybe_run(self) -> None:
        if time.monotonic() >= self._due:
            sooner = self._job()
            self._due = time.monotonic() + min(self._seconds, self._seconds if sooner is None else sooner)


class Profiler:
    """Writes a TensorFlow profile of a hundred updates, after a warm-up."""

    _FIRST, _LAST = 50, 150

    def __init__(self, folder: Path):
        self._folder, self._count = folder, 0

    def __call__(self, result: object) -> None:
        import tensorflow as tf

        self._count += 1
        if self._count == self._FIRST:
            tf.profiler.experimental.start(str(self._folder))
        elif self._count == self._LAST:
            tf.profiler.experimental.stop()
            logging.info("profile of %d updates in %s", self._LAST - self._FIRST, self._folder)

    def close(self) -> None:
        """Writes what there is if the run ends in between."""
        import tensorflow as tf

        if self._FIRST <= self._count < self._LAST:
            tf.profiler.experimental.stop()
        if self._count < self._LAST:
            logging.warning("the profile in %s is of %d updates", self._folder, max(0, self._count - self._FIRST))


class Recorder:
    """Keeps the first chunks or batches that it is given as .npz files."""

    def __init__(self, folder: Path, num_chunks: int):
        self._folder, self._num_chunks = folder, num_chunks
        self._count = len(list(folder.glob("*.npz")))  # a resumed run goes on where it was

    def __call__(self, chunk: Chunk) -> None:
        if self._count >= self._num_chunks:
            return
        arrays = {name: np.asarray(field) for name, field in chunk._asdict().items() if not isinstance(field, tuple)}
        path = self._folder / f"{self._count:06d}.npz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".tmp").open("wb") as file:
                np.savez_compressed(file, **arrays)
            path.with_suffix(".tmp").replace(path)
            self._count += 1
        except OSError as error:
            logging.error("no more chunks are recorded after %d: %s", self._count, error)
            self._num_chunks = 0
