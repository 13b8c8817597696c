"""SEED RL's V-trace agent (Espeholt et al. 2019, arXiv:1910.06591).

    actor 0 ─┐ observations      ┌─ one process, one device ───────────────────────────────┐
    actor 1 ─┼──────────────────▶│ lanes ─▶ gatherer ─▶ network, one batch for all actors  │
    actor n ─┘ ◀──────── actions │   └─ unrolls ─▶ queue ─▶ learner: V-trace ─▶ weights ──┘│
                                 └─────────────────────────────────────────────────────────┘

Actors only step environments: no network, no TensorFlow, no weights to send. The learner's process keeps what the
policy remembers of every environment and writes the unrolls, so that an observation is sent only once. Weights may
change within an unroll; each step keeps the version that decided on it, and V-trace corrects by the behaviour logits of
that step.

Differences from the paper: a batch waits to be filled until a time-out, where the published code waits for a full batch
for ever; an actor steps many environments in lanes that take turns, so that one lane steps while another's actions are
computed; unrolls wait in this process's memory, not in Reverb; the loss is IMPALA's, summed; no R2D2 agent.

With `learner.num_learners` K there are K of these processes, each with a share of the lanes; all make the same updates
(`learning.groups`).
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.nodes import learner_group
from impala.nodes.central_node import CentralNode, StepperNode
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.run import NUM_SPARE_THREADS, Run
from impala.types import EnvironmentSpec

ROLES = (roles.LEARNER._replace(stores=True), roles.ACTOR, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires the learners, which also decide, and `actor.num_actors` actors."""
    program = lp.Program(config.program)
    # Every lane may have a request under way, and none may wait for a thread that another one holds.
    threads = config.actor.num_actors * config.actor.num_lanes + NUM_SPARE_THREADS
    learners = learner_group.add(
        program, config.learner.num_learners,
        lambda index, peers, first: RpcNode(
            CentralNode, config, spec, run, index, peers=peers, first=first,
            courier_kwargs={"thread_pool_size": threads},
        ),
    )  # fmt: skip
    for index in range(config.actor.num_actors):
        program.add_node(lp.PyClassNode(StepperNode, config, run, index, learners=learners), "actor")
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=learners[0]), "evaluator")
    return program
