"""The signals that ask a launcher to end."""

import signal
import time

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, `kill`, a terminal that went away


class Interrupts:
    """A context manager, around a launch and its supervision, that counts the signals that ask for an end.

    A program that is half launched cannot be ended in order, so nothing is raised: code that can act looks at `count`.
    """

    _TOGETHER_SECONDS = 0.3

    def __init__(self):
        self.count, self._last = 0, float("-inf")

    def ask(self) -> None:
        """Asks for an end in order, as one signal does."""
        self.count = max(self.count, 1)

    def __enter__(self):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it came ignored, nobody could wait for a child
        ours = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]  # nohup, background jobs: stay ignored
        self._previous = {number: signal.signal(number, self._on_signal) for number in ours}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number, _):
        # An echo is not a second request: the kernel and the shell both report a terminal that went away, and `timeout`
        # signals a process and its group.
        is_echo = time.monotonic() - self._last < self._TOGETHER_SECONDS
        self._last = time.monotonic()
        self.count = max(self.count, 1) if number == signal.SIGHUP or is_echo else self.count + 1
