"""The maps: one architecture, one file; each wires stations into a Launchpad program."""
