"""Choose one: off-policy corrections of the value target and of the policy-gradient advantage.

`SCHEMES`: every V-based scheme takes the same first six keyword arguments, all [T, B], and returns `Targets`;
`discount_t` includes γ. `Q_SCHEMES`: the Q-based ones take the arguments of `q_targets` and return `QTargets`. No
gradient flows out of any of them. To add one, write one file and name it here and in `config.sections`.

ρ = π/μ. ρ̂ weights the TD error, c the trace: see `targets.weighted_td_targets`.

    scheme                  ρ̂            c            weight of A     values' fixed point
    none, td_lambda         1            1, λ         1               V^μ
    one_step_is             1            1            min(ρ̄_pg, ρ)    V^μ
    vtrace                  min(ρ̄, ρ)    λ min(c̄, ρ)  min(ρ̄_pg, ρ)    V of π_ρ̄ ∝ min(ρ̄ μ, π)
    vtrace_c0               min(ρ̄, ρ)    0            min(ρ̄_pg, ρ)    the same
    vtrace_unweighted_pg    min(ρ̄, ρ)    λ min(c̄, ρ)  1               the same
    leaky_vtrace            mixed        mixed        mixed           V of π ∝ α_ρ min(ρ̄ μ, π) + (1 − α_ρ) π
    per_decision_is         ρ            ρ            ρ               V^π
    full_is                 products to the end       ρ               V^π
    weighted_is             the same, over their mean ρ over its mean V^π in large batches
    upgo                    1            0 or 1       min(ρ̄_pg, ρ)    none, biased upwards

    Q-based                 c                         values' fixed point
    importance_sampling     ρ                         Q^π
    retrace, acer           λ min(1, ρ)               Q^π; acer: λ = 1, and a policy gradient of its own
    tree_backup             λ π(a)                    Q^π
    q_lambda                λ                         Q^π if π is near μ
    peng_q_lambda           never cut                 Q of (1 − λ) π + λ μ
"""

from impala.corrections.acer import acer
from impala.corrections.full_is import full_is
from impala.corrections.importance_sampling import importance_sampling
from impala.corrections.leaky_vtrace import leaky_vtrace
from impala.corrections.none import none
from impala.corrections.one_step_is import one_step_is
from impala.corrections.peng_q_lambda import peng_q_lambda
from impala.corrections.per_decision_is import per_decision_is
from impala.corrections.q_lambda import q_lambda
from impala.corrections.q_targets import QTargets
from impala.corrections.retrace import retrace
from impala.corrections.targets import Targets
from impala.corrections.td_lambda import td_lambda
from impala.corrections.tree_backup import tree_backup
from impala.corrections.upgo import upgo
from impala.corrections.vtrace import vtrace
from impala.corrections.vtrace_c0 import vtrace_c0
from impala.corrections.vtrace_unweighted_pg import vtrace_unweighted_pg
from impala.corrections.weighted_is import weighted_is

_V_BASED = (
    none, one_step_is, vtrace, vtrace_c0, vtrace_unweighted_pg, leaky_vtrace, per_decision_is, full_is, weighted_is,
    td_lambda, upgo,
)  # fmt: skip
_Q_BASED = (importance_sampling, q_lambda, peng_q_lambda, tree_backup, retrace, acer)

SCHEMES = {scheme.__name__: scheme for scheme in _V_BASED}
Q_SCHEMES = {scheme.__name__: scheme for scheme in _Q_BASED}

__all__ = ["Q_SCHEMES", "SCHEMES", "QTargets", "Targets", *SCHEMES, *Q_SCHEMES]
