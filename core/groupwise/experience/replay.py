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
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object
from torch import Tensor

from groupwise.config.train import ReplaySection
from groupwise.experience.accuracy import Accuracy
from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise.prompts.identity import fingerprint
from groupwise.record import Rollout
from groupwise.record.gather import gather, scores_of, write, write_scores
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts, Turn


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

    def __init__(self, settings: ReplaySection, accuracy: Accuracy) -> None:
        self.settings, self.accuracy = settings, accuracy
        self.kept: dict[str, list[KeptCompletion]] = {}
        self._names: tuple[str, ...] = ()
        self._judges_steps: frozenset[str] = frozenset()

    def fill(
        self, rollouts: Sequence[Rollout], like: Scores, step: int, columns: Collection[str]
    ) -> tuple[list[Rollout], dict[str, float]]:
        """Put kept completions into groups with fewer right ones than `at_least`; keep new ones.

        They replace the last wrong completions of the group. An episode with several rollouts is
        left as it is, since its reward is not one rollout's. A collective. Returns the rollouts
        with those that are replaced, and metrics.

        rollouts: judged; like: scores of the same rewards; step: training steps done so far, from
        which the age of kept completions is counted; columns: of the policy's trajectories.
        """
        batches = [rollout.batch for rollout in rollouts]
        if any(batch is None or batch.sampler_log_probs is None for batch in batches):
            raise UserError(
                "train.replay: the sampler gives no log-probs (`Rollouts.sampler_log_probs`), but "
                "importance weights of older completions need them; leave train.replay out"
            )
        scores = scores_of(rollouts, like)
        self._expire(step, columns, scores)
        right, filled, replayed = self.accuracy.right(scores).tolist(), [*rollouts], 0
        in_episode = Counter(id(rollout.episode) for rollout in rollouts)
        whole = [in_episode[id(rollout.episode)] == 1 for rollout in rollouts]
        new: list[tuple[int, str, list[KeptCompletion]]] = []
        groups = defaultdict[int, list[int]](list)
        for place, rollout in enumerate(rollouts):
            groups[rollout.comparison.number].append(place)
        for number, places in sorted(groups.items()):
            row_of_group = fingerprint(rollouts[places[0]].episode.group.row)
            missing = self.settings.at_least - sum(right[place] == 1 for place in places)
            wrong = [p for p in reversed(places) if right[p] == 0 and whole[p]][: max(0, missing)]
            for place, kept in zip(wrong, self.kept.get(row_of_group, []), strict=False):
                filled[place] = _in_place_of(rollouts[place], kept)
                replayed += 1
            good = [p for p in places if right[p] == 1 and not bool(scores.total[p].isnan())]
            if good:  # where most are right, nothing is kept any longer
                few = good[: self.settings.at_least if 2 * len(good) <= len(places) else 0]
                new.append(
                    (number, row_of_group, [_light(rollouts[p], scores) for p in few if whole[p]])
                )
        self._keep(sorted(gather_object(new), key=lambda of_group: of_group[0]))
        self._names, self._judges_steps = scores.names, scores.judges_steps
        return filled, self._metrics(replayed, len(rollouts))

    def _keep(self, new: list[tuple[int, str, list[KeptCompletion]]]) -> None:
        """Keep the newest of each row; over `size`, drop the rows not updated for longest."""
        for _, row, kept in new:
            before = self.kept.pop(row, [])
            if kept:
                self.kept[row] = [*kept, *before][: self.settings.at_least]
        self._drop()

    def _expire(self, step: int, columns: Collection[str], scores: Scores) -> None:
        """Drop the completions that weights of more than `age` steps ago sampled, and those that
        do not fit the batch: a resumed run may have other rewards, or store other columns."""
        oldest = -math.inf if self.settings.age is None else step - self.settings.age
        judges_steps = {*map(frozenset, (self._judges_steps, scores.judges_steps))} - {frozenset()}
        same_rewards = self._names in ((), scores.names) and len(judges_steps) < 2

        def fits(kept: KeptCompletion) -> bool:
            same_columns = not columns or kept.rollout.trajectory.keys() == columns
            return kept.version >= oldest and same_columns and same_rewards

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
        self._names = tuple(state["rewards"])
        self._judges_steps = frozenset(state["judges_steps"])
        scores = replace(
            self._like, values=state["values"], failed=state["failed"], steps=state["steps"]
        )
        for place, row in enumerate(state["rows"]):
            kept = KeptCompletion(rollouts.select([place]), scores.select(torch.tensor([place])))
            self.kept.setdefault(row, []).append(kept)
        self._drop()

    @property
    def _like(self) -> Scores:
        """Scores of the rewards that the kept completions have."""
        return Scores(
            names=self._names,
            weights=(1.0,) * len(self._names),  # unused: those of the step apply
            values=torch.empty(0, len(self._names), dtype=torch.float64),
            failed=torch.empty(0, dtype=torch.bool),
            judges_steps=self._judges_steps,
        )


def _bare(**columns: Any) -> Rollouts:
    """Rollouts without prompts, completions and facts, in CPU memory."""
    count = len(columns["mask"])
    nothing: list[Any] = [None] * count
    groups = torch.zeros(count, dtype=torch.int64)
    return Rollouts(prompts=nothing, completions=nothing, groups=groups, **columns)


def _light(rollout: Rollout, like: Scores) -> KeptCompletion:
    """A copy of one rollout, so that the memory of the batch can be freed."""
    alone = gather([rollout])
    bare = _bare(
        mask=_copied(alone.mask),
        truncated=_copied(alone.truncated),
        sampler_log_probs=_copied(alone.sampler_log_probs),
        versions=_copied(alone.versions),
        turns=alone.turns,
        roles=alone.roles,
        trajectory={name: _copied(column) for name, column in alone.trajectory.items()},
    )
    return KeptCompletion(bare, scores_of([rollout], like).bare)


def _copied(column: Any) -> Any:
    if not isinstance(column, Tensor):
        return [_copied(value) for value in column]
    return column.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _in_place_of(wrong: Rollout, kept: KeptCompletion) -> Rollout:
    """The kept completion as if the calls of a wrong one had drawn it, on the devices of its
    batch."""
    drawn, old = wrong.batch, kept.rollout
    assert drawn is not None
    columns = drawn.trajectory
    moved = replace(
        old,
        groups=old.groups.to(drawn.groups.device),
        mask=old.mask.to(drawn.mask.device),
        truncated=old.truncated.to(drawn.truncated.device),
        sampler_log_probs=_moved(old.sampler_log_probs, drawn.sampler_log_probs, wrong.at),
        trajectory={n: _moved(c, columns[n], wrong.at) for n, c in old.trajectory.items()},
    )
    rollout = Rollout(calls=wrong.calls, is_replayed=True)
    write(moved, [rollout], trained=True)
    write_scores(kept.scores, [rollout])
    return rollout


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
