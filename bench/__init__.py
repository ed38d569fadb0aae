"""Measurements: commands that print, assert nothing, and say their method."""
