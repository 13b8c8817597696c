"""DQN (Mnih et al. 2015, doi:10.1038/nature14236).

    ┌─ one process ─────────────────────────────────┐   steps, windows of n     ┌─ replay (Reverb, uniform) ─┐
    │ actor: ε-greedy in Q, N environments in lanes │ ────────────────────────▶ │ the newest 1,000,000       │
    │ learner: Q, target Q⁻; one update a batch     │ ◀──────────────────────── │ samples per insert: 8      │
    └───────────────────────────────────────────────┘      batches of 32        └────────────────────────────┘

Actor and learner are two threads that share one network. Nothing is drawn before the table holds `replay.min_size`
transitions; from then on its rate limiter makes the actor and the learner wait for each other, so that every transition
is drawn `replay.samples_per_insert` times on average: with batches of 32, one update for four steps. The agent is
`agents.q_learning`.

Differences from the paper: the actor steps N environments at once, so that some steps are decided by weights a few
updates older than with one environment that takes four steps between two updates; a truncated episode bootstraps from
its last observation; time is counted in emulator frames of transitions that entered the table.
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.nodes import learner_group, replaying
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.run import Run
from impala.nodes.solo_node import SoloNode
from impala.types import EnvironmentSpec

ROLES = (roles.TABLE, roles.LEARNER._replace(plays=True), roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires the replay table, the process that acts and learns, and the evaluator if there is one."""
    program = lp.Program(config.program)
    (table,) = replaying.add_tables(program, config, spec, run)
    (learner,) = learner_group.add(program, 1, lambda *_: RpcNode(SoloNode, config, spec, run, table=table))
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=learner), "evaluator")
    return program
