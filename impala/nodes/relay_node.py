"""What runs inside the process of a relay, which stands between the learner's weights and its share of the actors.

A learner that answers every actor itself is bound by its wire and by one core of Python. With relays, on hosts of their
own, it sends each version once to each of them.
"""

import math

from impala.config import Config
from impala.nodes.run import NUM_SPARE_THREADS, RPC_SECONDS, Run


class RelayNode:
    """Passes weights on.

    Args:
      weights: RPC client of the `LearnerNode` that weights are fetched from.
    """

    RPCS = ("get_weights",)

    def __init__(self, config: Config, run: Run, index: int, *, weights):
        from impala.launching import processes, roles
        from impala.learning.relay import Relay

        self._stop = processes.prepare(roles.RELAY, run.member * config.actor.num_relays + index)
        self._relay = Relay(weights.get_weights)

    def get_weights(self, newer_than: int) -> tuple[int, list]:
        """Returns (version, arrays), without arrays when `newer_than` is up to date."""
        return self._relay.get(newer_than)

    def run(self) -> None:
        """Serves until it is told to stop."""
        from impala.launching import processes

        processes.begin(self._stop)
        self._stop.wait()
        processes.finish()


def add(program, config: Config, run: Run, learners: list) -> list:
    """Adds `actor.num_relays` relays to an `lp.Program`; returns the handles that actors fetch weights from.

    Without relays these are the learners.
    """
    from impala.launching.rpc_node import RpcNode

    relays = []
    for index in range(config.actor.num_relays):
        node = RpcNode(
            RelayNode, config, run, index, weights=learners[index % len(learners)],
            courier_kwargs=dict(  # all of its actors may wait at once
                thread_pool_size=math.ceil(config.actor.num_actors / config.actor.num_relays) + NUM_SPARE_THREADS
            ),
        )  # fmt: skip
        relays.append(program.add_node(node, "relay"))
        relays[-1].set_client_kwargs(call_timeout=RPC_SECONDS)
    return relays or learners
