"""The grid of a comparison: which schemes, on which tasks, how far off-policy, with which settings and seeds.

The paper's way: every scheme gets the same sweep of learning rate × entropy cost with one seed; its best settings are
then run with seeds of their own, and those are what counts.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import Field

from impala import config as config_lib
from impala.config import ConfigError, Count, NonNegative, Positive

SWEEP, FINAL = "sweep", "final"


class TaskConfig(pydantic.BaseModel):
    """A task of the grid: the configuration file beside the grid's, and the returns that count as 0 and as 1."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)
    scale: Annotated[list[float], Field(min_length=2, max_length=2)]
    total_frames: Count | None = None


class GridConfig(pydantic.BaseModel):
    """A comparison."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)
    tasks: Annotated[dict[str, TaskConfig], Field(min_length=1)]
    schemes: Annotated[list[config_lib.Correction], Field(min_length=1)]
    parameters: dict[str, dict[str, Any]] = {}  # of a scheme's loss, beyond its defaults
    lags: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0]  # exact, in updates
    replay_fractions: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1)] = [0.0]
    learning_rates: Annotated[list[Positive], Field(min_length=1)]
    entropy_costs: Annotated[list[NonNegative], Field(min_length=1)]
    num_best: Count = 3  # settings of the sweep that go on
    num_seeds: Count = 5  # of each of them


class Block(NamedTuple):
    """What is compared: all runs of one block differ in settings and seeds only."""

    task: str
    scheme: str
    replay_fraction: float
    lag: int


class Cell(NamedTuple):
    """One training run."""

    phase: str
    task: str
    scheme: str
    replay_fraction: float
    lag: int
    learning_rate: float
    entropy: float
    seed: int

    @property
    def block(self) -> Block:
        return Block(self.task, self.scheme, self.replay_fraction, self.lag)


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
        self.config = _validated(config_lib.read_yaml(self.path) | overrides)
        errors, self._bases = [], {}
        for name, task in self.config.tasks.items():
            try:
                frames = total_frames or task.total_frames
                changes = {"total_frames": frames} if frames else {}
                self._bases[name] = config_lib.load(self.path.parent / f"{name}.yaml", changes)
            except ConfigError as error:
                errors += error.lines
        if errors:
            raise ConfigError(errors)
        for block in self.blocks():
            errors += self._errors(block)
        if errors:
            raise ConfigError(dict.fromkeys(errors))

    def blocks(self) -> Iterator[Block]:
        """Yields what is compared, task after task."""
        grid = self.config
        yield from map(Block._make, itertools.product(grid.tasks, grid.schemes, grid.replay_fractions, grid.lags))

    def _errors(self, block: Block) -> list[str]:
        from impala import environments

        settings = itertools.product(self.config.learning_rates[:1], self.config.entropy_costs[:1])
        try:
            config = self.cell_config(Cell(SWEEP, *block, *next(settings), 0))
        except ConfigError as error:
            return [f"{block.task}, {block.scheme}: {line}" for line in error.lines]
        if problem := environments.check_name(config.environment.name):
            return [f"{block.task}: {problem}"]
        environment = environments.make(config.environment.name, num_environments=1)
        num_updates = config.total_frames // (environment.spec.frames_per_step * config.steps_per_update)
        environment.close()
        if block.lag >= num_updates:
            return [
                f"lags: {block.lag} updates; expected fewer than the {num_updates} updates of a run on {block.task}"
            ]
        return []

    def sweep(self, block: Block) -> list[Cell]:
        """Returns the block's sweep with one seed; none when there is only one setting."""
        settings = list(itertools.product(self.config.learning_rates, self.config.entropy_costs))
        return [Cell(SWEEP, *block, *setting, 0) for setting in settings] if len(settings) > 1 else []

    def finals(self, block: Block, returns: Mapping[Cell, float]) -> list[Cell]:
        """Returns the runs that count, best setting first; none before the sweep is done.

        The sweep's seed is not used again: the best of nine was chosen by its luck, too.
        """
        sweep = self.sweep(block)
        if any(cell not in returns for cell in sweep):
            return []
        best = sorted(sweep, key=lambda cell: -returns[cell])[: self.config.num_best]
        settings = [(cell.learning_rate, cell.entropy) for cell in best]
        settings = settings or [(self.config.learning_rates[0], self.config.entropy_costs[0])]
        seeds = range(1, self.config.num_seeds + 1)
        return [Cell(FINAL, *block, *setting, seed) for setting in settings for seed in seeds]

    def available(self, returns: Mapping[Cell, float]) -> Iterator[Cell]:
        """Yields the cells that can be run and are not done."""
        for block in self.blocks():
            yield from (cell for cell in self.sweep(block) + self.finals(block, returns) if cell not in returns)

    @property
    def num_cells(self) -> int:
        """Cells of the whole grid."""
        block = next(self.blocks())
        num_sweep = len(self.sweep(block))
        num_final = min(self.config.num_best, num_sweep or 1) * self.config.num_seeds
        return len(list(self.blocks())) * (num_sweep + num_final)

    def cell_config(self, cell: Cell) -> config_lib.Config:
        """Returns the training configuration of a cell."""
        data = self._bases[cell.task].model_dump(by_alias=True)
        overrides = {
            "loss.correction": cell.scheme, "replay.fraction": cell.replay_fraction, "seed": cell.seed,
            "learner.learning_rate": cell.learning_rate, "loss.entropy_cost": cell.entropy,
        }  # fmt: skip
        for key, value in self.config.parameters.get(cell.scheme, {}).items():
            overrides[f"loss.{key}"] = value
        return config_lib.build(data, overrides)


def _validated(data: Mapping[str, Any]) -> GridConfig:
    try:
        return GridConfig.model_validate(data)
    except pydantic.ValidationError as error:
        raise ConfigError([config_lib.describe(e, GridConfig.model_fields) for e in error.errors()]) from None
