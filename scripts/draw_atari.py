"""Draws the kept runs of Atari games beside the peers' curves, and prints a table of them.

.venv/bin/python scripts/draw_atari.py    # docs/results/<game>/seed_*/ → docs/results/atari/curves.png
"""

from pathlib import Path

import yaml

from impala.monitoring.logs import read_csv as rows_of

RESULTS = Path(__file__).parents[1] / "docs" / "results"
GAMES = ("pong", "breakout", "beam_rider", "qbert", "space_invaders")
MARKS = (1, 2, 4, 8, 12, 20, 40)  # million frames
GOAL = {"pong": 18.0}


def runs_of(game: str) -> dict[str, list[dict[str, str]]]:
    """Returns the rows of metrics.csv, where there is a return, of every kept run of a game."""
    folders = sorted((RESULTS / game).glob("seed_*"))
    return {f.name: [row for row in rows_of(f / "metrics.csv") if row["return_mean"]] for f in folders}


def table() -> str:
    names = ["game", "run", "commit", *(f"{mark} M" for mark in MARKS)]
    names += ["goal after", "minutes", "lag", "KL(μ‖π)", "entropy"]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for game in GAMES:
        for name, rows in runs_of(game).items():
            at = [next((row["return_mean"] for row in rows if float(row["frames"]) >= m * 1e6), "") for m in MARKS]
            end = next((row for row in rows if float(row["return_mean"]) >= GOAL.get(game, 1e9)), None)
            versions = (RESULTS / game / name / "versions.txt").read_text().splitlines()
            commit = next(line.split()[1] for line in versions if line.startswith("commit"))
            seconds = float((end or rows[-1])["wall_seconds"])
            measured = [row for row in rows if row["lag_mean"]]  # a period without an update has none
            means = [sum(float(row[key]) for row in measured) / len(measured) for key in ("lag_mean", "kl_mu_pi")]
            cells = [game, name, commit[:7], *at, f"{float(end['frames']) / 1e6:.2f} M" if end else ""]
            cells += [f"{seconds / 60:.1f}", f"{means[0]:.1f}", f"{means[1]:.3f}", f"{float(rows[-1]['entropy']):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(output: Path) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    colours = colormaps["tab20"].colors[::2] + colormaps["tab20"].colors[1::2]
    peers = rows_of(RESULTS / "atari" / "peers.csv")
    games = [game for game in GAMES if runs_of(game)]
    figure = Figure(figsize=(4.4 * len(games), 6.2), layout="constrained")
    for axis, game in zip(figure.subplots(1, len(games), squeeze=False)[0], games):
        axis.set_prop_cycle(color=colours)
        for name, rows in runs_of(game).items():
            config = yaml.safe_load((RESULTS / game / name / "config.yaml").read_text())
            frames = [float(row["frames"]) / 1e6 for row in rows]
            label = f"here, seed {config['seed']}"
            if config["environment"]["protocol"] == "rllib":
                label += ", FIRE"
            axis.plot(frames, [float(row["return_mean"]) for row in rows], lw=1.2, label=label)
        longest = max(float(rows[-1]["frames"]) / 1e6 for rows in runs_of(game).values())
        for agent in dict.fromkeys(row["agent"] for row in peers if row["game"] == game):
            points = [row for row in peers if (row["game"], row["agent"]) == (game, agent)]
            points = [row for row in points if float(row["million_frames"]) <= max(1.1 * longest, 12.0)]
            x, y = ([float(row[key]) for row in points] for key in ("million_frames", "score"))
            low, high = ([float(row[key] or row["score"]) for row in points] for key in ("low", "high"))
            errors = [[b - a for a, b in zip(low, y)], [b - a for a, b in zip(y, high)]]
            axis.errorbar(x, y, errors, marker="s", ms=4, ls=":", capsize=3, label=agent)
        axis.set(title=game, xlabel="million frames", ylabel="return of 100 training episodes")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    print(table())
    draw(RESULTS / "atari" / "curves.png")
