"""Agents for tests that kill their workers; see `tests.faults` for the crash suite."""
