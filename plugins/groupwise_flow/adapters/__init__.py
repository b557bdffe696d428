"""Adapters for pipelines of diffusers: one file for each architecture."""
