"""The grid of a comparison: which schemes, on which tasks, how far off-policy, with which settings and seeds.

As in the paper, every scheme gets the same sweep of learning rate × entropy cost; its best settings are then run again
with other seeds, and only those runs count. Tasks too long for a sweep take the settings that others choose.
"""

import hashlib
import itertools
import json
import math
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import Field, model_validator

from impala import config as config_lib
from impala import own
from impala.config import ConfigError, Finite, Fraction, Frames, LearningRate, NonNegative

SWEEP, FINAL = "sweep", "final"
_WITHOUT_REPETITION = (
    "schemes", "lags", "replay_fractions", "replay_sizes", "learning_rates", "entropy_costs", "policy_epsilons",
)  # fmt: skip
Seeds = Annotated[int, Field(ge=1, le=1000)]
Setting = tuple[float, float]  # learning rate, and entropy cost or, of a Q-based scheme, ε of its policy


class TaskConfig(pydantic.BaseModel):
    """A task of the grid, whose file lies beside the grid's; `scale` are the returns that count as 0 and as 1."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)
    scale: Annotated[list[Finite], Field(min_length=2, max_length=2)]
    total_frames: Frames | None = None
    sweep: bool = True  # false: takes the settings with the best mean scaled return on the swept tasks
    num_seeds: Seeds | None = None  # the grid's if not given

    @model_validator(mode="after")
    def _check(self):
        if not self.scale[0] < self.scale[1]:
            raise ValueError(f"scale={self.scale}; expected the return that counts as 0, then a larger one, as 1")
        return self


class GridConfig(pydantic.BaseModel):
    """A comparison."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)
    tasks: Annotated[dict[str, TaskConfig], Field(min_length=1)]
    schemes: Annotated[list[str], Field(min_length=1)]  # corrections, or names of variants
    variants: dict[str, dict[str, Any]] = {}  # {vtrace_rho_2: {correction: vtrace, clip_rho: 2.0}}: keys of the loss
    lags: Annotated[list[Annotated[int, Field(ge=0, le=10**6)]], Field(min_length=1)] = [0]  # exact, in updates
    replay_fractions: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1)] = [0.0]
    replay_sizes: list[Annotated[int, Field(ge=1, le=10**8)]] = []  # chunks: how old what is replayed gets; else tasks'
    learning_rates: Annotated[list[LearningRate], Field(min_length=1)]
    entropy_costs: Annotated[list[NonNegative], Field(min_length=1)]
    policy_epsilons: list[Fraction] = [0.0]  # of a Q-based scheme in place of entropy costs: ε of the policy it values
    q_agent: dict[str, Any] = {}  # settings of agents.q_unrolls, which learns by the Q-based schemes
    num_evaluations: Annotated[int, Field(ge=0, le=10**5)] = 0  # episodes of the last weights; their mean is the return
    num_best: Annotated[int, Field(ge=1, le=1000)] = 3  # settings of the sweep that are run again
    num_seeds: Seeds = 5  # of each of them
    num_sweep_seeds: Seeds = 1  # of each setting of the sweep; none of them is used again

    @model_validator(mode="after")
    def _check(self):
        for name in _WITHOUT_REPETITION:
            if repeated := [value for value, count in Counter(getattr(self, name)).items() if count > 1]:
                raise ValueError(f"{name}: {repeated[0]} is named twice; expected each once")
        words = [*typing.get_args(config_lib.Correction), *typing.get_args(config_lib.QCorrection)]
        for scheme in self.schemes:
            if scheme not in words and scheme not in self.variants and not own.is_own(scheme):
                raise ValueError(
                    f"schemes: {scheme!r} is neither a correction nor a variant"
                    f"{config_lib.nearest(scheme, [*words, *self.variants])}"
                )
        for name, loss in self.variants.items():
            if name in words or name not in self.schemes or "correction" not in loss:
                raise ValueError(
                    f"variants: {name!r}; expected a name of its own that `schemes` lists, and its `correction`"
                )
            if "entropy_cost" in loss:
                raise ValueError(f"variants: {name!r}: entropy_cost is what entropy_costs sets; expected it there")
        if "policy_epsilon" in self.q_agent:
            raise ValueError("q_agent: policy_epsilon is what policy_epsilons sets; expected it there")
        if q_based := [scheme for scheme in self.schemes if self.is_q_based(scheme)]:
            if not self.num_evaluations:
                raise ValueError(
                    f"num_evaluations=0: training episodes of {q_based[0]!r} explore and say less than those of a "
                    "policy; expected 1 or more, for all schemes"
                )
            if len(self.policy_epsilons) != len(self.entropy_costs):
                raise ValueError(
                    f"policy_epsilons: {len(self.policy_epsilons)} of them; expected as many as entropy_costs, "
                    f"{len(self.entropy_costs)}, so that every scheme has as many settings"
                )
        elif given := [name for name in ("q_agent", "policy_epsilons") if name in self.model_fields_set]:
            raise ValueError(f"{given[0]}: no scheme is Q-based; expected one, or nothing here")
        if self.replay_sizes and not any(self.replay_fractions):
            raise ValueError(f"replay_sizes={self.replay_sizes}: nothing is replayed; expected a replay fraction")
        if self.num_settings > 1 and not any(task.sweep for task in self.tasks.values()):
            raise ValueError(f"tasks: none is swept; expected one to choose among the {self.num_settings} settings")
        return self

    def is_q_based(self, scheme: str) -> bool:
        """Returns whether a scheme corrects action values, which another agent learns."""
        word = self.variants.get(scheme, {}).get("correction", scheme)
        return word in typing.get_args(config_lib.QCorrection)

    @property
    def num_settings(self) -> int:
        """Settings of the sweep."""
        return len(self.learning_rates) * len(self.entropy_costs)


class Condition(NamedTuple):
    """How old, or how much reused, the data are that all schemes learn from."""

    replay_fraction: float
    lag: int
    replay_size: int = 0  # the newest chunks that are drawn from; 0: as many as the task's file says

    @property
    def replay(self) -> str:
        """What is replayed, in words."""
        if not self.replay_fraction:
            return "no replay"
        newest = f" of the newest {self.replay_size:,}" if self.replay_size else ""
        return f"{100 * self.replay_fraction:.3g} % replay{newest}"

    def __str__(self) -> str:
        return f"{self.replay}, lag {self.lag}"


class Block(NamedTuple):
    """What is compared: all runs of one block differ in settings and seeds only."""

    task: str
    scheme: str
    replay_fraction: float
    lag: int
    replay_size: int = 0  # as in `Condition`


class Cell(NamedTuple):
    """One training run."""

    phase: str
    task: str
    scheme: str
    replay_fraction: float
    lag: int
    replay_size: int
    learning_rate: float
    entropy: float  # entropy cost or, of a Q-based scheme, ε of its policy: see `Setting`
    seed: int

    @property
    def block(self) -> Block:
        return Block(self.task, self.scheme, self.replay_fraction, self.lag, self.replay_size)

    def __str__(self):
        size = f" of {self.replay_size}" * bool(self.replay_size)
        return (
            f"{self.phase} {self.task} {self.scheme} replay {self.replay_fraction:g}{size} lag {self.lag} "
            f"rate {self.learning_rate:g} entropy {self.entropy:g} seed {self.seed}"
        )


def cell_of(row: Mapping[str, str]) -> Cell:
    """Returns the cell that a row of results.csv belongs to."""
    kinds = (str, str, str, float, int, int, float, float, int)
    row = {**row, "replay_size": row.get("replay_size") or "0"}  # which older rows lack
    return Cell(*(kind(row[name]) for kind, name in zip(kinds, Cell._fields)))


class Grid:
    """A validated comparison: its cells, and the configuration of each.

    Args:
      path: of the YAML file; the tasks' files lie beside it.
      overrides: of keys of `GridConfig`, and `total_frames` for every task.

    Raises:
      ConfigError: all errors at once, one line each.
    """

    def __init__(self, path: str | Path, overrides: Mapping[str, Any] = {}):
        self.path, overrides = Path(str(path)), dict(overrides)
        total_frames = overrides.pop("total_frames", None)
        content = config_lib.read_yaml(self.path)
        if "environment" in content and "schemes" not in content:
            line = f"{self.path}: is a configuration, not a grid; expected one with schemes and tasks, or impala train"
            raise ConfigError([line])
        self.config = _validated(content)
        if overrides:
            self.config = _validated(_selected(self.config, content, overrides))
        rates, grid = self.config.learning_rates, self.config
        self._settings = {
            scheme: list(itertools.product(rates, self._second_values(scheme))) for scheme in grid.schemes
        }  # fmt: skip
        errors, self._bases = [], {}
        for name, task in self.config.tasks.items():
            try:
                frames = task.total_frames if total_frames is None else total_frames
                changes = {} if frames is None else {"total_frames": frames}
                self._bases[name] = config_lib.load(self.path.parent / f"{name}.yaml", changes)
            except ConfigError as error:
                errors += error.lines
        if errors:
            raise ConfigError(dict.fromkeys(errors))
        self._blocks, specs = dict.fromkeys(self.blocks()), {}
        for block in self._blocks:
            errors += self._errors(block, specs)
        if errors:
            raise ConfigError(dict.fromkeys(errors))

    def _second_values(self, scheme: str) -> list[float]:
        """Returns the values of a setting's second number: entropy costs, or ε of a Q-based scheme's policy."""
        return self.config.policy_epsilons if self.config.is_q_based(scheme) else self.config.entropy_costs

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks, task after task."""
        for task, scheme in itertools.product(self.config.tasks, self.config.schemes):
            for condition in self.conditions():
                yield Block(task, scheme, *condition)

    def conditions(self) -> list[Condition]:
        """Returns every condition: replay fractions, their sizes, then lags. Without replay there is no size."""
        grid = self.config
        return [
            Condition(fraction, lag, size) for fraction in grid.replay_fractions
            for size in (grid.replay_sizes if fraction and grid.replay_sizes else [0]) for lag in grid.lags
        ]  # fmt: skip

    def _errors(self, block: Block, specs: dict) -> list[str]:
        """Returns what is wrong with a block; `specs` keeps what was tried out, as lags change none of it.

        Nor does replay, unless an agent of the user's own looks at it.
        """
        from impala.nodes import checking

        try:
            config = self.cell_config(Cell(SWEEP, *block, *self._settings[block.scheme][0], 0))
            checking.check_lockstep(config)
            for key, number in (
                ("population.size", config.population.size), ("learner.num_learners", config.learner.num_learners),
            ):  # fmt: skip
                if number > 1:
                    raise ConfigError([f"{key}={number}: one learner trains a cell; expected 1"])
            replay = (block.replay_fraction, block.replay_size) if own.is_own(config.agent.name) else ()
            tried = block.task, block.scheme, *replay
            if tried not in specs:
                specs[tried] = _tried(checking.check, config)
            if isinstance(specs[tried], ConfigError):
                raise specs[tried]
        except ConfigError as error:
            return [f"{block.task}, {block.scheme}: {line}" for line in error.lines]
        num_updates = config.total_frames // (specs[tried].frames_per_step * config.steps_per_update)
        if block.lag >= num_updates:
            return [
                f"lags: {block.lag} updates; expected fewer than the {num_updates} updates of a run on {block.task}"
            ]
        return []

    def has(self, cell: Cell) -> bool:
        """Returns whether the cell can be part of the grid, whatever the sweep's results."""
        if cell.block not in self._blocks or (cell.learning_rate, cell.entropy) not in self._settings[cell.scheme]:
            return False
        if cell.phase == SWEEP:
            return self._is_swept(cell.task) and cell.seed in range(self.config.num_sweep_seeds)
        return cell.seed in self._final_seeds(cell.task)

    def total_frames(self, task: str) -> int:
        """Returns how long a run on `task` is."""
        return self._bases[task].total_frames

    def num_seeds(self, task: str) -> int:
        """Returns how many runs of a setting on `task` count."""
        return self.config.tasks[task].num_seeds or self.config.num_seeds

    def scaled(self, task: str, returns):
        """Returns `returns`, a number or an array, on the scale of the task's 0 and 1."""
        low, high = self.config.tasks[task].scale
        return (returns - low) / (high - low)

    def sweep(self, block: Block) -> list[Cell]:
        """Returns the block's sweep; [] if there is only one setting, or if other tasks choose."""
        seeds = range(self.config.num_sweep_seeds) if self._is_swept(block.task) else ()
        return [Cell(SWEEP, *block, *setting, seed) for setting in self._settings[block.scheme] for seed in seeds]

    def settings(self, block: Block, returns: Mapping[Cell, float]) -> list[Setting]:
        """Returns the settings whose runs count, best first; [] before the sweep that chooses them is done.

        They have the best mean over the sweep's seeds; on a task that is not swept, over the tasks that are, scaled.
        """
        if self.config.num_settings == 1:
            return self._settings[block.scheme]
        tasks = [block.task] if self._is_swept(block.task) else filter(self._is_swept, self.config.tasks)
        sweep = [cell for task in tasks for cell in self.sweep(block._replace(task=task))]
        if any(cell not in returns for cell in sweep):
            return []
        totals = dict.fromkeys(self._settings[block.scheme], 0.0)
        for cell in sweep:
            totals[cell.learning_rate, cell.entropy] += self.scaled(cell.task, returns[cell])
        return sorted(totals, key=lambda setting: -totals[setting])[: self.config.num_best]

    def finals(self, block: Block, returns: Mapping[Cell, float]) -> list[Cell]:
        """Returns the runs that count, best setting first; [] before the sweep is done.

        The sweep's seeds are not used again: the best settings also had luck with them.
        """
        settings, seeds = self.settings(block, returns), self._final_seeds(block.task)
        return [Cell(FINAL, *block, *setting, seed) for setting in settings for seed in seeds]

    def available(self, returns: Mapping[Cell, float]) -> Iterator[Cell]:
        """Returns the cells that can be run and are not done."""
        return (cell for cell in self.cells(returns) if cell not in returns)

    def at_edge(self, scheme: str, setting: Setting) -> list[bool]:
        """Returns whether each of a setting's two numbers is the least or the largest of a scheme's sweep."""
        ranges = (self.config.learning_rates, self._second_values(scheme))
        return [len(values) > 1 and x in (min(values), max(values)) for x, values in zip(setting, ranges)]

    @property
    def num_cells(self) -> int:
        """Cells of the whole grid."""
        return sum(self._num_cells(task) for task in self.config.tasks)

    @property
    def num_frames(self) -> int:
        """Frames of all cells."""
        return sum(self._num_cells(task) * self.total_frames(task) for task in self.config.tasks)

    @property
    def num_best(self) -> int:
        """Settings of a block whose runs count."""
        return min(self.config.num_best, self.config.num_settings)

    def _num_cells(self, task: str) -> int:
        blocks = [block for block in self._blocks if block.task == task]
        return len(blocks) * (len(self.sweep(blocks[0])) + self.num_best * self.num_seeds(task))

    def _is_swept(self, task: str) -> bool:
        return self.config.num_settings > 1 and self.config.tasks[task].sweep

    def _final_seeds(self, task: str) -> range:
        first = self.config.num_sweep_seeds
        return range(first, first + self.num_seeds(task))

    def cell_config(self, cell: Cell) -> config_lib.Config:
        """Returns the training configuration of a cell."""
        data, variant = config_lib.as_data(self._bases[cell.task]), self.config.variants.get(cell.scheme, {})
        overrides = {
            "replay.fraction": cell.replay_fraction, **({"replay.size": cell.replay_size} if cell.replay_size else {}),
            "seed": cell.seed, "learner.learning_rate": cell.learning_rate,
            "loss.correction": cell.scheme, **{f"loss.{key}": value for key, value in variant.items()},
        }  # fmt: skip
        if not self.config.is_q_based(cell.scheme):
            return config_lib.build(data, overrides | {"loss.entropy_cost": cell.entropy})
        shared = ("discount", "reward_clipping", "reduction", "lambda")  # with the actor-critic's loss
        data["loss"] = {key: data["loss"][key] for key in shared}
        data.pop("population", None)  # of other agents than an actor-critic
        data["agent"] = {"name": "q_unrolls", **self.config.q_agent, "policy_epsilon": cell.entropy}
        return config_lib.build(data, overrides)

    def digest(self, cell: Cell) -> str:
        """Returns a digest of what a cell is trained with.

        Defaults are left out, so that a key added later changes no digest. A default that is changed changes none
        either: therefore rows name the commit that trained them, and the report lists the commits. Of parts of one's
        own the digest has the hash.
        """
        config = self.cell_config(cell)
        settings = {"lag": cell.lag} | config.model_dump(mode="json", exclude_defaults=True)
        if words := [word for _, word in config.own_words]:
            settings |= {"own": {word: _hash_of(word) for word in words}}
        if self.config.num_evaluations:
            settings |= {"num_evaluations": self.config.num_evaluations}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]

    def own_hashes(self) -> dict[str, str]:
        """Returns the hash of every part of one's own in the grid, by its word."""
        words = {word for base in self._bases.values() for _, word in base.own_words}
        corrections = [*self.config.schemes, *(loss["correction"] for loss in self.config.variants.values())]
        return {word: _hash_of(word) for word in sorted(words | set(filter(own.is_own, corrections)))}

    def score(self, cell: Cell, row: Mapping[str, str]) -> float:
        """Returns what a row counts as: its return; the task's 0 if no episode ended; at most that if it diverged."""
        value, zero = float(row["return"]), self.config.tasks[cell.task].scale[0]
        if not math.isfinite(value):
            return zero
        return value if row["status"] == "done" else min(value, zero)

    def cells(self, returns: Mapping[Cell, float]) -> Iterator[Cell]:
        """Yields the cells that are part of the grid as far as `returns` tell, task after task."""
        for block in self.blocks():
            yield from self.sweep(block)
            yield from self.finals(block, returns)


def _selected(config: GridConfig, content: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a grid's content with `keys` in it, without what belongs to schemes or replay that they leave out."""
    content, unused = {**content, **keys}, set()
    if isinstance(schemes := keys.get("schemes"), list):
        content["variants"] = {name: loss for name, loss in content.get("variants", {}).items() if name in schemes}
        if not any(config.is_q_based(str(scheme)) for scheme in schemes):
            unused |= {"q_agent", "policy_epsilons"}
    if isinstance(fractions := keys.get("replay_fractions"), list) and not any(fractions):
        unused.add("replay_sizes")
    return {name: value for name, value in content.items() if name not in unused or name in keys}


def _tried(check: Callable, config: config_lib.Config):
    """Returns what `check` returns or, if it refuses, the error: to try a part out takes seconds."""
    try:
        return check(config)
    except ConfigError as error:
        return error


def _hash_of(word: str) -> str:
    return own.file_and_hash(word).rpartition(" ")[2]  # without the file, which lies elsewhere on another machine


def _validated(data: Mapping[str, Any]) -> GridConfig:
    try:
        return GridConfig.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError([config_lib.describe(e, GridConfig.model_fields) for e in error.errors()]) from None
