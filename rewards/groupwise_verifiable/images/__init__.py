"""Rewards for images: the objects and the text in them, their detail, and their diversity."""
