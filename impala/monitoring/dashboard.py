"""The run as the user sees it: a live table in a terminal, plain lines elsewhere."""

import functools
import itertools
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_HEIGHTS, _MOST_BARS, _MOST_ACTORS = " ▁▂▃▄▅▆▇█", 24, 6
_VERDICTS = {
    "actor-bound": "the learner waits for data: more actors or environments would help",
    "learner-bound": "actors wait for the learner: a faster one would help",
    "table-bound": "both wait: the table is slow, or lets neither go ahead (replay.samples_per_insert)",
    "balanced": "nobody waits",
}
_REPEAT_SECONDS = 60.0


def time_left(row: dict[str, Any], total_frames: int) -> float | None:
    """Returns the seconds until `total_frames` at the present speed, or None."""
    speed = row.get("frames_per_second") or 0.0
    return (total_frames - row["frames"]) / speed if speed > 0 else None


class _Console(Console):
    """Lets whoever writes hear that a pipe was closed; rich would end this thread, with another status."""

    def on_broken_pipe(self) -> None:
        raise  # the error, within whose handling rich calls this


class Dashboard:
    """Shows the latest row of metrics; `update` may be called as often as you like.

    If nothing can be written any more (the terminal went away, the disk is full), it falls silent and the run goes on.

    Args:
      title: of the run.
      total_frames: the budget.
      console: where to draw; a live table when it is a terminal.
    """

    def __init__(self, title: str, *, total_frames: int, console: Console | None = None):
        self._title, self._total = title, total_frames
        self._console = console or _Console(file=sys.stdout, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False) if self._is_live() else None
        self._row: dict[str, Any] = {}
        self._notices: dict[str, float] = {}  # when each was last printed, without a live table
        self._is_silent = False

    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def __enter__(self):
        if self._live:
            self._trying(self._live.start)
            self._trying(lambda: self._live.update(self._draw({}, [])))
        return self

    def __exit__(self, *_):
        if self._live:
            self._trying(self._live.stop)

    def say(self, text: str) -> None:
        """Prints a line above the table."""
        self._trying(lambda: self._console.print(text, soft_wrap=True, markup=False))

    def update(self, row: dict[str, Any], notices: Mapping[str, str] = {}) -> None:
        """Draws `row` and the `notices`, lines by key; without a terminal, prints each row and notice that is new.

        A notice that stays is printed again every minute; when it goes, a line says that it is over.
        """
        is_new = bool(row) and row.get("wall_seconds") != self._row.get("wall_seconds")
        self._row = row or self._row
        if self._live:
            self._trying(lambda: self._show(list(notices.values())))
            return
        if is_new:
            self.say(self.line(self._row))
        now = time.monotonic()
        for key in self._notices.keys() - notices.keys():
            self.say(f"over: {key}")
            del self._notices[key]
        for key, text in notices.items():
            if now - self._notices.get(key, float("-inf")) > _REPEAT_SECONDS:
                self.say(f"NOTE: {text}")
                self._notices[key] = now

    def _show(self, notices: list[str]) -> None:
        try:
            drawn = self._draw(self._row, notices)
        except Exception:  # a fault of this package's: the run goes on
            logging.exception("the dashboard cannot show %s", self._row)
            drawn = Text(self.line(self._row) if self._row else "…")
        self._live.update(drawn)

    def _trying(self, write: Callable[[], None]) -> None:
        try:
            if not self._is_silent:
                write()
        except BrokenPipeError:
            raise
        except OSError:
            self._is_silent = True

    def line(self, row: dict[str, Any]) -> str:
        """Returns a row in one line."""
        returns = f"return {_number(row['return_mean'])} ({row['episodes']} episodes)"
        if _has_values(row):
            if row.get("staleness_mean") is not None:
                age = f"staleness {_number(row['staleness_mean'], 2)}"
            elif row.get("queue_fill") is not None:
                age = f"lag {_lag(row)}"
            else:
                age = f"samples/insert {_number(row.get('samples_per_insert'), 2)}"
            says = f"evaluation {_number(row['evaluation_mean'])}  {returns}  {' '.join(_exploration(row))}  {age}"
        else:
            says = f"lag {_lag(row)}  {returns}  entropy {_number(row['entropy'], 2)}"
        return (
            f"{_duration(row['wall_seconds'])}  frames {row['frames']:,}  "
            f"{_number(row['frames_per_second'], 0)} frames/s  updates {row['updates']:,}  {says}  "
            f"{_verdict(row)[0]}  {_number(row['rss_mb'], 0)} MB"
            + "".join(f"  {n}: {_number(member['fitness'], 2)}" for n, member in enumerate(row.get("members", ())))
        )

    def _draw(self, row: dict[str, Any], notices: list[str]) -> Panel | Group:
        said = [Text(f"● {text}", "bold red") for text in notices]
        if not row:
            starting = Text("starting: TensorFlow, Reverb and the environments take about ten seconds …")
            return Group(starting, *said)
        grid = Table.grid(padding=(0, 2), expand=False)
        for _ in range(4):
            grid.add_column()
        for (name, value), (name2, value2) in itertools.zip_longest(*_columns(row), fillvalue=("", "")):
            grid.add_row(Text(name, "dim"), value, Text(name2, "dim"), value2)
        left = time_left(row, self._total)
        progress = Table.grid(padding=(0, 2))
        progress.add_row(
            ProgressBar(total=self._total, completed=min(row["frames"], self._total), width=40),
            f"{row['frames']:,} of {self._total:,} frames",
            f"{_duration(row['wall_seconds'])} gone, " + (f"{_duration(left)} left" if left is not None else "…"),
        )
        verdict, why = _verdict(row)
        says = Text.assemble(("● ", "green" if verdict == "balanced" else "yellow"), (verdict, "bold"), f": {why}")
        tasks = [Text(), _tasks(row["tasks"])] if len(row.get("tasks", ())) > 1 else []
        members = [Text(), _members(row["members"])] if row.get("members") else []
        places = [Text(row["places"], "dim")] if row.get("places") else []
        body = Group(progress, Text(), grid, *tasks, *members, *places, Text(), says, *said)
        return Panel(body, title=self._title, subtitle="Ctrl-C ends with a checkpoint")


def _waits(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows about who waits for whom."""
    learner, blocked = _percent(row, "learner_wait_fraction"), _percent(row, "actor_blocked_fraction")
    if row.get("server_busy_fraction") is not None:
        return [("server waits", learner), ("workers wait for the server", blocked)]
    weights = _percent(row, "actor_weights_fraction")
    return [("learner waits", learner), ("actors wait table / weights", f"{blocked} / {weights}")]


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    """Returns who waits for whom, in a word and in a sentence."""
    if row.get("server_busy_fraction") is None:
        return row["verdict"], _VERDICTS[row["verdict"]]
    busy = f"server busy {_percent(row, 'server_busy_fraction')}"
    return busy, "the rest of its time it waits for workers' gradients"


def _lag(row: dict[str, Any], between: str = "/") -> str:
    """Returns mean, 95th percentile and maximum, and the configured maximum, if any, with the chunks it dropped."""
    lag = between.join([_number(row["lag_mean"]), _number(row["lag_p95"]), _number(row["lag_max"], 0)])
    return lag + (f" of {row['max_lag']}, {row['dropped_chunks']:,} chunks dropped" if row.get("max_lag") else "")


def _tasks(tasks: list[dict[str, Any]]) -> Table:
    """The tasks of one run, the first ten of them."""
    table = Table.grid(padding=(0, 2))
    for task in tasks[:10]:
        normalised = task["human_normalised"]
        table.add_row(
            Text(task["environment"], "dim"), f"{task['frames']:,} frames", f"{task['episodes']:,} episodes",
            f"return {_number(task['return_mean'])}",
            f"{100 * normalised:.0f} % of human" if normalised is not None else "",
        )  # fmt: skip
    if len(tasks) > 10:
        table.add_row(Text(f"… and {len(tasks) - 10} more in tasks.csv", "dim"))
    return table


def _members(rows: list[dict[str, Any]]) -> Table:
    """The members of a population; the panel's other numbers are those of the first."""
    table = Table.grid(padding=(0, 2))
    for index, row in enumerate(rows):
        table.add_row(
            Text(f"member {index}", "dim"), f"{row['frames']:,} frames", f"return {_number(row['return_mean'])}",
            f"fitness {_number(row['fitness'], 2)}", f"learning rate {row['learning_rate']:.2e}",
            *([f"entropy cost {row['entropy_cost']:.2e}"] if row.get("entropy_cost") is not None else []),
        )  # fmt: skip
    return table


def _memory(row: dict[str, Any]) -> str:
    return " / ".join(_number(row[f"rss_{role}_mb"], 0) for role in ("learner", "actors", "table")) + " MB"


def _gradients(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows about workers' gradients, [] without a parameter server."""
    if row.get("accepted_gradients") is None:
        return []
    refused = [_count(row, f"{verdict}_gradients") for verdict in ("stale", "outlier", "nonfinite", "repeated")]
    staleness = []
    if row.get("staleness_mean") is not None:  # else none was accepted since the last row
        mean, expected = _number(row["staleness_mean"], 2), _number(row.get("staleness_expected"), 0)
        staleness = [
            ("staleness mean/expected/max", f"{mean} / {expected} / {row['staleness_max']} updates"),
            (f"gradients of staleness 0 to {row['staleness_max']}", _bars(row.get("staleness_histogram") or "")),
        ]
    return [
        *staleness,
        ("gradients accepted", _count(row, "accepted_gradients")),
        ("stale/outlier/not finite/repeated", " / ".join(refused)),
        *([("copies into the target network", _count(row, "target_copies"))] if row.get("target_copies") else []),
    ]


def _bars(histogram: str) -> str:
    """Draws a histogram such as "0:3 1:95" with a bar for each number from 0 on; several a bar where there are many."""
    counts = {int(number): int(count) for number, count in (pair.split(":") for pair in histogram.split())}
    if not counts:
        return "–"
    width = -(-(max(counts) + 1) // _MOST_BARS)  # numbers a bar
    bars = [0] * (max(counts) // width + 1)
    for number, count in counts.items():
        bars[number // width] += count
    return "".join(_HEIGHTS[-(-count * (len(_HEIGHTS) - 1) // max(bars))] for count in bars)


def _has_values(row: dict[str, Any]) -> bool:
    """Returns whether the agent learns action values, and explores by ε or noise instead of sampling from a policy."""
    return any(row.get(f"exploration_{name}") is not None for name in ("epsilon", "noise"))


def _exploration(row: dict[str, Any]) -> tuple[str, str]:
    """Returns the symbol of what an agent explores by, ε or σ, and its value."""
    if row.get("exploration_noise") is not None:
        return "σ", _number(row["exploration_noise"], 3)
    return "ε", _number(row["exploration_epsilon"], 3)


def _rungs(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows about exploration: where environments have an ε each, also the ladder's ends and the actors'."""
    symbol, mean = _exploration(row)
    rungs = [row.get(f"exploration_epsilon_{place}") for place in ("first", "middle", "last")]
    if None in rungs:
        return [(symbol, mean)]
    of_ladder = f"{symbol} mean/first/middle/last", " / ".join([mean, *(_number(rung, 4) for rung in rungs)])
    of_actors = row.get("exploration_epsilon_actors", "").split()
    shown = of_actors if len(of_actors) <= _MOST_ACTORS else [*of_actors[: _MOST_ACTORS - 1], "…", of_actors[-1]]
    return [of_ladder] + [(f"{symbol} of each actor", " ".join(shown))] * (len(of_actors) > 1)


def _replay(row: dict[str, Any]) -> str:
    """Returns how many transitions the replay table holds, and of how many."""
    size, capacity = row.get("replay_size"), row.get("replay_capacity")
    share = f" of {capacity:,} ({100 * size / capacity:.0f} %)" if size is not None and capacity else ""
    return _count(row, "replay_size") + share


def _units(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the shares of each layer's units that are silent, and that are dormant."""
    return [(f"{name} units", row[f"{name}_units"] or "–") for name in ("silent", "dormant")]


def _of_action_values(row: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the rows of an agent of action values: those about returns and data, and those about its loss."""
    age = f"{_number(row['replay_lag_mean'], 0)} / {_number(row['replay_lag_max'], 0)} updates"
    of_values = [
        ("evaluation", _number(row["evaluation_mean"])),
        ("return, last 100, exploring", _number(row["return_mean"])),
        ("episodes", _count(row, "episodes")),
        *_units(row),
        ("age of what is sampled mean/max", age),
        ("transitions in replay", _replay(row)),
    ]
    of_loss = [
        ("|TD error|", _number(row["td_error"], 4)),
        ("value", _number(row["value"], 3)),
        *_rungs(row),
        ("gradient norm", _number(row["grad_norm"], 1)),
        ("samples per insert", _number(row.get("samples_per_insert"), 2)),
    ]
    if row.get("priority_p50") is not None:
        quantiles = " / ".join(_number(row[f"priority_{name}"], 3) for name in ("p50", "p95", "max"))
        of_loss.append(("priority p50/p95/max", quantiles))
    if row.get("queue_fill") is not None:  # all or some training data is fresh
        of_values[-2:] = [("policy lag mean/p95/max", _lag(row, " / ")), ("queue fill", _percent(row, "queue_fill"))]
        of_loss[-1] = ("KL(μ‖π)", _number(row["kl_mu_pi"], 3))
    of_values[-2:] = _gradients(row) or of_values[-2:]
    return of_values, of_loss


def _restarts(row: dict[str, Any]) -> str:
    """Returns how often nodes were started again, and the frames that this cost."""
    lost = row.get("lost_frames", 0)
    return str(row.get("restarts", 0)) + (f", {lost:,} frames lost" if lost else "")


def _percent(row: dict[str, Any], name: str) -> str:
    return "–" if row[name] is None else f"{100 * row[name]:.0f} %"


def _count(row: dict[str, Any], name: str) -> str:
    return "–" if row.get(name) is None else f"{row[name]:,}"


def _columns(row: dict[str, Any]):
    percent = functools.partial(_percent, row)
    if _has_values(row):
        of_values, of_loss = _of_action_values(row)
    else:
        of_values = [
            ("return, last 100", _number(row["return_mean"])),
            ("episodes", _count(row, "episodes")),
            *_units(row),
            ("policy lag mean/p95/max", _lag(row, " / ")),
            *(_gradients(row) or [("queue fill", percent("queue_fill"))]),
        ]
        of_loss = [
            ("policy / value loss", f"{_number(row['policy_loss'], 4)} / {_number(row['value_loss'], 4)}"),
            ("entropy", _number(row["entropy"], 3)),
            ("gradient norm", _number(row["grad_norm"], 1)),
            ("explained variance", _number(row["explained_variance"], 2)),
            ("ρ > ρ̄", percent("rho_clipped_fraction")),
            ("KL(μ‖π)", _number(row["kl_mu_pi"], 5)),
        ]
    left = [
        ("frames/s", _number(row["frames_per_second"], 0)),
        ("updates/s", _number(row["updates_per_second"])),
        *of_values,
        *_waits(row),
        ("actors step / infer", f"{percent('actor_environment_fraction')} / {percent('actor_inference_fraction')}"),
    ]
    right = [
        ("loss", _number(row["loss"], 2)),
        *of_loss,
        ("learning rate", f"{row['learning_rate']:.2e}"),
        ("skipped updates / restarts", f"{_count(row, 'skipped_updates')} / {_restarts(row)}"),
        ("memory learner/actors/table", _memory(row)),
    ]
    return left, right


def _number(value, digits: int = 1) -> str:
    return "–" if value is None or value != value else f"{value:,.{digits}f}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
