"""`python launch/cluster.py ADDRESS …` is `impala train --cluster ADDRESS …`: a program on hosts of a Ray cluster."""

import sys

from impala.cli import main

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        usage = "usage: python launch/cluster.py ADDRESS|auto WORD [--KEY VALUE …]; impala train --help has all keys"
        is_asked = {"-h", "--help"} & {*sys.argv[1:2]}
        print(usage, file=sys.stdout if is_asked else sys.stderr)
        sys.exit(0 if is_asked else 2)
    sys.exit(main(["train", *sys.argv[2:], "--cluster", *sys.argv[1:2]]))
