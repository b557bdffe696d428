"""Groupwise's language-model policy, over transformers' causal language models."""
