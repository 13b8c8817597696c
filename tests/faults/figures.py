"""What each promise of docs/reliability.md took: a test asserts its limit, and writes down what was seen if asked to.

IMPALA_FAULT_FIGURES=FILE pytest -m soak …    # a row of FILE for each figure (docs/results/faults)
"""

import contextlib
import csv
import datetime
import os
import time
from collections.abc import Iterator
from pathlib import Path

from impala import provenance

BESIDE_OTHERS = 4.0  # a limit in seconds is so many times as long where tests run beside each other, as in `make test`
COLUMNS = ("what", "seen", "unit", "limit", "test", "commit", "machine", "date")


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Asserts that the block takes at most `seconds`, and keeps what it took as the figure of `what`."""
    began = time.monotonic()
    yield
    taken = time.monotonic() - began
    keep(what, taken, "s", at_most=seconds)


def keep(what: str, seen: float, unit: str, *, at_most: float | None = None, at_least: float | None = None) -> None:
    """Asserts a limit of what was seen, and appends both to the file that IMPALA_FAULT_FIGURES names, if it is set."""
    if unit == "s" and at_most is not None and "PYTEST_XDIST_WORKER" in os.environ:
        at_most *= BESIDE_OTHERS
    if path := os.environ.get("IMPALA_FAULT_FIGURES"):
        limit = f"≤ {at_most:g}" if at_least is None else f"≥ {at_least:g}"
        file, _, name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("::")
        test = f"{Path(file).name}::{name}"
        date = datetime.date.today().isoformat()
        _append(Path(path), (what, f"{seen:.3g}", unit, limit, test, provenance.commit(), provenance.machine(), date))
    assert at_most is None or seen <= at_most, f"{what}: {seen:.3g} {unit}; expected at most {at_most:g}"
    assert at_least is None or seen >= at_least, f"{what}: {seen:.3g} {unit}; expected at least {at_least:g}"


def _append(path: Path, row: tuple[str, ...]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, row] if is_new else [row])
