"""Tests mirror the tree; what needs a run uses `tests.rig`."""
