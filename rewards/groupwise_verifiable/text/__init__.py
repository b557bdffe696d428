"""Rewards for text: answer, format, length, repetition, language, and a reward model's score."""
