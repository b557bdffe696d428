"""Run: a run from its configuration to its report, with the loop in sight."""
