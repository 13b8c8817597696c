"""What nodes must know of the run in addition to its configuration."""

from pathlib import Path
from typing import NamedTuple

RPC_SECONDS = 86_400.0  # no limit: a caller that waits hears the stop signal, and the launcher sees frozen nodes
NUM_SPARE_THREADS = 16  # of a server, in addition to those that its lanes may all hold at once


class Run(NamedTuple):
    """One launch of a run, or of one member of a population."""

    folder: Path  # of the run, or of the member in it
    launcher_pid: int
    started: float  # time.monotonic() of the launch
    incarnation: int  # rises at every launch of the same run, and with every node that is started again
    profile: bool = False
    member: int = 0
