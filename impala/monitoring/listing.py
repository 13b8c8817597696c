"""`impala runs`: what lies in a folder of runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

from impala.monitoring.logs import read_csv


def lines(root: Path, is_running: Callable[[Path], bool]) -> Iterator[str]:
    """Yields a line for every run under `root`: name, state, frames, return."""
    for saved in sorted([*root.glob("*/config.yaml"), *root.glob("*/member_*/config.yaml")]):
        folder = saved.parent
        if any(folder.glob("member_*")):  # a population: its members come next
            continue
        rows = read_csv(folder / "metrics.csv")
        last = rows[-1] if rows else {}
        has_checkpoint = any((folder / "checkpoints").glob("[0-9]*"))
        run = folder if folder.parent == root else folder.parent
        state = "running" if is_running(run) else "stopped" if has_checkpoint else "empty"
        frames, score = last.get("frames", "–"), last.get("return_mean") or "–"
        yield f"{str(folder.relative_to(root)):24} {state:8} frames {frames:>12}  return {score:>8}"
