"""Groupwise's tools around a run: `groupwise init`, `groupwise sample` and `groupwise plugins`."""
