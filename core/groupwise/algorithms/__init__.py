"""Algorithms: GRPO, and the parts that it and its variants are made of."""
