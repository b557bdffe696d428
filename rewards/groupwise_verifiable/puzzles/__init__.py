"""Puzzles: reasoning-gym's procedural tasks as prompts, and its verifiers as a reward."""
