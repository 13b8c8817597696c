"""Makes the learners of one agent, lets them find each other and begin with the same weights."""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Sequence

from impala.config import Config
from impala.nodes.run import RPC_SECONDS

_START_SECONDS, _JOIN_SECONDS = 90, 30  # for all learners to meet, and then for TensorFlow to connect them


def add(program, num_learners: int, make_node: Callable) -> list:
    """Adds the learners of one agent to a program; returns their handles.

    Args:
      make_node: (index, peers, first) → `RpcNode` of a learner. peers: "host:port" of every learner's server, [] for
        a single learner; first: an RPC client of the first learner, None for that one itself.
    """
    import launchpad as lp

    from impala.launching.peers import AddressHandle

    addresses = [lp.Address("peer") for _ in range(num_learners)] if num_learners > 1 else []
    peers, learners = [AddressHandle(address) for address in addresses], []
    for index in range(num_learners):
        node = make_node(index, peers, learners[0] if learners else None)
        if addresses:
            node.allocate_address(addresses[index])
        learners.append(program.add_node(node, "learner"))
        learners[-1].set_client_kwargs(call_timeout=RPC_SECONDS)
    return learners


def join(config: Config, index: int, peers, stop):
    """Waits for all learners and returns their `groups.Group`; ends the process when they do not come.

    Args:
      index: of this learner.
      peers: "host:port" of every learner's server, this one's included; none for a single learner.
      stop: set when it is time to stop.
    """
    from impala.launching import processes
    from impala.launching.peers import meet
    from impala.learning import groups

    if not peers:
        return groups.SingleLearner()
    processes.check_port_is_free(int(peers[index].rpartition(":")[2]))
    try:
        if not meet(index, peers, seconds=_START_SECONDS, should_stop=stop.is_set):
            processes.finish()
    except TimeoutError as error:
        processes.finish(processes.EXIT_TRY_AGAIN, f"the learners did not meet: {error}; start again")
    # TensorFlow takes over SIGTERM; a signal that comes meanwhile stays pending until the handler is ours again.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with processes.time_limit(_JOIN_SECONDS, f"TensorFlow did not connect to {', '.join(peers)}; start again"):
        with _ending_with_peers(stop):
            group = make_group(config, index, peers)
    processes.end_on_sigterm()
    return group


def make_group(config: Config, index: int, addresses: Sequence[str]):
    """Composes the `groups.Group` of learners that have met at `addresses`, of which this one is at `index`.

    On one machine without GPUs the sum goes through its memory, else through TensorFlow's collectives.
    """
    import tensorflow as tf

    from impala.launching.shared_sum import SharedSum
    from impala.learning import groups

    is_one_machine = len({address.rpartition(":")[0] for address in addresses}) == 1
    if is_one_machine and not tf.config.get_visible_devices("GPU"):
        all_reduce = groups.MemoryAllReduce(SharedSum(index, len(addresses), f"impala-learners-{addresses[0]}"))
    else:
        all_reduce = groups.Collectives(index, addresses)
    return groups.Group(index, len(addresses), all_reduce, is_mean=config.loss.reduction == "mean")


@contextlib.contextmanager
def _ending_with_peers(stop):
    """Ends the process with "try again" if a learner is lost before the first update; the launcher is told why."""
    import tensorflow as tf

    from impala.launching import processes
    from impala.learning.groups import PeerLost

    try:
        yield
    except (PeerLost, tf.errors.OpError, OSError) as error:
        stop.note(lost_peer=True)
        processes.finish(processes.EXIT_TRY_AGAIN, str(error))


def share(group, variables: Sequence, state: dict, stop) -> tuple[int, int]:
    """Gives all learners what the first one restored; returns the updates and frames that go with it."""
    with _ending_with_peers(stop):
        updates, frames = group.broadcast(variables, [float(state.get(name, 0)) for name in ("updates", "frames")])
        group.check_equal(variables)
    return int(updates), int(frames)


class Relief:
    """Says when a learner should drop a batch that waits for its peers' batches.

    An actor hands what it plays to several learners in turn. While it waits for room in one learner's table it brings
    the others nothing. If these have lost some (to an actor's death, or as unsound), all would wait for ever.

    Args:
      is_full: returns whether actors wait for room in the learner's own table; see `sources.Source`.
      clock: returns seconds.
    """

    _PATIENCE_SECONDS = 10.0

    def __init__(self, is_full: Callable[[], bool], clock: Callable[[], float] = time.monotonic):
        self._is_full, self._clock, self._since = is_full, clock, None

    def end_wait(self) -> None:
        """Tells that all learners have taken a batch."""
        self._since = None

    def is_due(self, batch) -> bool:
        """Returns whether `batch`, or None, should be dropped: actors wait for room, and a peer waits for long.

        Ten seconds count from the first call with a batch after `end_wait`. Once they are over, each further batch
        is dropped as well, until all learners have one.
        """
        if batch is None:
            return False
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since < self._PATIENCE_SECONDS or not self._is_full():
            return False
        logging.warning("a batch is dropped: actors wait for room in the table, and other learners for data")
        return True
