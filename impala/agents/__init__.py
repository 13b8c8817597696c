"""What is learned, choose one: heads, how actions are chosen and what is kept of them, the loss, jobs after an update.

An agent is a module of this folder. It never asks in which process something happens, and has

    check(config, spec)                                 refuses settings that do not fit together
    make_network(config, spec, on_cpu=…)                with whatever else the loss needs, such as a target copy
    make_behaviour(config, spec, greedy=…, explore=…)   `acting.behaviours.Behaviour`
    make_chunk_spec(config, spec, version_per_step=…)   what its batches are made of
    make_learner(config, network, group=…)              `learning.learners.Learner`
    make_schedules(config, total_frames)                frames → keyword arguments of `Learner.update`
    EXPLORES_BEYOND_ITS_POLICY                          whether `target_return` looks at evaluations

To add one, write a module with these, name it in `config.uses.AGENTS` and give it a section in `config.sections`.
"""

import importlib
from types import ModuleType

from impala.config import Config


def of(config: Config) -> ModuleType:
    """Returns the configured agent."""
    return importlib.import_module(f"impala.agents.{config.agent.name}")
