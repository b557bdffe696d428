"""Scoring: several rewards on one batch: in the main thread, in an event loop, or in processes."""
