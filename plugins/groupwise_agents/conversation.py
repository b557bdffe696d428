"""converse: a model and its tools in turns, until a completion has no call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from groupwise.environment import ContextRefused, Player, Reply
from groupwise.kit import terminal
from groupwise.prompt_source import Row
from groupwise_agents.content import pictures
from groupwise_agents.limits import Limits
from groupwise_agents.toolbox import Toolbox

COLUMNS = ("turns", "calls", "call_errors", "tool_seconds")
"""What `Conversation.columns` has: how many completions, calls and calls without an answer of their
tool, and the seconds that the model waited for tools."""

SPENT = "no calls are left; answer without one"


@dataclass
class Conversation:
    """A conversation so far.

    messages: the context, all answered turns and their answers included; reply: the last
    completion; columns: the numbers of COLUMNS; ended: "turns" if the last completion has calls
    that were not made, "tool" if a tool ended the episode; answered: how many turns were answered.
    """

    messages: list[Mapping[str, Any]]
    reply: Reply | None = None
    columns: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0))
    ended: str | None = None
    answered: int = 0

    def answer(self, reply: Reply, answers: Sequence[Mapping[str, Any]]) -> None:
        """Add a turn and its answers to the context."""
        self.messages += [reply.message, *answers]
        self.answered += 1

    @property
    def transcript(self) -> list[Mapping[str, Any]]:
        """All messages, the last completion included, also if it was not answered."""
        if self.reply is None or self.answered == self.columns["turns"]:
            return self.messages
        return [*self.messages, self.reply.message]

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What `Environment.play` returns of it."""
        return self.columns | ({"ended": self.ended} if self.ended else {})


async def converse(
    player: Player,
    messages: Sequence[Mapping[str, Any]],
    toolbox: Toolbox,
    limits: Limits,
) -> Conversation:
    """The player completes the messages, calls tools and reads their answers, until a completion
    has no call, a tool raises `EpisodeEnded`, or a limit is reached.

    Raises CompletionFailed, ContextRefused where the messages are too long from the beginning, and
    Unavailable.
    """
    talk = Conversation([*messages])
    while True:
        try:
            reply = await player(talk.messages, tools=toolbox.schemas)
        except ContextRefused:
            if talk.reply is None:
                raise
            return talk
        talk.reply = reply
        talk.columns["turns"] += 1
        if not reply.calls or reply.truncated:
            return talk
        if talk.columns["turns"] == limits.turns:
            talk.ended = "turns"
            return talk
        left = max(0, limits.calls - int(talk.columns["calls"]))
        calls = [*reply.calls[:left], *(replace(each, fault=SPENT) for each in reply.calls[left:])]
        answers = await toolbox.answers(calls)
        talk.columns["calls"] += len(calls)
        talk.columns["call_errors"] += answers.errors
        talk.columns["tool_seconds"] += answers.seconds
        if answers.is_final:
            talk.ended = "tool"
            return talk
        contents = [
            await player.shortened(message["content"], limits.answer_tokens)
            for message in answers.messages
        ]
        pairs = [*zip(answers.messages, contents, strict=True)]
        for message, content in pairs:
            if pictures(content) < pictures(message["content"]):
                _warn_once(str(message["name"]), limits.answer_tokens)
        talk.answer(reply, [{**message, "content": content} for message, content in pairs])


@cache
def _warn_once(tool: str, most: int) -> None:
    terminal.say(
        f"warning: tool {tool!r} returned a picture that the model did not see, and reads that it "
        f"did not: a policy of text alone sees none (take vision_language_model), nor any policy "
        f"one of more tokens than environment.answer_tokens ({most}), or one that cannot be opened"
    )


def messages_of(row: Row) -> Sequence[Mapping[str, Any]]:
    """The prompt of a row as chat messages."""
    prompt = row["prompt"]
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
