"""The models: what a training run consists of, the range of every value, and what must agree."""

import math
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field, PlainValidator, model_validator

Correction = Literal[
    "none", "one_step_is", "vtrace", "vtrace_c0", "vtrace_unweighted_pg", "leaky_vtrace", "per_decision_is", "full_is",
    "weighted_is", "td_lambda", "upgo",  # impala.corrections.SCHEMES
    "epsilon_add", "epsilon_max", "ppo_clip", "impact", "clear", "laser",  # impala.losses.POLICY_TERMS
]  # fmt: skip
_WITH_CLIPPED_TRACES = {"vtrace", "vtrace_unweighted_pg", "leaky_vtrace", "impact", "clear", "laser"}
OF_DISCRETE_ACTIONS = {"epsilon_add", "epsilon_max", "laser"}  # they look at the probability of every action
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Evolving = Literal["learning_rate", "entropy_cost"]
Schedule = Literal["constant", "linear", "late_linear"]  # to 0 at total_frames; late: constant for the first half
Fraction = Annotated[float, Field(ge=0, le=1)]
Clip = Annotated[float, BeforeValidator(lambda v: float(v) if v == "inf" else v), Field(ge=0)]  # inf: unclipped
_FromList = BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
Sizes = Annotated[tuple[Count, ...], _FromList]


def _names(value) -> str | tuple[str, ...]:
    names = value if isinstance(value, (list, tuple)) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"got {value!r}; expected a name, or a list of names")
    if len(set(names)) < len(names):
        raise ValueError(f"got {value!r}; expected each name once")
    return value if isinstance(value, str) else tuple(names)


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class EnvironmentConfig(_Model):
    """`atari:<game>`, `minatar:<game>`, `catch`, `river_swim`, or any gymnasium id; a list of them for many tasks."""

    name: Annotated[Any, PlainValidator(_names)]  # str or tuple[str, ...]
    protocol: Literal["paper2018", "machado2018", "cleanba"] = "paper2018"  # Atari only: environments/atari.py
    action_set: Literal["protocol", "full"] = "protocol"  # Atari only: full is all 18 actions, the same for every game

    @property
    def tasks(self) -> tuple[str, ...]:
        """The environments, one or several."""
        return (self.name,) if isinstance(self.name, str) else self.name


class NetworkConfig(_Model):
    torso: Literal["mlp", "minatar", "shallow", "nature", "resnet"] = "shallow"
    hidden_sizes: Sizes = (64, 64)  # of the MLP
    core: Literal["none", "lstm"] = "none"  # memory between torso and heads, fed the last action and reward as well
    core_size: Count = 256  # units of the LSTM
    bfloat16: bool = False  # the torso's arithmetic; for GPUs, refused on a CPU

    @property
    def core_state_shape(self) -> tuple[int, int] | None:
        """The shape of one environment's core state, None without a core; (h, c) of an LSTM."""
        return (2, self.core_size) if self.core == "lstm" else None


class ActorConfig(_Model):
    num_actors: Count = 1  # processes
    num_environments: Count = 32  # of each actor
    num_lanes: Count = 2  # groups of environments: one steps while another is inferred
    num_environment_threads: Count = 2  # of each actor
    num_tensorflow_threads: Count = 1  # of each actor

    @model_validator(mode="after")
    def _check(self):
        if self.num_environments % self.num_lanes:
            raise ValueError(
                f"num_environments={self.num_environments} is not divisible by num_lanes={self.num_lanes}; "
                "every lane steps the same number of environments"
            )
        return self


class ReplayConfig(_Model):
    queue_kind: Literal["queue", "uniform_once", "drop_oldest"] = "queue"  # of fresh chunks: replay/tables.py
    queue_size: Count = 32  # chunks; full, it blocks the actors (or drops its oldest chunk)
    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of each batch, drawn uniformly from the newest `size` chunks
    size: Count = 10_000  # chunks


class LossConfig(_Model):
    """A scheme takes the parameters that it has; its file says which, and what they mean."""

    correction: Correction = "vtrace"
    clip_rho: Clip = 1.0  # ρ̄
    clip_c: Clip = 1.0  # c̄
    clip_pg: Clip = 1.0  # ρ̄ of the policy gradient
    lambda_: Annotated[Fraction, Field(alias="lambda")] = 1.0
    pg_bootstrap: Literal["target", "mixed"] = "target"  # vtrace, for λ < 1
    allow_expansion: bool = False  # take c̄ > ρ̄ all the same
    alpha_rho: Fraction = 0.5  # leaky_vtrace
    alpha_c: Fraction = 0.5
    control_variate: bool = True  # per_decision_is
    epsilon: Positive = 1e-6  # epsilon_add, epsilon_max
    surrogate_clip: Positive = 0.2  # ppo_clip, impact
    ratio_max: Positive = 2.0  # impact
    target_period: Count = 10  # impact: updates between copies into the target network
    policy_cloning_cost: NonNegative = 0.01  # clear
    value_cloning_cost: NonNegative = 0.005  # clear
    trust_threshold: Annotated[float, Field(gt=0)] = 0.1  # laser; infinity trusts everything
    popart: bool = False  # values at a scale of each task's own: losses/popart.py
    popart_step: Annotated[float, Field(gt=0, le=1)] = 3e-4  # β of its moments, an update
    discount: Fraction = 0.99  # γ
    baseline_cost: NonNegative = 0.5
    entropy_cost: NonNegative = 0.01
    entropy_cost_schedule: Schedule = "constant"
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric", "soft_asymmetric_code"] = "abs_one"
    reduction: Literal["sum", "mean"] = "sum"  # over T and B; the paper sums

    @model_validator(mode="after")
    def _check(self):
        if self.correction == "clear" and self.popart:
            raise ValueError("popart=True; expected false: clear clones values, which PopArt rescales all the time")
        if self.correction == "laser" and self.clip_rho == 0:
            raise ValueError("clip_rho=0.0; expected more than 0: laser compares with the policy that it implies")
        if self.allow_expansion or self.correction not in _WITH_CLIPPED_TRACES:
            return self
        if self.clip_c > self.clip_rho:
            raise ValueError(
                f"clip_c={self.clip_c} > clip_rho={self.clip_rho}; V-trace contracts only for clip_rho ≥ clip_c "
                "(IMPALA, Theorem 1); allow_expansion forces it"
            )
        if self.correction == "leaky_vtrace" and self.alpha_rho > self.alpha_c:
            raise ValueError(
                f"alpha_rho={self.alpha_rho} > alpha_c={self.alpha_c}; leaky V-trace may expand then; "
                "allow_expansion forces it"
            )
        return self


class LearnerConfig(_Model):
    unroll_length: Count = 20  # T, agent steps
    batch_size: Count = 32  # B, chunks, over all learners
    num_learners: Count = 1  # K, synchronous, each with B/K chunks of a table of its own; --num-learners for short
    optimizer: Literal["adam", "rmsprop"] = "adam"
    learning_rate: Positive = 5e-4
    learning_rate_schedule: Schedule = "linear"
    epsilon: Positive = 1e-5  # of the optimizer; RMSProp adds it inside the root, as TensorFlow 1 does
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    rmsprop_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    rmsprop_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_grad_norm: Positive = 40.0
    num_tensorflow_threads: Count = 2
    max_lag: Count | None = None  # updates of policy lag; sizes the queue, and fresh chunks that are older are dropped
    num_prefetched_batches: Count = 1  # between feeder and training thread; each adds an update of policy lag
    jit_compile: bool = False  # XLA; for GPUs, refused on a CPU (3.6 times slower there)


class InferenceConfig(_Model):
    """Where one network decides for all actors: acting/inference.py."""

    max_environments: Count = 64  # of a batch
    timeout_seconds: Positive = 0.005  # that the first request of a batch waits for others


class EvaluatorConfig(_Model):
    """A process that plays the newest weights now and then; the best are kept beside the latest."""

    num_episodes: Annotated[int, Field(ge=0)] = 0  # of each evaluation; 0: no evaluator
    period_seconds: Positive = 300.0  # from the start of one evaluation to the start of the next
    greedy: bool = False


class PopulationConfig(_Model):
    """Population-based training: programs/population.py. The defaults are those of the paper."""

    size: Count = 1  # members; 1 is no population
    burn_in_frames: Annotated[int, Field(ge=0)] = 20_000_000  # of a member, before it evolves
    period_episodes: Count = 5_000  # of a member, between its evolutions
    threshold: NonNegative = 0.05  # by how much the other's fitness must be above one's own to be copied
    parameters: Annotated[tuple[Evolving, ...], _FromList] = ("learning_rate", "entropy_cost")
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.2
    probability: Fraction = 1 / 3


class Config(_Model):
    """A training run of one program."""

    program: Literal["impala", "seed"] = "impala"  # programs/
    environment: EnvironmentConfig
    network: NetworkConfig = NetworkConfig()
    actor: ActorConfig = ActorConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    inference: InferenceConfig = InferenceConfig()  # seed
    loss: LossConfig = LossConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    population: PopulationConfig = PopulationConfig()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    total_frames: Count = 10_000_000  # emulator frames of fresh transitions trained on
    target_return: Finite | None = None  # ends the run when the last 100 episodes' mean reaches it
    checkpoint_period_seconds: Positive = 60.0
    num_checkpoints: Count = 3  # kept
    log_period_seconds: Positive = 5.0
    record_chunks: Annotated[int, Field(ge=0)] = 0  # keeps the first so many chunks in the run folder

    @model_validator(mode="after")
    def _check(self):
        batch_size, replay = self.learner.batch_size, self.replay
        num_tasks, num_lanes = len(self.environment.tasks), self.actor.num_actors * self.actor.num_lanes
        if num_lanes % num_tasks:
            raise ValueError(
                f"actor.num_lanes={self.actor.num_lanes}: {num_lanes} lanes of all actors cannot be divided evenly "
                f"among {num_tasks} tasks; expected a multiple of {num_tasks}"
            )
        if self.target_return is not None and num_tasks > 1:
            raise ValueError(
                f"target_return={self.target_return}: a mean return over several tasks says little; expected none"
            )
        num_replayed = replay.fraction * batch_size
        if abs(num_replayed - round(num_replayed)) > 1e-6:
            raise ValueError(
                f"replay.fraction={replay.fraction} of learner.batch_size={batch_size} is {num_replayed:g} chunks; "
                "expected a whole number"
            )
        if self.program == "seed":
            self._check_one_place()
        num_learners = self.learner.num_learners
        if self.population.size > 1 and num_learners > 1:
            raise ValueError(
                f"population.size={self.population.size}: a member of a population has one learner, and "
                f"learner.num_learners={num_learners}; expected one of the two to be 1"
            )
        if batch_size % num_learners or self.num_replayed % num_learners:
            what = f"{batch_size} chunks" + (f", {self.num_replayed} of them replayed," if self.num_replayed else "")
            raise ValueError(
                f"learner.num_learners={num_learners} does not divide learner.batch_size: {what} cannot be shared "
                "equally; expected a divisor"
            )
        max_lag = self.learner.max_lag
        if max_lag is not None and max_lag < self.implied_lag:
            environments = self.actor.num_actors * self.actor.num_environments
            raise ValueError(
                f"learner.max_lag={max_lag}: {environments} environments whose chunks make batches of {self.num_fresh} "
                f"imply up to {self.implied_lag} updates of lag already; expected that or more, fewer environments, or "
                "a larger batch"
            )
        if self.num_fresh > replay.queue_size:
            raise ValueError(
                f"learner.batch_size={batch_size} > replay.queue_size={replay.queue_size}; "
                "a batch larger than the queue would never fill"
            )
        return self

    def _check_one_place(self) -> None:
        """What central inference has in one process: one learner, one queue of chunks, one agent."""
        for key, value, expected in (
            ("learner.num_learners", self.learner.num_learners, 1), ("population.size", self.population.size, 1),
            ("replay.fraction", self.replay.fraction, 0.0), ("replay.queue_kind", self.replay.queue_kind, "queue"),
        ):  # fmt: skip
            if value != expected:
                raise ValueError(f"{key}={value}: not with program={self.program}; expected {expected}")
        num_lane = self.actor.num_environments // self.actor.num_lanes
        if self.inference.max_environments < num_lane:
            raise ValueError(
                f"inference.max_environments={self.inference.max_environments}: a lane asks for {num_lane} "
                "environments at once; expected that or more"
            )

    def member(self, index: int) -> "Config":
        """Returns the configuration of a member of the population: its seed is its own."""
        return self.model_copy(update={"seed": self.seed + index})

    def member_name(self, index: int) -> str:
        """Returns the name of a member's folder in the run's."""
        return f"member_{index}"

    def task_of(self, actor: int, lane: int) -> int:
        """Returns the index of the task that a lane plays; every task gets as many lanes."""
        return (actor * self.actor.num_lanes + lane) % len(self.environment.tasks)

    @property
    def num_replayed(self) -> int:
        """Chunks of each batch that come from replay."""
        return round(self.replay.fraction * self.learner.batch_size)

    @property
    def num_fresh(self) -> int:
        """Chunks of each batch that come from the queue."""
        return self.learner.batch_size - self.num_replayed

    @property
    def implied_lag(self) -> int:
        """The policy lag in updates that an empty queue leaves: chunks acted by one version come all at once.

        The E chunks of all environments make E / F batches of F fresh chunks. While the next E are acted, with the
        weights of that moment, those are trained on; then the E are, one batch after the other.
        """
        rounds = self.actor.num_actors * self.actor.num_environments / self.num_fresh
        return max(1, math.ceil(2 * rounds) - 1 + self.learner.num_prefetched_batches)

    @property
    def queue_size(self) -> int:
        """Chunks in the table of fresh ones: as configured, or what `learner.max_lag` leaves it, at least a batch."""
        if self.learner.max_lag is None:
            return self.replay.queue_size
        return self.num_fresh * max(1, self.learner.max_lag - self.implied_lag)

    @property
    def steps_per_update(self) -> int:
        """Fresh agent steps that an update consumes."""
        return self.learner.unroll_length * self.num_fresh


MAY_CHANGE_ON_RESUME = frozenset({
    "total_frames", "target_return", "checkpoint_period_seconds", "num_checkpoints", "log_period_seconds",
    "record_chunks", "evaluator.num_episodes", "evaluator.period_seconds", "evaluator.greedy",
    "learner.learning_rate", "learner.learning_rate_schedule", "population.burn_in_frames",
    "population.period_episodes", "population.threshold", "population.factor", "population.probability",
})  # fmt: skip
