"""Probing: which fast paths give this model the right log-probs, tried on its device."""
