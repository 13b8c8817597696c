"""SEED RL (Espeholt et al. 2019, arXiv:1910.06591): its V-trace agent, and R2D2 with central inference.

    actor 0 ─┐ observations      ┌─ one process, one device ───────────────────────────────┐
    actor 1 ─┼──────────────────▶│ lanes ─▶ gatherer ─▶ network, one batch for all actors  │
    actor n ─┘ ◀──────── actions │   └─ unrolls ─▶ queue ─▶ learner: V-trace ─▶ weights ──┘│
                                 └─────────────────────────────────────────────────────────┘

Actors only step environments: no network, no TensorFlow, no weights to send. The learner's process keeps what the
policy remembers of every environment and writes the unrolls, so that an observation is sent only once. Weights may
change within an unroll; each step keeps the version that decided on it, and V-trace corrects by the behaviour logits of
that step.

With `agent.name: r2d2` (Kapturowski et al. 2019) there is a replay table in place of the queue, in a process of its own
for each learner, and the lanes write sequences into it:

       lanes ─▶ sequences of burn-in + T steps, their core state and first priority ─▶ replay (Reverb)
                                                        learner: double Q-learning ◀─┘  ▲ new priorities

Every environment of all actors explores with its own constant ε, a rung of one ladder. `replay.samples_per_insert` says
how often a step is trained on, SEED RL's replay ratio; the table's rate limiter makes lanes and learner keep to it.

Differences from the paper: a batch waits to be filled until a time-out, where the published code waits for a full batch
for ever; an actor steps many environments in lanes that take turns, so that one lane steps while another's actions are
computed; unrolls wait in this process's memory, not in Reverb; the loss is IMPALA's, summed. With R2D2 a separate
process evaluates; in SEED RL some of the actors do, whose steps are not stored.

With `learner.num_learners` K there are K of these processes, each with a share of the lanes; all make the same updates
(`learning.groups`).
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.nodes import learner_group, replaying
from impala.nodes.central_node import CentralNode, StepperNode
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.run import NUM_SPARE_THREADS, Run
from impala.nodes.sequence_node import SequenceNode
from impala.types import EnvironmentSpec

ROLES = (roles.TABLE, roles.LEARNER._replace(stores=True), roles.STEPPER, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires the learners, which also decide, and `actor.num_actors` actors."""
    program = lp.Program(config.program)
    # Every lane may have a request under way, and none may wait for a thread that another one holds.
    threads = config.actor.num_actors * config.actor.num_lanes + NUM_SPARE_THREADS

    def make_learner(index, peers, first):
        kind, its_table = (SequenceNode, {"table": tables[index]}) if tables else (CentralNode, {})
        return RpcNode(
            kind, config, spec, run, index, peers=peers, first=first, **its_table,
            courier_kwargs={"thread_pool_size": threads},
        )  # fmt: skip

    tables = replaying.add_tables(program, config, spec, run) if config.replays_alone else []
    learners = learner_group.add(program, config.learner.num_learners, make_learner)
    for index in range(config.actor.num_actors):
        program.add_node(lp.PyClassNode(StepperNode, config, run, index, learners=learners), "actor")
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=learners[0]), "evaluator")
    return program
