"""Seeds: one for each sample, from the run's seed; see `groupwise.record.seeds`."""

from groupwise.record.seeds import seed_for

__all__ = ["seed_for"]
