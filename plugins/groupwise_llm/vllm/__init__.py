"""Completions by vLLM servers, which get the trained weights after every update."""
