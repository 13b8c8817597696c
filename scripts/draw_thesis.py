"""Draws Pong by three corrections at two policy lags, and prints a table of the runs.

.venv/bin/python scripts/draw_thesis.py    # docs/results/thesis/<scheme>_period_<n>_seed_<m>/ → …/thesis/curves.png
"""

import re
from collections import Counter
from pathlib import Path

import numpy as np

from impala.monitoring.logs import read_csv

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "thesis"
NAME = re.compile(r"(\w+)_period_(\d+)_seed_(\d+)")
COLOURS = {"vtrace": "tab:blue", "one_step_is": "tab:orange", "none": "tab:red"}
MARKS = (1, 2, 4, 8)  # million frames
GOAL, UP = 18.0, 15.0  # the last three points take as long as the thirty before, in some runs


def runs() -> dict[tuple[str, int, int], list[dict[str, str]]]:
    """Returns the rows of metrics.csv of every kept run, by scheme, period of weights and seed."""
    found = {}
    for folder in sorted(RESULTS.glob("*_period_*_seed_*")):
        scheme, period, seed = NAME.fullmatch(folder.name).groups()
        found[scheme, int(period), int(seed)] = read_csv(folder / "metrics.csv")
    return found


def key_of(scheme: str, period: int, seed: int) -> tuple[int, int, int, str]:
    return period, list(COLOURS).index(scheme), seed, scheme


def frames_to(rows: list[dict[str, str]], goal: float) -> float | None:
    """Returns after how many million frames the mean return of 100 training episodes reached `goal`, if it did."""
    reached = (row for row in rows if row["return_mean"] and float(row["return_mean"]) >= goal)
    return float(row["frames"]) / 1e6 if (row := next(reached, None)) else None


def median_kl(rows: list[dict[str, str]]) -> float:
    return float(np.median([float(row["kl_mu_pi"]) for row in rows if row["kl_mu_pi"]]))  # a mean hangs on few rows


def table() -> str:
    measures = ("lag_mean", "lag_p95", "effective_sample_size", "rho_clipped_fraction", "log_rho_max")
    names = ["scheme", "period", "seed", *(f"{mark} M" for mark in MARKS), f"{UP:.0f} after", f"{GOAL:.0f} after"]
    names += ["end", *measures, "kl_mu_pi, median", "least entropy"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for (period, _, seed, scheme), rows in sorted((key_of(*key), rows) for key, rows in runs().items()):
        known = [row for row in rows if row["return_mean"]]
        at = [next((row["return_mean"] for row in known if float(row["frames"]) >= mark * 1e6), "") for mark in MARKS]
        means = [np.mean([float(row[name]) for row in rows if row[name]]) for name in measures]
        means += [median_kl(rows), min(float(row["entropy"]) for row in rows if row["entropy"])]
        cells = [scheme, str(period), str(seed), *(f"{float(x):.1f}" if x else "" for x in at)]
        cells += [f"{after:.2f} M" if (after := frames_to(rows, goal)) else "" for goal in (UP, GOAL)]
        cells.append(f"{float(known[-1]['return_mean']):.1f}")
        lines.append(f"| {' | '.join([*cells, *(f'{number:.3g}' for number in means)])} |")
    return "\n".join(lines)


def draw(output: Path) -> None:
    from matplotlib.figure import Figure

    kept = runs()
    periods = sorted({period for _, period, _ in kept})
    figure = Figure(figsize=(4.6 * len(periods) + 8.6, 4.2), layout="constrained")
    *of_return, of_lag, of_kl = figure.subplots(1, len(periods) + 2)
    for axis, period in zip(of_return, periods):
        for (scheme, its_period, seed), rows in kept.items():
            if its_period == period:
                known = [(float(row["frames"]) / 1e6, float(row["return_mean"])) for row in rows if row["return_mean"]]
                label = scheme if seed == 0 else None
                axis.plot(*zip(*known), lw=1.2, color=COLOURS[scheme], ls="-" if seed == 0 else "--", label=label)
        axis.set(title=f"unrolls between two fetches of weights: {period}", xlabel="million frames", ylim=(-21.5, 21.5))
        axis.set(ylabel="return of 100 training episodes")
        axis.legend(fontsize=8)
    for period in periods:
        counts = Counter()
        for row in (row for key, rows in kept.items() if key[1] == period for row in rows):
            counts += histogram(row["lag_histogram"])
        bins, total = sorted(counts), sum(counts.values())
        of_lag.plot(bins, [counts[start] / total for start in bins], marker="o", label=f"every {period}")
    of_lag.set(title="policy lag of all chunks", xlabel="updates (from here up to twice as many)", ylabel="share")
    of_lag.set_xscale("symlog", base=2, linthresh=1)
    of_lag.legend(fontsize=8)
    for (scheme, _, seed), rows in kept.items():
        marker = "o" if seed == 0 else "^"
        of_kl.plot(median_kl(rows), frames_to(rows, UP) or np.nan, marker, color=COLOURS[scheme])
    of_kl.set(title=f"frames to {UP:.0f}, each run", xlabel="KL(μ‖π), median row, nats", ylabel="million frames")
    of_kl.set_xscale("log")
    for axis in (*of_return, of_lag, of_kl):
        axis.grid(alpha=0.3)
    figure.savefig(output, dpi=110)


def histogram(text: str) -> Counter:
    """Returns the chunks of a period by the bin of their lag: "0:3 1:5 2:9 4:1"."""
    return Counter({int(start): int(count) for start, _, count in (pair.partition(":") for pair in text.split())})


if __name__ == "__main__":
    print(table())
    draw(RESULTS / "curves.png")
