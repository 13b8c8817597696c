"""`impala train`: checks a configuration, launches its program here or on a Ray cluster, and watches over it."""

import contextlib
import errno
import functools
import importlib
import itertools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from impala import config as config_lib
from impala import devices

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main(
    config: config_lib.Config, folder: Path, *, restart: bool, profile: bool, threads: bool, cluster: str | None = None
) -> int:
    """Trains the configured program, into the run `folder`, in processes of this machine (or threads of this process).

    Args:
      cluster: address of a Ray cluster whose hosts run the processes; this machine is one of them.

    Returns:
      The exit status of the command.

    Raises:
      ConfigError: this machine cannot run `config`, or the folder cannot be used.
    """
    started = time.monotonic()
    from impala.launching import runs as runs_lib
    from impala.nodes import estimates

    if not restart:
        config = runs_lib.as_begun(folder, config)
    spec = check(config)
    if cluster is None:
        _check_devices(config, threads)
    else:  # what other hosts have, Ray knows
        _connect(cluster, config, threads)
    table_mb = _table_mb(config, spec, estimates.budget_mb() if cluster is None else float("inf"))
    if cluster is None:
        of_queue = "replay.queue_size" if config.learner.max_lag is None else "learner.max_lag"
        estimates.check(config, spec, {of_queue: table_mb["queue"], "replay.size": table_mb["replay"]})
    with _with_room(folder):
        run = runs_lib.RunFolder(folder, config, restart=restart)
    try:
        if run.is_resumed and (words := _done(run.path, config)):
            _tell(words)
            return 0
        start = _launcher(config, threads, cluster)
        return _launch(config, spec, run, table_mb, profile=profile, start=start, started=started)
    finally:
        run.close()


def _done(folder: Path, config: config_lib.Config) -> str:
    """Returns a line if a run has trained all its frames or to its target, else "".

    A population has once all members have trained their frames, or one has reached the target.
    """
    from impala.launching import runs as runs_lib
    from impala.learning import soundness

    states = [soundness.survey(agent / "checkpoints")[1] for agent in runs_lib.member_folders(folder)]
    num_frames = min(state.get("frames", 0) for state in states)
    reached, target = [state.get("reached_return") for state in states], config.target_return
    if num_frames >= config.total_frames:
        what, key = f"{num_frames:,} frames of {config.total_frames:,}", "--total-frames N"
    elif target is not None and any(value is not None and value >= target for value in reached):
        what, key = f"its target, a return of {target:g}, was reached", "--target-return N, or null,"
    else:
        return ""
    return f"{folder} is done: {what}; {key} prolongs it, --restart begins anew, another --run trains beside it"


def check(config: config_lib.Config):
    """Returns the environments' spec, after `checking.check`; ends the command if that hangs.

    Raises:
      ConfigError: see `checking.check`.
    """
    from impala.nodes import checking, hangs

    with hangs.watched(config, "is made and tried for a few steps"):
        return checking.check(config)


@contextlib.contextmanager
def _with_room(folder: Path, is_again: bool = False):
    """Raises ConfigError if the block cannot write: the disk is full, over its quota or read-only.

    With `is_again` the status is 75: the run had begun, and can be resumed once there is room.
    """
    from impala.launching import processes

    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        refusal = config_lib.ConfigError([f"--run {folder}: {error.strerror}; expected a disk with room for a run"])
        refusal.status = processes.EXIT_TRY_AGAIN if is_again else refusal.status
        raise refusal from None


def _launch(config, spec, run, table_mb, *, profile: bool, start, started: float) -> int:
    from impala.launching import local, processes, supervising  # installs the RPC stand-in
    from impala.launching.interrupts import Interrupts
    from impala.launching.restarts import COLUMNS, Restarts
    from impala.launching.roles import Roles
    from impala.monitoring import dashboard, logs, notices, screens
    from impala.nodes.run import Run

    _tell_the_start(config, spec, run, table_mb)
    module = importlib.import_module(f"impala.programs.{config.program}")
    write = functools.partial(logs.append, run.path / "restarts.csv", columns=COLUMNS)
    restarts = Restarts(write=write, **config.restarts.model_dump())
    record = notices.Record(functools.partial(logs.append, run.path / "notices.csv", columns=notices.COLUMNS))
    local.keep_previous_logs(run.path)

    def launch():
        this = Run(run.path, os.getpid(), started, run.next_incarnation(), profile)
        program, roles = module.make_program(config, spec, this), Roles(module.ROLES)
        handles = _learner_handles(program, config, roles)
        with _with_room(run.path, is_again=bool(restarts.count)):
            launched = start(program, run.path, roles, should_stop=lambda: interrupts.count > 0)
        for line in launched.words():
            screen.say(line)
        return launched, _ticker(launched, screen, handles, config, table_mb, restarts, record)

    outcome = supervising.LAUNCH_AGAIN
    with Interrupts() as interrupts:
        with screens.Screen(dashboard.Dashboard(run.path.name, total_frames=config.total_frames)) as screen:
            while outcome.status is None:
                try:
                    launched, on_tick = _patiently(launch, interrupts, screen.say) if restarts.count else launch()
                except (OSError, config_lib.ConfigError) as error:  # no memory, no folder, no room on a cluster
                    if not restarts.count:
                        raise
                    screen.say(f"the nodes cannot be started any more ({error}): the run ends")
                    has_saved = restarts.has_saved and interrupts.count == 1
                    interrupted = 0 if has_saved else processes.EXIT_INTERRUPTED
                    outcome = supervising.Outcome(interrupted if interrupts.count else processes.EXIT_TRY_AGAIN)
                    break
                try:
                    supervisor = supervising.Supervisor(
                        launched, interrupts, on_tick=on_tick, say=screen.say, restarts=restarts,
                        new_incarnation=run.next_incarnation, liveness_seconds=config.liveness_seconds,
                    )  # fmt: skip
                    outcome = supervisor.run()
                except processes.UsageError as error:  # of a node in a thread; a process ends with that status instead
                    raise config_lib.ConfigError([str(error)]) from None
                # The time since the newest checkpoint counts, but not where it may be by another host's clock.
                if saved_at := launched.node(_head(launched, config, 0)).facts.get("saved_at") or supervisor.since:
                    started = time.monotonic() if config.cluster.shared_folder else saved_at
        if screen.is_stuck or processes.is_stuck():  # neither could the end be told, nor would an exit in order come
            os._exit(outcome.status)
        _tell_the_end(launched, config, run.path, restarts.count)
    if left := launched.left():  # threads that hang: the interpreter would wait for them for ever
        processes.tell(f"{', '.join(left)}: not known to have ended; the process ends without waiting")
        if not processes.is_stuck():
            processes.flush()
        os._exit(outcome.status)
    return outcome.status


def _patiently(launch: Callable, interrupts, say: Callable[[str], None]):
    """Returns what `launch` does; tries again for a while, as a supervisor does, where processes are refused."""
    from impala.launching.supervising import START_SECONDS, STARTS_SECONDS

    deadline, has_said = time.monotonic() + STARTS_SECONDS, False
    while True:
        try:
            return launch()
        except (OSError, RuntimeError) as error:
            no_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
            if not no_thread and getattr(error, "errno", None) not in (errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS):
                raise
            if not has_said:
                say(f"the nodes cannot be started ({error}); it is tried again for {STARTS_SECONDS:.0f} s")
            has_said, next_try = True, time.monotonic() + START_SECONDS
            while time.monotonic() < next_try and not interrupts.count:
                time.sleep(0.1)
            if interrupts.count or next_try > deadline:
                raise (OSError(errno.EAGAIN, f"{error}") if no_thread else error) from None


def _connect(address: str, config, threads: bool) -> None:
    from impala.launching import ray_cluster

    if threads:
        raise config_lib.ConfigError(["--cluster: not with --threads; expected one of the two"])
    replay, num_learners = config.replay, config.learner.num_learners
    if replay.checkpoint_minutes and num_learners > 1 and not config.cluster.shared_folder:
        raise config_lib.ConfigError([
            f"replay.checkpoint_minutes={replay.checkpoint_minutes:g}: with --cluster, the tables of "
            f"learner.num_learners={num_learners} may stand on other hosts after a restart, without their copies; "
            "expected null, or cluster.shared_folder=true"
        ])  # fmt: skip
    ray_cluster.connect(address, is_trusted=config.cluster.trusted_network)


def _launcher(config, threads: bool, cluster: str | None):
    """Returns a function (program, folder, roles, should_stop) → `supervising.Nodes`."""
    if cluster is not None:
        from impala.launching import ray_cluster
        from impala.nodes import placing

        placements = itertools.chain([placing.placement(config)], itertools.repeat(placing.placement_again(config)))
        return lambda *arguments, should_stop: ray_cluster.launch(
            *arguments, placement=next(placements), should_stop=should_stop
        )
    from impala.launching import local

    if threads:
        from impala.launching import threads as in_threads

        return lambda *arguments, should_stop: in_threads.launch(*arguments)  # waits for nothing
    return local.launch


def _learner_handles(program, config, roles) -> list:
    """Returns handles of the learners that gather metrics: the first of the run, or of each member of a population."""
    handles = [node.create_handle() for node in program.groups[roles.head][:: config.learner.num_learners]]
    for handle in handles:
        handle.set_client_kwargs(call_timeout=1.0, wait_for_ready=False)
    return handles


def _ticker(launched, screen, handles, config, table_mb: dict[str, float], restarts, record):
    """Returns a function that shows what is new in a launch: what nodes say, the newest row of metrics, and notices.

    `record` gets the notices, too.
    """
    from impala.launching import beats, supervising
    from impala.monitoring.notices import Notices

    said, members, roles, tables_mb = set(), {}, launched.roles, sum(table_mb.values())
    learners, plays = [handle.dereference() for handle in handles], lambda name: roles.of(name).plays
    if len(learners) > 1:
        members = {_head(launched, config, index): config.member_name(index) for index in range(len(learners))}
    find_notices = Notices(
        patience=lambda doing: beats.patience(doing, config.liveness_seconds), growth=config.memory_growth,
        allowed_mb=lambda name: tables_mb * (roles.of(name).stores or config.replays_in_workers and plays(name)),
        plays=plays,
        then="it is started again" if launched.can_start_again and config.restarts.max_in_a_row else "the run ends",
    )  # fmt: skip

    def say_once(key: str, words: str):
        if key not in said:
            screen.say(words)
            said.add(key)

    def on_tick():
        nodes = launched.nodes()
        for name in launched.names():  # also of one that has just ended
            for words in launched.node(name).facts.get("says", []):
                say_once(name + words, f"{members[name]}: {words}" if name in members else words)
        row = _row(learners, say_once)
        if row:
            row |= {"restarts": restarts.count, "lost_frames": restarts.lost_frames, "places": launched.places()}
        found = find_notices(nodes, supervising.doing_of(nodes, roles))
        screen.update(row, found)
        record(found)

    return on_tick


def _head(launched, config, index: int) -> str:
    """Returns the name of the node that gathers metrics and checkpoints of a run, or of a member of a population."""
    return f"{launched.roles.head}/{index * config.learner.num_learners}"


def _row(learners, say_once) -> dict:
    """Returns the newest row of metrics; empty if a learner does not answer: the notices say for how long."""
    try:
        rows = [learner.status() for learner in learners]
    except Exception:  # not started yet, frozen, or already gone: the supervisor knows
        return {}
    row, full_replay_mb = rows[0], rows[0].pop("full_replay_mb", None)
    if all("fitness" in row for row in rows):
        row["members"] = rows if len(rows) > 1 else []
    if full_replay_mb:
        say_once("replay", f"full, replay will bring the tables' memory to about {full_replay_mb:.0f} MB")
    return row


def _tell_the_start(config, spec, run, table_mb: dict[str, float]) -> None:
    from impala.agents import shared

    _tell(f"{'resuming' if run.is_resumed else 'starting'} {run.path} · {spec.name} · {config.total_frames:,} frames")
    for line in [*run.changes, *config_lib.without_effect(config), *shared.notes(config, spec)]:
        _tell(f"NOTE: {line}")
    if table_mb["queue"]:
        _tell(f"the queue takes at most {max(1, table_mb['queue']):.0f} MB of memory")
    if table_mb["replay"]:
        and_disk = ", and twice that of disk" if config.replay.checkpoint_minutes else ""
        _tell(f"replay takes at most {table_mb['replay']:.0f} MB{and_disk}; compressed, frames take far less")


def _tell_the_end(launched, config, folder: Path, num_restarts: int) -> None:
    """Prints what was done, by the learners' last reports: log files may lack it."""
    from impala.launching import runs as runs_lib

    again = f", {num_restarts} restarts" if num_restarts else ""
    for index, agent in enumerate(runs_lib.member_folders(folder)):
        facts = launched.node(_head(launched, config, index)).facts
        if not facts.get("has_trained"):
            continue
        scores = [f"return {'–' if (mean := facts.get('return_mean')) is None else f'{mean:.4g}'}"]
        if (mean := facts.get("evaluation_mean")) is not None:
            of = f" (of update {facts['evaluated']:,})" if facts.get("evaluated") is not None else ""
            scores += [f"evaluation {mean:.4g}{of}"]
        _tell(
            f"{facts['frames']:,} frames, {facts['updates']:,} updates, {', '.join(scores)}, "
            f"{facts['wall_seconds']:.0f} s in all{again} · {agent}"
        )
        if facts["saved_updates"] < facts["updates"]:
            lost, newest = facts["frames"] - facts["saved_frames"], facts["saved_updates"]
            why = f" ({facts['save_error']})" if facts.get("save_error") else ""
            newest = f"the newest checkpoint is of update {newest:,}" if newest else "there is no checkpoint"
            _tell(f"{lost:,} of these frames are lost: {newest}{why}")


def _tell(line: str, file=None) -> None:
    """Prints a line; if that fails (the terminal went away, the disk is full), the run goes on without it."""
    with contextlib.suppress(OSError):
        print(line, file=file, flush=True)


def _table_mb(config, spec, budget: float) -> dict[str, float]:
    """Returns upper bounds of the tables' megabytes, uncompressed; refuses tables of more than `budget` megabytes."""
    from impala import agents
    from impala.nodes import estimates
    from impala.types import num_bytes

    chunk = agents.of(config).make_chunk_spec(config, spec)
    fresh = config.window.fresh
    chunk_mb = (estimates.kept_step_bytes(chunk, fresh) if config.replays_alone else num_bytes(chunk)) / 1e6
    chunk_mb *= config.population.size  # every member has its own tables
    num_replays = config.actor.num_actors if config.replays_in_workers else 1
    replayed = config.replays_alone or config.replay.fraction
    sizes = {
        "replay.queue_size": config.queue_size * config.has_use_for("replay.queue_size"),
        "replay.size": config.replay.size * num_replays * bool(replayed),
    }  # fmt: skip
    total_mb = sum(sizes.values()) * chunk_mb
    if total_mb > budget:
        table = max(sizes, key=sizes.get)
        mb, of_table = sizes[table] * chunk_mb, table
        room_mb = max(0.0, budget - (total_mb - mb))  # what the other table leaves
        if table == "replay.queue_size" and config.learner.max_lag is not None:  # the queue's size follows from it
            of_table = "learner.max_lag"
        key = estimates.most_unusual(config, (of_table, "learner.unroll_length", "population.size"))
        value, what = config_lib.flatten(config)[key], "transitions" if config.replays_alone else "chunks"
        raise config_lib.ConfigError([
            f"{key}={value}: {what} of {chunk_mb:.3f} MB may take {total_mb:,.0f} MB of "
            f"{budget:,.0f}, 80 % of this machine's memory; expected at most {int(value * room_mb / mb)}"
        ])  # fmt: skip
    queue_mb, replay_mb = (size * chunk_mb for size in sizes.values())
    return dict(queue=queue_mb, replay=replay_mb)


def _check_devices(config: config_lib.Config, threads: bool) -> None:
    from impala.agents import shared

    num_gpus, learns_on_gpus = devices.num_gpus(), not config.has_parameter_server
    if config.learner.jit_compile and not (learns_on_gpus and num_gpus):
        raise config_lib.ConfigError(["learner.jit_compile: got True; expected false, since no GPU learns here"])
    if config.network.bfloat16 and not shared.uses_bfloat16(config, on_cpu=not learns_on_gpus):
        raise config_lib.ConfigError([
            "network.bfloat16: got True; expected false, since no GPU learns here and the processor has neither "
            "avx512_bf16 nor amx_bf16"
        ])  # fmt: skip
    num_learners = config.learner.num_learners
    if num_learners > 1 and threads:
        raise config_lib.ConfigError([
            f"learner.num_learners={num_learners}: learners need a process each; expected 1 with --threads"
        ])  # fmt: skip
    counts = {"learner.num_learners": num_learners, "population.size": config.population.size}
    if learns_on_gpus and 0 < num_gpus < math.prod(counts.values()):
        said = " times ".join(f"{key}={count}" for key, count in counts.items() if count > 1)
        raise config_lib.ConfigError([
            f"{said}: this machine shows {num_gpus} GPUs; expected a GPU for each, or "
            "CUDA_VISIBLE_DEVICES= to learn on CPUs"
        ])  # fmt: skip
