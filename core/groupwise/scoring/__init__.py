"""Scoring: call several rewards on a batch: in the main thread, an event loop, or processes."""
