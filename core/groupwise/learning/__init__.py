"""Learning: from judged groups to updates of the weights."""
