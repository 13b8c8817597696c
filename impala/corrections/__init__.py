"""Choose one: off-policy corrections of the value target and of the policy-gradient advantage.

Every V-based scheme takes the same first six keyword arguments, all [T, B], and returns `Targets`; `discount_t` has γ
in it. No gradient flows out of any of them. To add one, write one file and name it here.
"""

from impala.corrections.none import none
from impala.corrections.targets import Targets
from impala.corrections.vtrace import vtrace

SCHEMES = {"none": none, "vtrace": vtrace}

__all__ = ["SCHEMES", "Targets", "none", "vtrace"]
