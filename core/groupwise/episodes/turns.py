"""Turns: what is counted of the turns of a step's episodes, beside their means.

Turns are checked against what was drawn, since a context that is rendered or encoded again may have
other tokens than those of the policy.
"""

from collections.abc import Sequence

from groupwise.kit.metric_names import Family
from groupwise.metrics.tally import Tally
from groupwise.record import Episode, Rollout
from groupwise.rollouts import Rollouts
from groupwise.sampler import TurnSampler


def compare(sampler: TurnSampler, batch: Rollouts, rollouts: Sequence[Rollout]) -> None:
    """Note of each call whether its rollout has its turn as it was drawn; batch: of these rollouts,
    as it was assembled."""
    chains = [rollout.calls[-1].context_calls for rollout in rollouts]
    held = sampler.holds(batch, [[call.drawn for call in chain] for chain in chains])
    if held is None:
        return
    for chain, flags in zip(chains, held, strict=True):
        for call, flag in zip(chain, flags, strict=True):  # a turn may be in several rollouts
            call.is_held = flag and call.is_held is not False


def counted(episodes: Sequence[Episode]) -> Tally:
    """Of turns that are drawn turn by turn, means; and counts of episodes that failed.

    `turns/as_sampled`: whether a rollout has them as they were drawn; `turns/continued`: whether
    those that follow another turn of their player go on in its rollout; `turns/calls`: how many
    calls of tools were parsed in a turn that was shown tools; `turns/parsed`: of all that look like
    calls, those that were. `failed/environment/ERROR`: episodes in which `play` raised it.
    """
    tally = Tally()
    calls = [call for episode in episodes for call in episode.calls]
    checked = [call for call in calls if call.is_held is not None]
    if checked:
        held = sum(call.is_held is True for call in checked)
        tally.mean(f"{Family.TURNS}/as_sampled", held, len(checked))
    if later := [call for call in checked if call.turn]:
        continued = sum(call.goes_on_from is not None for call in later)
        tally.mean(f"{Family.TURNS}/continued", continued, len(later))
    if shown := [call for call in calls if call.row.get("tools")]:
        tally.mean(f"{Family.TURNS}/calls", sum(call.parsed for call in shown), len(shown))
    if made := sum(call.parsed + call.unparsed for call in calls):
        tally.mean(f"{Family.TURNS}/parsed", sum(call.parsed for call in calls), made)
    for episode in episodes:
        if episode.error is not None:
            tally.total(f"{Family.FAILED}/{Family.ENVIRONMENT}/{episode.error}", 1)
    return tally
