"""The folder of a run: who may use it, what it holds, whether it is resumed."""

import contextlib
import fcntl
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from impala import config as config_lib
from impala import own, provenance
from impala.launching import launches, processes

_LOOK_SECONDS = 0.1
SIMULATORS = ("minatar", "mujoco")  # which a run may do without
PACKAGES = ("impala", "tensorflow", "dm-reverb", "dm-launchpad", "numpy", "gymnasium", "ale-py", "grpcio")


class RunFolder:
    """Holds `path` for one launch; a second process that wants it is refused.

    Args:
      path: made when missing.
      config: resolved.
      restart: move an existing run aside and begin anew.

    Raises:
      ConfigError: the folder is in use, is no run folder, or holds a run of another configuration.
    """

    def __init__(self, path: str | Path, config: config_lib.Config, *, restart: bool = False):
        self.path = _resolved(path)
        _refuse_member(self.path)
        if restart and self.path.exists():
            self._refuse_others()
            lock = self._lock_or_refuse()
            aside = self.path.with_name(f"{self.path.name}.{time.strftime('%Y%m%d-%H%M%S')}")
            try:
                refuse_if_written(self.path)
                self.path.rename(aside)
            except OSError as error:  # a disk is mounted there
                line = f"--restart --run {path}: {error.strerror}; expected a folder that can be renamed to {aside}"
                raise config_lib.ConfigError([line]) from None
            finally:
                lock.close()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise config_lib.ConfigError(
                [f"--run {path}: {error.strerror}; expected a folder that can be made"]
            ) from None
        self._refuse_others()  # before a lock is left in somebody's folder
        self._unrecorded = 0  # the last incarnation, if the disk was full when it began
        had_lock = (self.path / "lock").exists()
        self._lock = self._lock_or_refuse()
        try:
            self.is_resumed, self._incarnation = self._check_contents(config), 0
            self.changes = self._changes(config) if self.is_resumed else []
        except config_lib.ConfigError:
            if not had_lock:
                (self.path / "lock").unlink()
            self.close()
            raise
        try:
            self._write(config)
        except OSError as error:
            raise self._unwritable(error) from None

    def _lock_or_refuse(self):
        try:
            lock = (self.path / "lock").open("a+")
        except OSError as error:
            raise config_lib.ConfigError([f"--run {self.path}: {error.strerror}; expected a writable folder"]) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_SECONDS)  # `is_running` may have looked just now
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_file_at(lock, self.path / "lock"):  # another process has moved or removed it meanwhile
                raise BlockingIOError
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            error = config_lib.ConfigError(
                [f"--run {self.path}: in use by {holder}; expected a free run folder, or wait for that run's end"]
            )
            # A file server may hold the lock of a host that died for some minutes.
            if " on " in holder and not holder.endswith(f" on {platform.node()}"):
                error.status = processes.EXIT_TRY_AGAIN
            raise error from None
        except OSError as error:  # a network file system without locks
            raise config_lib.ConfigError(
                [f"--run {self.path}: cannot be locked: {error.strerror}; expected a file system that locks files"]
            ) from None
        _write_holder(lock)
        return lock

    def _refuse_others(self) -> None:
        """Refuses a folder that holds something but no run."""
        if not self.path.is_dir() or (self.path / "config.yaml").exists():
            return
        ours = ("lock", "config.yaml.tmp")  # the latter, where a first launch was killed
        others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in ours)
        if others:
            raise config_lib.ConfigError(
                [f"--run {self.path}: holds {others[0]!r} but no run; expected an empty folder or a run's"]
            )

    def _check_contents(self, config) -> bool:
        """Returns whether there is a run to resume; refuses one of another configuration."""
        self._refuse_others()
        if not _can_resume(self.path):
            self._refuse_what_would_be_lost(config)
            return False
        differences = config_differences(config_lib.load(self.path / "config.yaml"), config)
        if differences:
            raise config_lib.ConfigError(
                [
                    f"{line} (--run {self.path} was started so; use another --run, or --restart)"
                    for line in differences[:5]
                ]
            )
        return True

    def _changes(self, config) -> list[str]:
        """Returns a line for each key that a resumed run is given another value of, but for its length."""
        before, after = (config_lib.flatten(each) for each in (config_lib.load(self.path / "config.yaml"), config))
        keys = sorted(config_lib.MAY_CHANGE_ON_RESUME & after.keys() - {"total_frames"})
        return [f"{key}: was {before.get(key)}, is {after[key]}" for key in keys if before.get(key) != after[key]]

    def _refuse_what_would_be_lost(self, config) -> None:
        """Refuses a run with rows but no checkpoint, unless it is one of the same configuration that died young."""
        if not any(map(_has_rows, member_folders(self.path))):
            return
        is_same = not config_differences(config_lib.load(self.path / "config.yaml"), config)
        if not is_same or not (self.path / "logs").exists():  # a kept result has none
            raise config_lib.ConfigError([
                f"--run {self.path}: has rows in metrics.csv and no checkpoint to go on from; "
                "expected another --run, or --restart, which moves it aside"
            ])  # fmt: skip

    def _write(self, config) -> None:
        texts = {
            self.path / "config.yaml": config_lib.dump(config),
            self.path / "versions.txt": versions(config),
            self.path / "command.txt": shlex.join(sys.argv) + "\n",
        }
        size = config.population.size
        for index in range(size if size > 1 else 0):
            texts[self.path / config.member_name(index) / "config.yaml"] = config_lib.dump(config.member(index))
        for path, text in texts.items():
            path.parent.mkdir(exist_ok=True)
            temporary = path.with_name(path.name + ".tmp")
            try:
                temporary.write_text(text, encoding="utf-8", errors="surrogateescape")  # a path may be no UTF-8
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)  # else the folder would hold something but no run
                raise

    def next_incarnation(self, node: str = "") -> int:
        """Records this launch, or a `node` that starts again; returns its number, higher than all before.

        It is higher even if their record is damaged. On a full disk the first launch is refused; later ones go on
        without a record.
        """
        try:
            least = self._incarnation + 1  # of earlier ones a full disk may have kept no record
            self._incarnation = launches.add(self.path / "launches.json", member_folders(self.path), node, least=least)
        except OSError as error:
            if not self._incarnation:
                raise self._unwritable(error) from None
            self._incarnation += 1
            self._unrecorded = self._incarnation
        else:
            self._unrecorded = 0
        return self._incarnation

    def _unwritable(self, error: OSError) -> config_lib.ConfigError:
        return config_lib.ConfigError(
            [f"--run {self.path}: {error.strerror or error}; expected a writable folder, and room on its disk"]
        )

    def close(self) -> None:
        """Releases the folder; records what a full disk kept no record of, if there is room now."""
        if self._unrecorded:
            with contextlib.suppress(OSError):
                folders = member_folders(self.path)
                launches.add(self.path / "launches.json", folders, "not recorded: no room", least=self._unrecorded)
        self._lock.close()


def _refuse_member(path: Path) -> None:
    """Refuses the folder of a population's member, which goes on with its population only."""
    around = path.parent / "config.yaml"
    if path not in member_folders(path.parent) or not around.is_file():
        return
    if config_lib.load(around).population.size > 1:
        raise config_lib.ConfigError([f"--run {path}: is a member of a population; expected --run {path.parent}"])


def as_begun(path: Path, config: config_lib.Config) -> config_lib.Config:
    """Returns `config` with the keys that are not set in it taken from the run at `path`, if there is one to resume.

    So a run continues as it began, even if a default has changed since.

    Raises:
      ConfigError: the run's own configuration cannot be read.
    """
    if not _can_resume(_resolved(path)):
        return config
    return config_lib.over(config_lib.load(path / "config.yaml"), config)


def _resolved(path: str | Path) -> Path:
    """Returns the absolute path of a run's folder, or refuses one that cannot be looked at."""
    try:
        found = Path(path).resolve()
        (found / "config.yaml").exists()
        str(found).encode()
    except UnicodeEncodeError:  # TensorFlow opens no such file
        shown = str(path).encode(errors="replace").decode()
        raise config_lib.ConfigError([f"--run {shown}: no UTF-8; expected another name"]) from None
    except (OSError, RuntimeError) as error:  # a name too long, another user's folder; a link to itself
        reason = error.strerror if isinstance(error, OSError) else "a link that leads to itself"
        raise config_lib.ConfigError([f"--run {path}: {reason}; expected a folder of yours"]) from None
    config_lib.refuse_patterns(found, "--run")
    return found


def _can_resume(path: Path) -> bool:
    found = (each for folder in member_folders(path) for each in folder.glob("checkpoints/[0-9]*"))
    return (path / "config.yaml").exists() and any(each.suffix != ".tmp" for each in found)  # never committed


def _has_rows(folder: Path) -> bool:
    try:
        return (folder / "metrics.csv").read_bytes().count(b"\n") > 1  # the first line holds the columns
    except OSError:
        return False


def member_folders(path: Path) -> list[Path]:
    """Returns the folders that hold metrics and checkpoints: a run's own, or those of a population's members."""
    members = [folder for folder in path.glob("member_*") if folder.name.partition("_")[2].isdecimal()]
    return sorted(members, key=lambda folder: int(folder.name.partition("_")[2])) or [path]


def config_differences(old: config_lib.Config, new: config_lib.Config) -> list[str]:
    """Returns a line for each key that may not change on resume but did."""
    before, after = config_lib.flatten(old), config_lib.flatten(new)
    return [
        f"{key}: was {before.get(key)!r}, is {after[key]!r}; cannot change on resume"
        for key in after
        if before.get(key) != after[key] and key not in config_lib.MAY_CHANGE_ON_RESUME
    ]


def versions(config: config_lib.Config) -> str:
    """Returns packages, commit, machine, and the files of parts of the user's own, a line each."""
    found = provenance.versions(PACKAGES) | provenance.installed(SIMULATORS)
    lines = [f"{name} {version}" for name, version in found.items()]
    lines += [f"commit {provenance.commit()}", f"machine {provenance.machine()}"]
    return "\n".join([*lines, *(f"{key} {word} {own.file_and_hash(word)}" for key, word in config.own_words)]) + "\n"


def is_running(folder: Path) -> bool:
    """Returns whether a process holds the run folder."""
    return _is_locked(folder / "lock")


def _write_holder(lock) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write(f"process {os.getpid()} on {platform.node()}")
    lock.flush()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Holds the run folder while it is looked at or changed; yields whether nobody else did."""
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context((folder / "lock").open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_SECONDS)  # `is_running` may have looked just now
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_holder(lock)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a folder that may only be read, a file system without locks
            pass
        yield True


def refuse_if_written(path: Path) -> None:
    """Raises ConfigError, status 75, if a node of a launch that has ended still writes into the run at `path`."""
    for folder in member_folders(path):
        if _is_locked(folder / "checkpoints.lock"):
            lock = folder / "checkpoints.lock"
            error = config_lib.ConfigError([
                f"{path}: a node of an earlier launch still writes there and holds {lock}; expected it to end "
                "soon: try again, or end the process that fuser names"
            ])  # fmt: skip
            error.status = processes.EXIT_TRY_AGAIN
            raise error


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _is_file_at(file, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
