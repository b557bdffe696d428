"""Metrics: what is counted and timed in a step."""
