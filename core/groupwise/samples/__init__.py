"""Samples: the completions that a run keeps for people."""
