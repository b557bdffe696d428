"""Endpoint: a server on this machine that answers an agent's requests with a run's players."""
