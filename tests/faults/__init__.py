"""The crash suite: every crash point, at its first and second passing, and what must hold."""
