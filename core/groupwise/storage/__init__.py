"""Storage: everything a run writes, whole or not at all, and how it is known and read again."""
