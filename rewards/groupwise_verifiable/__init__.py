"""Rewards that check, in four rooms; what several rooms share lies beside them, at the top."""
