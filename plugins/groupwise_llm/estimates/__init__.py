"""Memory that a run will take, before any weights are loaded."""
