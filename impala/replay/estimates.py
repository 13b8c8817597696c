"""How much memory a replay table will take when it is full, from how it grows at first."""

_ENOUGH = 500  # chunks


class MemoryEstimate:
    """Extends the line through the first look at a growing table and the first with 500 chunks or more.

    Compression decides, which nobody knows before chunks are there: the bound that a run prints at its start is that
    of chunks as they are sent.

    Args:
      size: chunks of the full table.
    """

    def __init__(self, size: int):
        self._size, self._first = size, None
        self.full_mb: float | None = None

    @property
    def is_open(self) -> bool:
        """Returns whether another look is wanted."""
        return self.full_mb is None

    def look(self, num_chunks: int, resident_mb: float) -> None:
        """Takes how many chunks the table holds, and the resident megabytes of its process then."""
        if self._first is None:
            self._first = num_chunks, resident_mb
        elif self.is_open and num_chunks >= min(_ENOUGH, self._size) and num_chunks > self._first[0]:
            per_chunk = max(0.0, resident_mb - self._first[1]) / (num_chunks - self._first[0])
            self.full_mb = resident_mb + per_chunk * max(0, self._size - num_chunks)
