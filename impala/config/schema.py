"""A whole configuration, and what must agree between its sections."""

import math
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from impala import own
from impala.config import uses
from impala.config.sections import (
    CORRECTIONS_OF,
    OWN_CORRECTIONS,
    ActorConfig,
    ActorCriticConfig,
    AgentConfig,
    ClusterConfig,
    EnvironmentConfig,
    EvaluatorConfig,
    Finite,
    Frames,
    GA3CConfig,
    InferenceConfig,
    LearnerConfig,
    LossConfig,
    Model,
    NetworkConfig,
    PopulationConfig,
    Positive,
    PpoConfig,
    QUnrollsConfig,
    R2d2Config,
    ReplayConfig,
    RestartsConfig,
    Seconds,
    ServerConfig,
    Size,
)

Program = Literal["impala", "seed", "ga3c", "dqn", "apex", "a3c", "dppo", "gorila"]
_APART = 1_000_003  # between the seeds of a population's members
Patience = Annotated[float, Field(ge=10, le=1e9)]  # seconds; a node at work may be silent for some


DEFAULTS_OF = {  # by program, or pair of program and agent
    "impala": {},
    "impala+q_unrolls": {"loss": {"correction": "retrace"}},  # for the pair, added to the program's
    "seed": {},
    "ga3c": {"loss": {"correction": "epsilon_add"}},
    "dqn": {"replay": {"size": 1_000_000}, "loss": {"correction": "n_step"}},
    "apex": {
        "agent": {"double": True, "dueling": True, "n_step": 3, "error": "squared"},
        "replay": {"size": 2_000_000, "samples_per_insert": None},
        "loss": {"correction": "n_step"},
    },
    "apex+dpg": {"loss": {"correction": "n_step", "reward_clipping": "none"}},
    "a3c": {"loss": {"correction": "none"}},
    "gorila": {
        "server": {"max_staleness": 100, "outlier_deviations": 4.0}, "loss": {"correction": "n_step"},
        "learner": {"optimizer": "adagrad"}, "replay": {"size": 1_000_000},
    },
    "seed+r2d2": {
        "replay": {"size": 1_000_000, "samples_per_insert": 0.75, "priority_exponent": 0.9, "importance_exponent": 0.6},
        "loss": {"correction": "n_step", "discount": 0.997, "reward_clipping": "none", "reduction": "mean"},
        "learner": {"unroll_length": 80, "learning_rate": 1e-4, "learning_rate_schedule": "constant", "epsilon": 1e-3},
        "network": {"core": "lstm"},
    },
    "dppo": {
        "server": {"barrier": True}, "loss": {"correction": "clip", "lambda": 0.95, "reduction": "mean"},
        "learner": {"max_grad_norm": 0.5},
    },
}


class Window(NamedTuple):
    """Steps from the beginning of a window to that of the next, and transitions that one draw of it trains on."""

    fresh: int
    trained: int


class Config(Model):
    """A training run of one program."""

    program: Program = "impala"  # who does what: programs/
    environment: EnvironmentConfig
    agent: AgentConfig = ActorCriticConfig()  # what is learned: agents/
    network: NetworkConfig = NetworkConfig()
    actor: ActorConfig = ActorConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    inference: InferenceConfig = InferenceConfig()
    ga3c: GA3CConfig = GA3CConfig()
    server: ServerConfig = ServerConfig()
    loss: LossConfig = LossConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    population: PopulationConfig = PopulationConfig()
    restarts: RestartsConfig = RestartsConfig()
    cluster: ClusterConfig = ClusterConfig()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0  # of weights, environments and random actions
    total_frames: Frames = 10_000_000  # emulator frames of fresh transitions trained on; played, with replay alone
    target_return: Finite | None = None  # ends the run when the last 100 episodes' mean reaches it
    checkpoint_period_seconds: Seconds = 60.0  # the most that a death of the learner costs
    num_checkpoints: Size = 3  # kept
    unsaved_seconds: Patience = 10_800.0  # a run whose checkpoints fail for so long ends
    log_period_seconds: Seconds = 5.0  # between rows of metrics.csv
    liveness_seconds: Patience = 300.0  # a node that is silent for so long is started again
    memory_growth: Positive = 1.0  # of a node, as a share of its memory at the start; more causes a notice
    record_chunks: Annotated[int, Field(ge=0, le=10**6)] = 0  # how many of the first chunks to keep in the run folder

    @model_validator(mode="wrap")
    @classmethod
    def _with_defaults_of_the_program(cls, data, build):
        """Fills in defaults that depend on the program; such keys do not count as set."""
        program = data.get("program", "impala") if isinstance(data, dict) else None
        if not isinstance(program, str) or program not in DEFAULTS_OF:
            return build(data)
        agents, agent = uses.AGENTS[program], data.get("agent")
        if isinstance(agent, dict) and agent.get("name") in [name for name in uses.ALL_AGENTS if name not in agents]:
            expected = " or ".join(agents)
            raise ValueError(f"agent.name={agent['name']!r}: not with program={program}; expected {expected}")
        pair = f"{program}+{agent.get('name')}" if isinstance(agent, dict) else ""
        defaults = {"agent": {}} | DEFAULTS_OF[program] | DEFAULTS_OF.get(pair, {})
        if not isinstance(agent, dict) or agent.get("name", agents[0]) == agents[0]:
            defaults["agent"] = {"name": agents[0]} | defaults["agent"]
        else:  # another agent has its own defaults
            defaults["agent"] = {}
        sections = {name: data.get(name, {}) for name in defaults}
        if not all(isinstance(section, dict) for section in sections.values()):
            return build(data)
        config = build(data | {name: defaults[name] | section for name, section in sections.items()})
        for name, section in sections.items():
            getattr(config, name).model_fields_set.difference_update(defaults[name].keys() - section.keys())
            if name not in data:
                config.model_fields_set.discard(name)
        return config

    @model_validator(mode="after")
    def _check(self):
        self._check_uses()
        self._check_places()
        batch_size, replay = self.learner.batch_size, self.replay
        num_tasks, num_lanes = len(self.environment.tasks), self.actor.num_actors * self.actor.num_lanes
        if num_lanes % num_tasks:
            raise ValueError(
                f"actor.num_lanes={self.actor.num_lanes}: {num_lanes} lanes of all actors cannot be divided evenly "
                f"among {num_tasks} tasks; expected a multiple of {num_tasks}"
            )
        if self.target_return is not None and num_tasks > 1:
            raise ValueError(
                f"target_return={self.target_return}: a mean return over several tasks says little; expected null"
            )
        num_replayed = replay.fraction * batch_size
        is_whole = abs(num_replayed - round(num_replayed)) <= 1e-6
        if not is_whole or not self.num_fresh or (replay.fraction and not self.num_replayed):
            raise ValueError(
                f"replay.fraction={replay.fraction} of learner.batch_size={batch_size} is {num_replayed:g} chunks; "
                "expected a whole number that leaves room for fresh ones"
            )
        explores = self.agent.name in uses.EXPLORING or self.replays_alone
        if explores and self.target_return is not None and not self.evaluator.num_episodes:
            raise ValueError(
                f"target_return={self.target_return}: episodes of an agent that explores say little; expected "
                "evaluator.num_episodes above 0, whose mean it is compared with, or null"
            )
        if self.replays_alone:
            self._check_replay()
            return self
        if self.has_use_for("server.barrier"):
            self._check_server()
            return self
        if self.program in ("seed", "ga3c"):
            self._check_central_inference()
        if isinstance(self.agent, QUnrollsConfig) and self.loss.correction == "n_step":
            self._check_n_step("unroll")
        if self.learner.num_learners > 1:
            self._check_several_learners()
        max_lag = self.learner.max_lag
        if max_lag is not None and max_lag < self._least_lag:
            environments = self.actor.num_actors * self.actor.num_environments
            raise ValueError(
                f"learner.max_lag={max_lag}: {environments} environments whose chunks make batches of {self.num_fresh} "
                f"imply up to {self._least_lag} updates of lag already; expected that or more, fewer environments, or "
                "a larger batch"
            )
        if self.num_fresh > self.queue_size:
            raise ValueError(
                f"learner.batch_size={batch_size} > replay.queue_size={replay.queue_size}; "
                "a batch larger than the queue would never fill"
            )
        return self

    def _check_places(self) -> None:
        """Refuses ports that are no range, relays without actors, and a beginning with too few actors to train."""
        least, num_learners = self.cluster.min_actors, self.learner.num_learners
        if least is not None and self.has_parameter_server and self.server.barrier:
            if least < (num_awaited := self.population.size * (self.actor.num_actors - self.server.num_late)):
                raise ValueError(
                    f"cluster.min_actors={least}: with server.barrier an update awaits gradients of {num_awaited}"
                    " workers, so that fewer would train nothing; expected that or more, or null"
                )
        elif least is not None and least * (1 if self.program == "ga3c" else self.actor.num_lanes) < num_learners:
            raise ValueError(
                f"cluster.min_actors={least}: of the {num_learners} learners, which train in step, some would have no "
                "chunks; expected more, or null"
            )
        if self.cluster.first_port > self.cluster.last_port:
            raise ValueError(
                f"cluster.first_port={self.cluster.first_port} > cluster.last_port={self.cluster.last_port}; "
                "expected a range of ports"
            )
        if self.actor.num_relays > self.actor.num_actors:
            raise ValueError(
                f"actor.num_relays={self.actor.num_relays}: more than the {self.actor.num_actors} actors that they "
                "pass weights on to; expected as many or fewer"
            )

    def _check_uses(self) -> None:
        """Refuses values for keys that program and agent do not use."""
        for leaf in uses.leaves(self):
            is_other = leaf.value != leaf.default
            expected = "null" if leaf.default is None else leaf.default
            agent = self.agent.name
            if is_other and not uses.is_of_program(leaf.key, self.program, agent):
                others = [name for name in uses.AGENTS[self.program] if name != agent]
                is_of_other = any(uses.is_of_program(leaf.key, self.program, other) for other in others)
                pair = f"program={self.program}" + (f" and agent.name={agent}" if is_of_other else "")
                raise ValueError(f"{leaf.key}={leaf.value}: not with {pair}; expected {expected}")
            words = CORRECTIONS_OF.get(agent, (leaf.value,))
            is_own = own.is_own(str(leaf.value)) and agent in OWN_CORRECTIONS
            if leaf.key == "loss.correction" and leaf.value not in words and not is_own:
                raise ValueError(
                    f"loss.correction={leaf.value}: not with agent.name={agent}; expected {', '.join(words)}"
                )
            if (is_other or leaf.is_set) and not uses.is_of_agent(leaf.key, agent):
                raise ValueError(f"{leaf.key}={leaf.value}: not with agent.name={agent}; expected no such key")

    def has_use_for(self, key: str) -> bool:
        """Returns whether this program with this agent uses a dotted key."""
        agent = self.agent.name
        return uses.is_of_program(key, self.program, agent) and uses.is_of_agent(key, agent)

    @property
    def own_parts(self) -> dict[str, str]:
        """The user's own parts, except environments: {key: `package.module:name`}."""
        words = {
            "network.torso": self.network.torso, "loss.correction": self.loss.correction, "agent.name": self.agent.name,
        }  # fmt: skip
        return {key: word for key, word in words.items() if own.is_own(word)}

    @property
    def own_correction_is_of(self) -> str | None:
        """Whether a correction of the user's own gets "values" or "action values"; None: its own agent says what."""
        return OWN_CORRECTIONS.get(self.agent.name)

    @property
    def own_words(self) -> list[tuple[str, str]]:
        """All that names a module of the user's, environments as well as `own_parts`: (key, `package.module:name`)."""
        tasks = [name for name in self.environment.tasks if ":" in name and not name.startswith(("atari:", "minatar:"))]
        return [("environment.name", name) for name in tasks] + list(self.own_parts.items())

    @property
    def replays_alone(self) -> bool:
        """Whether all training data comes from a replay table, as windows that share their steps."""
        return self.has_use_for("replay.min_size")

    @property
    def num_steps_before_learning(self) -> int:
        """Steps that all actors play before the first update; a bundle with a replay of its own fills it alone."""
        return self.replay.min_size * (1 if self.has_replay_table else self.actor.num_actors)

    @property
    def has_replay_table(self) -> bool:
        """Whether all training data comes from a replay in a process of its own, not from one in each worker."""
        return self.replays_alone and not self.replays_in_workers

    @property
    def replays_in_workers(self) -> bool:
        """Whether each worker has a replay of its own."""
        return self.has_use_for("replay.shared") and not self.replay.shared

    @property
    def has_parameter_server(self) -> bool:
        """Whether workers send gradients to a parameter server."""
        return self.has_use_for("server.num_shards")

    @property
    def has_central_inference(self) -> bool:
        """Whether one network decides for all actors, or one for each learner."""
        return self.has_use_for("inference.transport")

    @property
    def has_central_decisions(self) -> bool:
        """Whether that network's process also chooses the actions and keeps what is played; else it only predicts."""
        return self.has_use_for("inference.num_at_once")

    @property
    def window(self) -> "Window":
        """What a window of a replay table stands for: one step of play or, if it is a sequence, several."""
        if isinstance(self.agent, R2d2Config):
            return Window(self.agent.period, self.learner.unroll_length)
        return Window(1, 1)

    def _check_replay(self) -> None:
        """Refuses what programs whose batches all come from a replay table cannot do."""
        replay, batch_size = self.replay, self.learner.batch_size
        if self.program == "dqn" and self.actor.num_actors > 1:
            raise ValueError(
                f"actor.num_actors={self.actor.num_actors}: program=dqn acts and learns in one process; expected 1, or "
                "program=apex"
            )
        num_learners, num_lanes = self.learner.num_learners, self.actor.num_actors * self.actor.num_lanes
        if self.program == "dqn" and num_learners > 1:
            raise ValueError(f"learner.num_learners={num_learners}: program=dqn has one learner; expected 1")
        if batch_size % num_learners:
            raise ValueError(
                f"learner.num_learners={num_learners} does not divide learner.batch_size={batch_size}; expected a "
                "divisor"
            )
        if self.program in ("dqn", "gorila") and replay.samples_per_insert is None:
            raise ValueError(
                f"replay.samples_per_insert=null: one process acts and learns with program={self.program}; expected a "
                "number"
            )
        if num_lanes < num_learners:
            raise ValueError(
                f"learner.num_learners={num_learners}: more than the {num_lanes} lanes of all actors, each of which "
                "fills one learner's table; expected a larger actor.num_actors or actor.num_lanes"
            )
        if self.program == "apex" and num_learners > 1 and self.actor.num_lanes > 1 and replay.samples_per_insert:
            raise ValueError(
                f"actor.num_lanes={self.actor.num_lanes}: with replay.samples_per_insert={replay.samples_per_insert:g} "
                f"and learner.num_learners={num_learners} an actor that fills two learners' tables would wait for one "
                "while the other waits for it; expected 1, or samples_per_insert null"
            )
        shares_lanes = num_learners > 1 and self.actor.num_lanes > 1 and replay.samples_per_insert
        if self.program == "seed" and shares_lanes and replay.checkpoint_minutes:
            raise ValueError(
                f"replay.checkpoint_minutes={replay.checkpoint_minutes:g}: with actor.num_lanes={self.actor.num_lanes} "
                f"and learner.num_learners={num_learners} an actor would wait for a table that came back full, while "
                "one that came back empty waits for it; expected null, or actor.num_lanes=1"
            )
        if len(self.environment.tasks) > 1:
            raise ValueError(
                f"environment.name={list(self.environment.tasks)}: program={self.program} plays one; expected a name"
            )
        if replay.min_size > replay.size:
            raise ValueError(
                f"replay.min_size={replay.min_size} > replay.size={replay.size}; the table would never hold "
                "so many, and training would never begin"
            )
        self._check_windows()

    def _check_windows(self) -> None:
        agent, unroll_length, (fresh, _) = self.agent, self.learner.unroll_length, self.window
        batch = f"learner.batch_size={self.learner.batch_size}"
        if self.learner.batch_size * fresh > self.replay.min_size:
            sequences = f" sequences, one for every {fresh} steps," if fresh > 1 else ""
            raise ValueError(
                f"{batch}{sequences} > replay.min_size={self.replay.min_size}; expected at least a batch there"
            )
        if not isinstance(agent, R2d2Config):
            return
        self._check_central_inference()
        if agent.period > unroll_length:
            raise ValueError(
                f"agent.period={agent.period} > learner.unroll_length={unroll_length}: some steps would never be "
                "learned; expected less"
            )
        if self.loss.correction == "n_step":
            self._check_n_step("sequence")
        if unroll_length < 3 and self.learner.num_learners > 1 and self.replay.samples_per_insert:
            raise ValueError(
                f"learner.unroll_length={unroll_length}: one with a reset can be without a transition, and is left "
                "out; so several learners' tables would fill unequally and wait for each other; expected 3 or more, or "
                "learner.num_learners=1"
            )
        if agent.burn_in + unroll_length > self.replay.size:
            raise ValueError(
                f"agent.burn_in={agent.burn_in}: with learner.unroll_length={unroll_length} a sequence has more steps "
                f"than replay.size={self.replay.size}; expected a shorter one, or a larger table"
            )

    def _check_n_step(self, what: str) -> None:
        n_step, unroll_length = self.agent.n_step, self.learner.unroll_length
        if n_step > unroll_length:
            raise ValueError(
                f"agent.n_step={n_step} > learner.unroll_length={unroll_length}: no {what} has so many rewards; "
                "expected less"
            )

    def _check_several_learners(self) -> None:
        num_learners, batch_size = self.learner.num_learners, self.learner.batch_size
        if batch_size % num_learners or self.num_replayed % num_learners:
            what = f"{batch_size} chunks" + (f", {self.num_replayed} of them replayed," if self.num_replayed else "")
            raise ValueError(
                f"learner.num_learners={num_learners} does not divide learner.batch_size: {what} cannot be shared "
                "equally; expected a divisor"
            )
        if self.loss.correction == "weighted_is":
            raise ValueError(
                f"learner.num_learners={num_learners}: weighted_is compares the chunks of a whole batch, of which each "
                "learner has a share; expected another loss.correction, or 1 learner"
            )

    def _check_server(self) -> None:
        """Refuses what workers that send gradients cannot do."""
        num_environments, batch_size, word = self.actor.num_environments, self.learner.batch_size, self.loss.correction
        if num_environments != batch_size:
            raise ValueError(
                f"learner.batch_size={batch_size}: with program={self.program} a worker's gradient is of one chunk of "
                f"each of its environments; expected actor.num_environments, {num_environments}"
            )
        if self.program == "dppo":
            self._check_iterations()
        if self.server.num_late >= (self.actor.num_actors if self.server.barrier else 1):
            fewer = f"less than the {self.actor.num_actors} workers"
            expected = fewer if self.server.barrier else "0 without a barrier"
            raise ValueError(f"server.num_late={self.server.num_late}; expected {expected}")
        if self.server.barrier and self.server.max_staleness is not None:
            raise ValueError(
                f"server.max_staleness={self.server.max_staleness}: with server.barrier none is stale; expected null"
            )
        if self.server.barrier and not self.server.shared_optimizer:
            raise ValueError(
                "server.shared_optimizer=False: with server.barrier an update is of all workers' gradients; "
                "expected true"
            )
        if self.server.barrier and self.actor.num_actors > 1 and word == "weighted_is":
            raise ValueError(
                f"server.barrier=True: weighted_is compares the chunks of a whole batch, of which each of the "
                f"{self.actor.num_actors} workers has a share; expected another loss.correction, or 1 worker"
            )
        if word in ("impact", "clear", "laser"):
            raise ValueError(
                f"loss.correction={word}: not with program={self.program}, whose workers send gradients: "
                f"{'there is no target network' if word == 'impact' else 'no trajectory is replayed'}; expected another"
            )
        if self.loss.popart:
            raise ValueError(
                f"loss.popart=True: not with program={self.program}, whose server holds no statistics of values; "
                "expected false"
            )

    def _check_iterations(self) -> None:
        """Refuses settings that PPO's synchronous iterations cannot have."""
        agent = self.agent
        if not self.server.barrier:
            raise ValueError("server.barrier=False: with program=dppo all workers' gradients make one; expected true")
        if isinstance(agent, PpoConfig):
            has_core, num = self.network.core != "none", self.learner.batch_size
            num, what = (num, "unrolls") if has_core else (num * self.learner.unroll_length, "transitions")
            if num % agent.num_minibatches:
                raise ValueError(
                    f"agent.num_minibatches={agent.num_minibatches} does not divide a worker's {num} {what} of an "
                    "iteration; expected a divisor"
                )
            if not agent.num_epochs:
                raise ValueError("agent.num_epochs=0; expected 1 or more")
            if agent.separate_networks and has_core:
                raise ValueError("agent.separate_networks=True: not with a network.core; expected false")

    def _check_central_inference(self) -> None:
        """Refuses what central inference, in one process or one for each learner, cannot do."""
        is_ga3c, num_learners = self.program == "ga3c", self.learner.num_learners
        num_shared = self.actor.num_actors * (1 if is_ga3c else self.actor.num_lanes)
        if num_shared < num_learners:
            raise ValueError(
                f"learner.num_learners={num_learners}: more than the {num_shared} {'agents' if is_ga3c else 'lanes'} "
                f"that program={self.program} shares out among them; expected a larger actor.num_actors"
            )
        num_lanes = self.actor.num_lanes
        if not is_ga3c and num_lanes % num_learners and num_learners % num_lanes:
            raise ValueError(
                f"actor.num_lanes={num_lanes}: an actor whose lanes cannot be shared out equally among "
                f"learner.num_learners={num_learners} would wait for one of them while another waits for it; expected "
                "a multiple or a divisor of that"
            )
        num_lane = self.actor.num_lane_environments
        if self.inference.max_environments < num_lane:
            raise ValueError(
                f"inference.max_environments={self.inference.max_environments}: a lane asks for {num_lane} "
                "environments at once; expected that or more"
            )

    def member(self, index: int) -> "Config":
        """Returns the configuration of a member of the population, which has its own seed.

        Those of populations with neighbouring seeds, which are meant to be independent, have none in common.
        """
        return self.model_copy(update={"seed": (self.seed + index * _APART) % 2**31})

    def member_name(self, index: int) -> str:
        """Returns the name of a member's folder in the run's."""
        return f"member_{index}"

    def task_of(self, actor: int, lane: int) -> int:
        """Returns the index of the task that a lane plays; every task gets the same number of lanes."""
        return (actor * self.actor.num_lanes + lane) % len(self.environment.tasks)

    @property
    def num_replayed(self) -> int:
        """Chunks of each batch that come from replay."""
        return round(self.replay.fraction * self.learner.batch_size)

    @property
    def num_fresh(self) -> int:
        """Chunks of each batch that come from the queue."""
        return self.learner.batch_size - self.num_replayed

    # --- the policy lag: of `learner.max_lag`, the queue gets what weight period and prefetched batches leave ---

    @property
    def implied_lag(self) -> int:
        """The policy lag in updates even if the queue is empty: all chunks made with one version arrive at once."""
        return self._lag(self.weight_period, self.num_prefetched_batches)

    @property
    def weight_period(self) -> int:
        """Unrolls from an actor's fetch of weights to its next: as configured, or to use up to half of the lag left."""
        if self.actor.weight_period or self.program != "impala":
            return self.actor.weight_period or 1
        return 1 + int(self._lag_left / 2 / self._batches_per_unroll)

    @property
    def num_prefetched_batches(self) -> int:
        """Batches between feeder and training thread: as configured, or 1, plus 1 for every 16 updates of lag left."""
        return self.learner.num_prefetched_batches or 1 + self._lag_left // 16

    @property
    def queue_size(self) -> int:
        """Size of the queue in chunks: as configured, or what `learner.max_lag` leaves for it, at least a batch."""
        if self.learner.max_lag is None:
            return self.replay.queue_size
        return self.num_fresh * max(1, self.learner.max_lag - self.implied_lag)

    @property
    def queue_size_each(self) -> int:
        """Chunks that may wait for one learner, its share of the queue."""
        return math.ceil(self.queue_size / self.learner.num_learners)

    @property
    def replay_size_each(self) -> int:
        """Chunks that one learner's replay keeps, its share of all."""
        return math.ceil(self.replay.size / self.learner.num_learners)

    @property
    def _batches_per_unroll(self) -> float:
        """Batches of fresh chunks that an unroll of every environment makes."""
        return self.actor.num_actors * self.actor.num_environments / self.num_fresh

    @property
    def _least_lag(self) -> int:
        return self._lag(self.actor.weight_period or 1, self.learner.num_prefetched_batches or 1)

    @property
    def _lag_left(self) -> int:
        return max(0, (self.learner.max_lag or 0) - self._least_lag)

    def _lag(self, weight_period: int, num_prefetched_batches: int) -> int:
        """Counts the updates made on earlier unrolls while an unroll is played, then on its own batches."""
        return max(1, math.ceil((weight_period + 1) * self._batches_per_unroll) - 1 + num_prefetched_batches)

    @property
    def steps_per_update(self) -> float:
        """Fresh agent steps of a batch; if all is replayed, steps played for each update on average.

        Without `replay.samples_per_insert`, each transition counts as drawn once.
        """
        if self.replays_alone:
            return self.learner.batch_size * self.window.trained / (self.replay.samples_per_insert or 1.0)
        steps = self.learner.unroll_length * self.num_fresh
        if isinstance(self.agent, PpoConfig):
            steps /= (self.agent.num_epochs + self.agent.num_value_epochs) * self.agent.num_minibatches
        return steps


MAY_CHANGE_ON_RESUME = frozenset({
    "total_frames", "target_return", "checkpoint_period_seconds", "num_checkpoints", "unsaved_seconds",
    "log_period_seconds", "liveness_seconds", "memory_growth", "record_chunks", "evaluator.num_episodes",
    "evaluator.period_seconds", "evaluator.greedy", "learner.learning_rate", "learner.learning_rate_schedule",
    "learner.learning_rate_frames", "learner.num_tensorflow_threads", "learner.num_parallel_operations",
    "network.bfloat16", "actor.num_tensorflow_threads", "actor.niceness", "actor.num_relays", "inference.transport",
    "server.transport", "server.num_shards", "restarts.max_in_a_row", "restarts.max_per_hour",
    "population.burn_in_frames", "population.period_episodes", "population.threshold", "population.factor",
    "population.probability",
    *(f"cluster.{name}" for name in ClusterConfig.model_fields),
})  # fmt: skip
