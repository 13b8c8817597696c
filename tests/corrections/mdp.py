"""MDP-A and the golden unroll: ground truth that is computed without the library."""

import itertools
import json
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data"
GOLDEN = json.loads((DATA / "golden_unroll.json").read_text())
TRUTH = json.loads((DATA / "ground_truth.json").read_text())

GAMMA = 0.9
P = np.array([  # [state, action, next state]
    [[.5, .5, 0], [0, .2, .8]],
    [[.1, .6, .3], [.7, 0, .3]],
    [[0, .9, .1], [.4, .4, .2]],
])  # fmt: skip
R = np.array([[1, -1], [0, 2], [-0.5, 0.5]])
PI = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]])
MU = np.array([[0.4, 0.6], [0.6, 0.4], [0.1, 0.9]])
RHO = PI / MU

# The golden unroll: T = 5, a termination at index 2.
R_T = np.array([1, 0, -1, 2, 0.5])
DISCOUNT_T = np.array([0.9, 0.9, 0, 0.9, 0.9])
V = np.array([0.5, 1, -0.5, 2, 0, 1.5])
RHO_TM1 = np.array([2, 0.5, 1.5, 4, 1.25])


def value_of(policy):
    """The exact value of `policy` in MDP-A."""
    p = np.einsum("sa,sat->st", policy, P)
    return np.linalg.solve(np.eye(3) - GAMMA * p, np.sum(policy * R, axis=1))


def trajectories(num_steps):
    """Yields every (probability under MU, states [n+1], actions [n]) from every first state, probability given it."""
    for states in itertools.product(range(3), repeat=num_steps + 1):
        for actions in itertools.product(range(2), repeat=num_steps):
            steps = zip(states, actions, states[1:])
            probability = np.prod([MU[s, a] * P[s, a, t] for s, a, t in steps])
            if probability > 0:
                yield probability, np.array(states), np.array(actions)


def column(x, dtype="float64"):
    """[T] → [T, 1]."""
    return np.asarray(x, dtype)[:, None]


def golden_arguments(dtype="float64"):
    """Keyword arguments of a V-based scheme for the golden unroll, [5, 1]."""
    return dict(
        v_tm1=column(V[:-1], dtype), v_t=column(V[1:], dtype), r_t=column(R_T, dtype),
        discount_t=column(DISCOUNT_T, dtype), log_rho_tm1=np.log(column(RHO_TM1, dtype)),
    )  # fmt: skip
