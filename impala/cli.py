"""The command line: `impala train`, evaluate, export, compare, bench, plot, runs, rollback, doctor, cluster."""

import argparse
import contextlib
import difflib
import errno
import functools
import io
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import impala
from impala import config as config_lib
from impala.config import shipped, uses

_SHORT_KEYS = {"num_learners": "learner.num_learners"}
_SHIPPED = {"train": shipped.trainings, "bench": shipped.trainings, "compare": shipped.grids}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as a ConfigError."""

    pair: tuple[str | None, str | None] = (None, None)  # the program and the agent whose keys `train --help` lists

    def error(self, message: str):
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        raise config_lib.ConfigError([f"{self.prog}: {message.removeprefix('argument ')}; expected {usage}"])

    def format_help(self) -> str:
        is_of_train = self.get_default("command") is train
        return super().format_help() + (f"\n{_keys_and_defaults(*self.pair)}\n" if is_of_train else "")


class _Version(argparse.Action):
    """Prints the version of the package that is installed; a checkout may run without one."""

    def __call__(self, parser, *_):
        from importlib import metadata  # 20 ms, which no other command needs

        try:
            version = metadata.version("impala")
        except metadata.PackageNotFoundError:
            version = "of a checkout that is not installed"
        print(f"impala {version}")
        parser.exit()


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    """Returns the parser, and the commands' parsers by name."""
    parser = _Parser("impala", epilog="Linux x86_64 and Python 3.10 only.", allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="prints the version and exits")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(command, usage: str = "", epilog: str | None = None) -> _Parser:
        name = command.__name__
        one = commands.add_parser(
            name, help=command.__doc__, description=command.__doc__, allow_abbrev=False,
            usage=f"impala {name} {usage}".strip(), epilog=epilog,
        )  # fmt: skip
        one.set_defaults(command=command, name=name)
        return one

    options = "[--run DIR] [--restart] [--threads] [--cluster ADDRESS] [--profile] [--SECTION.KEY VALUE …]"
    one = add(train, f"WORD | --config FILE {options}")
    one.add_argument("--list", action="store_true", help="lists the shipped configurations, each a WORD, and exits")
    one.add_argument("--config", metavar="FILE", help="a configuration of your own, instead of a shipped one's WORD")
    one.add_argument("--run", metavar="DIR", type=Path, help="the run's folder; runs/ and the file's name if not given")
    one.add_argument("--restart", action="store_true", help="moves an existing run aside and begins anew")
    one.add_argument("--threads", action="store_true", help="all nodes in one process, for debugging")
    one.add_argument("--cluster", metavar="ADDRESS", help="of a Ray cluster that this host belongs to, or auto")
    one.add_argument("--profile", action="store_true", help="writes a TensorFlow profile of a hundred updates")

    one = add(evaluate, "RUN [--episodes N] [--greedy] [--best] [--video]")
    one.add_argument("run", metavar="RUN", type=Path)
    one.add_argument("--episodes", metavar="N", type=_positive, default=30, help="of each task; 30 if not given")
    one.add_argument("--greedy", action="store_true", help="the likeliest action instead of a sampled one")
    one.add_argument("--best", action="store_true", help="the weights that the evaluator found best, not the newest")
    one.add_argument("--video", action="store_true", help="films an episode of each task")

    one = add(rollback, "RUN --updates N")
    one.add_argument("run", metavar="RUN", type=Path)
    one.add_argument("--updates", metavar="N", type=_positive, required=True, help="at least so many before the newest")

    one = add(export, "RUN [--output DIR]")
    one.add_argument("run", metavar="RUN", type=Path)
    one.add_argument("--output", metavar="DIR", type=Path, help="RUN/export if not given")

    _add_compare(add)
    one = add(plot, "RUN… [--output FILE]")
    one.add_argument("runs", metavar="RUN", type=Path, nargs="+")
    one.add_argument("--output", metavar="FILE", type=Path, help="curves.png in the first run if not given")

    one = add(
        bench, "[WORD | --config FILE] [--against WORD|FILE] [--json FILE] [--SECTION.KEY VALUE …]",
        epilog="The keys are those of impala train --help, the words those of impala train --list.",
    )  # fmt: skip
    one.add_argument("--config", metavar="FILE", help="Pong as in configs/pong.yaml if not given")
    one.add_argument("--against", metavar="WORD|FILE", help="runs the two programs in turn instead")
    one.add_argument("--json", metavar="FILE", type=Path, help="writes the figures there")

    _add_cluster(add)
    one = add(runs, "[DIR]")
    one.add_argument("folder", metavar="DIR", type=Path, nargs="?", default=Path("runs"))
    add(doctor)
    return parser, commands.choices


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status, as the README lists them."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    status, options = 1, None
    _prepare_streams()
    with contextlib.suppress(OSError):  # to find the user's modules, as `python -m impala` does; last: shadows none
        sys.path.extend({os.getcwd()} - {os.path.abspath(entry) for entry in sys.path})
    impala.set_up_tensorflow()
    os.environ["grpc_proxy"] = ""  # none: with `http_proxy` Reverb's calls to this very machine would go there
    try:
        options, rest = _parse(arguments)
        if options and options.command is not train:
            _raise_on_interrupt()  # a KeyboardInterrupt lets them clean up
        status = options.command(options, rest) if options else (0 if arguments else 2)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `impala train --help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains when it exits
        return 141  # the status of a program that SIGPIPE ended
    except config_lib.ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if options and options.command is not train and error.filename:  # `train` says itself what it could not write
            print(f"{error.filename}: {error.strerror}; expected a file or folder that can be used", file=sys.stderr)
            return 1
        if error.errno == errno.ENOSPC and _is_full(sys.stdout):
            print("standard output: No space left on device", file=sys.stderr)
            status = status or int(options is None or options.command is not train)  # what was asked for is lost
        elif error.errno in (errno.ENOSPC, errno.EDQUOT) and options and options.command is not train:
            print(f"impala {options.name}: {error.strerror}; expected room for what it writes", file=sys.stderr)
            return 1
        elif error.errno != errno.EIO:  # that one: the terminal went away; its output is lost, the status is not
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status


def _prepare_streams() -> None:
    """Lets output go nowhere where a stream was closed, and writes "?" for what its encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # `impala train … >&-`, or a service's
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # it is another file than when Python began
                stream.reconfigure(errors="replace")


def _is_full(stream) -> bool:
    """Returns whether a stream takes nothing more: an error of `write` does not say which file it was."""
    try:
        os.write(stream.fileno(), b"\n")
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False


def _raise_on_interrupt() -> None:
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored in a script's background jobs
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = functools.partial(_raise_again, sys.unraisablehook)


def _raise_again(hook, unraisable) -> None:
    """Repeats a Ctrl-C that Python drops, since it came in a finalizer, or in what Python calls around a fork."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):  # a little later: raised here it would be dropped again
        threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    else:
        hook(unraisable)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace | None, list[str]]:
    """Returns a command's options and the arguments left over, its keys; no options (None) if help was printed."""
    parser, commands = _parser()
    if not arguments:
        parser.print_help()
        return None, []
    if not arguments[0].startswith("-") and arguments[0] not in commands:
        name = arguments[0]
        hint = config_lib.nearest(name, commands) or f"; expected one of {', '.join(commands)}"
        raise config_lib.ConfigError([f"impala {name}: unknown command{hint}"])
    commands["train"].pair = _pair_of(arguments) if {"-h", "--help"} & {*arguments} else (None, None)
    line, word = shlex.join(["impala", *arguments]), None
    if arguments[0] in _SHIPPED and arguments[1:] and not arguments[1].startswith("-"):
        word = arguments.pop(1)  # as a positional argument it would match a key's value
    path = str(shipped.path_of(word, _SHIPPED[arguments[0]](), "--config")) if word is not None else None
    try:
        options, rest = parser.parse_known_args(arguments)
    except SystemExit:  # after --help
        return None, []
    options.line, options.word = line, word
    if word is not None:
        if options.config is not None:
            both = f"{word} --config {options.config}"
            raise config_lib.ConfigError([f"impala {options.name} {both}: expected one of the two"])
        options.config = path
    known = [name for action in commands[options.name]._actions for name in action.option_strings]
    known = [name for name in known if name not in ("-h", "--help")]
    if options.command in (train, compare, bench, cluster):  # the rest are keys, or mistyped options
        stray = _shipped_after_an_option(options.name, rest)
        if stray and getattr(options, "config", None) is not None:
            both = f"{word or f'--config {options.config}'} … {stray}"
            raise config_lib.ConfigError([f"impala {options.name} {both}: expected one of the two"])
        if stray:
            raise config_lib.ConfigError([
                f"impala {options.name} … {stray}: a shipped configuration's word comes first; expected impala "
                f"{options.name} {stray} …"
            ])  # fmt: skip
        wrong = [word for word in rest if difflib.get_close_matches(word, known, cutoff=0.75)]
        keys = {f"--{key.replace('_', '-')}" for key in (config_lib.keys() if wrong else ())}
        wrong = [word for word in wrong if word.partition("=")[0] not in keys]
    else:
        wrong = [word for word in rest if word.startswith("-")] or rest
    if wrong:
        raise config_lib.ConfigError([
            f"impala {options.name} {word}: unknown{config_lib.nearest(word, known)}" for word in wrong
        ])  # fmt: skip
    return options, rest


def _shipped_after_an_option(command: str, rest: list[str]) -> str | None:
    """Returns a shipped configuration's word that neither stands first nor is the value of a key."""
    for before, word in zip(["", *rest], rest):
        is_value = before.startswith("--") and "=" not in before
        if command in _SHIPPED and not is_value and word in _SHIPPED[command]():
            return word
    return None


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}; a whole number, 1 or more, is needed")
    return int(text)


def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _pair_of(arguments: list[str]) -> tuple[str | None, str | None]:
    """Returns program and agent that a command line or the configuration it names chooses, None where it does not."""
    given = {}
    for word, following in zip(arguments, [*arguments[1:], ""]):
        name, is_joined, value = word.partition("=")
        given[name] = value if is_joined else following  # of several the last one counts
    words = shipped.trainings()
    path = given.get("--config") or next((words[word] for word in arguments if word in words), None)
    program, agent = given.get("--program"), given.get("--agent.name")
    if program is not None and program not in uses.AGENTS:
        hint = config_lib.nearest(program, uses.AGENTS) or f"; expected one of {', '.join(uses.AGENTS)}"
        raise config_lib.ConfigError([f"--program {program}: no such program{hint}"])
    if path:
        with contextlib.suppress(Exception):  # whoever trains with it is told what is wrong
            data = config_lib.read_yaml(path)
            program = program or data.get("program", "impala")
            agent = agent or (data.get("agent") or {}).get("name") or uses.AGENTS[program][0]
    return (program, agent) if program in uses.AGENTS else (None, None)


def _keys_and_defaults(program: str | None, agent: str | None) -> str:
    """Returns a line for each key: those that `program` and its agents use, or of these `agent` alone, or all."""
    lines = []
    for key, default, text in config_lib.documented(program, agent):
        start = f"  --{key.replace('_', '-'):33} {default:15} "
        lines += textwrap.wrap(text, 118, initial_indent=start, subsequent_indent=54 * " ") or [start.rstrip()]
    of = f" with program {program}" if program else ""
    of += f" and agent {agent}" if agent in uses.AGENTS.get(program, ()) else ""
    hint = "" if program else " (of one program: WORD --help, or --program NAME --help)"
    return "\n".join([f"keys of a configuration{of}, their defaults, and what they may be{hint}:", *lines])


def _configuration(path: str | None, rest: list[str]) -> config_lib.Config:
    """Returns the configuration in the file, or the default one, overridden by the command line's keys."""
    overrides = config_lib.parse_overrides(rest)
    overrides = {_SHORT_KEYS.get(key, key): value for key, value in overrides.items()}
    if path is None:
        return config_lib.build({}, overrides)
    if shipped.is_grid(Path(path)):
        line = f"{Path(path).name}: is a grid, not a configuration; expected impala compare --config {path}"
        raise config_lib.ConfigError([line])
    try:
        return config_lib.load(path, overrides)
    except config_lib.ConfigError as error:
        raise config_lib.ConfigError([_with_place(line, path, overrides) for line in error.lines]) from None


def _with_place(line: str, path: str, overrides: dict) -> str:
    """Adds where a key that does not fit is set, if not on the command line, and shipped configurations that fit."""
    key, is_other, _ = line.partition("=")
    if not is_other or key in overrides or not re.fullmatch(r"[\w.]+", key) or ": not with " not in line:
        return line
    chosen = dict(re.findall(r"(program|agent\.name)=(\w+)", line.partition(": not with ")[2]))
    chosen |= {key: overrides[key] for key in ("program", "agent.name") if key in overrides}
    pairs = {word: _pair_of([word]) for word in shipped.trainings()}
    fit = [word for word, (program, agent) in pairs.items()
           if chosen.get("program", program) == program and chosen.get("agent.name", agent) == agent]  # fmt: skip
    fit.sort(key=lambda word: not word.endswith(Path(path).stem))  # those of the same environment first
    hint = f"; begin with {' or '.join(fit[:3])}" if fit else ""
    return f"{line} (it is set in {Path(path).name}{hint})"


def _add_compare(add) -> None:
    """Adds the command `compare` and its options; `add` is `_parser`'s function that adds a command."""
    one = add(
        compare, "WORD | --config FILE [--output DIR] [--workers N] [--KEY VALUE …]",
        epilog="Most shipped grids are recorded in docs/results: without keys the report is written again and nothing "
        "trained. A key replaces what the grid's file has; lists like '[vtrace, none]': schemes, lags, "
        "replay_fractions, replay_sizes, learning_rates, entropy_costs, policy_epsilons; numbers: num_seeds, "
        "num_sweep_seeds, num_best, num_evaluations, total_frames. Its tasks are chosen in a copy of the file.",
    )  # fmt: skip
    one.add_argument("--list", action="store_true", help="lists the shipped grids, each a WORD, and exits")
    one.add_argument("--config", metavar="FILE", help="a grid of your own, instead of a shipped one's WORD")
    of_output = "runs/compare/ and the file's name if not given, or docs/results/, where all of the grid is recorded"
    one.add_argument("--output", metavar="DIR", type=Path, help=of_output)
    one.add_argument("--workers", metavar="N", type=_positive, help="processes; as many as cores if not given")


def _add_cluster(add) -> None:
    """Adds the command `cluster` and its options; `add` is `_parser`'s function that adds a command."""
    one = add(cluster, "slurm | kubernetes WORD | --config FILE [--nodes N] … [--output FILE] [--SECTION.KEY VALUE …]")
    where = dict(metavar="slurm | kubernetes", choices=["slurm", "kubernetes"])
    one.add_argument("where", **where, help="a batch script, or the manifest of a RayJob")
    one.add_argument("shipped", metavar="WORD", nargs="?", help="a shipped configuration")
    one.add_argument("--config", metavar="FILE", help="a configuration of your own, instead of a WORD")
    one.add_argument("--run", metavar="DIR", type=Path, help="the run's folder, or its name with kubernetes")
    one.add_argument("--nodes", metavar="N", type=_positive, default=2, help="hosts, the learner's among them; 2")
    one.add_argument("--max-nodes", metavar="N", type=_positive, help="kubernetes: added when actors wait for room")
    one.add_argument("--cpus", metavar="N", type=_positive, default=8, help="of each host; 8")
    one.add_argument("--gpus", metavar="N", type=_count, default=0, help="of each host, or of the learner's pod; 0")
    one.add_argument("--time", metavar="HH:MM:SS", help="slurm: of the job; 24:00:00")
    one.add_argument("--option", metavar="=--NAME=VALUE", action="append", help="slurm: of sbatch")
    one.add_argument("--submit", action="store_true", help="slurm: hands it to sbatch")
    one.add_argument("--image", metavar="NAME", help="kubernetes: of the Dockerfile here, where the cluster finds it")
    one.add_argument("--memory-gb", metavar="N", type=_positive, help="kubernetes: of each pod; 16")
    one.add_argument("--claim", metavar="NAME", help="kubernetes: the volume of runs; impala-runs")
    one.add_argument("--namespace", metavar="NAME", help="kubernetes: of all that is made; default")
    one.add_argument("--output", metavar="FILE", type=Path, help="standard output if not given")


def _print_shipped(command: str) -> int:
    print("\n".join(shipped.listed(_SHIPPED[command]())))
    return 0


def _nothing_named(command: str, word: str) -> config_lib.ConfigError:
    return config_lib.ConfigError([
        f"impala {command}: nothing named; expected a shipped configuration, like impala {command} {word} "
        f"(impala {command} --list names them), or --config FILE"
    ])  # fmt: skip


def train(options: argparse.Namespace, rest: list[str]) -> int:
    """trains; resumes when the run folder holds a checkpoint"""
    if options.list:
        return _print_shipped("train")
    if options.config is None and "environment.name" not in config_lib.parse_overrides(rest):
        raise _nothing_named("train", "pong")
    config = _configuration(options.config, rest)
    if options.profile and config.has_parameter_server:
        raise config_lib.ConfigError([f"--profile: program={config.program} has no learner; expected another program"])
    from impala import training

    folder = options.run or _run_folder(options.word, options.config)
    return training.main(
        config, folder, restart=options.restart, profile=options.profile, threads=options.threads,
        cluster=options.cluster,
    )  # fmt: skip


def _run_folder(word: str | None, path: str | None) -> Path:
    """Returns the folder of a run that is not named: after its shipped configuration, or its file."""
    return Path("runs") / (word.replace("/", "_") if word else Path(path or "run").stem)


def evaluate(options: argparse.Namespace, rest: list[str]) -> int:
    """plays a run's newest (or best) weights, other episodes each time; adds to evaluations.csv, films an episode"""
    from impala import evaluation

    return evaluation.main(
        options.run, num_episodes=options.episodes, greedy=options.greedy, best=options.best, video=options.video
    )


def rollback(options: argparse.Namespace, rest: list[str]) -> int:
    """lets a run that went wrong go on from an older checkpoint"""
    from impala.launching import runs as runs_lib

    if not (options.run / "config.yaml").is_file():
        raise config_lib.ConfigError([f"{options.run}: holds no config.yaml; expected a run folder"])
    with runs_lib.held(options.run) as is_free:  # a training that began meanwhile would go on from the newest
        if not is_free:
            raise config_lib.ConfigError([f"{options.run}: is training; expected a run that has ended: Ctrl-C ends it"])
        runs_lib.refuse_if_written(options.run)
        _roll_back(runs_lib.member_folders(options.run), options.updates)
    return 0


def _roll_back(folders: list[Path], num_updates: int) -> None:
    """Sets the newest checkpoints of a run aside, or of all members of a population, or of none."""
    from impala.learning import soundness

    for folder in folders:
        try:
            soundness.older_by(folder / "checkpoints", num_updates)
        except LookupError as error:
            are_some_older = num_updates > 1 and "before" in error.args[0]
            fewer = f"fewer than --updates {num_updates:,}, or " if are_some_older else ""
            expected = f"{fewer}a run that keeps more checkpoints (num_checkpoints, checkpoint_period_seconds)"
            raise config_lib.ConfigError([f"{folder}: {error.args[0]}; expected {expected}"]) from None
    for folder in folders:
        newest, older = soundness.roll_back(folder / "checkpoints", num_updates)
        print(
            f"{folder}: goes on from update {int(older.name):,}, not {int(newest.name):,}; newer checkpoints are kept "
            f"as checkpoints/*{soundness.ROLLED_BACK}, and so is an evaluator's best if it is newer"
        )


def export(options: argparse.Namespace, rest: list[str]) -> int:
    """writes a run's newest weights as a SavedModel"""
    from impala import export

    return export.main(options.run, options.output)


def compare(options: argparse.Namespace, rest: list[str]) -> int:
    """trains the lab's grid of corrections; resumes; writes results.csv, a table, figures"""
    if options.list:
        return _print_shipped("compare")
    if options.config is None:
        raise _nothing_named("compare", "lag")
    from impala.lab import compare as compare_lib

    overrides = config_lib.parse_overrides(rest, compare_lib.KEYS)
    return compare_lib.main(options.config, overrides, options.output, options.workers, command=options.line)


def plot(options: argparse.Namespace, rest: list[str]) -> int:
    """draws the curves of runs"""
    from impala.launching import runs as runs_lib
    from impala.monitoring import plots

    folders = [folder for run in options.runs for folder in runs_lib.member_folders(run)]
    return plots.main(folders, options.output or options.runs[0] / "curves.png")


def bench(options: argparse.Namespace, rest: list[str]) -> int:
    """measures the rates of each part alone, the machine's bound, the whole"""
    from impala import bench as bench_lib

    pong = str(shipped.path_of("pong", shipped.trainings(), "--config"))
    config, path = _configuration(options.config or pong, rest), options.against
    if path is not None and not Path(path).exists() and "/" not in path and not path.endswith(".yaml"):
        path = shipped.path_of(path, shipped.trainings(), "--against")
    against = None if path is None else config_lib.load(path)
    names = [options.word or options.config or "pong", options.against]
    return bench_lib.main(config, against, names=names, output=options.json)


def runs(options: argparse.Namespace, rest: list[str]) -> int:
    """lists runs with their state"""
    from impala.launching import runs as runs_lib
    from impala.learning import soundness
    from impala.monitoring import listing

    if not options.folder.is_dir():
        raise config_lib.ConfigError([f"{options.folder}: no such folder; expected one that holds runs"])
    lines = list(listing.lines(options.folder, runs_lib.is_running, soundness.survey))
    if not lines:
        is_one = (options.folder / "config.yaml").is_file()
        lines = [f"{options.folder}: " + ("is a run itself; its folder lists it" if is_one else "holds no runs")]
    print("\n".join(lines))
    return 0


def cluster(options: argparse.Namespace, rest: list[str]) -> int:
    """writes what starts a run on Slurm or Kubernetes"""
    if (options.shipped is None) == (options.config is None):
        named = "nothing" if options.config is None else f"{options.shipped} and {options.config}"
        raise config_lib.ConfigError([
            f"impala cluster {options.where}: {named} named; expected one shipped configuration, like impala cluster "
            f"{options.where} pong (impala train --list names them), or --config FILE"
        ])  # fmt: skip
    _take_those_of(options.where, options)
    if options.where == "kubernetes" and options.submit:
        raise config_lib.ConfigError(["--submit: not with kubernetes; expected | kubectl apply -f -"])
    if options.max_nodes and (options.where == "slurm" or options.max_nodes < options.nodes):
        raise config_lib.ConfigError([
            f"--max-nodes {options.max_nodes}: expected --nodes, {options.nodes}, or more, with kubernetes"
        ])  # fmt: skip
    named = [options.shipped] if options.shipped else ["--config", options.config]
    if options.where == "kubernetes" and options.config:
        named = []  # its text goes into the manifest
    path = options.config or str(shipped.path_of(options.shipped, _SHIPPED["train"](), "--config"))
    config = _configuration(path, rest)  # refuses here what the job would refuse after hours in a queue
    _refuse_too_few_cpus(config, options.max_nodes or options.nodes, options.cpus)
    arguments = [*named, *rest, *_a_gpu_for_each_learner(config, options), *_patience(config, options)]
    folder = options.run or _run_folder(options.shipped, options.config)
    if folder.name in ("", ".."):
        raise config_lib.ConfigError([f"--run {folder}: has no name of its own; expected a folder like runs/pong"])
    if options.where == "slurm":  # an image may hold modules that are not here
        from impala import training

        training.check(config)
    text = (_batch_script if options.where == "slurm" else _manifest)(options, arguments, folder)
    if options.submit:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            line = f"--run {folder}: {error.strerror}; expected a folder that can be made"
            raise config_lib.ConfigError([line]) from None
        options.output = options.output or folder.with_name(f"{folder.name}.sbatch")
    if options.output is None:
        print(text, end="")
        return 0
    try:
        options.output.write_text(text)
    except OSError as error:
        raise config_lib.ConfigError([f"--output {options.output}: {error.strerror}; expected a file"]) from None
    print(f"wrote {options.output}")
    if options.submit:
        from impala.launching import slurm

        print(slurm.submit(options.output))
    return 0


_OF_SLURM = {"time": "24:00:00", "option": []}
_OF_KUBERNETES = {"image": None, "memory_gb": 16, "claim": "impala-runs", "namespace": "default"}


def _take_those_of(where: str, options: argparse.Namespace) -> None:
    """Fills in defaults of options that `where` alone has, and refuses those of the other one."""
    own, others = (_OF_SLURM, _OF_KUBERNETES) if where == "slurm" else (_OF_KUBERNETES, _OF_SLURM)
    given = [f"--{name.replace('_', '-')}" for name in others if getattr(options, name) is not None]
    if given:
        hint = {"--memory-gb": ", or --option=--mem=64G"}
        raise config_lib.ConfigError([f"{name}: not with {where}; expected none{hint.get(name, '')}" for name in given])
    for name, default in own.items():
        if getattr(options, name) is None:
            setattr(options, name, default)


def _batch_script(options: argparse.Namespace, arguments: list[str], folder: Path) -> str:
    """Returns the batch script of a run."""
    from impala.launching import slurm

    further = [option.lstrip("=") for option in options.option]
    if wrong := next((option for option in further if not re.fullmatch(r"-\S.*", option)), None):
        raise config_lib.ConfigError([f"--option: got {wrong!r}; expected one of sbatch, like =--partition=long"])
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", options.time):
        raise config_lib.ConfigError([f"--time: got {options.time!r}; expected HH:MM:SS or a like form"])
    job = slurm.Job(options.nodes, options.cpus, options.gpus, options.time, further)
    return slurm.script(arguments, folder, job, Path(sys.executable).parent)


def _manifest(options: argparse.Namespace, arguments: list[str], folder: Path) -> str:
    """Returns the manifest of a run."""
    from impala.launching import kubernetes

    if options.image is None:
        raise config_lib.ConfigError(["--image: not given; expected the name of an image with this project"])
    if not re.fullmatch(r"[\w./:@-]+", options.image):
        raise config_lib.ConfigError([f"--image: got {options.image!r}; expected the name of an image"])
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", options.claim):
        raise config_lib.ConfigError([
            f"--claim: got {options.claim!r}; expected a volume claim's name, of small letters, digits, '-' and '.'"
        ])  # fmt: skip
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", options.namespace):
        raise config_lib.ConfigError([
            f"--namespace: got {options.namespace!r}; expected up to 63 small letters, digits and inner '-'"
        ])  # fmt: skip
    workers, most = max(1, options.nodes - 1), max(1, (options.max_nodes or options.nodes) - 1)
    amounts = options.cpus, options.memory_gb, options.gpus
    job = kubernetes.Job(options.image, workers, most, *amounts, options.claim, options.namespace)
    file = Path(options.config).read_text(encoding="utf-8") if options.config else None
    return kubernetes.manifest(arguments, folder.name, job, file)


def _patience(config: config_lib.Config, options: argparse.Namespace) -> list[str]:
    """Returns the key that lets a run wait for pods that an autoscaler adds, which takes minutes, unless it is set."""
    is_set = "wait_seconds" in config.cluster.model_fields_set
    return ["--cluster.wait-seconds", "1800"] if options.max_nodes and not is_set else []


def _a_gpu_for_each_learner(config: config_lib.Config, options: argparse.Namespace) -> list[str]:
    """Returns the key that gives each learner a GPU of its own, unless it is set: on one host all would take the first.

    Raises:
      ConfigError: there are too few.
    """
    is_set = "learner_gpus" in config.cluster.model_fields_set
    if not options.gpus or is_set or config.has_parameter_server:  # parameter servers use none
        return []
    num_gpus = options.gpus * (options.nodes if options.where == "slurm" else 1)  # with kubernetes, of the head alone
    num_learners = config.learner.num_learners * config.population.size
    if num_learners > num_gpus:
        raise config_lib.ConfigError([
            f"--gpus {options.gpus}: {num_learners} learners have {num_gpus} GPUs; expected one for each, or "
            "--cluster.learner-gpus 0.5, with which two share one"
        ])  # fmt: skip
    if config.population.size > options.gpus and not config.cluster.shared_folder:
        raise config_lib.ConfigError([
            f"--gpus {options.gpus}: the first learners of {config.population.size} members stand on the first host; "
            "expected a GPU there for each, or --cluster.learner-gpus 0.5, with which two share one"
        ])  # fmt: skip
    return ["--cluster.learner-gpus", "1"]


def _refuse_too_few_cpus(config: config_lib.Config, nodes: int, cpus: int) -> None:
    """Raises ConfigError if `nodes` hosts of `cpus` CPUs can never hold what must stand before a run begins."""
    from impala.nodes import placing

    placement, counts = placing.placement(config), placing.awaited(config)
    names = [f"{role}/{index}" for role, count in counts.items() for index in range(count)]

    def needed(names: list[str]) -> float:
        return sum(placement.needs(name).cpus for name in names)

    def listed(names: list[str]) -> str:
        return ", ".join(f"{count} × {role}" for role, count in Counter(n.partition("/")[0] for n in names).items())

    first = [name for name in names if placement.at_launcher(name)]
    for what, has, stand in ((f"--nodes {nodes} --cpus {cpus}: have", nodes * cpus, names),
                             (f"--cpus {cpus}: the first host has", cpus, first)):  # fmt: skip
        if needed(stand) > has:
            role = "actor" if "actor/0" in stand else "learner"
            raise config_lib.ConfigError([
                f"{what} {has} CPUs, and a run needs {needed(stand):g} there for {listed(stand)}; expected more, or "
                f"fewer for each, like --cluster.{role}-cpus 0.5"
            ])  # fmt: skip


def doctor(options: argparse.Namespace, rest: list[str]) -> int:
    """says what is wrong with this machine"""
    from impala.monitoring import doctor as doctor_lib

    return doctor_lib.main()


if __name__ == "__main__":
    sys.exit(main())
