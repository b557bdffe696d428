"""Rewards by CLIP features: similarity to the prompt, aesthetics, preference, a trained head."""
