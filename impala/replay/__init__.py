"""Between actors and learner: tables, datasets (table → time-major batches), windows and priorities, checks."""
