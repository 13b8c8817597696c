"""Catch that fails as the file that FLAKY names says: "once", or "always" with the seed that failed first; "dies" ends its process."""

import os
from pathlib import Path

import numpy as np

from impala.environments import catch
from impala.types import Step


class Catch(catch.Catch):
    """Fails in the fiftieth step."""

    def reset(self, seed: int) -> Step:
        self._seed, self._num_steps = seed, 0
        return super().reset(seed)

    def send(self, action: np.ndarray) -> None:
        self._num_steps += 1
        path = Path(os.environ["FLAKY"])
        if self._num_steps == 50 and path.exists():
            how, *seeds = path.read_text().split()
            if not seeds or str(self._seed) in seeds:
                path.unlink() if how == "once" else path.write_text(f"{how} {self._seed}")
                if how == "dies":
                    os._exit(9)
                raise ValueError("as asked for")
        super().send(action)
