"""Catch whose rewards are sound, but so large that no loss is finite."""

import numpy as np

from impala.environments import catch
from impala.types import Step


class Catch(catch.Catch):
    """Gives nearly the largest reward that a chunk may hold, at each transition."""

    def receive(self) -> Step:
        step = super().receive()
        return step._replace(reward=np.where(step.is_first, 0, 9e17).astype(np.float32))
