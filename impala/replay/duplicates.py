"""Chunks that came twice, and those that never did."""

import collections

from impala.types import Origin


class Deduplicator:
    """Drops chunks that were delivered twice and counts those that never came.

    A writer whose connection breaks sends unconfirmed chunks again (at-least-once delivery). In one incarnation `seq`
    of an environment begins at 0 and rises by one, so a number already seen is a duplicate, and a number left out is a
    gap, which closes if its chunk comes later: not every table keeps the order. A late chunk of an earlier incarnation
    counts as new: the numbers seen in that one are no longer kept.
    """

    _MAX_GAPS = 1000  # of one environment that may still be closed

    def __init__(self):
        self._last: dict[tuple, tuple[int, int]] = {}  # incarnation and seq
        self._gaps: dict[tuple, dict[int, None]] = collections.defaultdict(dict)  # oldest first
        self.num_duplicates = self.num_gaps = 0

    def is_new(self, origin: Origin) -> bool:
        """Returns whether a chunk from `origin` is seen for the first time."""
        source = origin._replace(seq=0, incarnation=0)
        incarnation, last = self._last.get(source, (origin.incarnation, -1))
        if origin.incarnation < incarnation:
            return True
        if origin.incarnation > incarnation:
            last = -1
            self._gaps[source].clear()
        gaps = self._gaps[source]
        if origin.seq > last:
            self.num_gaps += origin.seq - last - 1
            gaps |= dict.fromkeys(range(max(last + 1, origin.seq - self._MAX_GAPS), origin.seq))
            while len(gaps) > self._MAX_GAPS:
                del gaps[next(iter(gaps))]
            self._last[source] = origin.incarnation, origin.seq
        elif origin.seq in gaps:
            del gaps[origin.seq]
            self.num_gaps -= 1
        else:
            self.num_duplicates += 1
            return False
        return True
