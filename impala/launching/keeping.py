"""Tables that outlive a launch: a copy of them on disk, written by Reverb's checkpointer.

Three properties of the checkpointer (dm-reverb 0.14) shape this file. It removes whatever else lies in its folder, so
it has a folder to itself. Tables that it reads back keep their sizes and rate limiters, whatever the configuration now
says, so the folder is named after the settings that its tables were made with. And it silently ignores a copy that
lacks a file, so such a copy is removed, and the user told. A copy that it cannot read is moved aside.
"""

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from impala.launching import processes

_OF_SETTINGS = re.compile("[0-9a-f]{12}")  # the name of a folder of copies; nothing else is ours to remove
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord", "DONE")  # of a copy; DONE is written last


class Keeper:
    """Serves tables with the contents that were saved in `folder`, and saves them there.

    Args:
      folder: used by this keeper alone.
      seconds: between two copies.
      settings: what the tables are made with; a copy made with other settings is useless and is removed.
    """

    def __init__(self, folder: Path, *, seconds: float, settings: str):
        self.seconds, self._all = seconds, folder
        self._folder = folder / hashlib.sha256(settings.encode()).hexdigest()[:12]

    def serve(self, make_tables: Callable[[], Sequence], port: int):
        """Returns (`reverb.Server`, lines that tell the user which copies were not used)."""
        import reverb
        from reverb.platform.checkpointers_lib import DefaultCheckpointer

        words = [self._remove(folder, "it was made with other settings") for folder in _folders(self._all)
                 if folder != self._folder and _OF_SETTINGS.fullmatch(folder.name)]  # fmt: skip
        words += self._remove_broken()
        self._folder.mkdir(parents=True, exist_ok=True)
        checkpointer = DefaultCheckpointer(path=str(self._folder))
        try:
            server = reverb.Server(make_tables(), port=port, checkpointer=checkpointer)
        except MemoryError:
            raise
        except Exception as error:  # RuntimeError, ValueError: whatever Reverb raises for a damaged file
            processes.check_port_is_free(port)  # else the copy is not to blame
            words.append(self._move_aside(processes.first_line(error)))
            self._folder.mkdir()
            server = reverb.Server(make_tables(), port=port, checkpointer=checkpointer)
        return server, words

    def save(self, server) -> str:
        """Writes a copy, during which nobody can use the tables; returns what went wrong, "" if nothing did."""
        started = time.monotonic()
        try:
            path = Path(server.localhost_client().checkpoint())
            error = "" if _is_whole(path) else f"{path} lacks a file"
        except Exception as failure:  # a full disk is an IndexError
            error = processes.first_line(failure)
        if error:
            logging.error("the tables could not be copied to disk: %s", error)
            self._remove_broken()
        else:
            logging.info("copied the tables to %s in %.1f s", path, time.monotonic() - started)
        return error

    def _move_aside(self, reason: str) -> str:
        aside = self._all.with_name(f"{self._all.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)  # an older one
        self._folder.rename(aside)
        words = f"the copy of the replay table cannot be read ({reason}); it lies in {aside} now"
        logging.warning(words)
        return words

    def _remove_broken(self) -> list[str]:
        broken = [folder for folder in _folders(self._folder) if not _is_whole(folder)]
        return [self._remove(folder, "it lacks a file") for folder in broken]

    def _remove(self, folder: Path, reason: str) -> str:
        shutil.rmtree(folder, ignore_errors=True)
        words = f"a copy of the replay table was removed: {reason}"
        logging.warning("%s: %s", folder, words)
        return words


def _is_whole(copy: Path) -> bool:
    return all((copy / name).exists() for name in _FILES)


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
