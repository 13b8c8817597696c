"""Saves a learner's checkpoints, and tells the launcher what is saved and what is not."""

import logging
import shutil
import time
from typing import Any

_RETRY_SECONDS = 5.0


class Saver:
    """Saves one agent's checkpoints and keeps count of what is saved; a full disk costs a checkpoint, not the run.

    Args:
      checkpoints: `learning.checkpoints.Checkpoints`.
      state: of the checkpoint that was restored, or {}.
      num_bytes: of one checkpoint.
      pulse: of the node; says that it saves, and passes facts to the launcher.
      patience: seconds for which checkpoints may fail; then the run is told to end, and not to begin again.
    """

    def __init__(self, checkpoints, state: dict[str, Any], num_bytes: int, pulse, patience: float):
        self._checkpoints, self._megabytes, self._pulse = checkpoints, num_bytes / 1e6, pulse
        self._patience, self._has_given_up = patience, False
        self._saved = dict(
            saved_updates=int(state.get("updates", 0)), saved_frames=int(state.get("frames", 0)), saved_at=None
        )  # fmt: skip
        self._failing_since, self._error = None, ""
        self.look()

    @property
    def free_mb(self) -> float | None:
        """Megabytes free where checkpoints are written; None if that is unknown."""
        try:
            return shutil.disk_usage(self._checkpoints.directory.parent).free / 1e6
        except OSError:
            return None

    def is_there_room(self) -> bool:
        """Returns whether one checkpoint fits on the disk, as far as can be told."""
        free_mb = self.free_mb
        return free_mb is None or free_mb >= self._megabytes

    def save(self, num_updates: int, state: dict[str, Any]) -> float | None:
        """Writes a checkpoint; if that fails, returns after how many seconds to try again."""
        import tensorflow as tf

        before, self._pulse.doing = self._pulse.doing, "saving"
        try:
            self._checkpoints.save(num_updates, state)
        except (OSError, tf.errors.OpError) as error:
            self._error = _reason(error)
            if self._failing_since is None:
                self._failing_since = time.monotonic()
                logging.error("checkpoint of update %d failed, the older ones stay: %s", num_updates, error)
            if time.monotonic() - self._failing_since > self._patience and not self._has_given_up:
                self._has_given_up = True
                logging.error("no checkpoint could be written for %g s: the run ends", self._patience)
                self._pulse.note(ends_run=True)
                self._pulse.set()
            return _RETRY_SECONDS
        finally:
            self._pulse.doing = before
            self.look()
        self._saved = dict(
            saved_updates=num_updates, saved_frames=int(state["frames"]), saved_at=time.monotonic()
        )  # fmt: skip
        self._failing_since, self._error = None, ""
        self.look()
        self._pulse.send()  # at once: if the node is killed now, the launcher knows that nothing is lost
        return None

    def last_words(self) -> str:
        """Returns what is to be said of the checkpoints when the run ends; "" if they are written."""
        words = [f"no checkpoint could be written for {self._patience:,.0f} s, unsaved_seconds"] * self._has_given_up
        words += [f"the last checkpoint could not be written: {self._error}"] * bool(self._error)
        return "; ".join(words)

    def look(self) -> None:
        """Tells the launcher what is saved, what failed, and how much room is left for the next checkpoint."""
        failing = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
        self._pulse.note(
            save_error=self._error, failing_seconds=failing, checkpoint_mb=self._megabytes, free_mb=self.free_mb,
            **self._saved,
        )  # fmt: skip


def save_after_failure(head) -> None:
    """Writes what the last whole update left, if anything was trained; called where an exception is handled."""
    logging.exception("learning failed; writing what the last whole update left")
    try:
        if head.has_trained:
            head.save()
    except Exception:
        logging.exception("that could not be saved either")


def _reason(error: Exception) -> str:
    """Returns in a few words what went wrong, from an OSError or an error of TensorFlow's."""
    words = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return words.strip().splitlines()[0].split(";")[-1].strip()[:200]
