"""Stands: which objects of diffusers stand for a policy in Python."""

from groupwise.kit.options import StandsFor

PIPELINE = StandsFor(kind="policies", plugin="flow", option="model")
"""Stands for the policy `flow`, with this pipeline as its `model`."""
