"""TRL 1.16: `GRPOConfig`, what it inherits, the trainer's arguments, and those of `trl grpo`."""
