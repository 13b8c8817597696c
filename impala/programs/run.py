"""What nodes must know of the run beside its configuration."""

from pathlib import Path
from typing import NamedTuple


class Run(NamedTuple):
    """One launch of a run."""

    folder: Path
    launcher_pid: int
    started: float  # time.monotonic() of the launch
    incarnation: int  # rises at every launch of the same run
    profile: bool = False
