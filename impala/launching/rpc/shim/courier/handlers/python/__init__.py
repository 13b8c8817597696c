"""See courier/__init__.py."""
