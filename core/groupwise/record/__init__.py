"""The record of a row: a Group has Episodes, these have Calls, and what is learned of a completion
is written on its call. `gather` makes batches of them."""

from groupwise.record.call import Call, Comparison
from groupwise.record.group import Episode, Group

__all__ = ["Call", "Comparison", "Episode", "Group"]
