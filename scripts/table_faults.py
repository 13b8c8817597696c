#!/usr/bin/env python
"""Prints what each promised fault took: scripts/table_faults.py docs/results/faults/figures.csv

`IMPALA_FAULT_FIGURES=FILE .venv/bin/python -m pytest -m soak …` writes that file
(tests/faults/figures.py). A line for each promise, with every reading of it.
"""

import collections
import csv
import sys


def table(path: str) -> str:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    readings = collections.defaultdict(list)
    for row in rows:
        readings[row["what"], row["unit"], row["limit"]].append(row["seen"])
    lines = ["| what was done: what was waited for | seen | limit |", "|---|---|---|"]
    for (what, unit, limit), seen in readings.items():
        lines.append(f"| {what} | {', '.join(seen)} {unit} | {limit} |")
    made = sorted({f"{row['commit']}, {row['machine']}, {row['date']}" for row in rows})
    return "\n".join([*lines, "", *made])


if __name__ == "__main__":
    print(table(sys.argv[1]))
