"""Rewards for mathematics: equality with a gold answer, its length, and steps of a sum."""
