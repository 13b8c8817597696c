"""Choose one: a loss is a callable (outputs, batch) → (loss, metrics), with the correction as an argument.

    actor_critic            IMPALA's; `Terms` replace parts of it
    popart                  the same with normalised values
    ppo                     clip or penalty, on `learning.epochs.Batch`
    q_learning, r2d2, dpg   on windows or sequences of steps

`POLICY_TERMS` are schemes that act on the terms of the loss rather than on its targets; each names the V-based scheme
that its targets come from. To add one, write one file and name it here and in `config.sections`.
"""

from collections.abc import Callable
from typing import NamedTuple

from impala.losses.actor_critic import Terms
from impala.losses.clear import clear
from impala.losses.epsilon import epsilon_add, epsilon_max
from impala.losses.impact import impact
from impala.losses.laser import laser
from impala.losses.popart import popart
from impala.losses.ppo_clip import ppo_clip


class PolicyTerm(NamedTuple):
    """How to make the terms, and what they need."""

    make: Callable[..., Terms]
    correction: str  # a name of `corrections.SCHEMES`, for targets and advantages
    has_target_network: bool = False  # the network must be `networks.WithTarget`


POLICY_TERMS = {
    "epsilon_add": PolicyTerm(epsilon_add, "none"),
    "epsilon_max": PolicyTerm(epsilon_max, "none"),
    "ppo_clip": PolicyTerm(ppo_clip, "td_lambda"),
    "appo": PolicyTerm(ppo_clip, "vtrace_unweighted_pg"),  # the surrogate has the ratio already
    "impact": PolicyTerm(impact, "vtrace", has_target_network=True),
    "clear": PolicyTerm(clear, "vtrace"),
    "laser": PolicyTerm(laser, "vtrace"),
}

__all__ = ["POLICY_TERMS", "PolicyTerm", "Terms", "popart"]
