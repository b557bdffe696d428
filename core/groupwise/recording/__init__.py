"""Recording: what a run writes, prints and returns."""
