"""`impala runs`: what lies in a folder of runs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from impala.monitoring.logs import read_csv


def lines(root: Path, is_running: Callable[[Path], bool], survey: Callable[[Path], tuple]) -> Iterator[str]:
    """Yields a line for every run under `root`: name, state, frames, return, and what is wrong with its checkpoints.

    survey: like `learning.soundness.survey`; the checkpoints of a run that is running are not looked at.
    """
    for path in sorted(path for path in root.iterdir() if path.is_dir() and not os.access(path, os.R_OK | os.X_OK)):
        yield f"{path.name:24} cannot be read"
    for path in sorted([*root.glob("*/config.yaml"), *root.glob("*/member_*/config.yaml")]):
        folder = path.parent
        if any(folder.glob("member_*")):  # a population: its members come next
            continue
        rows = read_csv(folder / "metrics.csv")
        last = rows[-1] if rows else {}
        has_checkpoint = any(each.suffix != ".tmp" for each in (folder / "checkpoints").glob("[0-9]*"))
        run = folder if folder.parent == root else folder.parent
        state, note = "running" if is_running(run) else "stopped" if has_checkpoint else "empty", ""
        if state == "stopped":
            sound, saved, passed_over = survey(folder / "checkpoints")
            state = "done" if saved.get("is_done") else state  # at its total frames or its target
            if sound is None:
                state, note = "damaged", "  no checkpoint is sound"
            elif passed_over:
                note = f"  checkpoint {passed_over[0][0]} is damaged: resumes from {sound.name}"
        frames, score = last.get("frames", "–"), last.get("return_mean") or "–"
        yield f"{str(folder.relative_to(root)):24} {state:8} frames {frames:>12}  return {score:>8}{note}"
