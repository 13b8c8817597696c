"""The command line: `impala train | evaluate | export | compare | bench | plot | runs | doctor`."""

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from impala import config as config_lib

_HELP = """impala COMMAND …

  train --config configs/pong.yaml [--run DIR] [--restart] [--threads] [--profile] [--SECTION.KEY VALUE …]
                              trains; resumes when the run folder holds a checkpoint
  evaluate RUN [--episodes N] [--greedy] [--best] [--video]
                              plays the run's newest (or best) weights; writes evaluations.csv, films an episode
  export RUN [--output DIR]   writes the run's newest weights as a SavedModel
  compare --config configs/lab/corrections.yaml [--output DIR] [--workers N]
                              trains the lab's grid of corrections; resumes; writes results.csv, a table, figures
  plot RUN… [--output FILE]   draws the curves
  bench [--config FILE] [--json FILE]
                              rates of each part alone, the machine's bound, the whole
  runs [DIR]                  lists runs
  doctor                      says what is wrong with this machine

`impala train --help` lists every key of a configuration with its default.
Linux x86_64 and Python 3.10 only."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status (0 done, 1 failed, 2 wrong usage, 75 try again, 130 interrupted)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands = {
        "train": train, "evaluate": evaluate, "compare": compare, "plot": plot, "bench": bench, "runs": runs,
        "doctor": doctor, "export": export,
    }  # fmt: skip
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's start-up notices say nothing a user can act on
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(_HELP, flush=True)
            return 0 if arguments else 2
        name, *rest = arguments
        if name not in commands:
            raise config_lib.ConfigError([f"impala {name}: unknown command{config_lib.nearest(name, commands)}"])
        status = commands[name](rest)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `impala train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its exit
        return 141  # as a program that SIGPIPE ended
    except config_lib.ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def train(arguments: list[str]) -> int:
    """Trains the configured program in processes (or threads) of this machine."""
    if {"-h", "--help"} & set(arguments):
        print(_HELP.splitlines()[2] + "\n\nKeys and their defaults:\n")
        for key, value in config_lib.flatten(config_lib.Config(environment={"name": "catch"})).items():
            print(f"  --{key.replace('_', '-'):40} {'…' if key == 'environment.name' else value}")
        return 0
    started = time.monotonic()
    restart, arguments = _take_flag(arguments, "--restart")
    profile, arguments = _take_flag(arguments, "--profile")
    threads, arguments = _take_flag(arguments, "--threads")
    overrides = config_lib.parse_overrides(arguments)
    path, folder = overrides.pop("config", None), overrides.pop("run", None)
    if "num_learners" in overrides:  # the short form
        overrides["learner.num_learners"] = overrides.pop("num_learners")
    if path is None and "environment.name" not in overrides:
        raise config_lib.ConfigError(["--config: missing; expected a file like configs/pong.yaml"])
    config = config_lib.load(path, overrides) if path else config_lib.build({}, overrides)
    folder = Path(str(folder)) if folder else Path("runs") / (Path(path).stem if path else "run")

    from impala.launching import runs as runs_lib
    from impala.programs import compose

    spec = compose.check(config)
    if (config.learner.jit_compile or config.network.bfloat16) and not _num_gpus():
        key = "learner.jit_compile" if config.learner.jit_compile else "network.bfloat16"
        raise config_lib.ConfigError([f"{key}: got True; expected false without a GPU, where it is slower"])
    _check_learners(config.learner.num_learners, threads)
    table_mb = _table_mb(config, spec)
    run = runs_lib.RunFolder(folder, config, restart=restart)
    try:
        return _launch(config, spec, run, table_mb, profile=profile, threads=threads, started=started)
    finally:
        run.close()


def _launch(config, spec, run, table_mb, *, profile: bool, threads: bool, started: float) -> int:
    from impala.launching import local  # installs the RPC stand-in
    from impala.launching import runs as runs_lib
    from impala.programs.run import Run

    print(
        f"{'resuming' if run.is_resumed else 'starting'} {run.path} · {spec.name} · {config.total_frames:,} frames",
        flush=True,
    )
    print(f"the queue takes at most {max(1, table_mb['queue']):.0f} MB of memory", flush=True)
    if config.replay.fraction:
        print(f"replay takes at most {table_mb['replay']:.0f} MB; compressed, frames take far less", flush=True)
    make_program = importlib.import_module(f"impala.programs.{config.program}").make_program
    program = make_program(config, spec, Run(run.path, os.getpid(), started, run.next_incarnation(), profile))
    learners = []
    for node in program.groups["learner"][: max(1, config.population.size)]:
        handle = node.create_handle()
        handle.set_client_kwargs(call_timeout=1.0, wait_for_ready=False)
        learners.append(handle)
    with local.Interrupts() as interrupts:
        processes = local.launch_threads(program) if threads else local.launch(program, run.path)
        try:
            status = _watch(processes, interrupts, [h.dereference() for h in learners], config, run.path.name)
        finally:
            processes.kill()
    for folder in runs_lib.agent_folders(run.path):
        _print_last_row(folder)
    return status


def _watch(processes, interrupts, learners, config, name: str) -> int:
    from impala.launching import local
    from impala.monitoring import dashboard

    with dashboard.Dashboard(name, total_frames=config.total_frames) as screen:
        said: list[bool] = []

        def on_tick():
            try:
                rows = [learner.status() for learner in learners]
            except Exception:  # not started yet, or already gone: the supervisor knows
                return
            row, disk_bound_mb = rows[0], len(rows) * rows[0].pop("disk_bound_mb")
            if all("fitness" in row for row in rows):
                row["members"] = rows if len(rows) > 1 else []
            if not said:
                screen.say(
                    f"{config.num_checkpoints} checkpoints and thinned metrics take at most {disk_bound_mb:.0f} MB of "
                    "disk; TensorBoard's events and logs come on top"
                )
                said.append(True)
            screen.update(row)

        return local.supervise(processes, interrupts, on_tick, screen.say)


def _print_last_row(folder: Path) -> None:
    from impala.monitoring.logs import read_csv

    rows = read_csv(folder / "metrics.csv")
    if rows:
        row = rows[-1]
        print(f"{int(float(row['frames'])):,} frames, {row['updates']} updates, return {row['return_mean'] or '–'}, "
              f"{float(row['wall_seconds']):.0f} s in all · {folder}")  # fmt: skip


def _table_mb(config, spec) -> dict[str, float]:
    """Returns upper bounds of what the tables hold, uncompressed; refuses a replay larger than memory."""
    import psutil

    from impala.types import chunk_spec, num_bytes

    chunk_mb = num_bytes(chunk_spec(spec, config.learner.unroll_length, config.network.core_state_shape)) / 1e6
    limits = [psutil.virtual_memory().total / 1e6]
    with contextlib.suppress(OSError, ValueError):  # of a container; "max" where there is none
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()) / 1e6)
    replay_mb = config.replay.size * chunk_mb if config.replay.fraction else 0.0
    if replay_mb > min(limits):
        raise config_lib.ConfigError([
            f"replay.size={config.replay.size}: chunks of {chunk_mb:.3f} MB may take {replay_mb:,.0f} MB of "
            f"{min(limits):,.0f}; expected at most {int(0.8 * min(limits) / chunk_mb)}"
        ])  # fmt: skip
    return dict(queue=config.queue_size * chunk_mb, replay=replay_mb)


def _check_learners(num_learners: int, threads: bool) -> None:
    if num_learners > 1 and threads:
        raise config_lib.ConfigError([
            f"learner.num_learners={num_learners}: learners need a process each; expected 1 with --threads"
        ])  # fmt: skip
    if _num_gpus() and num_learners > _num_gpus():
        raise config_lib.ConfigError([
            f"learner.num_learners={num_learners}: this machine shows {_num_gpus()} GPUs; expected a GPU for each, or "
            "CUDA_VISIBLE_DEVICES= to learn on CPUs"
        ])  # fmt: skip


def _num_gpus() -> int:
    """The number of GPUs that the learners may use, told without TensorFlow."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return 0
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return min(present, len(visible.split(","))) if visible else present


def _take_flag(arguments: list[str], flag: str) -> tuple[bool, list[str]]:
    return flag in arguments, [argument for argument in arguments if argument != flag]


def evaluate(arguments: list[str]) -> int:
    """Plays the newest weights of a run."""
    from impala import evaluation

    return evaluation.main(arguments)


def plot(arguments: list[str]) -> int:
    """Draws the curves of runs."""
    from impala.monitoring import plots

    return plots.main(arguments)


def export(arguments: list[str]) -> int:
    """Writes a run's newest weights as a SavedModel."""
    from impala import export

    return export.main(arguments)


def compare(arguments: list[str]) -> int:
    """Trains a grid of corrections in lockstep and reports on it."""
    from impala.lab import compare as compare_lib

    return compare_lib.main(arguments)


def bench(arguments: list[str]) -> int:
    """Measures the parts and the whole."""
    from impala import bench as bench_lib

    return bench_lib.main(arguments)


def runs(arguments: list[str]) -> int:
    """Lists runs with their state."""
    from impala.launching import runs as runs_lib
    from impala.monitoring import listing

    root = Path(arguments[0] if arguments else "runs")
    if not root.is_dir():
        raise config_lib.ConfigError([f"{root}: no such folder; expected one that holds runs"])
    for line in listing.lines(root, runs_lib.is_running):
        print(line)
    return 0


def doctor(arguments: list[str]) -> int:
    """Checks this machine."""
    from impala.monitoring import doctor as doctor_lib

    return doctor_lib.main()


if __name__ == "__main__":
    sys.exit(main())
