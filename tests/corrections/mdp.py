"""MDP-A and the golden unroll: ground truth that is computed without the library."""

import functools
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


@functools.cache
def trajectories(num_steps):
    """Returns every (probability under MU, states [n+1], actions [n]) from every first state, probability given it."""
    found = []
    for states in itertools.product(range(3), repeat=num_steps + 1):
        for actions in itertools.product(range(2), repeat=num_steps):
            steps = zip(states, actions, states[1:])
            probability = np.prod([MU[s, a] * P[s, a, t] for s, a, t in steps])
            if probability > 0:
                found.append((probability, np.array(states), np.array(actions)))
    return found


def column(x, dtype="float64"):
    """[T] → [T, 1]."""
    return np.asarray(x, dtype)[:, None]


def golden_arguments(dtype="float64"):
    """Keyword arguments of a V-based scheme for the golden unroll, [5, 1]."""
    return dict(
        v_tm1=column(V[:-1], dtype), v_t=column(V[1:], dtype), r_t=column(R_T, dtype),
        discount_t=column(DISCOUNT_T, dtype), log_rho_tm1=np.log(column(RHO_TM1, dtype)),
    )  # fmt: skip


def policy_proportional_to(weight):
    """Normalises [3, 2] weights to a policy."""
    return weight / weight.sum(axis=1, keepdims=True)


def enumeration_arguments(value, num_steps):
    """All trajectories under MU as one batch of a V-based scheme.

    Returns (probability [N] given the first state, first states [N], keyword arguments [num_steps, N]).
    """
    probability, states, actions = map(np.array, zip(*trajectories(num_steps)))
    s, a = states[:, :-1].T, actions.T
    return probability, states[:, 0], dict(
        v_tm1=value[s], v_t=value[states[:, 1:].T], r_t=R[s, a], discount_t=np.full(s.shape, GAMMA),
        log_rho_tm1=np.log(RHO[s, a]),
    )  # fmt: skip


def expected_target(scheme, value, num_steps, **parameters):
    """E_μ[v_0 | x_0] of `scheme`'s own batch function, exactly: [3]."""
    probability, first, arguments = enumeration_arguments(np.asarray(value, float), num_steps)
    target = scheme(**arguments, **parameters).target_tm1[0].numpy()
    return np.array([np.sum((probability * target)[first == x]) for x in range(3)])


def operator(num_steps, rho, c, value):
    """R_n V of CORRECTIONS.md 3.2 from weights [3, 2] by matrices; num_steps None is infinity."""
    p_rho, p_c = (np.einsum("sa,sat->st", MU * w, P) for w in (rho, c))
    drift = np.sum(MU * rho * R, axis=1) + GAMMA * p_rho @ value - np.sum(MU * rho, axis=1) * value
    if num_steps is None:
        return value + np.linalg.solve(np.eye(3) - GAMMA * p_c, drift)
    return value + sum(np.linalg.matrix_power(GAMMA * p_c, k) @ drift for k in range(num_steps))


def contraction(apply):
    """The sup-norm coefficient of an affine operator on R³: the largest row sum of its linear part."""
    offset = apply(np.zeros(3))
    return np.abs(np.stack([apply(unit) - offset for unit in np.eye(3)], axis=1)).sum(axis=1).max()


def q_value_of(policy):
    """The exact action values of `policy`, [3, 2]."""
    return R + GAMMA * P @ value_of(policy)


def q_enumeration_arguments(q, num_steps):
    """All trajectories under MU as one batch of a Q-based scheme; as `enumeration_arguments`, with first actions."""
    probability, states, actions = map(np.array, zip(*trajectories(num_steps)))
    s, a, following = states[:, :-1].T, actions.T, states[:, 1:].T
    return probability, states[:, 0], actions[:, 0], dict(
        q_tm1=q[s], q_t=q[following], a_tm1=a, r_t=R[s, a], discount_t=np.full(s.shape, GAMMA),
        log_pi_tm1=np.log(PI)[s], log_pi_t=np.log(PI)[following], log_mu_tm1=np.log(MU)[s],
    )  # fmt: skip


def expected_q_target(scheme, q, num_steps, **parameters):
    """E_μ[G_0 | x_0, a_0], exactly: [3, 2]."""
    probability, first, action, arguments = q_enumeration_arguments(np.asarray(q, float), num_steps)
    weighted = probability * scheme(**arguments, **parameters).target_tm1[0].numpy()
    return np.array([
        [np.sum(weighted[(first == x) & (action == a)]) / MU[x, a] for a in range(2)] for x in range(3)
    ])  # fmt: skip
