"""From a configuration to a replay table, and to the source of a learner whose batches all come from it."""

import logging
import math
import time
from collections.abc import Callable

from impala import agents
from impala.config import Config
from impala.launching import stopping
from impala.launching.keeping import Keeper
from impala.nodes.feeding import Place
from impala.nodes.run import Run
from impala.types import EnvironmentSpec

_QUIET_SECONDS = 30.0


def add_tables(program, config: Config, spec: EnvironmentSpec, run: Run) -> list:
    """Adds a node for the replay table of each learner to an `lp.Program`; returns their handles."""
    from impala.launching.table_node import TableNode

    def make():
        return make_tables(config, spec)

    def node(index):
        return TableNode(make, index, keeper=make_keeper(config, spec, run, index), outlives_learners=True)

    return [program.add_node(node(index), "table") for index in range(config.learner.num_learners)]


def make_tables(config: Config, spec: EnvironmentSpec, *, is_limited: bool = True) -> list:
    """Makes one learner's `reverb.Table` of windows; called in the process that serves it.

    With `is_limited`, writers and readers wait for each other so that each window is drawn as often as configured.
    """
    from impala.replay import windows

    window, share = windows.window_spec(agents.of(config).make_chunk_spec(config, spec)), share_of(config)
    ratio = config.replay.samples_per_insert if is_limited else None
    return [windows.table(
        window, share.size, min_size=share.min_size,
        samples_per_insert=ratio and ratio * share.num_fresh / share.num_trained,  # a table counts windows
        batch_size=share.batch_size, priority_exponent=_priority_exponent(config),
    )]  # fmt: skip


def make_keeper(config: Config, spec: EnvironmentSpec, run: Run, index: int = 0) -> Keeper | None:
    """Makes what keeps a copy of the table of the learner `index` on disk, if one is wanted."""
    replay, num_learners = config.replay, config.learner.num_learners
    if replay.checkpoint_minutes is None:
        return None
    chunk = agents.of(config).make_chunk_spec(config, spec)
    settings = (chunk, replay.size, replay.min_size, replay.samples_per_insert, config.learner.batch_size)
    settings += () if config.window == (1, 1) else tuple(config.window)
    settings += () if (exponent := _priority_exponent(config)) is None else (exponent, num_learners)
    folder = run.folder / (f"replay_{index}" if num_learners > 1 else "replay")
    return Keeper(folder, seconds=60 * replay.checkpoint_minutes, settings=repr(settings))


def from_replay(place: Place, table):
    """Makes the source of windows that are drawn from a replay table alone; `table` is its client."""
    from impala.launching import processes
    from impala.replay import checks, prioritised, windows

    config, replay = place.config, place.config.replay
    origins = checks.ExpectedOrigins(
        config.seed, processes.incarnation(place.run.incarnation), config.actor.num_actors,
        config.actor.num_environments, 1, outlives_launches=True,
    )  # fmt: skip
    spec = windows.window_spec(agents.of(config).make_chunk_spec(config, place.spec))
    settings = dict(
        checks=checks.Checks(
            spec, place.spec.actions, origins, lambda: place.num_updates() + (config.learner.num_learners > 1)
        ),
        num_prefetched=config.num_prefetched_batches,
        device=place.device,
        is_fed_with_others=config.learner.num_learners > 1 and config.actor.num_lanes > 1,
    )
    if _priority_exponent(config) is None:
        return windows.Windows(table, share_of(config), **settings)
    exponent = replay.importance_exponent
    return prioritised.PrioritisedWindows(table, share_of(config), importance_exponent=exponent, **settings)


def wait_for(table, stop):
    """Waits until the replay table answers (see `wait_for_server`). Returns its info."""
    from impala.replay import tables

    return wait_for_server(table, stop)[tables.REPLAY]


def wait_for_server(table, stop) -> dict:
    """Waits until a table's server answers: it may be reading a large copy, and a writer would wait for ever.

    Returns the info of its tables. The user is told if it takes long.
    """
    began, is_told = time.monotonic(), False
    while True:
        try:
            return table.server_info(timeout=2)
        except Exception as error:
            logging.warning("the table did not answer: %s", error)
        if not is_told and time.monotonic() - began > _QUIET_SECONDS:
            words = f"{stop.name}: the table at {table.server_address} has not answered for {_QUIET_SECONDS:g} s"
            words += "; it may be reading a large copy, or be out of reach (a firewall)"
            stop.note(says=[*stop.facts.get("says", []), words])
            is_told = True
        if stop.wait(1.0):
            raise stopping.Stopped("before the table answered")


def say_what_is_there(learning, size: int, min_size: int, index: int | None = None) -> None:
    """Tells the user of a resumed run how many transitions the table of a `LearnerNode`, the `index`th, holds."""
    if frames := learning.frames():
        table = "the replay table" if index is None else f"replay table {index}"
        words = f"resumed after {frames:,} frames with {size:,} transitions in {table}"
        if size < min_size:
            more = " more" if size else ""
            words += f": the first update waits until the policy has played {min_size - size:,}{more}"
        learning.stop.note(says=[*learning.stop.facts.get("says", []), words])


def write_back_priorities(learning, source, config: Config, index: int) -> None:
    """Hands `source`, after each update, the new priorities of this learner's share of the batch."""
    size = config.learner.batch_size // config.learner.num_learners
    own = slice(index * size, (index + 1) * size)
    learning.after_update.append(lambda result: source.update_priorities(result.chunks["priority"][own]))


def count_frames(learning, name: str, num_steps: Callable[[], int]) -> None:
    """Makes the frames of a `LearnerNode`'s run those that were played, not those that were trained on.

    They change only when the learners agree on an update: so all have the same clock and the same schedules, and the
    last row, the last checkpoint and the last line that is printed count the same.

    Args:
      learning: counts them.
      name: of the count of steps, a column of metrics.csv.
      num_steps: returns how many steps were played, or windows inserted, for this learner since it started.
    """
    num_counted = 0

    def count():
        nonlocal num_counted
        total = learning.totals[name]
        learning.head.monitor.add_steps(total - num_counted)
        num_counted = total

    learning.counts.append(lambda: {name: num_steps()})
    learning.after_agreement.append(count)


def share_of(config: Config):
    """Returns the `replay.windows.Share` of one learner in the configured numbers."""
    from impala.replay import windows

    replay, learner, window = config.replay, config.learner, config.window
    numbers = (replay.size / window.fresh, replay.min_size / window.fresh, learner.batch_size)
    return windows.Share(*(math.ceil(number / learner.num_learners) for number in numbers), *window)


def _priority_exponent(config: Config) -> float | None:
    return config.replay.priority_exponent if config.has_use_for("replay.priority_exponent") else None
