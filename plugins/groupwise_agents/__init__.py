"""Agents: environments in which a model calls tools, of Python, of MCP servers and of others."""
