"""Rewards by judges: language models that score, compare and criticise completions."""
