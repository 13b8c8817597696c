"""A node that has a `LearnerNode` and does more."""

from typing import Any

from impala.nodes.learner_node import LearnerNode


class WithLearner:
    """The RPCs of a node that holds a `LearnerNode` and does more."""

    RPCS = LearnerNode.RPCS
    learning: LearnerNode

    def get_weights(self, newer_than: int) -> tuple[int, list]:
        """See `LearnerNode`."""
        return self.learning.get_weights(newer_than)

    def frames(self) -> int:
        """See `LearnerNode`."""
        return self.learning.frames()

    def report(self, actor: int, number: int, shares: dict[str, float], episodes: list) -> None:
        """See `LearnerNode`."""
        self.learning.report(actor, number, shares, episodes)

    def evaluated(self, mean: float, num_updates: int) -> None:
        """See `LearnerNode`."""
        self.learning.evaluated(mean, num_updates)

    def status(self) -> dict[str, Any]:
        """See `LearnerNode`."""
        return self.learning.status()

    def run(self) -> None:
        """See `LearnerNode`."""
        self.learning.run()
