"""Training: what happens in a step: rollouts, scores, updates, and looking at the result."""
