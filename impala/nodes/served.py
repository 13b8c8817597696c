"""The nodes of a program with a parameter server: its shards, its workers, the evaluator."""

import launchpad as lp

from impala.config import Config
from impala.launching import roles
from impala.launching.rpc_node import RpcNode
from impala.nodes.evaluator_node import EvaluatorNode
from impala.nodes.run import NUM_SPARE_THREADS, RPC_SECONDS, Run
from impala.nodes.server_node import ServerNode, ShardNode
from impala.nodes.worker_node import WorkerNode
from impala.types import EnvironmentSpec

_ASK_SECONDS = 120.0  # timeout of calls between shards: the first call waits until the other has imported


def add_servers(program: lp.Program, config: Config, spec: EnvironmentSpec, run: Run) -> list:
    """Adds the shards of the parameter server to a program; returns their handles."""
    threads = dict(thread_pool_size=config.actor.num_actors + NUM_SPARE_THREADS)  # each worker may wait at a barrier
    others = [
        RpcNode(ShardNode, config, spec, run, index, courier_kwargs=threads)
        for index in range(1, config.server.num_shards)
    ]
    to_others = [node.create_handle() for node in others]
    first = RpcNode(ServerNode, config, spec, run, others=to_others, courier_kwargs=threads)
    shards = [program.add_node(first, roles.SERVER.name)]
    shards += [program.add_node(node, roles.SHARD.name) for node in others]
    for handle in shards:
        handle.set_client_kwargs(call_timeout=RPC_SECONDS)
    for handle in to_others:
        handle.set_client_kwargs(call_timeout=_ASK_SECONDS)
    return shards


def add_workers(program: lp.Program, config: Config, spec: EnvironmentSpec, run: Run, servers: list, *, table=None):
    """Adds `actor.num_actors` workers, which may share a replay `table`, and the evaluator if there is one."""
    for index in range(config.actor.num_actors):
        worker = lp.PyClassNode(WorkerNode, config, spec, run, index, servers=servers, table=table)
        program.add_node(worker, roles.ACTOR.name)
    if config.evaluator.num_episodes:
        program.add_node(lp.PyClassNode(EvaluatorNode, config, spec, run, learner=servers[0]), "evaluator")
