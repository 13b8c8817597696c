"""Between actors and learner: tables (queue) and datasets (table → time-major batches)."""
