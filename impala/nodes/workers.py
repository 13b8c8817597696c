"""Which kind of worker a configuration has."""

from impala.config import Config
from impala.nodes.bundling import Bundle
from impala.nodes.working import BaseWorker, Worker
from impala.types import EnvironmentSpec


def make(config: Config, spec: EnvironmentSpec, index: int, incarnation: int = 0, *, replay=None) -> BaseWorker:
    """Makes the worker `index`; `replay` is its `bundling.TableReplay`, if all share a table."""
    if config.replays_alone:
        return Bundle(config, spec, index, incarnation, replay=replay)
    return Worker(config, spec, index, incarnation)
