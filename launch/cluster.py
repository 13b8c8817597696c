"""`python launch/cluster.py ADDRESS …` is `impala train --cluster ADDRESS …`: a program on hosts of a Ray cluster."""

import sys

from impala.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[2:], "--cluster", *sys.argv[1:2]]))
