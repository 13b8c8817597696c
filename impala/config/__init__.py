"""Frozen, validated configuration: one small model per station, composed in `Config`; the command line overrides YAML.

Imports neither TensorFlow nor a station, so that wrong usage is refused at once. Numbers that follow from others
(frames per update, chunk sizes, disk bounds) are properties, never set.
"""

from impala.config import shipped
from impala.config.effects import without_effect
from impala.config.errors import ConfigError, describe, nearest
from impala.config.reading import (
    as_data,
    build,
    documented,
    dump,
    flatten,
    keys,
    load,
    over,
    parse_overrides,
    read_yaml,
    refuse_patterns,
)
from impala.config.schema import MAY_CHANGE_ON_RESUME, Config
from impala.config.sections import (
    OF_DISCRETE_ACTIONS,
    Correction,
    Count,
    Finite,
    Fraction,
    Frames,
    LearningRate,
    LossConfig,
    NonNegative,
    Positive,
    QCorrection,
)

__all__ = [
    "MAY_CHANGE_ON_RESUME", "OF_DISCRETE_ACTIONS", "Config", "ConfigError", "Correction", "Count", "Finite",
    "Fraction", "Frames", "LearningRate", "LossConfig", "NonNegative", "Positive", "QCorrection", "as_data", "build",
    "describe", "documented", "dump", "flatten", "keys", "load", "nearest", "over", "parse_overrides", "read_yaml",
    "refuse_patterns", "shipped", "without_effect",
]  # fmt: skip
