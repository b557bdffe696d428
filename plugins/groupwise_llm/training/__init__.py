"""Completions as training passes over them: packed into micro-batches, prompts shared."""
