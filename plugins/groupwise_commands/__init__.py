"""Groupwise's tools around a run: `init`, `port`, `sample`, `publish` and `plugins`."""
