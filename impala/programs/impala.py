"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561).

    actor 0 ─┐  chunks: T transitions, behaviour logits        batches [T, B]
    actor 1 ─┼──────────────────────────────▶ queue ──────────────────────▶ learner: V-trace, one update a batch
    actor n ─┘                              (Reverb)                           │
       ▲                                                                       │
       └────────────── weights and their version, once per unroll ◀────────────┘

Actors and learner run asynchronously: actors wait while the queue is full, the learner while it has no batch. With
`replay.fraction` the same writer also fills a uniform table, and that fraction of each batch is drawn from it. The
policy that acted is older than the one that learns by the *policy lag*, counted in updates; V-trace corrects for it.

Differences from the paper: an actor steps many environments at once, with batched inference, in lanes that take
turns; a truncated episode bootstraps from its last observation; the transition across a reset is masked.

With `learner.num_learners` K there are K queues and K learners. Each takes B/K chunks from its own; gradients are
summed (`learning.groups`), so that all make the same update, that of one learner with B chunks. An actor hands its
chunks to the queues in turn and fetches weights from one of the learners: they are equal. With `actor.num_relays` it
fetches them from a relay instead, which asks a learner once for all of its actors.

With `population.size` all of this exists once for each member (`nodes.population`).
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala import agents
from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.launching.table_node import TableNode
from impala.nodes import learner_group, population, relay_node
from impala.nodes.actor_node import ActorNode
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.learner_node import LearnerNode
from impala.nodes.run import Run
from impala.types import EnvironmentSpec

ROLES = (roles.TABLE, roles.LEARNER, roles.RELAY, roles.ACTOR, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires the tables, learners and actors of one agent, or of every member of a population."""
    program = lp.Program(config.program)
    for of_member, its_run in population.members(config, run):
        _add_member(program, of_member, spec, its_run)
    return program


def _add_member(program: lp.Program, config: Config, spec: EnvironmentSpec, run: Run) -> None:
    """Adds `learner.num_learners` tables and learners, `actor.num_actors` actors, and the evaluator if there is one."""
    num_learners = config.learner.num_learners

    def make_tables():  # of one learner
        from impala.replay import tables

        chunk = agents.of(config).make_chunk_spec(config, spec)
        replay = config.replay
        return [
            tables.FRESH[replay.queue_kind](chunk, config.queue_size_each),
            *([tables.uniform(chunk, config.replay_size_each)] if replay.fraction else []),
        ]

    tables = [
        program.add_node(TableNode(make_tables, run.member * num_learners + index), "table")
        for index in range(num_learners)
    ]
    learners = learner_group.add(
        program, num_learners,
        lambda index, peers, _: RpcNode(LearnerNode, config, spec, run, index, table=tables[index], peers=peers),
    )  # fmt: skip
    relays = relay_node.add(program, config, run, learners)
    for index in range(config.actor.num_actors):
        node = lp.PyClassNode(
            ActorNode, config, spec, run, index, tables=tables, reports=learners[0], weights=relays[index % len(relays)]
        )  # fmt: skip
        program.add_node(node, "actor")
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=learners[0]), "evaluator")
