"""launches.json: what each launch of a run was made with, and its number, the incarnation.

Seeds and the detection of duplicates depend on the incarnation: it must be higher than every earlier launch's, even if
the file is damaged and the launches can no longer be counted.
"""

import json
import logging
import re
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from impala import provenance
from impala.types import MAX_INCARNATIONS

_HOURS_BEFORE = 438_288  # from 1970 to 2020


def add(path: Path, folders: Iterable[Path], node: str = "", *, least: int = 1) -> int:
    """Records this launch, or the restart of one `node`, in the file at `path` and returns its incarnation.

    Args:
      folders: of the run's agents, whose TensorBoard event files also show how many launches there were.
      least: the incarnation is this number or a larger one.

    Raises:
      OSError: the disk is full or not writable.
    """
    aside = path.with_name(path.name + ".damaged")
    try:
        launches = _sound(path)
        numbers = [len(launches), *(launch["incarnation"] for launch in launches if "incarnation" in launch)]
    except FileNotFoundError:
        launches, numbers = [], [0]
    except (OSError, ValueError, RecursionError) as error:
        launches, numbers = [], _salvaged(path)
        path.replace(aside)
        logging.warning("%s is damaged (%s) and kept as %s; launches are counted anew, high enough", path, error, aside)
    if aside.exists():  # damaged now or earlier: the entries no longer count the launches
        numbers.append(_floor(folders))
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    entry = {"incarnation": max(least, max(numbers) + 1), "time": now}
    entry |= {"node": node} if node else {"command": shlex.join(sys.argv), "commit": provenance.commit()}
    launches.append(entry)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(launches, indent=1))
    temporary.replace(path)
    return launches[-1]["incarnation"]


def _sound(path: Path) -> list[dict]:
    launches = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(launches, list) or not all(isinstance(launch, dict) and "time" in launch for launch in launches):
        raise ValueError("it holds something else; expected a list of launches")
    for launch in launches:
        number = launch.get("incarnation", 1)  # the first versions counted the entries
        if type(number) is not int or not 0 < number < MAX_INCARNATIONS:
            raise ValueError(f"incarnation {str(number)[:20]}; expected a number from 1 to {MAX_INCARNATIONS - 1}")
    return launches


def _salvaged(path: Path) -> list[int]:
    """Returns how many launches a damaged file still shows, and the incarnations that it still names."""
    data = path.read_bytes() if path.is_file() else b""
    named = (int(number) for number in re.findall(rb'"incarnation": (\d{1,7})\b', data))
    return [data.count(b'"time"'), *(number for number in named if number < MAX_INCARNATIONS)]


def _floor(folders: Iterable[Path]) -> int:
    """Returns a number that is higher than any count of launches, and rises with each launch whose learner started.

    It is the hours since 2020 plus the number of event files, one for each launch. If the file is damaged again,
    whatever is left of it, the number is higher than before, since both have grown.
    """
    num_events = max(len(list((folder / "tensorboard").glob("events.*"))) for folder in folders)
    return max(0, int(time.time()) // 3600 - _HOURS_BEFORE) + num_events
