"""What a learner trains on where chunks are written in its own process."""

from impala.replay import datasets
from impala.replay.memory import MemoryQueue
from impala.replay.sources import FedSource


class Memory(FedSource):
    """Chunks of a queue in this process.

    Args:
      queue: `MemoryQueue`.
      feeder: arguments of `datasets.Feeder`.
    """

    def __init__(self, queue: MemoryQueue, **feeder):
        super().__init__(lambda: datasets.Feeder(queue.chunks, **feeder))
        self._queue = queue

    def fill(self) -> float:
        return self._queue.fill()
