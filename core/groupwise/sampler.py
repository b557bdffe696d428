"""Sampler: draws completions. A policy is its own sampler; an inference engine is another one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import nn

from groupwise.kit.errors import UserError
from groupwise.rollouts import Rollouts
from groupwise.tool_call import ToolCall

Purpose = Literal["train", "evaluate", "greedy"]
PRESENT = "policy"
"""The name of the weights in training, for `Sampler.follow`."""


def products_are_exact() -> bool:
    """Whether torch computes matrix products of float32 in float32, not in TF32 or bf16.

    In TF32, log-probs of sampling and training may differ, so `Sampler.exact` must be False.
    """
    switch = torch.backends.cuda.matmul
    if hasattr(switch, "fp32_precision"):  # since torch 2.9; the older switch sets it, too
        return switch.fp32_precision in {"none", "ieee"}
    return torch.get_float32_matmul_precision() == "highest"


@contextmanager
def products_in_tf32(enabled: bool, device: torch.device) -> Iterator[None]:
    """A context, for the whole process, with faster products in TF32 if enabled, on a GPU only."""
    if not enabled or device.type != "cuda" or not products_are_exact():
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class Sampler(ABC):
    """Draws completions with the weights of a policy, which it copies in `follow`.

    A plugin's sampler is a class with a nested `Config`, built as `Target(config, policy)`.

    policy_class: the class of policies that it can draw for. requires: names that the policy's
        `provides` must contain.
    seeded: whether a sample depends on its own seed alone, so that batch size, number of processes
        and resuming do not change it. An engine that batches requests as they arrive is not seeded.
    exact: whether its log-probs equal those of the policy's `forward` (same code, same precision).
        They are then used as the policy's old log-probs, without a pass and without correction.
    concurrency: the most calls of `sample` or `stream`, and of a `TurnSampler`'s `draw`, at the
        same time, each in a thread of its own; with 1 there is one after the other. An engine that
        batches requests as they arrive takes many. With `train.ahead` each group is then drawn by
        itself, so that none waits for the longest completion of another one.
    timeout: seconds that a call may take which is made beside the run: with `train.ahead`, and of
        a `draw` where `concurrency` is above 1. The completions of a later one are failed samples.
        Its thread cannot be ended: it keeps its place among the `concurrency` until it returns, for
        which neither `session` nor `follow` waits; where none is left the run ends. `math.inf` for
        a sampler that has deadlines of its own.
    follows_in_flight: whether `follow` may be called while samples are drawn in other threads. What
        was begun goes on, with the new weights or its own, and each decision has the log-prob of
        the weights that drew it: nothing that others have computed may be left in a cache.
        `Rollouts.versions` are the oldest of each rollout, and `Turn.spans` may say more.
    """

    concurrency: ClassVar[int] = 1
    policy_class: ClassVar[type] = object
    requires: ClassVar[frozenset[str]] = frozenset()
    seeded: bool = True
    exact: bool = False
    timeout: float = 1800.0
    follows_in_flight: bool = False

    @classmethod
    def draws_beside(cls, config: Any) -> bool:
        """Whether it has a device of its own, so that it can draw while the policy is updated.

        config: its `Config`, or None. Runs that do not set `train.ahead` then have `ahead: 1`, if
        their algorithm corrects for it by `importance: ratio`.
        """
        return False

    @classmethod
    def check_policy_class(cls, policy: type) -> None:
        """Raise UserError for a class of policies that it cannot draw for."""
        if not issubclass(policy, cls.policy_class):
            raise UserError(
                f"sampler: {cls.__name__} draws for {cls.policy_class.__name__}, and the policy is "
                f"a {policy.__name__}"
            )
        missing = cls.requires - getattr(policy, "provides", frozenset())
        if missing:
            raise UserError(
                f"sampler: {cls.__name__} needs {', '.join(sorted(missing))} of the policy, "
                f"which {policy.__name__} does not provide"
            )

    @abstractmethod
    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        """Sample `group_size` rollouts for each row, adjacent and in the order of the rows.

        seeds: one per rollout.
        purpose: "train" samples from the distribution that the policy's `forward` scores;
            "evaluate" may use the settings of actual use (temperature, guidance, more steps);
            "greedy" takes the likeliest decisions.

        `groups` numbers the rows 0, 1, ...; the core renumbers it. A sampler other than the policy
        sets `versions` to the version that it followed when it drew, to the oldest of several.
        """

    def stream(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
        most: int,
    ) -> Iterator[Rollouts]:
        """What `sample` returns, in order and in parts of `most` prompts; the last may be smaller.

        By default one part after the other, so that memory is that of one part. An engine overrides
        it to work on all prompts from the beginning; the rewards of a part start when it is done.
        """
        for start in range(0, len(prompts), most):
            yield self.sample(
                prompts[start : start + most],
                group_size=group_size,
                seeds=seeds[start * group_size : (start + most) * group_size],
                purpose=purpose,
            )

    @abstractmethod
    def follow(self, policy: nn.Module, name: str, version: int) -> None:
        """Copy the policy's current weights, and draw with them until the next call.

        Called on every process before sampling if the weights differ from those followed last, and
        while samples are being drawn only if it `follows_in_flight`. Copy the weights: the policy
        changes its own.

        name: "policy" for the weights in training, else the name of kept weights ("average").
        version: how many training steps these weights were trained for.
        """

    def mismatch(self, version: int) -> Mapping[str, float]:
        """The `mean` and `max` of |policy - sampler| of log-probs, in nats, where the sampler has
        measured them when it followed the weights of this version; {} if it has not.

        They are the run's `mismatch/*` in steps whose rollouts are of older weights: there the
        difference from the present policy is how far it has moved, too.
        """
        return {}

    def close(self) -> None:  # noqa: B027
        """Called once when the run ends, also after an error."""


class GroupSampler(Sampler):
    """A sampler whose rollouts of a group share some of what is drawn, such as their first noise.

    A group may be sampled in several calls: an episode may ask for its completions one by one, or
    for each with a prompt of its own.
    """

    @abstractmethod
    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
        group_seeds: Sequence[int] | None = None,
    ) -> Rollouts:
        """See `Sampler.sample`.

        group_seeds: one per row, the same for all rollouts of its group in whatever call; by
            default the first of the row's `seeds`.
        """

    def stream(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
        most: int,
        group_seeds: Sequence[int] | None = None,
    ) -> Iterator[Rollouts]:
        """See `Sampler.stream`; group_seeds: as for `sample`."""
        shared = seeds[::group_size] if group_seeds is None else group_seeds
        for start in range(0, len(prompts), most):
            yield self.sample(
                prompts[start : start + most],
                group_size=group_size,
                seeds=seeds[start * group_size : (start + most) * group_size],
                purpose=purpose,
                group_seeds=shared[start : start + most],
            )


class Drawn(Protocol):
    """A turn that a `TurnSampler` drew. text: as a player's reply; ended: "stop", "length" (cut at
    the limit) or "failed"."""

    @property
    def text(self) -> str: ...
    @property
    def ended(self) -> str: ...


class TurnSampler(Sampler):
    """A sampler that also draws turn by turn, in contexts that go on after what others say.

    The calls of a player in an episode then make one rollout, with holes where others spoke; its
    `turns`, which `assemble` sets, say how many decisions are of each call. Contexts are the
    sampler's own objects, never changed in place.

    With a `concurrency` of 1, the calls of all episodes that wait are drawn as a batch. With more,
    each is drawn as soon as its episode makes it, so that no episode waits for another one: `draw`
    is then called in several threads, while others call the other methods, and with `train.ahead`
    there are several sessions at a time.
    """

    @abstractmethod
    def encode(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Any]:
        """The context of each row's prompt."""

    @abstractmethod
    def extend(self, context: Any, replies: str | Sequence[Mapping[str, Any]]) -> Any:
        """The context after replies to its last turn, ready for the next one: messages after a
        prompt of messages, a string after one that is a string."""

    @abstractmethod
    def room(self, context: Any) -> int:
        """How many decisions may follow."""

    @abstractmethod
    def draw(
        self,
        contexts: Sequence[Any],
        *,
        seeds: Sequence[int],
        limits: Sequence[int],
        purpose: Purpose = "train",
    ) -> Sequence[Drawn]:
        """The next turn in each context; it depends on its context, seed and purpose only.

        seeds, limits: of each; limits: the most decisions, at least 1 and at most its `room`.
        """

    @abstractmethod
    def with_turn(self, context: Any, turn: Any) -> Any:
        """The context after a turn that was drawn in it."""

    def tool_calls(self, context: Any) -> tuple[Sequence[ToolCall], str | None]:
        """The calls of tools in the context's last turn, and its text with the well-formed ones
        removed, None if there is nothing to remove; by default there are none."""
        return (), None

    @classmethod
    def examine_turns(cls, config: Any) -> Sequence[str]:
        """`turn_notes` of a policy with this `Config`, without weights, for `groupwise check`."""
        return ()

    def turn_notes(self) -> Sequence[str]:
        """What a run should say whose episodes have several turns, at its start."""
        return ()

    def check_tools(self) -> None:
        """Raise UserError if tools cannot be shown in contexts, or `tool_calls` would miss calls;
        called before the first context with an episode's own tools."""

    def resembles_call(self, text: str) -> bool:
        """Whether the text of a turn without `tool_calls` looks as if it were to call a tool, in
        whatever form; for the metric `turns/parsed`."""
        return False

    def shortened(self, content: Any, most: int) -> Any:
        """See `Player.shortened`; by default the content as it is."""
        return content

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """The context of the draws of some episodes, in which weights neither change nor are
        exchanged (unless it `follows_in_flight`), so that what was computed for a context can be
        kept for its next turn."""

    @abstractmethod
    def assemble(
        self,
        rows: Sequence[Mapping[str, Any]],
        contexts: Sequence[Any],
        *,
        groups: Sequence[int] | None = None,
    ) -> Rollouts:
        """A rollout for each context; rows: what each began with; groups: the number of each."""

    def holds(
        self, rollouts: Rollouts, turns: Sequence[Sequence[Any]]
    ) -> Sequence[Sequence[bool]] | None:
        """For each rollout whether it has each of these turns as it was drawn, decision for
        decision: the metric `turns/as_sampled`. None if that is not known.

        rollouts: as they will be trained on; turns: what `draw` returned in the context of each.
        """
        return None
