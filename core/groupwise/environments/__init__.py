"""Environments of the core: one policy, a pool of policies, a chain of policies."""
