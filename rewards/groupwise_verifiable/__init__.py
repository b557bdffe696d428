"""Rewards that verify completions, in four packages, and modules that these share.

mathematics, text, puzzles, images: one package for each kind of completion.
columns, completion, numbers: reading columns, texts and numbers.
workers, failures: running checks that may hang or crash, and the values of failed ones.
models: loading networks that score completions.
plugin: the rewards' names in a configuration.
"""
