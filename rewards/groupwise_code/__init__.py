"""Code: rewards that run what a policy writes, against tests that it never sees."""
