"""Rewards for text: its answer, its form, its length, its language, and a model's opinion."""
