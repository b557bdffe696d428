"""The record of a drawn prompt: a Group has Episodes, these have Calls, which are of Rollouts, and
what is learned of a rollout is written on it. `gather` makes batches of them.

Seeds: that of a call is a function of (player, turn, branch, number, index), which no two calls of
a run share; the number is that of the draw, of the parent, or of the episode for candidates without
a parent. So neither the time that an episode waits nor the batch that a call shares changes a
sample. The parent is the last call of the episode's own task, so that tasks that an episode runs at
the same time do not change each other's seeds.

Comparisons: rollouts whose first calls have equal ones are compared. One has the draw, the player
(all casts of a pool), and the place. The place of candidates (`await player.group(...)`) is that of
their request among the episode's calls; of other rollouts how many of the player began before, and
the forks on the way, where calls followed one reply in several ways. A candidate begins a rollout
of its own, and a decision is trained in one rollout. All rollouts of a draw are in one update.

Scores: rewards judge the calls that no other follows, unless `play` returns others. A call that is
not judged has the mean reward of those that follow it. Where nothing follows, it has the value of
`Environment.refused` if another player refused its reply, else that of the latest judged call
before it.

Failures: a completion that failed ends its episode, unless `play` goes on. An exception in `play`
fails all calls of the episode; an episode that fails before its first reply has no rollout, and is
counted as one that failed.
"""

from groupwise.record.call import Call, Comparison
from groupwise.record.group import Episode, Group
from groupwise.record.rollout import Rollout

__all__ = ["Call", "Comparison", "Episode", "Group", "Rollout"]
