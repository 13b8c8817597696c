"""A game of one step, `tests.faults.game:Faulty-v0`, that goes wrong in the processes of nodes as it is told.

IMPALA_TEST_FAULT is "WHAT:N": in the N-th step (0: in `__init__`, −1: in `reset`) of a process; "nan:N" and "nans:N" are
a reward that is no number in that step, or in every one from it on.
"""

import ctypes
import os
import sys
import threading
import time

import gymnasium
import numpy as np

_num_steps = 0
_leaked = []


def _raise():
    raise RuntimeError("the game is broken")


def _stop():
    import launchpad as lp  # which a node has imported

    lp.stop()


FAULTS = {
    "hang": lambda: time.sleep(1e6),
    "hold": lambda: ctypes.PyDLL(None).sleep(10**6),  # keeps the interpreter to itself
    "exit": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(0),
    "raise": _raise,
    "stop": _stop,
    "leak": lambda: _leaked.append(b"x" * 2_000_000_000),
}


def _maybe_fail(when: int) -> None:
    what, _, n = os.environ.get("IMPALA_TEST_FAULT", "none:0").partition(":")
    is_node = "IMPALA_NODE_PROCESS" in os.environ or threading.current_thread() is not threading.main_thread()
    if is_node and what in FAULTS and int(n) == when:
        FAULTS[what]()


class Faulty(gymnasium.Env):
    """Says 0 or 1; the reward is 1 where the action is the same."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        _maybe_fail(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        _maybe_fail(-1)
        self._said = int(self.np_random.integers(2))
        return np.array([self._said], np.float32), {}

    def step(self, action):
        global _num_steps
        _num_steps += 1
        _maybe_fail(_num_steps)
        what, _, n = os.environ.get("IMPALA_TEST_FAULT", "none:0").partition(":")
        is_nan = what == "nan" and _num_steps == int(n) or what == "nans" and _num_steps >= int(n)
        return np.zeros(1, np.float32), np.nan if is_nan else float(action == self._said), True, False, {}

    def close(self):
        print("the game is closed", flush=True)


gymnasium.register("Faulty-v0", entry_point=Faulty, disable_env_checker=True, order_enforce=False)
