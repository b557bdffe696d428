"""Completions drawn token by token, in process."""
