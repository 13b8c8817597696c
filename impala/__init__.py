"""IMPALA and its siblings on TensorFlow, Reverb and Launchpad.

Importing this package imports nothing else: `from impala import Impala` and `from impala import corrections` load what
they need when they are asked for it.
"""

import importlib
import os

__version__ = "0.1.0"


def set_up_tensorflow() -> None:
    """Sets what TensorFlow reads when it is imported, unless it is set; `impala.Impala` and all commands call it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its start-up notices say nothing a user can act on
    # oneDNN takes half the time for a convolution's gradients; left alone, TensorFlow uses it on CPUs with VNNI only.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def __getattr__(name):
    if name == "Impala":
        set_up_tensorflow()
        return importlib.import_module("impala.api").Impala
    try:
        return importlib.import_module(f"impala.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"impala.{name}":
            raise
        raise AttributeError(f"module 'impala' has no attribute {name!r}") from None
