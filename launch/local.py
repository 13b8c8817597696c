"""`python launch/local.py …` is `impala train …`: a program in processes of this machine."""

import sys

from impala.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
