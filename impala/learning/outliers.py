"""Which losses lie far from what losses are (Nair et al. 2015, arXiv:1507.04296, section 5.2)."""

import logging
import math

_DECAY, _WARM_UP = 0.999, 1000
_IN_A_ROW = 100  # so many outliers, one after the other, are no outliers


class Outliers:
    """Keeps a running mean and deviation of the losses that it does not refuse.

    The paper gives no constants. Both are exponential averages over about 1,000 losses, and the first 1,000 pass. After
    a hundred outliers in a row losses have changed for good, as when the first reward is found: all that was known of
    them is forgotten, and the next 1,000 pass.

    Args:
      deviations: a loss that is more than so many above the mean is an outlier; None: none is.
    """

    def __init__(self, deviations: float | None):
        self._deviations = deviations
        self._forget()

    def _forget(self) -> None:
        self._count = self._num_in_a_row = 0
        self._weight = self._total = self._total_of_squares = 0.0

    def __call__(self, loss: float) -> bool:
        """Returns whether a loss is an outlier; if not, it counts from now on."""
        size = abs(loss)
        if self._deviations is None or not math.isfinite(size):
            return False
        if self._count >= _WARM_UP and size > self.mean + self._deviations * self.deviation:
            self._num_in_a_row += 1
            if self._num_in_a_row == _IN_A_ROW:
                logging.warning(
                    "%d losses in a row were more than %g deviations above their mean (%.3g ± %.3g; the last: %.3g): "
                    "they count as usual from now on", _IN_A_ROW, self._deviations, self.mean, self.deviation, size,
                )  # fmt: skip
                self._forget()
            return True
        self._count, self._num_in_a_row = self._count + 1, 0
        self._weight = _DECAY * self._weight + 1.0
        self._total = _DECAY * self._total + size
        self._total_of_squares = _DECAY * self._total_of_squares + size**2
        return False

    @property
    def mean(self) -> float:
        """Of the losses' sizes."""
        return self._total / self._weight if self._weight else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the losses' sizes."""
        return math.sqrt(max(0.0, self._total_of_squares / self._weight - self.mean**2)) if self._weight else 0.0
