"""Prompts: where rows come from, which are held out, which comes next, and the seeds they name."""
