"""Codec: rows to contexts of token ids, and contexts to what training and rewards read."""
