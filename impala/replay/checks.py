"""Chunks from a table are checked before they are trained on: anybody who can reach Reverb's port can write some.

Reverb's server does not check what is written; an action out of range would crash the learner or, worse, be trained on.
"""

import collections
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from impala.types import MAX_INCARNATIONS, Actions, ArraySpec, Chunk, Continuous, Origin

REASONS = ("unreadable", "shape", "number", "action", "discount", "episode", "origin", "task", "version", "priority")
_MOST = 1e18  # squares of larger numbers may overflow float32
_FAR = 100_000  # a leap of seq that is larger than lost chunks can explain
_MOST_SEQ = 2**62  # bounds seq of an earlier incarnation, whose newest one is not kept


class ExpectedOrigins(NamedTuple):
    """Which origins sound chunks have; see `types.Origin`."""

    run: int
    incarnation: int  # this launch's; higher for restarted actors, lower for earlier launches (`outlives_launches`)
    num_actors: int
    num_environments: int  # of each actor
    num_tasks: int
    outlives_launches: bool = False


class Checks:
    """Finds what is wrong with chunks, and counts it by reason.

    Args:
      spec: of chunks; see `types.chunk_spec`.
      actions: of the environment.
      source: of sound chunks.
      num_updates: done so far by the learner.
    """

    def __init__(self, spec: Chunk, actions: Actions, source: ExpectedOrigins, num_updates: Callable[[], int]):
        self._fields = {name: field for name, field in spec._asdict().items() if isinstance(field, ArraySpec)}
        self._numbers = [name for name, field in self._fields.items() if np.dtype(field.dtype).kind == "f"]
        self._source, self._num_updates = source, num_updates
        # In each dimension; actions are compared as if unsigned, so that a negative one is too large.
        self._num_actions = None if isinstance(actions, Continuous) else np.asarray(actions.num_actions, np.uint32)
        names = () if self._num_actions is None else ("a_tm1", "previous_action")
        self._actions = [name for name in names if name in self._fields]
        self._newest: dict[tuple, tuple[int, int]] = {}  # incarnation and seq of each environment
        self._counts: collections.Counter[str] = collections.Counter()

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> list[bool]:
        """Returns which of B chunks, whose fields come stacked [B, …], may be trained on.

        Counts the others, and logs the first of them. The chunks are checked together, and one by one only if that
        finds something.
        """
        size = len(arrays["origin"])
        if self._fault(arrays, 1) is None:
            origins = [Origin(*origin) for origin in arrays["origin"].tolist()]
            found = [self._problem_of_origin(*each) for each in zip(origins, arrays["weights_version"])]
        else:
            found = [self._problem({name: array[i] for name, array in arrays.items()}) for i in range(size)]
        for problem in filter(None, found):
            self.count(*problem)
        return [problem is None for problem in found]

    def count(self, reason: str, words: str) -> None:
        """Counts a chunk that was dropped, and logs the first three for a reason and then every thousandth."""
        self._counts[reason] += 1
        count = self._counts[reason]
        if count <= 3 or count % 1000 == 0:
            logging.warning("a chunk was dropped (%s, number %d): %s", reason, count, words)

    def counts_by_reason(self) -> dict[str, int]:
        """Returns how many chunks were dropped so far, for each of `REASONS`."""
        return {reason: self._counts[reason] for reason in REASONS}

    def _fault(self, arrays: Mapping[str, np.ndarray], num_leading: int) -> tuple[str, str] | None:
        """Returns what is wrong with shapes or values of a chunk or, with `num_leading` 1, of B stacked ones."""
        for name, field in self._fields.items():
            array = arrays[name]
            if array.shape[num_leading:] != field.shape or array.dtype != field.dtype:
                wanted = f"{np.dtype(field.dtype)}{list(field.shape)}"
                return "shape", f"{name} is {array.dtype}{list(array.shape)}; expected {wanted}"
        for name in self._numbers:
            if not (np.abs(arrays[name]) <= _MOST).all():  # true for NaN
                return "number", f"{name} is not finite, or beyond {_MOST:g}"
        for name in self._actions:
            if (arrays[name].view(np.uint32) >= self._num_actions).any():
                return "action", f"{name} is out of range: {arrays[name].tolist()}"
        if not np.isin(arrays["discount_t"], (0, 1)).all():
            return "discount", "discount_t is neither 0 nor 1"
        is_reset = arrays["is_first"][..., -arrays["r_t"].shape[-1] :]  # of windows it covers older planes too
        if (arrays["r_t"][is_reset] != 0).any() or (arrays["discount_t"][is_reset] != 1).any():
            return "episode", "a transition to a state that is_first has a reward or ends an episode; see types.Step"
        return None

    def _problem(self, chunk: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
        fault = self._fault(chunk, 0)
        if fault and fault[0] == "shape":  # perhaps the origin's
            return fault
        origin = Origin(*chunk["origin"].tolist())
        if fault:
            return fault[0], f"{fault[1]}; of {origin}"
        return self._problem_of_origin(origin, chunk["weights_version"])

    def _problem_of_origin(self, origin: Origin, version: np.ndarray) -> tuple[str, str] | None:
        source, newest = self._source, self._num_updates()
        key, now = origin._replace(seq=0, incarnation=0), (origin.incarnation, origin.seq)
        before = self._newest.get(key, (0, -1))
        seq = before[1] if before[0] == origin.incarnation else -1
        if not 0 <= origin.task < source.num_tasks:
            return "task", f"{origin}; expected one of {source.num_tasks} tasks"
        oldest = 0 if source.outlives_launches else source.incarnation
        is_older = origin.incarnation < source.incarnation  # of a table that was filled before this learner's start
        is_ours = (
            origin.run == source.run
            and oldest <= origin.incarnation < MAX_INCARNATIONS
            and 0 <= origin.actor < source.num_actors
            and 0 <= origin.environment < source.num_environments
            and 0 <= origin.seq <= (_MOST_SEQ if is_older or now < before else seq + _FAR)
        )
        if not is_ours:
            return "origin", f"{origin}; expected an environment of {source}, and no leap of seq"
        if is_older:
            newest = np.inf  # a resumed learner may be behind the one whose weights acted
        if not 0 <= version.min() <= version.max() <= newest:
            return "version", f"{version.tolist()} of {origin}; expected 0 to {newest}, the newest"
        self._newest[key] = max(now, before)
        return None
