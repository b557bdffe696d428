"""Completions by vLLM servers, which follow the weights in training."""
