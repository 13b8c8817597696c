"""What the user sees: metrics, dashboard, evaluation, figures, doctor."""
