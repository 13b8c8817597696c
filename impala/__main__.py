"""Entry point of `impala` and `python -m impala`: handles Ctrl-C first, then runs the command line.

Importing the command line takes most of a second; without the handler, Ctrl-C in that time prints the traceback of
whatever import it interrupts.
"""

import os
import signal
import sys


def main() -> int:
    """Runs the command line; see `cli.main`."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored in a script's background jobs
        signal.signal(signal.SIGINT, _end)  # until `cli` or the launcher takes over: nothing can be lost yet
    from impala import cli

    return cli.main()


def _end(*_) -> None:
    os.write(2, b"interrupted before anything began\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
