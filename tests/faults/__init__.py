"""What breaks runs on purpose: full disks, a game that goes wrong, a writer of hostile chunks, broken networks of hosts."""
