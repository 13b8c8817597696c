"""CLEAR: replayed transitions are also cloned (Rolnick et al. 2019, arXiv:1811.11682).

    L += Σ_replayed [ policy cost · KL(μ(·|x_s) ‖ π(·|x_s)) + value cost · (V(x_s) − V_behaviour(x_s))² ]

in addition to the losses of V-trace on all transitions. Fresh transitions get no cloning loss. Fixed point of the
value: V-trace's where transitions are fresh; where they are replayed, the mean of V-trace's and V_behaviour with
weights baseline cost and 2 · value cost. Limits: without replay, or with both costs 0, it is V-trace. Ranges: costs
≥ 0; 0.01 and 0.005, with half of the data replayed, are those of CORA's re-implementation. The paper's replay is a
reservoir sample of all data; ours keeps the newest chunks.
"""

import tensorflow as tf

from impala.losses.actor_critic import Rows, Terms


def clear(policy_cloning_cost: float = 0.01, value_cloning_cost: float = 0.005) -> Terms:
    """Returns IMPALA's terms and the two cloning losses."""
    if not (policy_cloning_cost >= 0.0 and value_cloning_cost >= 0.0):
        raise ValueError(f"cloning costs {policy_cloning_cost} and {value_cloning_cost}; expected both 0 or more")

    def cloning(rows: Rows):
        kl_tm1 = rows.distribution.kl(rows.mu_tm1, rows.pi_tm1)
        square_tm1 = tf.square(rows.v_tm1 - rows.v_behaviour_tm1)
        return rows.is_replayed * (policy_cloning_cost * kl_tm1 + value_cloning_cost * square_tm1)

    return Terms(extra=cloning)
