"""Replay: for prompts that are rarely answered right, earlier right completions replace wrong ones.

A group with only wrong completions has no training signal, and with a hard prompt most groups are
like that. With one earlier right completion in the group, advantages are not 0. The surrogate of
that completion is multiplied by its importance weight, its probability under the policy divided by
that under the weights that sampled it; otherwise it is treated like a new one.

Effect on the gradient, for rewards of 1 (right) and 0 (wrong): the expected gradient of a prompt
keeps its direction, the gradient of the prompt's success rate p, and becomes longer. With groups of
G new completions, unscaled advantages and sums over whole completions it is (G - 1)/G grad p.
With one replayed completion in each group that has none right it is

    (G - 1)/G (1 + (1 - p)^G / G (1/q + 1/(1 - p))) grad p

where q is the success rate of the weights that sampled it. So hard prompts have more weight
relative to others, and the gradient of each prompt keeps its direction. This holds if the
importance weights are unbiased (`importance: sequence`, below the cap), and as long as the current
weights have not yet learned from the replayed completion.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise import processes
from groupwise.config.train import ReplaySection
from groupwise.errors import UserError
from groupwise.prompts.identity import fingerprint
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts, Turn
from groupwise.training.judge import Judge


class Filled(NamedTuple):
    """A step's rollouts with replayed ones; replayed: [B] bool, True for those; metrics."""

    rollouts: Rollouts
    scores: Scores
    replayed: Tensor
    metrics: dict[str, float]


class KeptCompletion(NamedTuple):
    """A right completion of an earlier step, in CPU memory, with only what the loss needs."""

    rollout: Rollouts
    scores: Scores

    @property
    def version(self) -> int:
        """Training steps of the oldest weights that sampled a part of it."""
        assert self.rollout.versions is not None
        return int(self.rollout.versions)


class Replay:
    """Right completions by row, the last `at_least` of each; `size` in all, for `age` steps.

    Kept are those of groups in which some, but at most half, of the completions were right. They
    belong to a row and not to its prompt: their score is for the row's other columns, such as a
    gold answer. All processes keep the same ones, since any process may draw a row later.
    """

    def __init__(self, settings: ReplaySection, judge: Judge) -> None:
        self.settings, self.judge = settings, judge
        self.kept: dict[str, list[KeptCompletion]] = {}

    def fill(self, rollouts: Rollouts, scores: Scores, step: int) -> Filled:
        """Put kept completions into groups with fewer right ones than `at_least`; keep new ones.

        They replace the last wrong completions of the group. step: training steps done so far, from
        which the age of kept completions is counted. A collective.
        """
        if rollouts.sampler_log_probs is None:
            raise UserError(
                "train.replay: the sampler gives no log-probs (`Rollouts.sampler_log_probs`), but "
                "importance weights of older completions need them; leave train.replay out"
            )
        self._expire(step, rollouts, scores)
        right, groups = self.judge.right(scores), rollouts.groups.cpu()
        order, earlier = torch.arange(len(rollouts)), list[KeptCompletion]()
        new: list[tuple[int, str, list[KeptCompletion]]] = []
        for number in groups.unique().tolist():
            rows = (groups == number).nonzero().flatten()
            row_of_group = fingerprint(rollouts.prompts[int(rows[0])])
            missing = self.settings.at_least - int((right[rows] == 1).sum())
            wrong = rows[right[rows] == 0].flip(0)[: max(0, missing)].tolist()
            for row, kept in zip(wrong, self.kept.get(row_of_group, []), strict=False):
                order[row] = len(rollouts) + len(earlier)
                earlier.append(_in_place_of(rollouts, row, kept))
            good = rows[(right[rows] == 1) & ~scores.total[rows].isnan()]
            if len(good):  # where most are right, nothing is kept any longer
                few = good[: self.settings.at_least if 2 * len(good) <= len(rows) else 0]
                new.append((number, row_of_group, [_light(rollouts, scores, row) for row in few]))
        self._keep(sorted(gather_object(new), key=lambda of_group: of_group[0]))
        replayed = order >= len(rollouts)
        metrics = self._metrics(len(earlier), len(rollouts))
        if earlier:
            rollouts = Rollouts.concat([rollouts, *(kept.rollout for kept in earlier)])
            scores = Scores.concat([scores, *(kept.scores for kept in earlier)]).select(order)
            rollouts = rollouts.select(order)
        return Filled(rollouts, scores, replayed, metrics)

    def _keep(self, new: list[tuple[int, str, list[KeptCompletion]]]) -> None:
        """Keep the newest of each row; over `size`, drop the rows not updated for longest."""
        for _, row, kept in new:
            before = self.kept.pop(row, [])
            if kept:
                self.kept[row] = [*kept, *before][: self.settings.at_least]
        self._drop()

    def _expire(self, step: int, rollouts: Rollouts, scores: Scores) -> None:
        """Drop the completions that weights of more than `age` steps ago sampled, and those that
        do not fit the batch: a resumed run may have other rewards, or store other columns."""
        oldest = -math.inf if self.settings.age is None else step - self.settings.age

        def fits(kept: KeptCompletion) -> bool:
            same_columns = kept.rollout.trajectory.keys() == rollouts.trajectory.keys()
            return kept.version >= oldest and same_columns and kept.scores.names == scores.names

        fitting = {row: [*filter(fits, kept)] for row, kept in self.kept.items()}
        self.kept = {row: kept for row, kept in fitting.items() if kept}

    def _drop(self) -> None:
        while len(self._all) > self.settings.size:
            del self.kept[next(iter(self.kept))]

    @property
    def _all(self) -> list[KeptCompletion]:
        return [kept for of_row in self.kept.values() for kept in of_row]

    def _metrics(self, replayed: int, count: int) -> dict[str, float]:
        return {
            "replay/share": processes.total(replayed) / max(1, processes.total(count)),
            "replay/kept": float(len(self._all)),
            "replay/bytes": float(sum(map(_bytes, self._all))),
        }

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any] | None:
        """All kept completions as one padded batch; None where there are none."""
        if not self.kept:
            return None
        rollouts = Rollouts.concat([kept.rollout for kept in self._all])
        scores = Scores.concat([kept.scores for kept in self._all])
        return {
            "rows": [row for row, of_row in self.kept.items() for _ in of_row],
            "mask": rollouts.mask,
            "truncated": rollouts.truncated,
            "sampler_log_probs": rollouts.sampler_log_probs,
            "versions": rollouts.versions,
            "trajectory": dict(rollouts.trajectory),
            "turns": None if rollouts.turns is None else [*map(list, rollouts.turns)],
            "roles": rollouts.roles,
            "rewards": list(scores.names),
            "values": scores.values,
            "failed": scores.failed,
            "steps": scores.steps,
            "judges_steps": sorted(scores.judges_steps),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        self.kept = {}
        if state is None:
            return
        if "rows" not in state:
            raise UserError(
                "train.replay: the checkpoint's kept completions are by prompt, as an earlier "
                "version of groupwise wrote them, and this one needs them by row; resume without "
                "train.replay, or start the run anew"
            )
        turns = state.get("turns")  # None also in those of a version without turns
        rollouts = _bare(
            mask=state["mask"],
            truncated=state["truncated"],
            sampler_log_probs=state["sampler_log_probs"],
            versions=state["versions"],
            trajectory=state["trajectory"],
            turns=turns and [[Turn(*turn) for turn in own] for own in turns],
            roles=state.get("roles"),
        )
        scores = Scores(
            names=tuple(state["rewards"]),
            weights=(1.0,) * len(state["rewards"]),  # unused: those of the step apply
            values=state["values"],
            failed=state["failed"],
            steps=state["steps"],
            judges_steps=frozenset(state["judges_steps"]),
        )
        for place, row in enumerate(state["rows"]):
            kept = KeptCompletion(rollouts.select([place]), scores.select(torch.tensor([place])))
            self.kept.setdefault(row, []).append(kept)
        self._drop()


def _bare(**columns: Any) -> Rollouts:
    """Rollouts without prompts, completions and facts, in CPU memory."""
    count = len(columns["mask"])
    nothing: list[Any] = [None] * count
    groups = torch.zeros(count, dtype=torch.int64)
    return Rollouts(prompts=nothing, completions=nothing, groups=groups, **columns)


def _light(rollouts: Rollouts, scores: Scores, row: Tensor) -> KeptCompletion:
    """A copy of one rollout, so that the memory of the batch can be freed."""
    rollout = rollouts.select([int(row)])
    assert rollout.sampler_log_probs is not None
    assert rollout.versions is not None
    bare = _bare(
        mask=_copied(rollout.mask),
        truncated=_copied(rollout.truncated),
        sampler_log_probs=_copied(rollout.sampler_log_probs),
        versions=_copied(rollout.versions),
        turns=rollout.turns,
        roles=rollout.roles,
        trajectory={name: _copied(column) for name, column in rollout.trajectory.items()},
    )
    return KeptCompletion(bare, scores.select(row[None]))


def _copied(column: Any) -> Any:
    if not isinstance(column, Tensor):
        return [_copied(value) for value in column]
    return column.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _in_place_of(rollouts: Rollouts, row: int, kept: KeptCompletion) -> KeptCompletion:
    """The kept completion as a rollout of the group of `row`, on the devices of the batch."""
    columns, old = rollouts.trajectory, kept.rollout
    filled = replace(
        old,
        prompts=[rollouts.prompts[row]],
        groups=rollouts.groups[row : row + 1],
        mask=old.mask.to(rollouts.mask.device),
        truncated=old.truncated.to(rollouts.truncated.device),
        sampler_log_probs=_moved(old.sampler_log_probs, rollouts.sampler_log_probs, row),
        facts={name: [None] for name in rollouts.facts},
        trajectory={name: _moved(c, columns[name], row) for name, c in old.trajectory.items()},
    )
    return KeptCompletion(filled, kept.scores)


def _moved(column: Any, like: Any, row: int) -> Any:
    """A column of one rollout on the device of `like`, the column of the batch."""
    if isinstance(column, Tensor):
        return column.to(like.device)
    return [value.to(like[row].device) for value in column]


def _bytes(kept: KeptCompletion) -> int:
    rollout = kept.rollout
    columns = [rollout.mask, rollout.sampler_log_probs, *rollout.trajectory.values()]
    tensors = [t for c in columns for t in ([c] if isinstance(c, Tensor) else c or ())]
    return sum(tensor.nbytes for tensor in tensors)
