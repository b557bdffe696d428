"""Plugins: discovery of what is registered, and a name with its options made into an object."""
