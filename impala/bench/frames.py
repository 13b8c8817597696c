"""What it costs to take a frame's background off and to scale it: `network.normalisation`."""

import os

from impala import config as config_lib
from impala.bench.parts import inference_of, rate, update_of

_ROUNDS = 5


def normalisation_fractions(config: config_lib.Config, seconds: float) -> dict[str, float]:
    """Returns which share of an inference, and of an update, the configured normalisation takes; all cores of the CPU.

    The rest is what they take of frames as they come (`raw`). All four in turn, each the best of five rounds.
    """
    from impala.launching import processes

    processes.hide_gpus()
    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)), config.learner.num_parallel_operations)
    network = config.network
    raw = config.model_copy(update={"network": network.model_copy(update={"normalisation": "raw"})})
    calls = {
        (name, each.network.normalisation): part(each)
        for name, part in (("inference", inference_of), ("learner", update_of)) for each in (config, raw)
    }  # fmt: skip
    best = dict.fromkeys(calls, 0.0)
    for _ in range(_ROUNDS):
        for key, call in calls.items():
            best[key] = max(best[key], rate(call, seconds / _ROUNDS / len(calls)))
    return {name: 1.0 - best[name, network.normalisation] / best[name, "raw"] for name in ("inference", "learner")}
