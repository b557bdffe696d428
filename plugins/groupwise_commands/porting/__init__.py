"""Porting: configurations of other frameworks, written as ours; a table of options for each.

From a file to YAML: a reader makes `Settings` of the file (it is never executed); the framework's
table has an `Option` for each of theirs, which writes to a `Port`; `draft.py` makes YAML of that.
The tables are docs/porting.md, too.
"""
