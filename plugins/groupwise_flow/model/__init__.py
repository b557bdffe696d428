"""The trained model: its precision, LoRA, shards, and the versions of its weights."""
