"""The learner's side: learners, optimizers, weights and checkpoints."""
