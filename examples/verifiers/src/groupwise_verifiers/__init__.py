"""Environments of verifiers (0.4) for Groupwise."""
