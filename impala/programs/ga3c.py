"""GA3C (Babaeizadeh et al. 2016, arXiv:1611.06256).

    agent 0 ─┐ frames   ┌─ one process, one model ──────────────────────────────────────────┐
    agent 1 ─┼─────────▶│ prediction queue ─▶ N_P predictor threads: π, V ──▶ to each agent │
    agent n ─┘          │                                                                   │
        └─ T steps ────▶│ training queue ─▶ N_T trainer threads ─▶ update                   │
                        └───────────────────────────────────────────────────────────────────┘

Agents have no network. Each keeps its stack of frames and draws its actions from the probabilities that it is sent;
every T = 5 steps it hands in what it played. Between prediction and training the weights change: that lag is small, and
the paper's remedy for it is to add ε to the probability whose logarithm is taken (`losses.epsilon`); `loss.correction`
chooses any other scheme. Now and then a controller changes the numbers of agents N_A, predictors N_P and trainers N_T
by one at most, and goes back if training became slower.

Differences from the paper: an agent is a process that steps many environments in lanes; agents are all started at the
launch, and those beyond N_A wait for their turn; trainers prepare their batches at the same time and one thread updates
with them, so that a checkpoint holds the weights of one moment; the last reward of an episode enters its returns, which
the published code drops; an unroll is cut at T steps and goes on across the end of an episode, masked there; both
queues are in this process's memory.

With `learner.num_learners` K there are K of these processes, each with a share of the agents and its own controller;
all make the same updates (`learning.groups`).
"""

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in, without which launchpad does not import
import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.nodes import learner_group
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.run import NUM_SPARE_THREADS, Run
from impala.nodes.trainer_node import PlayerNode, TrainerNode
from impala.types import EnvironmentSpec

ROLES = (roles.LEARNER._replace(stores=True), roles.STEPPER, roles.EVALUATOR)


def make_program(config: Config, spec: EnvironmentSpec, run: Run) -> lp.Program:
    """Wires the processes with the model, and `actor.num_actors` agents."""
    program = lp.Program(config.program)
    # Every lane may wait for a prediction and for room in the training queue at the same time.
    threads = 2 * config.actor.num_actors * config.actor.num_lanes + NUM_SPARE_THREADS
    learners = learner_group.add(
        program, config.learner.num_learners,
        lambda index, peers, _: RpcNode(
            TrainerNode, config, spec, run, index, peers=peers, courier_kwargs={"thread_pool_size": threads}
        ),
    )  # fmt: skip
    for index in range(config.actor.num_actors):
        program.add_node(lp.PyClassNode(PlayerNode, config, run, index, learners=learners), "actor")
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=learners[0]), "evaluator")
    return program
