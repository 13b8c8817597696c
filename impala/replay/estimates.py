"""How much memory a replay table will take when it is full, from how it grows at first."""

_ENOUGH = 500


class MemoryEstimate:
    """Extrapolates linearly from two looks at a growing table: the first one, and the first with `enough` items.

    Memory depends on compression, which is unknown before there are chunks: the bound that a run prints at its start is
    for uncompressed chunks.

    Args:
      size: items of the full table.
      enough: items at which a table has grown enough; a process also grows for other reasons, so few small items tell
        little.
    """

    def __init__(self, size: int, enough: int = _ENOUGH):
        self._size, self._enough, self._first = size, min(enough, size), None
        self.full_mb: float | None = None

    @property
    def is_open(self) -> bool:
        """Returns whether another look is needed."""
        return self.full_mb is None

    def look(self, num_items: int, resident_mb: float | None) -> None:
        """Takes the number of items in the table, and the resident megabytes of its process, None if unknown."""
        if resident_mb is None:  # e.g. with --threads, where the table has no process of its own
            return
        if self._first is None:
            self._first = num_items, resident_mb
        elif self.is_open and num_items >= self._enough and num_items > self._first[0]:
            per_item = max(0.0, resident_mb - self._first[1]) / (num_items - self._first[0])
            self.full_mb = resident_mb + per_item * max(0, self._size - num_items)
