"""Files that numbers are written to: CSV that is bounded and resumed, and TensorBoard."""

import csv
import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 32_000_000  # of one CSV file


class CsvLog:
    """Appends rows to a CSV file; an existing file is continued, without the rows past a resumed checkpoint.

    The file stays under `max_bytes`: when it is full, every second row goes, and from then on only every second comes.
    Rows that belong together, `num_together` of them, come and go together.
    """

    def __init__(
        self, path: str | Path, columns: tuple[str, ...], *, last_update: int, max_bytes: int = MAX_BYTES,
        num_together: int = 1,
    ):  # fmt: skip
        self._path, self._columns, self._max_bytes = Path(path), columns, max_bytes
        self._keep_every, self._count, self._num_together = 1, 0, num_together
        self.num_failed = 0  # rows lost to a disk that was full
        self._file = None
        kept = [row for row in read_csv(path) if float(row["updates"] or 0) <= last_update] if last_update else []
        self._rewrite(kept)

    def _rewrite(self, rows: list[dict]) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self._path)
        if self._file:
            self._file.close()
        self._file = self._path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, self._columns, restval="")

    def write(self, *rows: dict[str, Any]) -> None:
        """Appends rows; a full disk costs the rows, is counted, and does not stop the run."""
        try:
            for row in rows:
                if self._count // self._num_together % self._keep_every == 0:
                    self._writer.writerow({name: _shown(value) for name, value in row.items()})
                self._count += 1
            self._file.flush()
            if self._file.tell() > self._max_bytes:
                written = enumerate(read_csv(self._path))
                self._rewrite([row for i, row in written if i // self._num_together % 2 == 0])
                self._keep_every *= 2
        except OSError as error:
            if not self.num_failed:
                logging.error("%s: rows are lost from now on: %s", self._path, error)
            self.num_failed += len(rows)

    def close(self) -> None:
        self._file.close()


def read_csv(path: str | Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file; none when it is missing. A last line cut short by a kill is left out."""
    path = Path(path)
    if not path.exists():
        return []
    whole_lines = path.read_text(encoding="utf-8").rpartition("\n")[0]
    rows = csv.DictReader(io.StringIO(whole_lines, newline=""))
    return [row for row in rows if None not in row and None not in row.values()]


class TensorBoard:
    """The same numbers as TensorBoard scalars, over frames; a full disk costs them, as it costs `CsvLog` rows."""

    def __init__(self, folder: Path):
        import tensorflow as tf

        self._tf, self._writer = tf, tf.summary.create_file_writer(str(folder / "tensorboard"))
        self.num_failed = 0

    def write(self, row: dict[str, Any], lags: np.ndarray) -> None:
        self._trying(lambda: self._write(row, lags))

    def _write(self, row: dict[str, Any], lags: np.ndarray) -> None:
        with self._writer.as_default(step=row["frames"]):
            for name, value in row.items():
                if isinstance(value, (int, float)) and not np.isnan(value):
                    # An array: TensorFlow keeps every Python scalar it ever converted.
                    self._tf.summary.scalar(name, np.array(value, np.float32))
            if len(lags):
                self._tf.summary.histogram("lag", lags)
        self._writer.flush()

    def close(self) -> None:
        self._trying(self._writer.close)

    def _trying(self, what: Callable[[], None]) -> None:
        try:
            what()
        except (OSError, self._tf.errors.OpError) as error:
            if not self.num_failed:
                logging.error("TensorBoard's events are lost from now on: %s", error)
            self.num_failed += 1


def _shown(value):
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.8g}" if isinstance(value, float) else value
