"""A policy over diffusers' flow-matching pipelines; its decisions are denoising steps."""
