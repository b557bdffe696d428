"""Families of vision-language models against transformers, as the table of docs/vision.md.

    python tests/benchmarks/vision_families.py

samples completions of prompts with none to three pictures from tiny random models (float32, CPU),
and compares the log-probs of sampling and of training with a pass of transformers' own model over
each row.
"""
