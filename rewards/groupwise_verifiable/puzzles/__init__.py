"""Puzzles without end: reasoning-gym's tasks as prompts, and its verifiers as a reward."""
