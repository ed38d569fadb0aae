"""Recorded runs that must replay for ever, and the command that records them."""
