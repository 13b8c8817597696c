"""The sections of a configuration, one for each station or program, and the range of every value."""

import typing
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, PlainValidator, Tag, model_validator

from impala import own
from impala.config.errors import nearest

_LEAST, _MOST = 1e-30, 1e30  # tensors are float32, which holds 0 and magnitudes from 1e-38 to 3e38

Torso = Literal["mlp", "minatar", "shallow", "nature", "resnet"]
Surrogate = Literal["clip", "penalty"]  # losses.ppo.SURROGATES
QCorrection = Literal["n_step", "retrace", "tree_backup", "q_lambda", "peng_q_lambda", "is"]  # corrections.Q_SCHEMES
Correction = Literal[
    "none", "one_step_is", "vtrace", "vtrace_c0", "vtrace_unweighted_pg", "leaky_vtrace", "per_decision_is", "full_is",
    "weighted_is", "td_lambda", "upgo",  # impala.corrections.SCHEMES
    "epsilon_add", "epsilon_max", "ppo_clip", "appo", "impact", "clear", "laser",  # impala.losses.POLICY_TERMS
]  # fmt: skip
_WITH_CLIPPED_TRACES = {"vtrace", "vtrace_unweighted_pg", "leaky_vtrace", "appo", "impact", "clear", "laser"}
OF_DISCRETE_ACTIONS = {"epsilon_add", "epsilon_max", "laser"}  # they look at the probability of every action


def _in_float32(value: float) -> float:
    if 0 < abs(value) < _LEAST:
        raise ValueError(f"got {value}, which float32 turns into 0; expected {_LEAST} or more")
    if _MOST < abs(value) < float("inf"):
        raise ValueError(f"got {value}, which float32 turns into infinity; expected {_MOST} or less")
    return value


class _WordOrOwn(typing.NamedTuple):
    """Validates one of the built-in `words`, or the name of a user's own part."""

    words: tuple[str, ...]

    def __call__(self, value: str) -> str:
        if value in self.words or own.is_own(value):
            return value
        hint = nearest(value, self.words)
        raise ValueError(f"{value!r} is not one of {', '.join(self.words)}, nor {own.FORM}{hint}")


def _below_one(value: float) -> float:
    if 1 - value < 1e-6:
        raise ValueError(f"got {value}, which float32 turns into 1; expected 0.999999 or less")
    return value


# Bounds are generous: a value past them is a typo. `nodes.estimates` refuses what this machine cannot hold.
Count = Annotated[int, Field(ge=1, le=10**9)]
Port = Annotated[int, Field(ge=1024, le=65_535)]
Times = Annotated[int, Field(ge=0, le=10**6)]
Frames = Annotated[int, Field(ge=1, le=10**15)]
Workers = Annotated[int, Field(ge=1, le=1024)]  # processes or threads
Size = Annotated[int, Field(ge=1, le=10**6)]  # of a batch, a layer, a queue
Float32 = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_in_float32)]
Positive = Annotated[Float32, Field(gt=0, le=1e6)]
NonNegative = Annotated[Float32, Field(ge=0, le=1e6)]
Finite = Float32
LearningRate = Annotated[Float32, Field(gt=0, le=100)]
Seconds = Annotated[float, Field(ge=1e-6, le=1e9, allow_inf_nan=False)]  # Python can wait at most nine times that
Evolving = Literal["learning_rate", "entropy_cost", "epsilon"]
TorsoOrOwn = Annotated[str, AfterValidator(_WordOrOwn(typing.get_args(Torso)))]
CORRECTIONS_OF = {  # by agent
    "actor_critic": typing.get_args(Correction), "q_learning": typing.get_args(QCorrection),
    "r2d2": typing.get_args(QCorrection), "q_unrolls": typing.get_args(QCorrection), "dpg": ("n_step",),
    "ppo": typing.get_args(Surrogate),
}  # fmt: skip
OWN_CORRECTIONS = {  # agents that also take one of the user's own, and of what it is
    "actor_critic": "values", "q_learning": "action values", "r2d2": "action values", "q_unrolls": "action values",
}  # fmt: skip
CorrectionOrOwn = Annotated[str, AfterValidator(_WordOrOwn(tuple(
    word for words in (Correction, QCorrection, Surrogate) for word in typing.get_args(words)
)))]  # fmt: skip
Schedule = Literal["constant", "linear", "late_linear"]
Fraction = Annotated[Float32, Field(ge=0, le=1)]
Ratio = Annotated[Float32, Field(gt=0, le=10_000)]
Exponent = Annotated[Float32, Field(ge=0, le=10)]
Decay = Annotated[Float32, Field(ge=0, lt=1), AfterValidator(_below_one)]
_OrInfinity = BeforeValidator(lambda v: float(v) if v == "inf" else v)
Clip = Annotated[float, _OrInfinity, Field(ge=0), AfterValidator(_in_float32)]  # inf: unclipped
_FromList = BeforeValidator(lambda v: tuple(v) if isinstance(v, list) else v)
Sizes = Annotated[tuple[Size, ...], _FromList, Field(max_length=100)]


def _names(value) -> str | tuple[str, ...]:
    names = value if isinstance(value, (list, tuple)) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"got {value!r}; expected a name, or a list of names")
    if len(set(names)) < len(names):
        raise ValueError(f"got {value!r}; expected each name once")
    return value if isinstance(value, str) else tuple(names)


Names = Annotated[Any, PlainValidator(_names)]


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


Protocol = Literal["paper2018", "baselines", "rllib", "machado2018", "cleanba", "r2d2"]


class EnvironmentConfig(Model):
    name: Names  # atari:<game>, minatar:<game>, catch, a gymnasium id, package.module:name; or a list: tasks
    protocol: Protocol = "paper2018"  # of Atari's games: environments/atari.py
    action_set: Literal["protocol", "full"] = "protocol"  # Atari only: full is all 18 actions, the same for every game

    @property
    def tasks(self) -> tuple[str, ...]:
        """The environments, one or several."""
        return (self.name,) if isinstance(self.name, str) else self.name


class NetworkConfig(Model):
    torso: TorsoOrOwn = "shallow"  # networks/torsos.py
    hidden_sizes: Sizes = (64, 64)  # of the MLP
    normalisation: Literal["median", "mean", "plain", "raw"] = "median"  # of frames: networks/features.py
    core: Literal["none", "lstm"] = "none"  # memory between torso and heads, fed the last action and reward as well
    core_size: Size = 256  # units of the LSTM
    bfloat16: bool = False  # the torso's arithmetic; refused where neither GPU nor processor has it

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_called(cls, data):
        """Translates `center_frames`, as runs until commit 32d4970 called it, so that they can be resumed."""
        if not isinstance(data, dict) or "center_frames" not in data:
            return data
        data = dict(data)
        was = data.pop("center_frames")
        if type(was) is not bool or "normalisation" in data:
            raise ValueError(f"center_frames={was!r}: is called normalisation now; expected that alone")
        return data | {"normalisation": "mean" if was else "plain"}

    @property
    def core_state_shape(self) -> tuple[int, int] | None:
        """The shape of one environment's core state, None without a core; (h, c) of an LSTM."""
        return (2, self.core_size) if self.core == "lstm" else None


class ActorConfig(Model):
    num_actors: Workers = 1  # processes
    num_environments: Annotated[int, Field(ge=1, le=100_000)] = 32  # of each actor
    num_lanes: Workers = 2  # groups of environments: one steps while another is inferred
    num_environment_threads: Workers = 2  # of each actor, for Atari's games; others are stepped by the lane's own
    num_tensorflow_threads: Workers = 1  # of each actor
    niceness: Annotated[int, Field(ge=0, le=19)] = 0  # of actors' processes: above 0 a learner beside them comes first
    weight_period: Count | None = None  # unrolls between two fetches of weights; follows from learner.max_lag, else 1
    weight_frames: Count = 400  # of each environment, between two fetches of weights
    num_relays: Annotated[int, Field(ge=0, le=10_000)] = 0  # processes that pass weights on; 0: actors ask a learner
    send_size: Count = 50  # windows that a lane sends together: those of whole steps, at least of one
    max_pending: Count = 50  # windows of an actor on their way to the table after a step; at least those of a send
    max_episode_frames: Count = 50_000  # of Atari's games in training

    @property
    def num_lane_environments(self) -> int:
        """Environments of each lane."""
        return self.num_environments // self.num_lanes

    @property
    def num_lane_threads(self) -> int:
        """Threads that step a lane's environments."""
        return max(1, self.num_environment_threads // self.num_lanes)

    @property
    def num_steps_together(self) -> int:
        """Steps whose windows a lane sends together."""
        return max(1, self.send_size // self.num_lane_environments)

    @property
    def num_steps_pending(self) -> int:
        """Steps of a lane whose windows may be on their way: at least those that are sent together."""
        return max(self.num_steps_together, self.max_pending // self.num_environments)

    @model_validator(mode="after")
    def _check(self):
        if self.num_environments % self.num_lanes:
            raise ValueError(
                f"num_environments={self.num_environments} is not divisible by num_lanes={self.num_lanes}; "
                "every lane steps the same number of environments"
            )
        return self


class ReplayConfig(Model):
    queue_kind: Literal["queue", "uniform_once", "drop_oldest"] = "queue"  # of fresh chunks: replay/tables.py
    queue_size: Count = 32  # chunks; full, it blocks the actors (or drops its oldest chunk)
    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of each batch, drawn uniformly from the newest `size` chunks
    size: Count = 10_000  # chunks; with dqn, r2d2 and gorila transitions (1000000), with apex (2000000)
    min_size: Count = 50_000  # transitions before the first update
    samples_per_insert: Ratio | None = 8.0  # how often a transition is trained on; null, apex's: nobody waits
    priority_exponent: Fraction = 0.6  # α: how much more often what surprised is drawn; 0 draws uniformly
    importance_exponent: Fraction = 0.4  # β: how far importance weights correct for it; 1: fully
    shared: bool = False  # one table for all workers, else each has its own of that size
    checkpoint_minutes: Annotated[float, Field(gt=0, le=1e6)] | None = None  # between copies of it on disk; null: none


class ActorCriticConfig(Model):
    """A policy and a value: agents/actor_critic.py. `loss` says how they learn."""

    name: Literal["actor_critic"] = "actor_critic"  # or package.module:name


class QLearningConfig(Model):
    """Action values: agents/q_learning.py. The defaults are those of DQN (dqn_zoo, but for evaluation_epsilon) or, with
    program: apex, Ape-X (Horgan et al. 2018): double, dueling, n_step 3, squared errors."""

    name: Literal["q_learning"] = "q_learning"  # or package.module:name
    double: bool = False  # the online network chooses the action that the target network values
    dueling: bool = False  # a stream for the value and one for advantages
    n_step: Annotated[int, Field(ge=1, le=1000)] = 1  # rewards before the bootstrap
    policy_epsilon: Fraction = 0.0  # of the policy whose values a correction other than n_step learns; 0 is greedy
    error: Literal["huber", "squared"] = "huber"  # of the TD error; Huber's gradient is the clipped error of the paper
    huber_threshold: Annotated[Float32, Field(gt=0, le=1e6)] = 1.0  # from this error on the loss is linear
    target_period: Count = 2500  # updates between copies into the target network
    epsilon_base: Annotated[Fraction, Field(gt=0)] = 0.4  # of the first environment: acting/exploration.py
    epsilon_exponent: Exponent = 7.0  # of the last environment's, less 1
    epsilon_start: Fraction = 1.0  # of random actions, until the first update
    epsilon_end: Fraction = 0.1  # of random actions, in the end
    epsilon_frames: Frames = 4_000_000  # from the first update until epsilon_end
    evaluation_epsilon: Fraction = 0.001  # of evaluations; the paper's is 0.05


class R2d2Config(Model):
    """Action values with a core, learned from sequences: agents/r2d2.py. These defaults are those of SEED RL's; a
    sequence has `burn_in` and `learner.unroll_length` transitions, and network.core: none leaves the core out."""

    name: Literal["r2d2"] = "r2d2"  # or package.module:name
    # Burn-in may be longer than what is trained on, and than an episode: it comes before that, not out of it, and
    # sequences go on across the ends of episodes. Only a sequence longer than the replay is refused.
    burn_in: Times = 40  # transitions that only bring the core up to date
    period: Count = 80  # steps between the starts of two sequences; the paper's is half of learner.unroll_length
    dueling: bool = True  # a stream for the value and one for advantages
    n_step: Annotated[int, Field(ge=1, le=1000)] = 5  # rewards before the bootstrap
    value_rescaling: bool = True  # values are learned in units of h: losses/r2d2.py
    priority_max_share: Fraction = 0.9  # η, of the largest error of a sequence in its priority; the mean has the rest
    policy_epsilon: Fraction = 0.0  # of the policy whose values a correction other than n_step learns; 0 is greedy
    target_period: Count = 2500  # updates between copies into the target network
    epsilon_base: Annotated[Fraction, Field(gt=0)] = 0.4  # of the first environment: acting/exploration.py
    epsilon_exponent: Exponent = 7.0  # of the last environment's, less 1
    evaluation_epsilon: Fraction = 0.001  # of evaluations


class QUnrollsConfig(Model):
    """Action values learned from a queue's unrolls: agents/q_unrolls.py. `loss.correction` says by what scheme."""

    name: Literal["q_unrolls"] = "q_unrolls"  # or package.module:name
    dueling: bool = False  # a stream for the value and one for advantages
    n_step: Annotated[int, Field(ge=1, le=1000)] = 5  # rewards before the bootstrap; of the correction n_step
    value_rescaling: bool = False  # values are learned in units of h: losses/r2d2.py
    policy_epsilon: Fraction = 0.0  # of the policy whose values a correction other than n_step learns; 0 is greedy
    target_period: Count = 100  # updates between copies into the target network
    epsilon_base: Annotated[Fraction, Field(gt=0)] = 0.4  # of the first environment: acting/exploration.py
    epsilon_exponent: Exponent = 7.0  # of the last environment's, less 1
    evaluation_epsilon: Fraction = 0.001  # of evaluations


class DpgConfig(Model):
    """A deterministic policy and the value of its actions: agents/dpg.py. The defaults are those of Ape-X DPG."""

    name: Literal["dpg"] = "dpg"  # or package.module:name
    n_step: Annotated[int, Field(ge=1, le=1000)] = 5  # rewards before the bootstrap
    target_period: Count = 100  # updates between copies into the target networks
    noise: NonNegative = 0.3  # σ of what is added to an action in training; actions lie in [−1, 1]
    action_gradient_clip: Positive = 1.0  # of each element of ∂Q/∂a
    policy_sizes: Sizes = (300, 200)  # hidden layers
    value_sizes: Annotated[Sizes, Field(min_length=1)] = (400, 300)  # hidden layers; the action enters after the first


class PpoConfig(Model):
    """A policy and a value, trained several times on what was just played: agents/ppo.py. The defaults of the clip are
    those of OpenAI's Baselines, but for `value_clip`; `loss.correction` is `clip` or `penalty`, `loss.lambda` the
    advantages' λ."""

    name: Literal["ppo"] = "ppo"  # or package.module:name
    num_epochs: Times = 4  # M, passes over the unrolls of an iteration
    num_value_epochs: Times = 0  # B, further ones for the values alone; the M are for the policy alone then
    num_minibatches: Size = 4  # of a pass
    normalise_advantages: Literal["minibatch", "iteration", "none"] = "minibatch"
    value_clip: bool = False  # values may not move further than surrogate_clip from the old ones
    clip_schedule: Schedule = "constant"  # of surrogate_clip, as the learning rate's
    kl_target: Positive = 0.01  # of the policy's updates in an iteration; penalty
    kl_beta: Positive = 1.0  # β of the penalty at the start
    kl_tolerance: Annotated[Float32, Field(ge=1, le=100)] = 1.5  # β changes where the KL is off its target by that
    kl_factor: Annotated[Float32, Field(gt=1, le=100)] = 2.0  # by which β changes
    kl_hinge: NonNegative = 0.0  # ξ, of max(0, KL − 2 kl_target)²; Heess et al. (2017) have 1000
    normalise_observations: bool = False  # by running mean and deviation, of vectors
    scale_rewards: bool = False  # by the running deviation of discounted returns
    separate_networks: bool = False  # policy and value share no weights: networks/separate.py


class OwnAgentConfig(pydantic.BaseModel):
    """An agent of the user's own: `agents/__init__.py` says what it has. Any further keys are its settings."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow", strict=True)
    name: str


def _kind_of_agent(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "own" if own.is_own(name) else str(name)


AgentConfig = Annotated[
    Annotated[ActorCriticConfig, Tag("actor_critic")]
    | Annotated[QLearningConfig, Tag("q_learning")]
    | Annotated[R2d2Config, Tag("r2d2")]
    | Annotated[QUnrollsConfig, Tag("q_unrolls")]
    | Annotated[DpgConfig, Tag("dpg")]
    | Annotated[PpoConfig, Tag("ppo")]
    | Annotated[OwnAgentConfig, Tag("own")],
    Discriminator(_kind_of_agent),
]


class LossConfig(Model):
    """A scheme uses some of these parameters; its file says which, and what they mean."""

    correction: CorrectionOrOwn = "vtrace"  # with ga3c epsilon_add; n_step … is: of action values; clip, penalty: ppo
    clip_rho: Clip = 1.0  # ρ̄
    clip_c: Clip = 1.0  # c̄
    clip_pg: Clip = 1.0  # ρ̄ of the policy gradient
    lambda_: Annotated[Fraction, Field(alias="lambda")] = 1.0  # λ, of the trace
    pg_bootstrap: Literal["target", "mixed"] = "target"  # vtrace, for λ < 1
    allow_expansion: bool = False  # allow c̄ > ρ̄
    alpha_rho: Fraction = 0.5  # leaky_vtrace
    alpha_c: Fraction = 0.5  # leaky_vtrace, too
    control_variate: bool = True  # per_decision_is
    epsilon: Positive = 1e-6  # epsilon_add, epsilon_max
    surrogate_clip: Positive = 0.2  # ppo_clip, appo, impact; clip of agent ppo
    ratio_max: Positive = 2.0  # impact
    target_period: Count = 10  # impact: updates between copies into the target network
    policy_cloning_cost: NonNegative = 0.01  # clear
    value_cloning_cost: NonNegative = 0.005  # clear
    trust_threshold: Annotated[Clip, Field(gt=0)] = 0.1  # laser; inf trusts everything
    popart: bool = False  # values normalised for each task: losses/popart.py
    popart_step: Annotated[Float32, Field(gt=0, le=1)] = 3e-4  # β of its moments, a batch: networks/popart.py
    discount: Fraction = 0.99  # γ
    baseline_cost: NonNegative = 0.5  # weight of the value loss
    entropy_cost: NonNegative = 0.01  # weight of the entropy bonus
    entropy_cost_schedule: Schedule = "constant"  # as the learning rate's
    reward_clipping: Literal["none", "abs_one", "soft_asymmetric", "soft_asymmetric_code"] = "abs_one"
    reduction: Literal["sum", "mean"] = "sum"  # over T and B (sequences of action values: over B); the paper sums

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
                "(IMPALA, Theorem 1); loss.allow_expansion forces it"
            )
        if self.correction == "leaky_vtrace" and self.alpha_rho > self.alpha_c:
            raise ValueError(
                f"alpha_rho={self.alpha_rho} > alpha_c={self.alpha_c}; leaky V-trace may expand then; "
                "loss.allow_expansion forces it"
            )
        return self


class LearnerConfig(Model):
    unroll_length: Annotated[int, Field(ge=1, le=100_000)] = 20  # T, agent steps
    batch_size: Size = 32  # B, chunks, over all learners
    num_learners: Workers = 1  # K, synchronous, each with B/K chunks of its own table; --num-learners for short
    optimizer: Literal["adam", "rmsprop", "centered_rmsprop", "adagrad"] = "adam"
    learning_rate: LearningRate = 5e-4  # at the start of the schedule
    learning_rate_schedule: Schedule = "linear"  # to 0 at learning_rate_frames; late: constant for the first half
    learning_rate_frames: Frames | None = None  # where schedules end, frames of all tasks; total_frames if not given
    epsilon: Positive = 1e-5  # of the optimizer; RMSProp adds it inside the root, as TensorFlow 1 does
    adam_beta1: Decay = 0.9  # of the mean gradient
    rmsprop_decay: Decay = 0.99  # of the mean squared gradient
    rmsprop_momentum: Decay = 0.0  # of the steps
    max_grad_norm: Annotated[Float32, Field(gt=0, le=1e12)] = 40.0  # a longer gradient is scaled down to it
    num_tensorflow_threads: Workers = 2  # of one operation
    num_parallel_operations: Workers = 1  # of an update that run at once, if none needs another's result
    max_lag: Count | None = None  # updates of policy lag; queue, prefetch and weight period follow, older is dropped
    num_prefetched_batches: Size | None = None  # that wait, each an update of lag, as one more does; of max_lag, else 1
    jit_compile: bool = False  # XLA; for GPUs, refused on a CPU (3.6 times slower there)


class InferenceConfig(Model):
    """Where one network decides for all actors: acting/inference.py."""

    transport: Literal["shared_memory", "rpc"] = "shared_memory"  # of observations; rpc: as between two hosts
    max_environments: Size = 64  # of a batch
    timeout_seconds: Seconds = 0.005  # how long a batch's first request waits for others (ga3c: none waits)
    num_at_once: Workers = 2  # batches that may be computed at the same time (ga3c: ga3c.num_predictors)


class GA3CConfig(Model):
    """The threads around the one model: programs/ga3c.py. The defaults are those of the published code."""

    num_predictors: Workers = 2  # threads, at the start
    num_trainers: Workers = 2  # threads, at the start
    num_predictions: Size = 100  # requests that may wait in the prediction queue
    adjustment_seconds: NonNegative = 20.0  # between changes of the numbers of threads and agents; 0: never


class ServerConfig(Model):
    """The parameter server, to which workers send gradients: learning/server.py."""

    num_shards: Workers = 1  # K, processes, each with some of the tensors
    max_staleness: Annotated[int, Field(ge=0, le=10**9)] | None = None  # updates; an older gradient is refused
    outlier_deviations: Positive | None = None  # of a loss from its running mean, more is refused; null: nothing is
    barrier: bool = False  # waits for the gradients of all workers and applies their sum, or mean: loss.reduction
    num_late: Times = 0  # D, workers that a barrier does not wait for; their gradients are refused
    shared_optimizer: bool = True  # one state of it for all workers; false: each its own (A3C, section 4: RMSProp)
    transport: Literal["shared_memory", "rpc"] = "shared_memory"  # of gradients; rpc: as between two hosts


class EvaluatorConfig(Model):
    """A process that plays the newest weights now and then; the best are kept in addition to the latest."""

    num_episodes: Annotated[int, Field(ge=0, le=10**6)] = 0  # of each evaluation; 0: no evaluator
    period_seconds: Seconds = 300.0  # from the start of one evaluation to the start of the next
    greedy: bool = False  # plays the best action, never a random one


class RestartsConfig(Model):
    """What dies or falls silent is started again: launching/restarts.py."""

    max_in_a_row: Times = 4  # of a node whose lives are short; 0: none, a death ends the run
    max_per_hour: Times = 60  # of all nodes; those that die together count as one


class ClusterConfig(Model):
    """Where nodes stand with --cluster: nodes/placing.py. What a node needs is Ray's to find, and to keep free."""

    actor_cpus: NonNegative = 1.0  # of a host for each, as Ray counts them
    learner_cpus: NonNegative = 1.0  # likewise
    table_cpus: NonNegative = 1.0  # likewise
    evaluator_cpus: NonNegative = 1.0  # likewise
    relay_cpus: NonNegative = 1.0  # likewise
    learner_gpus: NonNegative = 0.0  # of each learner
    actor_memory_gb: NonNegative = 0.0  # 0: not looked at
    learner_memory_gb: NonNegative = 0.0  # likewise
    table_memory_gb: NonNegative = 0.0  # likewise
    evaluator_memory_gb: NonNegative = 0.0  # likewise
    relay_memory_gb: NonNegative = 0.0  # likewise
    spread_actors: bool = False  # over as many hosts as possible, not on few
    min_actors: Count | None = None  # the run begins with so many, others join when hosts come; null: all
    wait_seconds: Seconds = 60.0  # for room, before the command ends with status 75
    shared_folder: bool = False  # the run's folder is at the same path on every host, so learner 0 may stand anywhere
    first_port: Port = 20_000  # of those that nodes listen on
    last_port: Port = 29_999  # the last of them
    trusted_network: bool = False  # hosts may have public addresses: a firewall keeps strangers from their ports


class PopulationConfig(Model):
    """Population-based training: nodes/population.py. The defaults are those of the paper."""

    size: Workers = 1  # members; 1 is no population
    burn_in_frames: Annotated[int, Field(ge=0, le=10**15)] = 20_000_000  # of a member, before it evolves
    period_episodes: Count = 5_000  # of a member, between its evolutions; at least those that its fitness is of, 100
    threshold: NonNegative = 0.05  # by how much another's fitness must exceed a member's own to be copied
    parameters: Annotated[tuple[Evolving, ...], _FromList] = ("learning_rate", "entropy_cost", "epsilon")
    spread: Annotated[Float32, Field(ge=1, le=1e6)] = 1.0  # hyper-parameters begin within this factor, log-uniformly
    factor: Annotated[Float32, Field(gt=1, le=1e3)] = 1.2  # by this or its inverse a hyper-parameter is multiplied
    probability: Fraction = 1 / 3  # with which each is multiplied, at an evolution
