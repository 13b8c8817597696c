"""The actor's side: policies (network + weights → action), actors (environment ↔ policy), chunks (steps → table)."""
