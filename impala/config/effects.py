"""Which keys have an effect only with certain values of others, as `loss.lambda` with a correction that has a trace."""

from collections.abc import Callable
from typing import Any

from impala import own
from impala.config import uses
from impala.config.schema import Config
from impala.config.sections import R2d2Config

_TRACED = ("vtrace", "impact", "clear", "laser")  # the last three have V-trace's targets


def _one_of(*words: Any) -> Callable[[Any], bool]:
    return lambda value: value in words or own.is_own(str(value))  # a correction of one's own may use any key


def _not(*words: Any) -> Callable[[Any], bool]:
    return lambda value: value not in words


def _has_atari(name: str | tuple[str, ...]) -> bool:
    return any(each.startswith("atari:") for each in ((name,) if isinstance(name, str) else name))


def _with_correction(*words: str) -> dict[str, Callable]:
    return {"loss.correction": _one_of(*words)}


_LEAKY, _PENALTY = _with_correction("leaky_vtrace"), _with_correction("penalty")
_CLIPS = {**_with_correction("ppo_clip", "appo", "impact", "clip"), "agent.value_clip": bool}
_CHANGES = _not("constant")
_LENGTH_OF = {  # by agents of action values: the key that says how many transitions a correction sees
    "q_learning": "agent.n_step", "r2d2": "learner.unroll_length", "q_unrolls": "learner.unroll_length",
}  # fmt: skip
_SEVERAL, _EVALUATES = {"population.size": _not(1)}, {"evaluator.num_episodes": bool}

_ONLY_WITH = {  # key → {other key: which of its values}; one that fits is enough
    "loss.clip_rho": _with_correction(*_TRACED, "vtrace_c0", "vtrace_unweighted_pg", "leaky_vtrace", "appo"),
    "loss.clip_c": _with_correction(*_TRACED, "vtrace_unweighted_pg", "leaky_vtrace", "appo"),
    "loss.clip_pg": _with_correction(*_TRACED, "one_step_is", "vtrace_c0", "leaky_vtrace", "upgo"),
    "loss.lambda": _with_correction(
        *_TRACED, "vtrace_unweighted_pg", "leaky_vtrace", "td_lambda", "ppo_clip", "appo", "retrace", "tree_backup",
        "q_lambda", "peng_q_lambda", "clip", "penalty",
    ),
    "loss.pg_bootstrap": _with_correction(*_TRACED),
    "loss.allow_expansion": _with_correction(*_TRACED, "vtrace_unweighted_pg", "leaky_vtrace", "appo"),
    "loss.alpha_rho": _LEAKY,
    "loss.alpha_c": _LEAKY,
    "loss.control_variate": _with_correction("per_decision_is"),
    "loss.epsilon": _with_correction("epsilon_add", "epsilon_max"),
    "loss.surrogate_clip": _CLIPS,
    "loss.ratio_max": _with_correction("impact"),
    "loss.target_period": _with_correction("impact"),
    "loss.policy_cloning_cost": _with_correction("clear"),
    "loss.value_cloning_cost": _with_correction("clear"),
    "loss.trust_threshold": _with_correction("laser"),
    "loss.entropy_cost_schedule": {"loss.entropy_cost": bool},
    "loss.popart_step": {"loss.popart": bool},
    "agent.policy_epsilon": {"loss.correction": _not("n_step")},
    "agent.n_step": _with_correction("n_step") | {"agent.name": _not("q_unrolls", "r2d2")},
    "agent.huber_threshold": {"agent.error": _one_of("huber")},
    "agent.clip_schedule": _CLIPS,
    **{f"agent.kl_{name}": _PENALTY for name in ("beta", "tolerance", "factor")},
    "agent.kl_target": _PENALTY | {"agent.kl_hinge": bool},
    "agent.priority_max_share": {"replay.priority_exponent": bool},
    "learner.adam_beta1": {"learner.optimizer": _one_of("adam")},
    "learner.rmsprop_decay": {"learner.optimizer": _one_of("rmsprop", "centered_rmsprop")},
    "learner.rmsprop_momentum": {"learner.optimizer": _one_of("rmsprop", "centered_rmsprop")},
    "learner.learning_rate_frames": {
        "learner.learning_rate_schedule": _CHANGES, "loss.entropy_cost_schedule": _CHANGES,
        "agent.clip_schedule": _CHANGES,
    },
    "network.hidden_sizes": {"network.torso": _one_of("mlp")},
    "network.normalisation": {"network.torso": _not("mlp", "minatar")},
    "network.core_size": {"network.core": _one_of("lstm")},
    "environment.protocol": {"environment.name": _has_atari},
    "environment.action_set": {"environment.name": _has_atari},
    "replay.size": {"replay.fraction": bool, "program": _not("impala")},
    "replay.importance_exponent": {"replay.priority_exponent": bool},
    "replay.queue_size": {"learner.max_lag": lambda bound: bound is None},
    "learner.num_prefetched_batches": {"program": _not("gorila"), "replay.shared": bool},
    "actor.max_episode_frames": {"environment.name": _has_atari},
    "server.num_late": {"server.barrier": bool},
    "evaluator.period_seconds": _EVALUATES,
    "evaluator.greedy": _EVALUATES,
    **{f"population.{name}": _SEVERAL for name in (
        "burn_in_frames", "period_episodes", "threshold", "parameters", "spread", "factor", "probability",
    )},
}  # fmt: skip


_AND_WITH = {  # the same, where another condition must hold as well
    "loss.pg_bootstrap": {"loss.lambda": lambda trace: trace < 1.0},
    "loss.clip_c": {"loss.lambda": bool},
}  # fmt: skip


def without_effect(config: Config) -> list[str]:
    """Returns a line for each likely mistake.

    A key that is set and changes nothing in training; a correction without a trace; a parameter that cannot evolve;
    burn-in without a core, also that of the default; a learning rate that is 0 before the end.
    """
    if own.is_own(config.agent.name):
        return []  # it may use any key
    leaves, lines = {leaf.key: leaf for leaf in uses.leaves(config)}, []
    if "entropy_cost" in config.population.parameters and "parameters" in config.population.model_fields_set:
        if config.has_use_for("population.parameters") and not config.has_use_for("loss.entropy_cost"):
            lines.append(f"population.parameters: entropy_cost does not evolve with agent.name={config.agent.name}")
    tables = (_ONLY_WITH, *(() if own.is_own(config.loss.correction) else (_AND_WITH,)))  # one's own may use any key
    named: set[str] = set()
    for key, conditions in (item for table in tables for item in table.items() if item[0] not in named):
        leaf = leaves.get(key)
        if leaf is None or not leaf.is_set or leaf.value == leaf.default or not config.has_use_for(key):
            continue
        others = {other: leaves[other].value for other in conditions if other in leaves and config.has_use_for(other)}
        if others and not any(conditions[other](value) for other, value in others.items()):
            reasons = " and ".join(f"{other}={value}" for other, value in others.items())
            lines.append(f"{key}={leaf.value} has no effect on training with {reasons}")
            named.add(key)
    if isinstance(config.agent, R2d2Config) and config.network.core == "none" and config.agent.burn_in:
        lines.append(
            f"agent.burn_in={config.agent.burn_in} has no effect on training with network.core=none, which has nothing "
            "to bring up to date; 0 saves its time"
        )
    if config.loss.correction == "clear" and not config.replay.fraction:
        remedy = "set replay.fraction" if config.has_use_for("replay.fraction") else "program=impala can replay"
        lines.append(f"loss.correction=clear: nothing is replayed, so that it is vtrace; {remedy}")
    key = _LENGTH_OF.get(config.agent.name)
    corrects = config.loss.correction != "n_step" and not own.is_own(config.loss.correction)
    if key and corrects and leaves[key].value == 1:
        lines.append(
            f"loss.correction={config.loss.correction} has no trace with {key}=1: every correction here has the "
            "same targets then, of one step"
        )
    learner = config.learner
    end = learner.learning_rate_frames or config.total_frames
    if learner.learning_rate_schedule != "constant" and end < config.total_frames:
        lines.append(
            f"learner.learning_rate_frames={end}: the learning rate is 0 from there to total_frames, "
            f"{config.total_frames}, and nothing is learned"
        )
    return lines
