"""What breaks runs on purpose: disks without room, a game that goes wrong, a writer of chunks that no actor writes."""
