"""A worker process for tests that kills itself at a named point."""
