"""Runs a program in threads, in processes, or on a Ray cluster.

Importing this installs the RPC stand-in; then `import launchpad` works.
"""

from impala.launching import rpc

rpc.install()
