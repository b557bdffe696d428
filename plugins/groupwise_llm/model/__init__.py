"""The module that answers: its arithmetic, its adapters, log-probs from its hidden states."""
