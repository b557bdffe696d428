"""Rewards that check, in four rooms; what several rooms share lies beside them, at the top.

mathematics, text, puzzles, images: the rooms, one for each kind of thing that is checked.
columns, completion, numbers: what a reward is called with, and what is read out of it.
workers, failures: checks that may hang or crash, and what that makes of a value.
models: networks that judge.
plugin: the names by which a configuration knows the rewards.
"""
