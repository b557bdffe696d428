"""Prompts as the model takes them: encoded once, by encoders that may leave the device."""
