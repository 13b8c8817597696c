"""Disks of a few kilobytes, full ones, and those that may only be read, made for real."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(kilobytes: int) -> Iterator[Path]:
    """Mounts a disk of that size in memory and gives its folder; skips the test where nothing may be mounted.

    It counts in pages of 4 kB: of a full one, a file may still grow to the end of its last page.
    """
    with tempfile.TemporaryDirectory(prefix="small_disk_") as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"there is no mount here: {error}")
        if done.returncode:
            pytest.skip(f"may not mount a disk here: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Leaves no page free on the disk that holds `folder`, one of a `small_disk`, until the end of the block."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(os.urandom(4096))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Lets nobody write on the disk that is mounted at `folder`, a `small_disk`, until the end of the block."""
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
