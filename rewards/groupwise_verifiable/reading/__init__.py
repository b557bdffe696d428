"""Reads answers as they are written, and compares them with gold: kind, form and value."""
