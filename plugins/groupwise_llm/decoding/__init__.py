"""Decoding: completions sampled token by token, in process."""
