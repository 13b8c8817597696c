"""Checkpoints: weights and optimizer slots as TensorFlow tensors, everything else as JSON; written whole or not at all.

    checkpoints/0000001234/   named by number of updates
        tensors.index, tensors.data-00000-of-00001
        state.json            frames, updates, …, and the SHA-256 of the tensor files and of itself

A checkpoint is written into `….tmp`, synced to disk and renamed; the rename commits it.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from impala.learning import soundness

_PREFIX, FORMAT = "tensors", 1  # of what is written; rises when an older version could not read it
_TEMPORARY, _REPLACED = ".tmp", ".replaced"


class Restored(NamedTuple):
    """Which checkpoint was restored, and which newer ones were not."""

    path: str  # name of its folder
    updates: int
    frames: int
    passed_over: list[tuple[str, str]]  # (name, reason) of each, the newest first


class Unusable(RuntimeError):
    """The checkpoints in a folder cannot be used."""


class NoSoundCheckpoint(Unusable):
    """Checkpoints exist but none can be loaded; a run must not silently start afresh then."""


class OtherNetwork(Unusable):
    """A sound checkpoint of another network, optimizer or format; left as it is."""


class Checkpoints:
    """Saves and restores trackable objects in one directory, which is theirs alone.

    Args:
      directory: made when the first is saved.
      num_kept: how many of the newest checkpoints are kept.
      trackables: TensorFlow objects by name, for `tf.train.Checkpoint`.

    Attributes:
      restored: which checkpoint `restore` took, for display; None before, and in a new run.
    """

    def __init__(self, directory: str | Path, *, num_kept: int = 3, **trackables):
        self.restored: Restored | None = None
        self._directory, self._num_kept = Path(directory), num_kept
        self._checkpoint = tf.train.Checkpoint(**trackables)
        network = trackables.get("network")
        self._shapes = [list(v.shape) for v in network.trainable_variables] if network is not None else []

    @property
    def directory(self) -> Path:
        """Where the checkpoints are."""
        return self._directory

    def save(self, num_updates: int, state: dict[str, Any]) -> Path:
        """Writes a checkpoint named by `num_updates` and prunes old ones; on an error the older ones are untouched.

        Raises:
          OSError or tf.errors.OpError: the disk is full or not writable.
          TypeError or ValueError: JSON cannot hold `state`, e.g. NaN or infinity.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._put_back()
        final = self._directory / f"{num_updates:010d}"
        for left_over in self._directory.glob(f"*{_TEMPORARY}"):
            shutil.rmtree(left_over, ignore_errors=True)
        temporary = final.with_suffix(_TEMPORARY)
        temporary.mkdir()
        try:
            self._checkpoint.write(str(temporary / _PREFIX))
            digests = {path.name: soundness.sha256(path) for path in sorted(temporary.iterdir())}
            (temporary / soundness.STATE).write_text(soundness.sealed(state | self._header(num_updates, digests)))
            for path in [*temporary.iterdir(), temporary]:
                _sync(path)
            replaced = final.with_suffix(_REPLACED)
            if final.exists():
                final.rename(replaced)
            temporary.rename(final)
            _sync(self._directory)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        damaged = sorted(self._directory.glob(f"*{soundness.DAMAGED}"))
        others = [path for path in self.paths() if path != final]
        for old in [*others[: max(0, len(others) - self._num_kept + 1)], *damaged[: -self._num_kept]]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def _header(self, num_updates: int, digests: dict[str, str]) -> dict[str, Any]:
        return {"updates": num_updates, "sha256": digests, "network": self._shapes, "format": FORMAT}

    def paths(self) -> list[Path]:
        """Returns the checkpoints, oldest first."""
        return soundness.paths(self._directory)

    def _put_back(self) -> None:
        """Undoes a replacement that a kill cut short."""
        for replaced in self._directory.glob(f"*{_REPLACED}"):
            if replaced.with_suffix("").exists():
                shutil.rmtree(replaced, ignore_errors=True)
            else:
                replaced.rename(replaced.with_suffix(""))

    def restore(self, report=print, *, read_only: bool = False, is_part: bool = False) -> dict[str, Any] | None:
        """Restores the newest sound checkpoint and returns its state; None when there never was one.

        A damaged one is reported and, unless `read_only`, renamed; the next older one is tried. With `is_part` a
        checkpoint may hold further objects.

        Raises:
          NoSoundCheckpoint: there are checkpoints and none is sound.
          OtherNetwork: the newest sound one is of another network or optimizer, or of a format of later versions.
        """
        self.restored = None
        if not read_only:
            self._put_back()
        damaged = [path.name for path in self._directory.glob(f"*{soundness.DAMAGED}")]
        path, state, passed_over = soundness.survey(self._directory)
        for name, reason in passed_over:
            report(f"checkpoint {self._directory / name} is damaged ({reason}); trying the one before")
            if not read_only:
                aside = (self._directory / name).with_suffix(soundness.DAMAGED)
                shutil.rmtree(aside, ignore_errors=True)
                aside.unlink(missing_ok=True)  # in case it is a file
                (self._directory / name).rename(aside)
            damaged.append(name)
        while path:
            try:
                self._load(path, state, is_part)
            except (OSError, tf.errors.OpError):
                before, (path, state, passed_over) = path, soundness.survey(self._directory)
                if path == before or not read_only:  # else whoever trains has removed it meanwhile
                    raise
                continue
            self.restored = Restored(path.name, state["updates"], state.get("frames", 0), passed_over)
            return state
        if damaged:
            raise NoSoundCheckpoint(
                f"no sound checkpoint in {self._directory}: {', '.join(sorted(damaged))} could not be loaded; "
                "put a good copy back, or train anew with --restart"
            )
        return None

    def _load(self, path: Path, state: dict[str, Any], is_part: bool) -> None:
        if (written := state.get("format", 1)) != FORMAT:
            raise OtherNetwork(
                f"checkpoint {path} is of format {written}, and this version reads format {FORMAT}: go on with the one "
                "that wrote it, whose commit is in launches.json"
            )
        saved = state.get("network", self._shapes)
        if saved != self._shapes:
            pairs = itertools.zip_longest(saved, self._shapes)
            differences = [f"parameter {i}: saved {a}, now {b}" for i, (a, b) in enumerate(pairs) if a != b]
            raise OtherNetwork(f"checkpoint {path} is of another network: {'; '.join(differences[:5])}")
        try:
            status = self._checkpoint.read(str(path / _PREFIX))
            status.expect_partial().assert_existing_objects_matched() if is_part else status.assert_consumed()
        except AssertionError as error:
            lacks = ", ".join(self._lacking(path)[:5])
            reason = f"it lacks {lacks}" if lacks else str(error)[:200]
            raise OtherNetwork(f"checkpoint {path} holds other objects than this program's: {reason}") from error

    def _lacking(self, path: Path) -> list[str]:
        """Returns the names of tensors that a checkpoint lacks. What it alone has, reading it may have added here."""
        with contextlib.suppress(OSError, tf.errors.OpError), tempfile.TemporaryDirectory() as folder:
            now = _names(self._checkpoint.write(f"{folder}/{_PREFIX}"))
            return sorted(now - _names(str(path / _PREFIX)))
        return []


def read_state(directory: str | Path) -> dict[str, Any] | None:
    """Returns the JSON state of the newest checkpoint whose state is sound, without loading tensors, or None."""
    return soundness.newest_state(Path(directory))


def _names(prefix: str) -> set[str]:
    return {name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for name, _ in tf.train.list_variables(prefix)}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
