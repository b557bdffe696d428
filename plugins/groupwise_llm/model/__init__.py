"""The causal model: its precision, its adapters, and log-probs from its hidden states."""
