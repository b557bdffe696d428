"""Evaluator: the policy on held-out prompts, the same at every evaluation."""
