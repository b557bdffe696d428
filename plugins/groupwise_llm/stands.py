"""Stands: which objects of transformers stand for a policy in Python, or for an option of it."""

from groupwise.kit.options import StandsFor

MODEL = StandsFor(kind="policies", plugin="language_model", option="model")
"""Stands for the policy `language_model`, with this model as its `model`."""
TOKENIZER = StandsFor(kind="policies", plugin="language_model", option="tokenizer")
"""Stands for the option `tokenizer` of a policy of language models."""
