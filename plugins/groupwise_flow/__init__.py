"""Groupwise's policy for diffusers' flow-matching pipelines; its decisions are denoising steps."""
