"""Teaching: train the rewards that learn on the rollouts of a step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from groupwise.errors import UserError
from groupwise.rewards import Reward, RunState, Scores
from groupwise.rollouts import Rollouts
from groupwise.scoring.call import Failure
from groupwise.scoring.forks import ending_forks
from groupwise.scoring.scorer import Scorer
from groupwise.scoring.settings import restored


def teach(
    rewards: Scorer,
    watched: Scorer | None,
    rollouts: Rollouts,
    scores: Scores,
    state: RunState,
    *,
    labelled: Callable[[str, Scores], None],
) -> dict[str, float]:
    """Call `refresh(rollouts, scores)` of the rewards that learn; returns their metrics.

    If the reward's `labels` names a watched reward, `scores` are that one's, which the policy is
    not trained on; otherwise they are those of the step. With `every`, it is called every so many
    steps, with 0 never. Tensors among the facts are in CPU memory.

    state: when the rollouts were drawn; labelled: is called with the name and the scores, on this
    process, of each watched reward that was asked for labels. Raises UserError if a reward cannot
    learn from them.
    """
    metrics: dict[str, float] = {}
    for reward in rewards.rewards:
        members = reward.members
        if members.refresh is None or not members.every or (state.global_step + 1) % members.every:
            continue
        answers = scores
        if members.labels is not None:
            assert watched is not None
            answers = _labelled(watched, members.labels, rollouts, state)
            labelled(members.labels, answers)
        with _learning(reward):
            learned = members.refresh(rollouts, answers) or {}
        metrics |= {f"{reward.name}/{name}": value for name, value in learned.items()}
    return metrics


def _labelled(watched: Scorer, name: str, rollouts: Rollouts, state: RunState) -> Scores:
    """The scores of one watched reward; also for a process without rollouts."""
    if len(rollouts):
        return watched.finish([watched.start(rollouts, state, only=[name])])
    nothing = torch.empty(0, 1, dtype=torch.float64)
    failed = torch.empty(0, dtype=torch.bool)
    return Scores(names=(name,), weights=(1.0,), values=nothing, failed=failed)


@contextmanager
def _learning(reward: Reward) -> Iterator[None]:
    try:
        with restored(), ending_forks():
            yield
    except (ValueError, Failure) as error:
        raise UserError(f"reward {reward.name!r} cannot learn: {error}") from error
