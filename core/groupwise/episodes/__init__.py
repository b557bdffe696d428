"""Episodes: how a batch of prompts is played, and its players' calls sampled."""
