"""A Program onto threads and processes. Importing this installs the RPC stand-in, after which `import launchpad` works."""

from impala.launching import rpc

rpc.install()
