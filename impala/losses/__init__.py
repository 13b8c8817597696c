"""Choose one: a loss is a callable (outputs, batch) → (loss, metrics), with the correction as an argument."""
