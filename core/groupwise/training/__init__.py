"""Training: the parts of a step: rollouts, scores, updates, evaluation."""
