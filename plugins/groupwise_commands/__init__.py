"""Groupwise's tools around a run: the commands `init`, `port`, `sample`, `publish` and `plugins`."""
