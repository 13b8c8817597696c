"""What nodes must know of the run beside its configuration."""

from pathlib import Path
from typing import NamedTuple


class Run(NamedTuple):
    """One launch of a run, or of one member of a population."""

    folder: Path  # of the run, or of the member in it
    launcher_pid: int
    started: float  # time.monotonic() of the launch
    incarnation: int  # rises at every launch of the same run
    profile: bool = False
    member: int = 0
