"""What a learner trains on: where its batches come from, behind one interface."""

from collections.abc import Callable
from typing import Any, Protocol

from impala.replay import datasets, table_info, tables
from impala.replay.checks import Checks
from impala.replay.estimates import MemoryEstimate
from impala.types import Chunk


class Source(Protocol):
    """Hands out batches; made in the learner's process. Preparing batches starts with the first `get`."""

    def get(self, timeout_seconds: float) -> Chunk | None:
        """Returns the next batch, None if none comes in time. Raises what preparing it raised."""

    def counts(self) -> dict[str, int]:
        """Returns counts since the start, columns of metrics, which add up over the learners of a group."""

    def columns(self) -> dict[str, Any]:
        """Returns other columns of metrics, about the time since the last call."""

    def fill(self) -> float | None:
        """Returns how full the queue of fresh chunks is, in [0, 1]; None if that is unknown."""

    def is_full(self) -> bool:
        """Returns whether actors wait for room and bring other learners nothing meanwhile, as far as is known."""

    def look(self, row: dict[str, Any]) -> None:
        """Takes the row of metrics that was just written."""

    def status(self) -> dict[str, Any]:
        """Returns further facts for the dashboard."""


class FedSource:
    """A source with a `datasets.Feeder`, made by `make_feeder` when it is first needed."""

    def __init__(self, make_feeder: Callable[[], datasets.Feeder]):
        self._make_feeder, self._feeder = make_feeder, None

    def get(self, timeout_seconds: float) -> Chunk | None:
        if self._feeder is None:
            self._feeder = self._make_feeder()
        return self._feeder.get(timeout_seconds)

    def counts(self) -> dict[str, int]:
        return self._feeder.counts() if self._feeder else {}

    def columns(self) -> dict[str, Any]:
        return {}

    def is_full(self) -> bool:
        return (self.fill() or 0.0) >= 1.0

    def look(self, row: dict[str, Any]) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {}


class Tables(FedSource):
    """Fresh chunks from a Reverb queue and, if `num_replayed` is not 0, chunks drawn from a uniform Reverb table.

    Args:
      client: `reverb.Client` of the table's server.
      checks: of the chunks that come from it.
      replay_size: chunks of the uniform table; 0 without replay.
      feeder: arguments of `datasets.Feeder`.
    """

    def __init__(
        self, client, *, num_fresh: int, num_replayed: int = 0, replay_size: int = 0, checks: Checks, **feeder
    ):  # fmt: skip
        address = client.server_address
        super().__init__(
            lambda: datasets.Feeder(
                lambda: datasets.chunks(address, tables.QUEUE, max_in_flight=num_fresh, checks=checks),
                batch_size=num_fresh + num_replayed,
                make_replayed=lambda: datasets.chunks(
                    address, tables.REPLAY, max_in_flight=num_replayed, checks=checks
                ),
                num_replayed=num_replayed,
                **feeder,
            )
        )
        self._client, self._checks = client, checks
        self._memory = MemoryEstimate(replay_size) if num_replayed else None

    def get(self, timeout_seconds: float) -> Chunk | None:
        batch = super().get(timeout_seconds)
        if batch is None and timeout_seconds:
            self.fill()  # logs a warning if the table does not answer
        return batch

    def counts(self) -> dict[str, int]:
        unsound = {f"unsound:{reason}": count for reason, count in self._checks.counts_by_reason().items()}
        return super().counts() | (unsound if self._feeder else {})

    def fill(self) -> float | None:
        info = table_info.info_of(self._client, tables.QUEUE)
        return info and info.current_size / info.max_size

    def is_full(self) -> bool:
        return table_info.holds_up_writers(table_info.info_of(self._client, tables.QUEUE))

    def look(self, row: dict[str, Any]) -> None:
        """Extrapolates from the memory of the table's process how much a full replay table takes."""
        if self._memory and self._memory.is_open and (info := table_info.info_of(self._client, tables.REPLAY)):
            self._memory.look(info.current_size, row["rss_table_mb"])

    def status(self) -> dict[str, Any]:
        return {"full_replay_mb": self._memory and self._memory.full_mb}
