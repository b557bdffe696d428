"""Experience: the judged groups of a step: sampled, scored, refilled, replayed."""
