"""Stands: which objects of transformers stand for a policy in Python, or for an option of it."""

from groupwise.options import StandsFor

MODEL = StandsFor(kind="policies", plugin="language_model", option="model")
TOKENIZER = StandsFor(kind="policies", plugin="language_model", option="tokenizer")
