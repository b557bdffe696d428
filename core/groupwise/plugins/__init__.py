"""Plugins: discovery of registered names, and building an object from a name and its options."""
