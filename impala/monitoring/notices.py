"""What a person who watches a run should know at once: who is silent, what cannot be saved, whose memory grows."""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

COLUMNS = ("time", "notice", "state", "text")
_SILENT_SECONDS = {"starting": 90.0}  # before a notice; imports and the first update took so long on busy machines
_SILENT_ELSE = 15.0
_USUAL_GROWTH_MB = 500.0  # of every node in its first minutes
_MANY = 0.25  # share of silent units in a layer that causes a notice


class Node(Protocol):
    """What is known of a node; see `launching.beats.Node`."""

    silent_seconds: float
    is_frozen: bool
    doing: str
    rss_mb: float
    facts: dict[str, Any]


class Notices:
    """Finds the notices about the nodes of one launch.

    Args:
      patience: (what a node does) → seconds of silence after which it is taken for dead.
      then: what happens then.
      growth: how much a node's memory may grow before a notice, beyond half a gigabyte, as a share of its memory when
        it had begun.
      allowed_mb: (name of a node) → growth in MB that is expected in addition.
      plays: (name of a node) → whether it plays environments, which may hang and leak.
    """

    def __init__(
        self, *, patience: Callable[[str], float], growth: float, allowed_mb: Callable[[str], float],
        plays: Callable[[str], bool], then: str = "the run ends",
    ):  # fmt: skip
        self._patience, self._growth, self._allowed_mb = patience, growth, allowed_mb
        self._plays, self._then = plays, then
        self._began_mb: dict[str, float] = {}
        self._last: dict[str, str] = {}

    def __call__(self, nodes: Mapping[str, Node], doing: Mapping[str, str]) -> dict[str, str]:
        """Returns a line for each thing that is wrong now, by a key that stays the same while it is.

        The last notices about a node that has ended stay. `doing`: what each node does, or waits for another to do.
        """
        found = {key: text for key, text in self._last.items() if key.partition(" ")[0] not in nodes}
        for name, node in nodes.items():
            found[f"{name} silent"] = self._silence(name, node, doing[name])
            found[f"{name} memory"] = self._memory_growth(name, node)
            found[f"{name} checkpoint"] = _checkpoint(node.facts)
            found[f"{name} copy"] = _copy(node.facts)
            found[f"{name} disk"] = _disk(node.facts)
            found[f"{name} logs"] = _logs(node.facts)
            found[f"{name} units"] = _silent_units(node.facts)
            found[f"{name} chunks"] = _unsound(name, node.facts)
        self._last = {key: text for key, text in found.items() if text}
        return self._last

    def _silence(self, name: str, node: Node, doing: str) -> str | None:
        seconds = node.silent_seconds
        if seconds < _SILENT_SECONDS.get(doing, _SILENT_ELSE):
            return None
        if doing == "saving" and not node.is_frozen:
            who = "" if node.doing == doing else "waiting for a peer that is "
            return f"{name} has been {who}writing a checkpoint for {seconds:.0f} s"
        what = "nothing is heard of its process" if node.is_frozen else "it runs, but its loop makes no step"
        if not node.is_frozen and self._plays(name):
            what += ": an environment that hangs?"
        return f"{name} has been silent for {seconds:.0f} s ({what}); after {self._patience(doing):.0f} s {self._then}"

    def _memory_growth(self, name: str, node: Node) -> str | None:
        if node.doing == "starting" or not node.rss_mb:
            return None
        began_mb = self._began_mb.setdefault(name, node.rss_mb)
        growth = node.rss_mb - began_mb - self._allowed_mb(name)
        if growth < _USUAL_GROWTH_MB + self._growth * began_mb:
            return None
        whose = "; its environment may leak" if self._plays(name) else ""
        return f"{name}'s memory grew from {began_mb:,.0f} to {node.rss_mb:,.0f} MB since it began{whose}"


class Record:
    """Writes a row when a notice begins and when it is over; notices are lines by key, as `Notices` returns them.

    `write` takes rows of `COLUMNS`; a full disk costs them.
    """

    def __init__(self, write: Callable[[list[dict]], None]):
        self._write, self._stand = write, {}

    def __call__(self, notices: Mapping[str, str]) -> None:
        began = [(key, "begins", text) for key, text in notices.items() if key not in self._stand]
        ended = [(key, "over", "") for key in self._stand if key not in notices]
        self._stand = dict(notices)
        if changed := began + ended:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            with contextlib.suppress(OSError):
                self._write([dict(zip(COLUMNS, (now, *what))) for what in changed])


def _checkpoint(facts: Mapping[str, Any]) -> str | None:
    if not facts.get("save_error"):
        return None
    return (
        f"no checkpoint could be written for {facts.get('failing_seconds', 0):.0f} s ({facts['save_error']}); "
        f"if the run ended now, it would lose {_unsaved(facts)}"
    )


def _copy(facts: Mapping[str, Any]) -> str | None:
    if not facts.get("copy_error"):
        return None
    return (
        f"the replay table could not be copied to disk ({facts['copy_error']}); a run that is resumed would begin with "
        "an older copy, or with none"
    )


def _disk(facts: Mapping[str, Any]) -> str | None:
    needed, free = facts.get("checkpoint_mb"), facts.get("free_mb")
    if facts.get("save_error") or needed is None or free is None or free >= needed:
        return None
    return (
        f"the next checkpoint will fail: it takes {needed:,.1f} MB, and the run's disk has {free:,.1f} MB free; "
        f"not saved yet: {_unsaved(facts)}"
    )


def _unsaved(facts: Mapping[str, Any]) -> str:
    num_frames = facts.get("frames", 0) - facts.get("saved_frames", 0)
    return f"{num_frames:,} frames since update {facts.get('saved_updates', 0):,}"


def _logs(facts: Mapping[str, Any]) -> str | None:
    rows = facts.get("lost_rows", 0)
    return f"{rows:,} rows of logs could not be written; the run goes on without them" if rows else None


def _silent_units(facts: Mapping[str, Any]) -> str | None:
    shares = {layer: share for layer, share in facts.get("silent_units", {}).items() if share >= _MANY}
    if not shares:
        return None
    layers = ", ".join(f"{share:.0%} of {layer}" for layer, share in shares.items())
    return f"units active for no observation in twelve rows: {layers}; they learn nothing (docs/results/frames)"


def _unsound(name: str, facts: Mapping[str, Any]) -> str | None:
    reasons = {reason: count for reason, count in facts.get("unsound", {}).items() if count}
    if not reasons:
        return None
    counts = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
    return f"{sum(reasons.values()):,} chunks were unsound and dropped ({counts}); {name}'s log says from whom"
