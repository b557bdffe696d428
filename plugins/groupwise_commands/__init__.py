"""Groupwise's tools around a run: the commands `init`, `port`, `sample` and `plugins`."""
