"""A3C (Mnih et al. 2016, arXiv:1602.01783).

    worker 0: θ' ← θ, T steps, gradient ─┐   gradients   ┌─ parameter server ──────────────────────────┐
    worker 1: …                          ┼─────────────▶ │ θ, and the optimizer's state, shared by all │
    worker n: …                          ┘               │ one gradient after the other, as they come  │
       ▲                                                 └─────────────────────────────────────────────┘
       └───────────────────────────── θ, with each answer ◀──────────────────┘

No trajectory leaves its worker. A worker acts and differentiates with the same copy θ' of the parameters, so that its
returns are on-policy; but its gradient is applied to parameters that other workers have changed meanwhile: W − 1 times
on average with W workers, whatever their speeds. The lag in the metrics is this staleness. With `server.barrier` the
server waits for the gradients of all workers but the `server.num_late` slowest and applies their sum, or mean: A2C.

Differences from the paper: workers are processes, not threads; a worker steps `actor.num_environments` environments at
once, whose unrolls of T steps make a gradient; an unroll goes on across the end of an episode, masked
there; the server applies one gradient at a time, where the paper's threads write without locks; gradients are clipped,
each by its own worker, to the global norm `learner.max_grad_norm`.

With `server.num_shards` K the parameters are spread over K processes, whole tensors each. A shard applies its part of a
gradient when it comes: two workers' gradients may be applied in different orders on different shards. Checkpoints, and
what an evaluator plays, are of one moment: all shards hold the same gradients. With `server.shared_optimizer` false the
optimizer has a state for each worker, of that worker's gradients alone, as in two of the three that the paper compares.
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.nodes import population, served
from impala.nodes.run import Run
from impala.types import EnvironmentSpec

ROLES = (roles.SERVER, roles.SHARD, roles.ACTOR, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires the server's shards, `actor.num_actors` workers and the evaluator, of each member of a population."""
    program = lp.Program(config.program)
    for of_member, its_run in population.members(config, run):
        servers = served.add_servers(program, of_member, spec, its_run)
        served.add_workers(program, of_member, spec, its_run, servers)
    return program
