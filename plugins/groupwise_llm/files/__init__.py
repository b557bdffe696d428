"""Weights from and to files: whole, in parts, and as an engine reads them."""
