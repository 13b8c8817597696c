"""Ends a command in whose own process an environment hangs: nobody else would."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from impala.config import Config


@contextlib.contextmanager
def watched(config: Config, doing: str) -> Iterator[Callable[[], bool]]:
    """Ends the process with status 75 and a line if the block, which plays environments, hangs for `liveness_seconds`.

    Time in which the whole process is stopped, by a signal or with its host, does not count.

    Yields:
      what the block calls with every step. It returns False, so that it serves as a `should_stop`.
    """
    from impala.launching import processes

    names = ", ".join(map(repr, config.environment.tasks))
    own = "".join(f", or {key}: {word!r}" for key, word in config.own_parts.items())
    seconds, num_silent, is_over = config.liveness_seconds, 0, threading.Event()

    def step() -> bool:
        nonlocal num_silent
        num_silent = 0
        return False

    def watch():
        nonlocal num_silent
        while not is_over.wait(1.0):
            num_silent += 1
            if num_silent >= seconds:
                line = f"environment.name: {names}{own} is silent for {seconds:g} s, liveness_seconds, while it {doing}"
                with contextlib.suppress(OSError):
                    print(f"{line}; expected an answer", file=sys.stderr, flush=True)
                os._exit(processes.EXIT_TRY_AGAIN)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield step
    finally:
        is_over.set()
