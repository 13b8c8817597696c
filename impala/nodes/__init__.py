"""What runs inside a process, wherever a program puts it."""
