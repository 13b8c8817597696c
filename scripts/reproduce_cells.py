#!/usr/bin/env python
"""Runs recorded cells of the lab's grids again: scripts/reproduce_cells.py WORD… [--count N] [--seed N].

The status is 1 if any differs. For each WORD, a grid in docs/results, N of the cells that took less than half a minute
are drawn, of as many schemes. Their numbers must be those that were recorded, to the digits that are. Another processor
or a commit that draws other random numbers gives others: run by the older commit, the same cells say which it is.
"""

import argparse
import csv
import random
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPARED = ("return", "frames", "updates", "log_rho_mean", "kl_mu_pi", "curve")


def drawn(rows: list[dict], count: int, seed: int) -> list[dict]:
    """Returns short cells of different schemes."""
    short = [row for row in rows if float(row["wall_seconds"]) < 30 and row["status"] == "done"]
    random.Random(seed).shuffle(short)
    of_scheme = {}
    for row in short:
        of_scheme.setdefault(row["scheme"], row)
    return list(of_scheme.values())[:count]


def difference(recorded: str, found) -> float:
    """Returns the largest relative difference of two numbers, or of two curves; numbers below 0.001 count as that."""
    found = found if isinstance(found, list) else [found]
    worst = 0.0
    for old, new in zip(map(float, recorded.split()), map(float, found), strict=True):
        if (old == old) != (new == new):
            return float("inf")
        worst = max(worst, abs(old - new) / max(abs(old), abs(new), 1e-3)) if old == old else worst
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from impala.lab import cells
    from impala.lab.compare import written

    cells.prepare_worker()
    from impala.lab import grid as grids

    num_differ = 0
    for word in options.words:
        grid = grids.Grid(ROOT / "configs" / "lab" / f"{word}.yaml")
        with (ROOT / "docs" / "results" / word / "results.csv").open() as file:
            rows = drawn(list(csv.DictReader(file)), options.count, options.seed)
        for row in rows:
            cell = grids.cell_of(row)
            found = cells.run(grid.cell_config(cell), cell.lag, grid.config.num_evaluations)
            others = [name for name in COMPARED if row[name] and written(name, found[name]) != row[name]]
            num_differ += bool(others)
            said = ", ".join(f"{name} by {difference(row[name], found[name]):.2g}" for name in others) or "the same"
            scores = f"return {float(row['return']):.4f}, now {found['return']:.4f}"
            print(f"{word}: {cell.task} {cell.scheme} lag {cell.lag} seed {cell.seed}: {scores}: {said}", flush=True)
    return int(num_differ > 0)


if __name__ == "__main__":
    sys.exit(main())
