"""Training passes over completions: packing into micro-batches, and prompts shared by groups."""
