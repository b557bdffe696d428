"""Building: from the sections of a configuration to the parts of a run."""
