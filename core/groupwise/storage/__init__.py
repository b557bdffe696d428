"""Storage: everything that a run writes (whole files or none), and how it is read again."""
