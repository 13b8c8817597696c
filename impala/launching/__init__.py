"""Runs a program in threads or processes. Importing this installs the RPC stand-in; then `import launchpad` works."""

from impala.launching import rpc

rpc.install()
