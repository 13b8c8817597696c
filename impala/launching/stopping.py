"""How a node asks for the end of its program on a cluster, and how it says that it ended before it had begun."""

import os
from pathlib import Path

VARIABLE = "IMPALA_STOP_FILE"


class Stopped(Exception):
    """A node was told to stop while it waited for another, before it could begin: no failure."""


def stop() -> None:
    """What `lp.stop()` does where the launcher is on another host: creates a file, of which `node_host` tells it."""
    Path(os.environ[VARIABLE]).touch()
