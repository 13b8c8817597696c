"""Action values learned from the same unrolls as the actor-critic, with a Q-based correction.

Chunks come from a behaviour policy some updates old, or from replay; `loss.correction` says how that is corrected
(Munos et al. 2016, arXiv:1606.02647). Every environment of all actors explores with its own constant ε.
"""

from impala.agents import q_learning, r2d2, shared
from impala.config import Config
from impala.types import Chunk, EnvironmentSpec, chunk_spec

EXPLORES_BEYOND_ITS_POLICY = True  # training episodes say less than evaluations
EXPLORATION = q_learning.EXPLORATION

check = q_learning.check
make_ladder = q_learning.make_ladder
make_behaviour = r2d2.make_behaviour
make_schedules = shared.make_schedules


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured network of action values and its target copy, the same for the same seed."""
    return r2d2.make_pair(config, spec, burn_in=0, on_cpu=on_cpu)


def make_chunk_spec(config: Config, spec: EnvironmentSpec, *, version_per_step: bool = False) -> Chunk:
    """Returns the `Chunk` of an unroll; a correction also needs the policy that acted."""
    return chunk_spec(
        spec, config.learner.unroll_length, config.network.core_state_shape,
        kept=q_learning.kept_policy(config, spec), version_per_step=version_per_step,
    )  # fmt: skip


def make_learner(config: Config, network, *, group=None):
    """Composes loss, optimizer and learner as configured; the target network is renewed at its period."""
    return r2d2.learner_of(config, network, r2d2.loss_of(config, burn_in=0), group=group)
