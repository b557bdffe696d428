"""Rewards that check: mathematics, exact answers, form, length, repetition, language, puzzles."""
