"""Files of numbers: CSV, of bounded size and continued on resume, and TensorBoard. A full disk never stops a run."""

import contextlib
import csv
import errno
import io
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 32_000_000  # of one CSV file
_DAMAGED = ".damaged"


class CsvLog:
    """Appends rows to a CSV file; an existing file is continued, without the rows past a resumed checkpoint.

    `last` holds the checkpoint's `updates`, and its `frames` where rows have them: an agent that replays plays before
    its first update. If it is empty, the file is begun anew.

    The file stays under `max_bytes`: when it is full, every second row is removed, and from then on only every second
    one is written. Rows that belong together, `num_together` of them, are kept or left out together. A full disk loses
    whole rows, which are counted, never parts of one. If a file is partly unreadable, its readable rows stay, and a
    copy of it is set aside.
    """

    def __init__(
        self, path: str | Path, columns: tuple[str, ...], *, last: Mapping[str, int], max_bytes: int = MAX_BYTES,
        num_together: int = 1,
    ):  # fmt: skip
        self._path, self._columns, self._max_bytes = Path(path), columns, max_bytes
        self._keep_every, self._count, self._num_together = 1, 0, num_together
        self.num_failed = 0  # rows, and whole files, that the disk did not take
        self._file = None
        # Contents to be written; until the disk has room for them, the file stays as it was and takes no rows.
        self._pending: bytes | None = encoded(self._kept(last) if last else [], columns, with_header=True)
        self._trying(self._install, num_rows=1)

    def _kept(self, last: Mapping[str, int]) -> list[dict[str, str]]:
        """Returns the rows of the file that are not past `last`; sets a copy aside if not all of it can be read."""
        try:
            header, rows, num_unreadable = _parsed(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            logging.warning("%s cannot be read and is begun anew: %s", self._path, error)
            return []
        if "updates" not in header and len(header) == len(self._columns):  # the header is damaged
            rows, num_unreadable = [dict(zip(self._columns, row.values())) for row in rows], max(1, num_unreadable)
        counts = [{name: number(row.get(name) or "0") for name in last} for row in rows]
        num_unreadable += sum(math.isnan(count["updates"]) for count in counts)
        if num_unreadable:
            kept = _set_aside(self._path)
            logging.warning("%s: %d lines cannot be read and are left out; %s", self._path, num_unreadable, kept)
        return [row for row, count in zip(rows, counts) if all(count[name] <= last[name] for name in last)]

    def _install(self) -> None:
        """Replaces the file by `_pending`."""
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(self._pending)
            temporary.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._file = self._path.open("ab", buffering=0)
        self._pending = None

    def write(self, *rows: dict[str, Any]) -> None:
        """Appends rows, all or none; on a full disk they are lost and counted, and the run goes on."""
        kept = []
        for row in rows:
            if self._count // self._num_together % self._keep_every == 0:
                kept.append({name: _shown(value) for name, value in row.items()})
            self._count += 1
        if kept and self._trying(lambda: self._append(kept), num_rows=len(kept)):
            self._trying(self._thin, num_rows=1)

    def _append(self, rows: list[dict[str, Any]]) -> None:
        if self._pending is not None:
            self._install()
        if self._file is None:
            raise OSError(errno.EBADF, "the file is closed")
        append_whole(self._file.fileno(), encoded(rows, self._columns))

    def _thin(self) -> None:
        if os.fstat(self._file.fileno()).st_size <= self._max_bytes:
            return
        _, rows, _ = _parsed(self._path.read_bytes())
        rows = [row for i, row in enumerate(rows) if i // self._num_together % 2 == 0]
        self._pending, self._keep_every = encoded(rows, self._columns, with_header=True), 2 * self._keep_every
        self._install()

    def _trying(self, what: Callable[[], None], *, num_rows: int) -> bool:
        try:
            what()
        except OSError as error:
            if not self.num_failed:
                logging.error("%s: rows are lost from now on: %s", self._path, error)
            self.num_failed += num_rows
            return False
        return True

    def close(self) -> None:
        """Closes the file; rows that come later are lost and counted."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # every row was whole when it was written
                self._file.close()
            self._file = None


def encoded(rows: Iterable[dict[str, Any]], columns: Sequence[str], *, with_header: bool = False) -> bytes:
    """Returns rows as the bytes of a CSV file; columns that a row lacks are empty.

    With a header, rows may be those of an older file: columns that no longer exist are left out.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore" if with_header else "raise")
    if with_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def append_whole(descriptor: int, data: bytes) -> None:
    """Appends all of `data` to a file opened with O_APPEND, or nothing. Raises OSError when the disk is full."""
    size, written = os.fstat(descriptor).st_size, 0
    try:
        while written < len(data):  # a disk that fills up takes a part, and the next write fails
            written += os.write(descriptor, memoryview(data)[written:])
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def append(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Appends rows to a CSV file, a header first if it is new or empty; all of them or none, if OSError is raised.

    A last line that was cut short stays a line of its own, so that it costs no other row.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        begin = b"" if size else encoded([], columns, with_header=True)
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            begin = b"\n"
        append_whole(descriptor, begin + encoded(rows, columns))
    finally:
        os.close(descriptor)


def read_csv(path: str | Path) -> list[dict[str, str]]:
    """Returns the readable rows of a CSV file; [] if it is missing.

    A last line cut short by a kill is left out.
    """
    path = Path(path)
    return _parsed(path.read_bytes())[1] if path.is_file() else []


def num_damaged(path: str | Path) -> int:
    """Returns how many lines of a CSV file are no rows; a last line cut short by a kill does not count."""
    path = Path(path)
    return _parsed(path.read_bytes())[2] if path.is_file() else 0


def _parsed(data: bytes) -> tuple[list[str], list[dict[str, str]], int]:
    """Returns header, rows, and how many lines are damaged; an unfinished last line does not count."""
    whole = data.rpartition(b"\n")[0]
    try:
        lines = list(csv.reader(io.StringIO(whole.decode(), newline=""), strict=True))
    except (ValueError, csv.Error):  # line by line, so that a lost quotation mark costs one line only
        lines = [_fields(line) for line in whole.split(b"\n")]
    header, *lines = [line for line in lines if line != []] or [[]]
    num_unreadable = int(header is None)
    if header is None:
        header = whole.split(b"\n")[0].decode(errors="replace").rstrip().split(",")
    rows = [dict(zip(header, line)) for line in lines if line is not None and len(line) == len(header)]
    return header, rows, len(lines) - len(rows) + num_unreadable


def _fields(line: bytes) -> list[str] | None:
    """Returns the fields of a line, [] if it is empty; None if it cannot be read."""
    try:
        return next(csv.reader([line.decode()], strict=True), [])
    except (ValueError, csv.Error):
        return None


def number(text: str) -> float:
    """Returns what a cell holds, NaN if it is no number: somebody's editor or a damaged disk may have changed it."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _set_aside(path: Path) -> str:
    """Keeps the file under another name, too; returns a phrase that says what became of it."""
    aside = path.with_name(path.name + _DAMAGED)
    try:
        aside.unlink(missing_ok=True)
        try:
            os.link(path, aside)  # needs no room; the file itself is replaced, not written to
        except OSError:
            shutil.copyfile(path, aside)
    except OSError as error:
        return f"no copy could be kept: {error}"
    return f"the whole file is kept as {aside.name}"


class TensorBoard:
    """The same numbers as TensorBoard scalars, over frames; on a full disk they are lost, like the rows of `CsvLog`."""

    def __init__(self, folder: Path):
        import tensorflow as tf

        self._tf, self._folder, self._writer = tf, folder / "tensorboard", None
        self.num_failed = 0
        self._trying(self._open)

    def _open(self) -> None:
        self._writer = self._tf.summary.create_file_writer(str(self._folder))

    def write(self, row: dict[str, Any], lags: np.ndarray) -> None:
        if self._writer is None:  # not tried again before the next launch: each try leaves an empty file
            self.num_failed += 1
        else:
            self._trying(lambda: self._write(row, lags))

    def _write(self, row: dict[str, Any], lags: np.ndarray) -> None:
        # One message for all: an operation of TensorFlow's for each of a hundred numbers takes twelve times as long.
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.histogram.summary_v2 import histogram_pb
        from tensorboard.plugins.scalar.summary_v2 import scalar_pb

        summary = Summary()
        for name, value in row.items():
            if isinstance(value, (int, float)) and not np.isnan(value):
                summary.MergeFrom(scalar_pb(name, value))
        if len(lags):
            summary.MergeFrom(histogram_pb("lag", lags))
        with self._writer.as_default():
            self._tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=row["frames"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
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
