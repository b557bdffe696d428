"""Rewards for videos: how much moves, how steadily, and what other rewards say of the frames."""
