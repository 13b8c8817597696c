"""One file for each architecture; it wires stations into a Launchpad program."""
