"""Variants of GRPO, one file each: when to use it, where implementations differ, its formulas.

Parts that they share with other algorithms are in `groupwise.algorithms.parts`.
"""
