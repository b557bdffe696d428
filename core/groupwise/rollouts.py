"""Rollouts and LogProbs: what a policy samples, and its log-probs of its own decisions.

A decision is what has a ratio: a token, a denoising step. B rollouts in a batch, T decisions in a
rollout (padded), G rollouts in a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

Trajectory = Mapping[str, "Tensor | Sequence[Tensor]"]


@dataclass(frozen=True, kw_only=True)
class LogProbs:
    """What a policy's forward returns for some decisions; all of it may carry a gradient.

    log_probs: [b, t] float32, or None for a policy that has none.
    entropy: [b, t] float32 of the distribution each decision was drawn from, in nats, or None.
    extra: further differentiable tensors [b, t, ...] by name (`mean`, `std`).
    """

    log_probs: Tensor | None
    entropy: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def outputs(self) -> dict[str, Tensor]:
        """All outputs that there are, by name: "log_probs", "entropy" and those of `extra`."""
        named = {"log_probs": self.log_probs, "entropy": self.entropy, **self.extra}
        return {name: value for name, value in named.items() if value is not None}


class Turn(NamedTuple):
    """What a policy drew in one go, in an episode of several turns.

    decisions: how many it has; 0 for a later turn of the episode, which is in another rollout.
    reward: the environment's, in addition to those of the episode; None if it gave none.
    state: a number that is equal for turns of a prompt's episodes that began in the same state of
        the environment; None if it does not name its states.
    spans: where a sampler exchanges weights while it draws (`Sampler.follows_in_flight`), the
        versions of the weights that drew its decisions, and how many each, in order.
    """

    decisions: int
    reward: float | None = None
    state: int | None = None
    spans: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """A batch of sampled completions.

    prompts: the dataset row that each rollout answers, length B.
    completions: what rewards see (text, messages, images), length B.
    groups: [B] int64; rollouts with an equal number are compared with each other. For rewards it is
        the number of the prompt's draw. A sampler numbers its rows 0, 1, ...; the core renumbers.
    mask: [B, T] bool, True at decisions of the policy. It may have holes: the tokens of a tool's
        answer between two turns belong to the rollout and are not decisions.
    truncated: [B] bool, cut off by a limit rather than ended by the policy.
    sampler_log_probs: [B, T] float32, the sampler's log-probs of its decisions when it drew them;
        None if it gives none.
    versions: [B] int64, the training steps of the weights that drew the rollout, of the oldest if
        there were several; None from a policy that is its own sampler: the core sets it.
    episodes: [B] int64, in CPU memory: equal for rollouts that count as one episode in the loss,
        those of an episode, but a candidate of `Player.group` and what follows it by itself; None
        if each counts as one. Set by the core.
    failures: why each rollout failed, None where it did not; None if none failed. A rollout that
        failed (its image is not finite, its environment crashed) has no reward and no gradient,
        and no reward is called on it: it is counted and shown. Its trajectory must be finite, since
        it may be used for a pass whose gradient is multiplied by 0.
    endings: an environment's word for why each rollout ended ("turns", "tool"), None where it has
        none; None if it has none for all. `ended` joins it with `truncated` and `failures`.
    turns: the turns of each rollout, in order; their decisions are those of `mask`. After them come
        later turns of the episode that are in other rollouts. None if each rollout is one turn. The
        sampler says how many decisions a turn has, the core adds rewards and states.
    roles: whom each rollout plays, where one policy plays several; None where that has no name.
    facts: further columns of length B, which rewards receive like the dataset's.
    trajectory: whatever the policy's forward needs: tensors [B], tensors [B, T, ...] padded to T,
        and for any other shape a list of B tensors, so that no other dimension is taken for T.
    """

    prompts: Sequence[Mapping[str, Any]]
    completions: Sequence[Any]
    groups: Tensor
    mask: Tensor
    truncated: Tensor
    sampler_log_probs: Tensor | None = None
    versions: Tensor | None = None
    episodes: Tensor | None = None
    failures: Sequence[str | None] | None = None
    endings: Sequence[str | None] | None = None
    turns: Sequence[Sequence[Turn]] | None = None
    roles: Sequence[str | None] | None = None
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    trajectory: Trajectory = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, shape, dtype in (
            ("groups", self.groups, "[B]", torch.int64),
            ("truncated", self.truncated, "[B]", torch.bool),
            ("versions", self.versions, "[B]", torch.int64),
            ("episodes", self.episodes, "[B]", torch.int64),
            ("mask", self.mask, "[B, T]", torch.bool),
        ):
            dimensions = 2 if shape == "[B, T]" else 1
            if value is not None and (value.ndim != dimensions or value.dtype != dtype):
                raise ValueError(
                    f"Rollouts: {name} must be {shape} {str(dtype).removeprefix('torch.')}, "
                    f"received {list(value.shape)} {value.dtype}"
                )
        size = len(self.prompts)
        lengths = {
            "completions": len(self.completions),
            "groups": len(self.groups),
            "mask": len(self.mask),
            "truncated": len(self.truncated),
            **{name: len(value) for name, value in self._optional.items()},
            **{name: len(value) for name, value in self._listed.items() if value is not None},
            **{f"facts[{name!r}]": len(column) for name, column in self.facts.items()},
            **{f"trajectory[{name!r}]": len(column) for name, column in self.trajectory.items()},
        }
        for name, length in lengths.items():
            if length != size:
                raise ValueError(f"Rollouts: {name} has length {length}, prompts has {size}")
        sampled = self.sampler_log_probs
        if sampled is not None and sampled.shape != self.mask.shape:
            raise ValueError(
                f"Rollouts: sampler_log_probs {list(sampled.shape)} and mask "
                f"{list(self.mask.shape)} must have the same shape"
            )
        for name, column in self.trajectory.items():
            timed = isinstance(column, Tensor) and column.ndim > 1
            if timed and column.shape[1] != self.mask.shape[1]:  # type: ignore[union-attr]
                raise ValueError(
                    f"Rollouts: trajectory[{name!r}] and mask {list(self.mask.shape)} differ in T: "
                    f"a tensor must be [B] or [B, T, ...]; pass any other as a list of B tensors"
                )

    def __len__(self) -> int:
        return len(self.prompts)

    def tensor(self, name: str) -> Tensor:
        """A trajectory column that is one tensor; TypeError when it is a sequence."""
        column = self.trajectory[name]
        if not isinstance(column, Tensor):
            raise TypeError(f"trajectory[{name!r}] is a sequence of tensors, not one tensor")
        return column

    @property
    def _optional(self) -> dict[str, Tensor]:
        columns = {
            "sampler_log_probs": self.sampler_log_probs,
            "versions": self.versions,
            "episodes": self.episodes,
        }
        return {name: value for name, value in columns.items() if value is not None}

    @property
    def _listed(self) -> dict[str, Sequence[Any] | None]:
        named = {"failures": self.failures, "endings": self.endings, "roles": self.roles}
        return {**named, "turns": self.turns}

    @property
    def ended(self) -> list[str]:
        """Why each rollout ended, length B: "failed", where it has a reason in `failures`;
        "length", where it is `truncated`; else its word in `endings`, or "stop"."""
        words = self.endings or [None] * len(self)
        ended = [word or "stop" for word in words]
        for row in self.truncated.nonzero().flatten().tolist():
            ended[row] = "length"
        for row in self.failed.nonzero().flatten().tolist():
            ended[row] = "failed"
        return ended

    @property
    def failed(self) -> Tensor:
        """[B] bool, in CPU memory: the rollouts that have a reason in `failures`."""
        if self.failures is None:
            return torch.zeros(len(self), dtype=torch.bool)
        return torch.tensor([reason is not None for reason in self.failures], dtype=torch.bool)

    @property
    def lengths(self) -> Tensor:
        """[B] int64: the number of decisions of each rollout; for weights, means and reports."""
        return self.mask.sum(dim=1)

    @property
    def each_turn(self) -> Sequence[Sequence[Turn]]:
        """`turns`; where it is None, one turn with all decisions for each rollout."""
        if self.turns is not None:
            return self.turns
        return [(Turn(decisions),) for decisions in self.lengths.tolist()]

    @property
    def extents(self) -> Tensor:
        """[B] int64: the position after each rollout's last decision; for cutting and padding."""
        places = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        return (places * self.mask).amax(dim=1) if self.mask.shape[1] else self.lengths

    def select(self, rows: Sequence[int] | Tensor) -> "Rollouts":
        """The rollouts at `rows` (indices or a [B] bool mask), padding trimmed to their longest."""
        index = torch.as_tensor(rows)
        if index.dtype == torch.bool:
            index = index.nonzero().flatten()
        host = index.to(dtype=torch.int64, device="cpu")
        chosen, index = host.tolist(), host.to(self.mask.device)
        mask = self.mask[index]
        longest = int(self.extents[index].max()) if len(chosen) else 0

        def pick(column: Any) -> Any:
            if not isinstance(column, Tensor):
                return [column[row] for row in chosen]
            # `versions` stay in CPU memory, where reading them does not wait for the device.
            column = column[index if column.device == index.device else host]
            return column[:, :longest] if column.ndim > 1 else column

        return Rollouts(
            prompts=pick(self.prompts),
            completions=pick(self.completions),
            groups=self.groups[index],
            mask=mask[:, :longest],
            truncated=self.truncated[index],
            **{name: pick(column) for name, column in self._optional.items()},
            **{name: v if v is None else pick(v) for name, v in self._listed.items()},
            facts={name: pick(column) for name, column in self.facts.items()},
            trajectory={name: pick(column) for name, column in self.trajectory.items()},
        )

    def with_facts_on_cpu(self) -> "Rollouts":
        """The same with the facts' tensors in CPU memory, for use after rewards have read them."""

        def moved(column: Sequence[Any]) -> list[Any]:
            return [value.cpu() if isinstance(value, Tensor) else value for value in column]

        return replace(self, facts={name: moved(column) for name, column in self.facts.items()})

    @staticmethod
    def concat(parts: Sequence["Rollouts"]) -> "Rollouts":
        """One batch of all parts, in order; parts may differ in T and are padded to the longest.

        A fact that only some parts have is None for the rows of the others. Empty parts are left
        out, since they may lack columns. Raises ValueError if trajectories differ in their columns.
        """
        if not parts:
            raise ValueError("Rollouts.concat: needs at least one part")
        parts = [part for part in parts if len(part)] or parts[:1]
        first, longest = parts[0], max(part.mask.shape[1] for part in parts)

        def flat(columns: Sequence[Sequence[Any]]) -> list[Any]:
            return [value for column in columns for value in column]

        def join(columns: Sequence[Any]) -> Any:
            if not all(isinstance(column, Tensor) for column in columns):
                return flat(columns)
            padded = [
                _pad(column, part, longest) for column, part in zip(columns, parts, strict=True)
            ]
            return torch.cat(padded)

        columns = {name for part in parts for name in part.trajectory}
        some = {name for name in columns for part in parts if name not in part.trajectory}
        if some:
            raise ValueError(f"Rollouts.concat: only some parts have {', '.join(sorted(some))}")
        facts = dict.fromkeys(name for part in parts for name in part.facts)
        optional = set(first._optional).intersection(*(part._optional for part in parts))
        has_turns = any(part.turns is not None for part in parts)
        return Rollouts(
            prompts=flat([part.prompts for part in parts]),
            completions=flat([part.completions for part in parts]),
            groups=torch.cat([part.groups for part in parts]),
            mask=join([part.mask for part in parts]),
            truncated=torch.cat([part.truncated for part in parts]),
            failures=_joined([part.failures for part in parts], parts),
            endings=_joined([part.endings for part in parts], parts),
            turns=flat([part.each_turn for part in parts]) if has_turns else None,
            roles=_joined([part.roles for part in parts], parts),
            **{name: join([part._optional[name] for part in parts]) for name in optional},
            facts={
                name: flat([part.facts.get(name, [None] * len(part)) for part in parts])
                for name in facts
            },
            trajectory={
                name: join([part.trajectory[name] for part in parts]) for name in first.trajectory
            },
        )


def _joined(
    columns: Sequence[Sequence[str | None] | None], parts: Sequence[Rollouts]
) -> list[str | None] | None:
    """Words of all parts; None if no part has any."""
    if all(column is None for column in columns):
        return None
    pairs = zip(columns, parts, strict=True)
    return [reason for column, part in pairs for reason in column or [None] * len(part)]


def _pad(column: Tensor, part: Rollouts, longest: int) -> Tensor:
    """Pad a [B, T, ...] column with zeros to `longest` decisions; leave [B] alone."""
    decisions = part.mask.shape[1]
    if column.ndim < 2 or decisions == longest:
        return column
    filler = column.new_zeros((column.shape[0], longest - decisions, *column.shape[2:]))
    return torch.cat([column, filler], dim=1)
