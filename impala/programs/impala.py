"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561).

    actor 0 ─┐  chunks: T transitions, behaviour logits        batches [T, B]
    actor 1 ─┼──────────────────────────────▶ queue ──────────────────────▶ learner: V-trace, one update a batch
    actor n ─┘                              (Reverb)                           │
       ▲                                                                       │
       └────────────── weights and their version, once per unroll ◀────────────┘

Nobody waits for anybody, except an actor for a full queue. With `replay.fraction` the same writer also fills a uniform
table, and that part of each batch is drawn from it. The policy that acted is older than the one that learns by
the *policy lag*, counted in updates; V-trace corrects for it.

Differences from the paper: an actor steps many environments at once and infers them in batches, in lanes that take
turns; a truncated episode bootstraps from its last observation; the transition across a reset is masked.
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching.table_node import TableNode
from impala.programs.actor_node import ActorNode
from impala.programs.learner_node import LearnerNode
from impala.programs.run import Run
from impala.types import EnvironmentSpec, chunk_spec

_RPC_SECONDS = 300.0  # the first update may be compiled for minutes; whoever waits hears the stop signal


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires one table, one learner and `config.actor.num_actors` actors."""

    def make_tables():
        from impala.replay import tables

        chunk = chunk_spec(spec, config.learner.unroll_length, config.network.core_state_shape)
        replay = config.replay
        return [
            tables.queue(chunk, replay.queue_size),
            *([tables.uniform(chunk, replay.size)] if replay.fraction else []),
        ]

    program = lp.Program(config.program)
    with program.group("table"):
        table = program.add_node(TableNode(make_tables))
    with program.group("learner"):
        learner = program.add_node(lp.CourierNode(LearnerNode, config, spec, run, table=table))
    learner.set_client_kwargs(call_timeout=_RPC_SECONDS)
    with program.group("actor"):
        for index in range(config.actor.num_actors):
            program.add_node(lp.PyClassNode(ActorNode, config, spec, run, index, table=table, learner=learner))
    return program
