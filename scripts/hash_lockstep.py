#!/usr/bin/env python
"""Prints a hash of the weights after some updates in lockstep, for every scheme and program: equal before and after?

    scripts/hash_lockstep.py > after; PYTHONPATH=CHECKOUT python scripts/hash_lockstep.py > before; diff before after

CHECKOUT is one of another commit, whose code and configurations are read then. Lines are equal on one machine only.
"""

import argparse
import hashlib
import os
import sys
import typing
from pathlib import Path

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
if "PYTHONPATH" not in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # else that checkout comes first

import impala  # noqa: E402
from impala import config as config_lib  # noqa: E402
from impala import lockstep  # noqa: E402
from impala.config import sections  # noqa: E402

PROGRAMS = (
    "seed_catch", "ga3c_catch", "a3c_catch", "dppo_catch", "dqn_catch", "apex_catch", "apex_dpg_pendulum",
    "gorila_catch", "r2d2_catch", "q_unrolls_catch",
)  # fmt: skip


def configurations():
    """Yields (word, overrides): all schemes of the actor-critic, off-policy, then all programs, all schemes of DQN."""
    off_policy = {"replay.fraction": 0.5, "replay.size": 64, "loss.lambda": 0.9, "loss.epsilon": 0.3}
    yield from (("catch", {"loss.correction": scheme} | off_policy) for scheme in typing.get_args(sections.Correction))
    yield from ((word, {}) for word in PROGRAMS)
    schemes = getattr(sections, "QCorrection", None)  # an older commit has none
    yield from (("dqn_catch", {"loss.correction": scheme}) for scheme in typing.get_args(schemes))


def hash_of(word: str, overrides: dict, num_updates: int) -> str:
    """Returns the start of the SHA-256 of all trained arrays, or why there is none."""
    small = {"replay.min_size": 400} if word.startswith(("dqn", "apex", "gorila", "r2d2")) else {}
    try:
        path = Path(impala.__file__).parents[1] / "configs" / f"{word}.yaml"
        config = config_lib.load(path, small | overrides)
        is_off_policy = config.num_replayed > 0  # on-policy many schemes are the same
        make = getattr(lockstep, "of", lockstep.Lockstep)  # an older commit has one class for all its programs
        training = lockstep.Lockstep(config, lag=3) if is_off_policy else make(config)
    except Exception as error:  # an older commit lacks what this one has
        return f"not here: {error!r}".splitlines()[0]
    list(zip(range(num_updates), training.updates(10**9)))
    holder = training if hasattr(training, "weights") else training.learner  # a parameter server's, or the learner's
    return hashlib.sha256(b"".join(array.tobytes() for array in holder.weights().arrays)).hexdigest()[:16]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=20)
    num_updates = parser.parse_args().updates
    for word, overrides in configurations():
        print(hash_of(word, overrides, num_updates), word, overrides.get("loss.correction", ""), flush=True)
