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

from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.tool_call import ToolCall, assistant_message, text_of


@dataclass(frozen=True)
class Reply:
    """A player's completion, as rewards would receive it (text, messages, an image).

    truncated: a limit cut it off. calls: of tools, which it contains, also malformed ones.
    content: its text with the well-formed calls removed, None if there are none. Given to a player
    as its context, its text is that player's prompt, and the reply counts as its parent: see
    `Player.group`.
    """

    completion: Any
    label: str
    truncated: bool = False
    calls: tuple[ToolCall, ...] = field(default=(), hash=False)
    content: str | None = None
    source: Any = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The completion as text, with its calls of tools; of chat messages, the content of the
        last. Raises UserError if it is none."""
        if (text := text_of(self.completion)) is not None:
            return text
        raise UserError(
            f"expected text from {self.label!r}, since its completions are prompts of another "
            f"policy, received {type(self.completion).__name__}; only a policy whose completions "
            f"are not prompts (the last of a chain) may return anything else"
        )

    @property
    def message(self) -> Mapping[str, Any]:
        """The reply as the assistant's chat message, for the context of a later call; its calls
        without a fault are its `tool_calls`."""
        return assistant_message(self.text if self.content is None else self.content, self.calls)


class EpisodeEnded(Exception):  # noqa: N818
    """A player cannot go on, so the episode ends where it is, unless `play` catches this."""


class ContextRefused(EpisodeEnded):
    """The player cannot take this context (it is too long, say), and was not called."""


class CompletionFailed(EpisodeEnded):
    """The player's completion failed: it has no reward and no gradient."""


class Player(Protocol):
    """A policy of the run that an episode can call."""

    async def __call__(
        self,
        context: "Context",
        *,
        after: Reply | None = None,
        limit: int | None = None,
        tools: "Tools | None" = None,
    ) -> Reply:
        """One completion of a context.

        after: the reply that it follows, and that has its reward unless it is judged itself; if
        None the context, where that is a reply, else the latest one of this task: of candidates
        all of them, or the one in whose context this goes on.
        limit: the most decisions of it, for a policy that draws turn by turn; 0 leaves no room.
        tools: that a language model's chat template shows to it, from this context on: contexts
        that continue it keep them, and with other tools a new rollout begins. If None, those of
        the earlier context, or of the row's column `tools`.

        A rollout is compared with that of the same number in the prompt's other episodes. Raises
        ContextRefused and CompletionFailed, and UserError for messages that the policy cannot
        take, which ends the run unless `play` catches it.
        """

    async def group(
        self,
        context: "Context",
        *,
        after: Reply | None = None,
        limit: int | None = None,
        tools: "Tools | None" = None,
    ) -> Sequence[Reply]:
        """Candidates: completions of one context that are compared with each other, each a rollout
        of its own; without failed ones.

        In training there are as many as the player's `train.group_size`, in an evaluation there is
        one. Raises ContextRefused, and CompletionFailed if all of them failed.
        """

    async def shortened(self, content: Any, most: int) -> Any:
        """The beginning of a text that has more than `most` of the player's tokens, as many of
        them, with the mark " [... cut]"; other texts, and those of players without tokens, as they
        are.

        content: a text, or the parts of a message, `{"type": "text", "text": ...}` and
        `{"type": "image", "image": ...}`: pictures that are too long, that cannot be opened, or
        that the player cannot see become words that say so to it.
        """


Context = Row | str | Sequence[Mapping[str, Any]] | Reply
"""What a player completes: a data set row, a string, chat messages, or the reply of a player."""
Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of functions, as chat templates take them."""
Columns = Mapping[str, Any]
"""Columns that rewards receive by name, for one episode."""
ENDED = "ended"
"""A column of `Environment.play`: a word for why the episode ended."""
TURN_REWARDS, STATES, ROLE = OF_TURNS = "turn_rewards", "states", "role"
"""Columns of `Environment.play` on the turns of a judged reply."""
ENVIRONMENTS = "environments"
"""A column, TRL's argument of rewards: for each completion the object whose episode it is."""
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
        """The names of the columns that `play` returns, which samples have, too."""
        return ()

    def logged(self, labels: Sequence[str]) -> Sequence[str]:
        """Those of `columns` that are numbers: their means are metrics, `environment/NAME`.

        `turns`, `calls`, `call_errors`, `tool_seconds` and `tool_tokens` are what the report shows
        of tools. None has no mean.
        """
        return ()

    def shown(self, labels: Sequence[str]) -> Sequence[str]:
        """Those of `columns` that are texts or pictures for people: samples and the report show
        them beside the completion."""
        return ()

    def receivers(self, labels: Sequence[str]) -> Sequence[str]:
        """The players whose context is a data set row as it is: rows are checked before a run, and
        those that one of these players skips are never drawn."""
        return labels[:1]

    def opening(self, row: Row) -> Row:
        """What a receiver is called with at first, as a row, for the checks of a data set's rows
        before a run: by default the row itself."""
        return row

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

        Rewards judge the last replies of `judged` players, those that no other follows; where
        another player has the last word, the latest reply of a judged one before it. A reply
        follows the one before it in its asyncio task, or the Reply that was its context or `after`.
        A mapping that is returned has columns for them. To judge other replies, return these, each
        with its columns. A reply that is not judged has the mean reward of the replies that
        followed it; one that nothing follows has the reward of the latest judged reply before it.

        The column `ended` is a word for what ended the episode, if its last player did not: "turns"
        (there are no more), "tool" (a tool ended it), or any other. `Rollouts.ended` of the judged
        replies has it, unless they are cut off or failed. Unset, it is "environment" if this raises
        EpisodeEnded, and "refused" if it raises ContextRefused.

        The column `environments` may hold an object of this process: samples do not show it, and an
        isolated reward receives it only if its signature names it. A column whose name begins with
        an underscore lasts as long as the episode's rollout, and no reward receives it.

        The columns `turn_rewards` and `states` are for an algorithm's `credit`, lists with an entry
        for each turn: each reply of the judged one's player up to itself, without those of rollouts
        that are judged apart. `turn_rewards` has numbers, which are added to no reward, or None;
        `states` what names the state before the turn (a string, a number or a tuple of these).
        `role` is a word for whom the player plays. Rewards receive these columns only if `columns`
        names them.

        An exception other than EpisodeEnded and UserError fails the episode: its replies have no
        reward and no gradient, and are counted.

        An environment with chance of its own (a random start, an opponent's moves) declares a third
        parameter, `seed: int = 0`. It receives an int from 0 to 2**31 - 1, which is the same for
        all episodes that are compared with each other, and when a resumed run plays them again.
        """

    async def close(self) -> None:  # noqa: B027
        """Called once when the run ends, also after an error, in the event loop of its episodes;
        it may take half a minute."""
