"""Rewards for images: what is in them, what is written there, how much detail they have."""
