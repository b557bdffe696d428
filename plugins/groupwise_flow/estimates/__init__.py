"""Estimates of the memory that a run takes, before any weights are loaded."""
