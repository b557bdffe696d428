"""Environment: plays one episode for a prompt, by calling the policies of a run as its players.

An episode of the default environment, `single`, is one call of one policy; docs/environments.md has
others, with tools, several turns and several players. All episodes of a step are played at once,
each in its own coroutine. When every one of them waits for a player, the waiting calls of each
player become one batch; an engine draws each by itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from groupwise.errors import UserError
from groupwise.prompt_source import Row


@dataclass(frozen=True)
class Reply:
    """A player's completion, as rewards would receive it (text, messages, an image).

    truncated: a limit cut it off. Given to a player as its context, its text is that player's
    prompt, and the reply counts as its parent: see `Player.group`.
    """

    completion: Any
    label: str
    truncated: bool = False
    source: Any = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The completion as text; of chat messages, the content of the last. Raises UserError if
        it is none."""
        match self.completion:
            case str(text) | [*_, {"content": str(text)}]:
                return text
        raise UserError(
            f"expected text from {self.label!r}, since its completions are prompts of another "
            f"policy, received {type(self.completion).__name__}; only a policy whose completions "
            f"are not prompts (the last of a chain) may return anything else"
        )

    @property
    def message(self) -> Mapping[str, Any]:
        """The reply as the assistant's chat message, for the context of a later call."""
        return {"role": "assistant", "content": self.text}


class EpisodeEnded(Exception):  # noqa: N818
    """A player cannot go on, so the episode ends where it is, unless `play` catches this."""


class ContextRefused(EpisodeEnded):
    """The player cannot take this context (it is too long, say), and was not called."""


class CompletionFailed(EpisodeEnded):
    """The player's completion failed: it has no reward and no gradient."""


class Player(Protocol):
    """A policy of the run that an episode can call."""

    async def __call__(self, context: "Context", *, limit: int | None = None) -> Reply:
        """One completion of a context.

        limit: the most decisions of it, for a policy that draws turn by turn; 0 leaves no room.

        Completions of the same turn are compared over all episodes of a prompt. Raises
        ContextRefused and CompletionFailed.
        """

    async def group(self, context: "Context", *, limit: int | None = None) -> Sequence[Reply]:
        """Completions of one context that are compared with each other, without failed ones.

        In training there are as many as the player's `train.group_size`, in an evaluation there is
        one. Raises ContextRefused, and CompletionFailed if all of them failed.
        """


Context = Row | str | Sequence[Mapping[str, Any]] | Reply
"""What a player completes: a data set row, a string, chat messages, or the reply of a player."""
Columns = Mapping[str, Any]
"""Columns that rewards receive by name, for one episode."""
Outcome = Columns | Sequence[tuple[Reply, Columns]] | None


class Environment(ABC):
    """Plays episodes. A plugin's environment is a class with a nested pydantic `Config`.

    one_call: whether an episode is one call of one player, with its row as it is, so that rewards
    judge the player's rollouts themselves.
    multi_turn: whether a player may be called several times in an episode. Then calls of a
    `TurnSampler` that continue each other make one rollout, and metrics and samples say why
    episodes ended. If False, every call is sampled by `sample`.
    """

    one_call: ClassVar[bool] = False
    multi_turn: ClassVar[bool] = True

    def casts(self, labels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """The players of an episode, by the name of the cast; by default one cast of all players.

        Several casts play a part of each prompt's episodes each, are compared with each other, and
        are evaluated each by itself. Raises UserError if these are not the players it needs.
        """
        return {"": labels}

    def groups(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """By label, how many groups of completions a player samples for each prompt, for estimates
        of memory; sizes: by label, the completions of a group."""
        return dict.fromkeys(sizes, 1)

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        """The names of the columns that `play` returns, which samples and the report show, too."""
        return ()

    def receivers(self, labels: Sequence[str]) -> Sequence[str]:
        """The players whose context is a data set row as it is: rows are checked before a run, and
        those that one of these players skips are never drawn."""
        return labels[:1]

    def judged(self, labels: Sequence[str]) -> Sequence[str]:
        """The players whose completions rewards judge: rewards receive the facts that all of these
        policies have."""
        return labels

    def refused(self, label: str) -> float:
        """The value of each reward for a reply of this player that became a context which another
        player refused, if nothing that follows from the reply is judged."""
        return 0.0

    @abstractmethod
    async def play(self, row: Row, players: Mapping[str, Player]) -> Outcome:
        """Play one episode; row: of the data set; players: of the cast, by label.

        Rewards judge the last replies, those that no other follows: a reply follows the one before
        it in its asyncio task, or the Reply that was its context. A mapping that is returned has
        columns for them. To judge other replies, return these, each with its columns. A reply that
        is not judged has the mean reward of the replies that followed it.

        The column `ended` is a word for what ended the episode, if its last player did not: "turns"
        (there are no more), "tool" (a tool ended it), or any other. `Rollouts.ended` of the judged
        replies has it, unless they are cut off or failed. Unset, it is "environment" if this raises
        EpisodeEnded, and "refused" if it raises ContextRefused.

        The columns `turn_rewards` and `states` are for an algorithm's `credit`, lists with an entry
        for each turn: each reply of the judged one's player up to itself, without those of rollouts
        that are judged apart. `turn_rewards` has numbers, which are added to no reward, or None;
        `states` what names the state before the turn (a string, a number or a tuple of these).
        `role` is a word for whom the player plays. Rewards receive these columns only if `columns`
        names them.

        An exception other than EpisodeEnded and UserError fails the episode: its replies have no
        reward and no gradient, and are counted.
        """

    async def close(self) -> None:  # noqa: B027
        """Called once when the run ends, also after an error."""
