"""Algorithms for flow models: GRPO with the changes that published training of images makes."""
