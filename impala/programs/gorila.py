"""Gorila (Nair et al. 2015, arXiv:1507.04296).

    bundle 0: acts ─▶ replay ─▶ gradient ─┐   gradients   ┌─ parameter server ──────────────────┐
    bundle 1: …                           ┼─────────────▶ │ θ, AdaGrad; every N updates θ⁻ ← θ  │
    bundle n: …                           ┘               │ refuses what is too old, or unusual │
       ▲                                                  └─────────────────────────────────────┘
       └────────────────────────────── θ, with each answer; θ⁻ when it is new ◀──┘

DQN with a parameter server. A bundle is an actor, a replay and a learner in one process. It plays
B / `replay.samples_per_insert` steps, draws a batch of B windows, and sends its gradient, which it does not apply. With
`replay.shared` there is one table for all bundles instead, which all fill and draw from.

The server refuses a gradient that is more than `server.max_staleness` updates old. A worker marks one whose loss is
more than `server.outlier_deviations` standard deviations above the running mean of its losses (`learning.outliers`),
and the server refuses it. Steps of a refused gradient are counted with the next one. The agent is `agents.q_learning`.

Differences from the paper: a bundle has the newest parameters from each answer, where the paper's fetches them before
each gradient and its actor at the start of an episode; ε falls with emulator frames; N, the rules' constants and the
learning rate are not published for this size, and are configured.
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.table_node import TableNode
from impala.nodes import population, replaying, served
from impala.nodes.run import Run
from impala.types import EnvironmentSpec

ROLES = (roles.TABLE, roles.SERVER, roles.SHARD, roles.ACTOR, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires server, bundles, and table and evaluator if configured, of each member of a population."""
    program = lp.Program(config.program)
    for of_member, its_run in population.members(config, run):
        table = _add_table(program, of_member, spec, its_run) if config.replay.shared else None
        servers = served.add_servers(program, of_member, spec, its_run)
        served.add_workers(program, of_member, spec, its_run, servers, table=table)
    return program


def _add_table(program: lp.Program, config: Config, spec: EnvironmentSpec, run: Run):
    """Adds the table that all bundles share; returns its handle."""

    def make_tables():
        return replaying.make_tables(config, spec, is_limited=False)

    return program.add_node(TableNode(make_tables, run.member, outlives_learners=True), "table")
