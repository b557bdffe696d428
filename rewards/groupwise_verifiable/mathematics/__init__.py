"""Rewards for mathematics: whether an answer equals the gold one, and how short it is."""
