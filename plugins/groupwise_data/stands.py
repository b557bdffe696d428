"""Stands: which objects stand for a prompt source in Python."""

from groupwise.kit.options import StandsFor

DATA = StandsFor(kind="prompts", plugin="dataset", option="path")
"""Stands for the prompt source `dataset`, with this table as its `path`."""
