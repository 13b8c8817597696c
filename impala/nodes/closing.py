"""The orderly end of environments, which may have processes of their own or files to write."""

import logging
from collections.abc import Iterable


def close_all(environments: Iterable) -> None:
    """Closes a node's environments; what one raises goes into the log."""
    for environment in environments:
        try:
            environment.close()
        except Exception:
            logging.exception("an environment could not be closed")
