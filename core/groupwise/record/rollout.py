"""Rollout: a call, or several that go on in one context, and what is learned of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from groupwise.prompt_source import Row
from groupwise.record.group import Episode
from groupwise.record.seeds import seed_for
from groupwise.rollouts import Rollouts, Turn

if TYPE_CHECKING:
    from groupwise.record.call import Call, Comparison


@dataclass(eq=False, kw_only=True)
class Rollout:
    """What is rewarded and trained on as one: a call, or several in one context, if the sampler
    draws turn by turn."""

    calls: list["Call"] = field(repr=False)
    """In order."""

    # ---- what was drawn

    batch: Rollouts | None = field(default=None, repr=False)
    """That a sampler drew, or that was gathered since, in whose row `at` it lies."""
    at: int = 0
    mask: Tensor | None = field(default=None, repr=False)
    """[T] bool, in CPU memory: True at its decisions."""
    completion: Any = field(default=None, repr=False)
    """As rewards see it."""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The policy's; if it is not judged those that are logged."""
    truncated: bool = False
    """Whether a limit cut it off, as the sampler says."""
    failure: str | None = None
    """Why it failed, or its episode, once that is finished."""
    ended: str | None = None
    """The environment's word for why it ended, if it has one."""
    turns: Sequence[Turn] | None = field(default=None, repr=False)
    """With what `play` returned of them, and later ones in other rollouts; None for one turn."""
    role: str | None = None
    """Whom it plays."""

    # ---- its rewards, its own or from what followed

    rewards: Sequence[float] | None = field(default=None, repr=False)
    """The value of each, NaN where it does not apply or failed; None before it is judged."""
    steps: Tensor | None = field(default=None, repr=False)
    """[T] float64: those of steps, as in `Scores`."""
    failed: bool = False
    """Whether it failed, or a reward on it."""
    reason: str | None = None
    """Why, if rewards judged it."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What rewards logged of it."""

    # ---- of the updates

    is_replayed: bool = False
    """Whether it is of an earlier step."""
    advantage: float | None = None
    """The mean over its decisions, None where it was not trained on."""

    @property
    def first(self) -> "Call":
        return self.calls[0]

    @property
    def label(self) -> str:
        """Of its player."""
        return self.first.label

    @property
    def episode(self) -> Episode:
        return self.first.episode

    @property
    def draw(self) -> int:
        """The number of the prompt's draw."""
        return self.episode.group.number

    @property
    def row(self) -> Row:
        """With the prompt that it completes."""
        return self.first.row

    @property
    def comparison(self) -> "Comparison":
        return self.first.comparison

    @property
    def length(self) -> int:
        """The number of its decisions."""
        return 0 if self.mask is None else int(self.mask.sum())

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """The versions of the weights that drew its decisions, and how many each; () if none is
        known."""
        known = [span for turn in self.turns or () for span in turn.spans]
        if known or self.batch is None or self.batch.versions is None:
            return known
        return [(int(self.batch.versions[self.at]), self.length)]

    @property
    def is_usable(self) -> bool:
        """Whether it has rewards and did not fail: algorithms, updates and replay see no others."""
        return self.rewards is not None and not self.failed

    @property
    def weighed_as(self) -> int:
        """Rollouts with an equal number count as one episode: those of an episode, but every
        candidate, and what follows it, by itself."""
        line, episode = (self.first, *self.first.ancestors), self.episode
        way = [(call.space, call.identity) for call in line if call.is_candidate]
        own = (episode.cast, self.draw, episode.index, *way)
        return seed_for(0, f"{own}", self.draw, episode.index)

    def move_facts(self) -> None:
        """Move the facts' tensors to CPU memory."""
        self.facts = {n: x.cpu() if isinstance(x, Tensor) else x for n, x in self.facts.items()}

    def release(self) -> None:
        """Forget what needs memory: it is not read any more."""
        self.batch = self.mask = self.completion = self.turns = None
        self.facts = {}
