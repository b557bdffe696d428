"""Rewards that measure with CLIP: similarity to the prompt, aesthetics, learned preferences."""
