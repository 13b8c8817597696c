"""IMPALA and its siblings on TensorFlow, Reverb and Launchpad.

Importing this package imports nothing else: `from impala import Impala` and `from impala import corrections` load what
they need when they are asked for it.
"""

import importlib

__version__ = "0.1.0"


def __getattr__(name):
    if name == "Impala":
        return importlib.import_module("impala.api").Impala
    try:
        return importlib.import_module(f"impala.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"impala.{name}":
            raise
        raise AttributeError(f"module 'impala' has no attribute {name!r}") from None
