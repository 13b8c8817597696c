"""A program onto threads and processes. Importing this installs the RPC stand-in; then `import launchpad` works."""

from impala.launching import rpc

rpc.install()
