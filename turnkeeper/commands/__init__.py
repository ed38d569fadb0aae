"""The command line's commands, a module each. What is heavy to import is imported when one runs."""
