"""Judges in this process: any causal or vision-language model of transformers."""
