"""What `impala` and `python -m impala` start: the command line, which Ctrl-C ends in one line from the first moment on.

Importing the command line takes most of a second, in which KeyboardInterrupt would come out of any module's middle.
"""

import os
import signal
import sys


def main() -> int:
    """Runs the command line; see `cli.main`."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # of a script's background jobs
        signal.signal(signal.SIGINT, _end)  # until `cli` or the launcher takes over: nothing can be lost yet
    from impala import cli

    return cli.main()


def _end(*_) -> None:
    os.write(2, b"interrupted before training began\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
