"""Algorithms: GRPO and its published variants, one file each, with when to use it."""
