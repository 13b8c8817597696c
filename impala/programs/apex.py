"""Ape-X DQN and DPG (Horgan et al. 2018, arXiv:1803.00933).

    actor 0 ─┐  steps, windows of n,       ┌─ replay (Reverb) ──────┐   batches, by p^α   ┌─ learner ──────────────┐
    actor 1 ─┼───────────────────────────▶ │ the newest 2,000,000   │ ──────────────────▶ │ Q, target Q⁻, weights  │
    actor n ─┘  their first priorities     │                        │ ◀────────────────── │ of importance          │
       ▲                                   └────────────────────────┘   new priorities    └────────────────────────┘
       └──────────────────────────── weights, every 400 frames ◀──────────────────────────────────────┘

In DQN every environment of all actors explores with its own constant ε, from one ladder. Actors have their own copy of
the network; in DQN the action values with which they act also give the first priorities, so that nothing is computed
twice. The learner draws windows with large TD errors more often, corrects for that by importance weights, and writes
new priorities to the table from a separate thread. The agent is `agents.q_learning`, by default double and dueling with
three-step returns, or `agents.dpg`, which explores by noise, the same σ everywhere. `replay.samples_per_insert` makes
actors and learner wait for each other; by default neither waits.

Differences from the paper: an actor steps many environments, each with its own ε, in lanes that take turns; a full
table drops its oldest window at once, where the paper's grows past its limit and is trimmed every 100 updates; the 50
windows that a lane sends at a time are rounded to whole steps of its environments; a truncated episode bootstraps from
its last observation; time is counted in emulator frames of windows that entered the table.

With `learner.num_learners` K there are K tables and K learners; each table takes the windows of its share of the lanes.
A learner draws B/K windows from its own, and all make the same update: gradients are summed, and importance weights
divided by the largest of all shares. `actor.num_relays` is as in IMPALA.
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.nodes import learner_group, relay_node, replaying
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.replay_node import ReplayNode
from impala.nodes.run import Run
from impala.nodes.window_actor_node import WindowActorNode
from impala.types import EnvironmentSpec

ROLES = (roles.TABLE, roles.LEARNER, roles.RELAY, roles.ACTOR, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires replay tables and learners, `actor.num_actors` actors, and the evaluator if there is one."""
    program, num_learners = lp.Program(config.program), config.learner.num_learners
    tables = replaying.add_tables(program, config, spec, run)
    learners = learner_group.add(
        program, num_learners,
        lambda index, peers, _: RpcNode(ReplayNode, config, spec, run, index, table=tables[index], peers=peers),
    )  # fmt: skip
    relays = relay_node.add(program, config, run, learners)
    for index in range(config.actor.num_actors):
        node = lp.PyClassNode(
            WindowActorNode, config, spec, run, index, tables=tables, reports=learners[0],
            weights=relays[index % len(relays)],
        )  # fmt: skip
        program.add_node(node, "actor")
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=learners[0]), "evaluator")
    return program
