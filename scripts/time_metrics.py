#!/usr/bin/env python
"""Times what a metric costs the learner: scripts/time_metrics.py WORD… → a line each, in percent of an update.

For each WORD, a shipped configuration: updates on a random batch, in blocks of two seconds in turn: as shipped, with a
look at `silent_units` and `dormant_units` in no update and in every one (a run looks at every `units.PERIOD`-th), and
without `explained_variance`. On an otherwise idle machine.
"""

import sys
import time
from unittest import mock

import numpy as np

_BLOCK_SECONDS, _ROUNDS = 2.0, 15
_NEVER = 10**9  # updates


def without_explained_variance(metrics):
    def fewer(*arguments, **keywords):
        return {name: value for name, value in metrics(*arguments, **keywords).items() if name != "explained_variance"}

    return fewer


def percent(seconds: np.ndarray, than: np.ndarray) -> str:
    """Returns how much longer an update takes than another one, the median over the rounds and its quartiles."""
    low, median, high = np.percentile(100.0 * (seconds / than - 1.0), (25, 50, 75))
    return f"{median:.2f} % ({low:.2f} to {high:.2f})"


def measure(word: str) -> str:
    from impala import config as config_lib
    from impala.bench import parts
    from impala.learning import units
    from impala.losses import telemetry

    config, period = config_lib.load(f"configs/{word}.yaml"), units.PERIOD
    update = parts.update_of(config)
    with mock.patch.object(telemetry, "metrics", without_explained_variance(telemetry.metrics)):
        less = parts.update_of(config)
        less()  # traced here
    arms = {"shipped": (update, period), "never": (update, _NEVER), "always": (update, 1), "less": (less, period)}
    seconds = {name: [] for name in arms}
    for _ in range(_ROUNDS + 1):  # the first is a warm-up
        for name, (call, units.PERIOD) in arms.items():  # what the learner reads before each update
            number, began = 0, time.perf_counter()
            while time.perf_counter() - began < _BLOCK_SECONDS:
                call()
                number += 1
            seconds[name].append((time.perf_counter() - began) / number)
    taken = {name: np.array(values[1:]) for name, values in seconds.items()}
    spread = taken["never"] + (taken["always"] - taken["never"]) / period
    return (
        f"{word}: an update takes {1e3 * np.median(taken['shipped']):.2f} ms; silent and dormant units in every update "
        f"{percent(taken['always'], taken['never'])}, so in one of {period} {percent(spread, taken['never'])}; "
        f"explained_variance {percent(taken['shipped'], taken['less'])}"
    )


if __name__ == "__main__":
    for word in sys.argv[1:]:
        print(measure(word), flush=True)
