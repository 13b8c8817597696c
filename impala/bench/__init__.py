"""`impala bench`: the rate of each part alone, the machine's bound, and how close the whole comes to it.

A part is a bare call in a process of its own with all cores: the environments' step, one inference of an actor's
batch, one update on a batch in memory, and where the program has a Reverb table, chunks through it; if that is a replay
table, windows into it (insert) and out of it (sample), `replay.samples_per_insert` for each. One agent step costs all
of them, so the machine can hardly train faster than the bound

    1 / (1/env + 1/inference + 1/learner + 1/table)      agent steps per second

except by a tenth or so: in the whole, the cores that one process leaves idle while it is in Python serve another, and a
part alone cannot use them. The parts are measured before and after the whole, and averaged: if the machine's speed
drifts, it drifts for both. Where all data is replayed, so is a learner that draws windows from its own memory, without
a table and beside no other process: the direct bound of the whole's updates per second. Where inference is central,
serving is measured too (`bench.central_inference`). With `--against CONFIG` two programs are run in turn.
"""

import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path

from impala import agents
from impala import config as config_lib
from impala.bench import central_inference, frames, group, parameter_server, parts, schemes, traffic, whole, windows
from impala.nodes import estimates
from impala.nodes.checking import check, check_lockstep

_PART_SECONDS, _SCHEMES_SECONDS = 6.0, 30.0
_PARTS = {"env": parts.environment_rate, "inference": parts.inference_rate, "learner": parts.learner_rate}
_TABLE = {"table": parts.table_rate}  # where chunks go through one
_WINDOWS = {"insert": windows.insertion_rate, "sample": windows.sampling_rate}  # where all data is replayed
_SEVERAL = {"learners": group.learners_rate}  # in addition, if the configuration has several learners
_DIRECT = {"direct_updates": windows.direct_rate}  # updates/s; in addition, where a learner replays all its data


def bound(**rates: float) -> float:
    """Returns the agent steps per second of a machine that wastes nothing, from the rates of its parts alone."""
    return 1.0 / sum(1.0 / rate for rate in rates.values())


def parts_of(config: config_lib.Config) -> dict[str, Callable]:
    """Returns the parts that an agent step of the configured program costs, by name."""
    if config.has_replay_table:
        return _PARTS | _WINDOWS
    return _PARTS if config.has_central_inference or config.has_parameter_server else _PARTS | _TABLE


def beside_parts_of(config: config_lib.Config) -> dict[str, Callable]:
    """Returns what is measured together with the parts, and no part of the bound."""
    has_several = config.learner.num_learners > 1
    has_direct = config.replays_alone and not config.has_parameter_server
    return (_SEVERAL if has_several else {}) | (_DIRECT if has_direct else {})


def _alone(function, *arguments):
    """Runs `function` in a fresh process, so that it can still choose how many cores TensorFlow uses.

    What libraries say there (Reverb, of each server that starts and ends) is shown only if it fails.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile("r", errors="replace") as said:
        try:
            with futures.ProcessPoolExecutor(1, spawn, initializer=_say_into, initargs=(said.name,)) as pool:
                return pool.submit(function, *arguments).result()
        except Exception:
            sys.stderr.write(said.read())
            raise


def _say_into(path: str) -> None:
    os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), 2)


def measure(config: config_lib.Config, report: Callable[[str], None] = print) -> dict:
    """Measures parts, whole, parts again, lockstep and schemes; returns all rates and what is derived from them."""
    bounding = parts_of(config)
    measured_parts = bounding | beside_parts_of(config)
    rounds = [{name: _alone(part, config, _PART_SECONDS) for name, part in measured_parts.items()}]
    report("parts measured once; now the whole")
    result = _whole(config)
    rounds.append({name: _alone(part, config, _PART_SECONDS) for name, part in measured_parts.items()})
    result |= {name: statistics.fmean(measured[name] for measured in rounds) for name in measured_parts}
    result["bound"] = bound(**{name: result[name] for name in bounding})
    result["fraction_of_bound"] = result["train"] / result["bound"]
    if "table" in result:
        result["table_over_train"] = result["table"] / result["train"]
    if config.has_central_inference:
        report("now central inference alone")
        result["serving"] = _alone(central_inference.serving_rates, config, _PART_SECONDS)
    if config.has_parameter_server:
        report("now the parameter server alone, and workers without one")
        result["exchange"] = _alone(parameter_server.measure, config, 2 * _PART_SECONDS)
        result["separate"] = parameter_server.separate_rate(config, 2 * _PART_SECONDS)
    result["lockstep"] = _alone(whole.lockstep_rate, config, _PART_SECONDS)
    result["bytes_per_frame"] = _alone(_traffic, config)
    if check(config).num_stacked > 1 and config.network.normalisation != "raw":  # frames
        result["normalisation_fractions"] = _alone(frames.normalisation_fractions, config, 4 * _PART_SECONDS)
    if config.has_use_for("loss.clip_rho"):  # V-based schemes
        result["scheme_fractions_of_learner"] = _alone(schemes.scheme_fractions, config, _SCHEMES_SECONDS)
        result["vtrace_fraction_of_learner"] = result["scheme_fractions_of_learner"]["vtrace"]
    return result


def compare(config: config_lib.Config, other: config_lib.Config, report: Callable[[str], None] = print) -> dict:
    """Runs two programs in turn, twice; returns what each did, and the ratio of their rates."""
    rounds = []
    for number in (1, 2):
        rounds.append([_whole(config), _whole(other)])
        report(f"both programs run {number} of 2 times")
    ours, theirs = ({name: statistics.fmean(one[name] for one in runs) for name in runs[0]} for runs in zip(*rounds))
    ours["frames_per_step"], theirs["frames_per_step"] = check(config).frames_per_step, check(other).frames_per_step
    return dict(this=ours, against=theirs, ratio=ours["train"] / theirs["train"])


def _traffic(config: config_lib.Config) -> dict[str, float]:
    spec = check(config)
    variables = agents.of(config).make_network(config, spec).trainable_variables
    return traffic.bytes_per_frame(config, spec, sum(math.prod(variable.shape) for variable in variables))


def _whole(config: config_lib.Config) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="impala-bench-") as folder:
        return whole.train_rate(config, Path(folder))


def main(
    config: config_lib.Config, against: config_lib.Config | None, *, names: Sequence[str], output: Path | None
) -> int:  # fmt: skip
    """The command `impala bench`; `names` are the names to print of the two configurations."""
    for one in (config, against) if against else (config,):
        estimates.check(one, check(one))
        if one.population.size > 1:
            line = f"population.size={one.population.size}: the bench runs one member; expected --population.size 1"
            raise config_lib.ConfigError([line])
    if not (against or config.replays_alone or config.has_parameter_server):
        check_lockstep(config)
    if output and (output.is_dir() or not output.parent.is_dir()):
        raise config_lib.ConfigError([f"--json {output}: expected a file in a folder that exists"])
    if output and not os.access(output if output.exists() else output.parent, os.W_OK):
        raise config_lib.ConfigError([f"--json {output}: cannot be written; expected a file that can"])
    what = "the two programs in turn" if against else "each part alone, then the whole"
    print(f"measures {what}; that takes some minutes", flush=True)
    result = compare(config, against) if against else measure(config)
    _print_comparison(result, *names) if against else _print_measured(result, config)
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _print_measured(result: dict, config: config_lib.Config) -> None:
    for name in ("env", "inference", "learner", "table", "insert", "sample", "bound", "train"):
        if name in result:
            print(f"{name:10} {result[name]:10,.0f} agent steps/s")
    if "learners" in result:
        print(f"{'learners':10} {result['learners']:10,.0f} agent steps/s, {config.learner.num_learners} together: "
              f"{100 * result['learners'] / result['learner']:.0f} % of one with the whole batch")  # fmt: skip
    if "updates" in result:
        print(_learning(result))
    print(f"{'lockstep':10} {result['lockstep']:10,.0f} agent steps/s on one core, in one process")
    table = f"the table path alone at {result['table_over_train']:.0f} × the whole; " if "table" in result else ""
    print(f"the whole runs at {100 * result['fraction_of_bound']:.0f} % of the bound; {table}"
          f"{_lag(result)}; {result['rss_mb']:,.0f} MB")  # fmt: skip
    if rates := result.get("serving"):
        print(f"{'direct':13} {rates['direct']:10,.0f} agent steps/s of the network alone in batches of "
              f"{rates['direct_batch']}; {rates['direct_at_once']:,.0f} from all the server's threads")  # fmt: skip
        for name in central_inference.TRANSPORTS:
            print(f"{name:13} {rates[name]:10,.0f} agent steps/s decided for callers, "
                  f"{100 * rates[name] / rates['direct']:.0f} % of it, in batches of "
                  f"{rates[name + '_batch']:.1f}; a request takes "
                  f"{1e3 * rates[name + '_p50']:.1f} ms, p99 {1e3 * rates[name + '_p99']:.1f} ms")  # fmt: skip
    if exchange := result.get("exchange"):
        _print_exchange(exchange, result)
    sizes = result["bytes_per_frame"]
    print(f"{sum(sizes.values()):,.0f} bytes cross between processes for each emulator frame: "
          + ", ".join(f"{name} {size:,.0f}" for name, size in sizes.items()))  # fmt: skip
    if shares := result.get("normalisation_fractions"):
        print(f"network.normalisation={config.network.normalisation} takes {100 * shares['inference']:.1f} % of an "
              f"inference and {100 * shares['learner']:.1f} % of an update, beside frames as they come")  # fmt: skip
    if fractions := result.get("scheme_fractions_of_learner"):
        print("share of the learner's step at T = 20, B = 32, IMPACT without its second forward pass: "
              + ", ".join(f"{word} {100 * fraction:.1f} %" for word, fraction in fractions.items()))  # fmt: skip


def _learning(result: dict) -> str:
    """Returns a line on the learner of a program whose data is all replayed."""
    line = f"{'updates':10} {result['updates']:10,.1f} updates/s in the whole"
    if direct := result.get("direct_updates"):
        share = 100 * result["updates"] / direct
        line += f", {share:.0f} % of the {direct:,.1f} of a learner that draws from its own memory"
    if "priority_seconds" in result:
        line += (f"; new priorities are in the table after {1e3 * result['priority_seconds']:.1f} ms, and handing them "
                 f"over takes {100 * result['learner_priority_fraction']:.2f} % of the learner's time")  # fmt: skip
    return line


def _print_exchange(exchange: dict, result: dict) -> None:
    print(f"an exchange of {exchange['bytes'] / 2e6:.1f} MB each way with the server takes "
          + ", ".join(f"{1e3 * exchange[name + '_p50']:.1f} ms (p99 {1e3 * exchange[name + '_p99']:.1f}) through {name}"
                      for name in parameter_server.TRANSPORTS)
          + f"; {1e3 * exchange['apply_p50']:.1f} ms of it to apply the gradient, and one that is not applied "
          f"{1e3 * exchange['refused_p50']:.1f} ms (p99 {1e3 * exchange['refused_p99']:.1f}); a pull takes "
          f"{1e3 * exchange['pull_p50']:.1f} ms (p99 {1e3 * exchange['pull_p99']:.1f}) over RPC")  # fmt: skip
    arithmetic, num_cores = result["applications"] * exchange["optimizer_cpu"], len(os.sched_getaffinity(0))
    print(f"{result['gradients']:,.0f} gradients/s come to it, which take "
          f"{100 * result['server_busy_fraction']:.0f} % of its time to apply; its processes use "
          f"{result['server_cores']:.2f} of {num_cores} cores, {arithmetic:.2f} for the optimizer's arithmetic: "
          f"{100 * (result['server_cores'] - arithmetic) / num_cores:.1f} % of the cores beyond it")  # fmt: skip
    print(f"{'separate':10} {result['separate']:10,.0f} agent steps/s of as many processes without a server: "
          f"the whole runs at {100 * result['train'] / result['separate']:.0f} % of them")  # fmt: skip


def _print_comparison(result: dict, path: str, against: str) -> None:
    for name, row in ((path, result["this"]), (against, result["against"])):
        frames = row["frames_per_step"]
        cpu_seconds = row["cpu_seconds_per_million_steps"] / frames
        print(f"{name}: {frames * row['train']:,.0f} frames/s; {cpu_seconds:,.0f} CPU seconds per million of them; "
              f"{_lag(row)}; {row['rss_mb']:,.0f} MB")  # fmt: skip
    print(f"{path} runs at {100 * result['ratio']:.0f} % of the agent steps/s of {against}")


def _lag(result: dict) -> str:
    if "lag_mean" in result:
        return f"lag {result['lag_mean']:.1f} updates"
    return f"what is drawn is {result['replay_lag_mean']:,.0f} updates old"
