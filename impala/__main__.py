"""`python -m impala` is `impala`."""

import sys

from impala.cli import main

if __name__ == "__main__":
    sys.exit(main())
