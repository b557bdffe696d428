"""Suffixes: what a chat template puts between an assistant's turn and the next one, as token ids.

A conversation is never encoded again: the tokens of a turn stay as they were drawn, and the
template's text between that turn and the next one is appended. It is found by rendering a short
conversation with a placeholder in the turn's place.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import count
from typing import Any

from groupwise.kit.errors import UserError
from groupwise_llm.codec.template import FINISHED, ChatTemplate

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None
Calls = Sequence[Mapping[str, Any]]

ASK, WORD = "Question?", "Placeholder"
"""What the user asks in the placeholder conversation; a word that a text may follow."""
OTHERWISE = "writes an earlier turn of the assistant otherwise than the last one"
THOUGHTS = {"<think>": "<think>\n{}\n</think>\n\n", "[THINK]": "[THINK]{}[/THINK]"}
"""Thinking by the tag that opens it, as most templates write it."""


@dataclass(frozen=True)
class _Words:
    """What is looked for in the placeholder conversation: the assistant's thinking, its answer, and
    what a tool or the user replies."""

    thought: str
    turn: str
    reply: str

    @classmethod
    def outside(cls, text: str) -> "_Words":
        """Words that do not occur in this text."""
        names = ("Consideration", WORD, "Observation")
        numbered = (cls(*(f"{name}{number or ''}" for name in names)) for number in count())
        return next(own for own in numbered if not any(word in text for word in astuple(own)))


@dataclass(frozen=True)
class _Form:
    """A placeholder turn that the template keeps: the thinking before its word, "" for none, and
    whether it also calls tools.

    change: what the template changes in other turns once replies follow, "" for nothing.
    """

    words: _Words
    thinking: str
    calls: bool
    change: str = ""

    @property
    def content(self) -> str:
        return self.thinking + self.words.turn

    def turn(self, replies: Sequence[Message], calls: Calls) -> dict[str, Any]:
        """The turn before these replies, with the calls that it made, else calls of the tools that
        reply."""
        turn = {"role": "assistant", "content": self.content}
        if not self.calls:
            return turn
        tools = [reply for reply in replies if reply.get("role") == "tool"]
        made = [(call.get("id"), call["function"]["name"]) for call in calls] or [
            (reply.get("tool_call_id"), reply.get("name")) for reply in tools
        ]
        numbered = [
            {
                "id": str(id_ or f"{number:09d}"),
                "type": "function",
                "function": {"name": str(name or "tool"), "arguments": {}},
            }
            for number, (id_, name) in enumerate(made)
        ]
        return {**turn, "tool_calls": numbered}


class Suffixes:
    """The suffixes of a template; ends: ids of the tokens that end a turn."""

    def __init__(self, template: ChatTemplate, ends: Collection[int]) -> None:
        self.template, self.tokenizer = template, template.tokenizer
        self.ends = frozenset(ends)
        self._forms: dict[Any, _Form] = {}

    def after(
        self, turn: Sequence[int], replies: Sequence[Message], tools: Tools, calls: Calls = ()
    ) -> list[int]:
        """The ids that follow those of a turn: its end, unless the model drew one, the replies of
        tools or the user, and what begins the next turn. calls: those of the turn's message.

        Raises UserError where the template has nothing that could follow a turn, as it writes all
        earlier turns otherwise. See `notes` for one that drops their thinking.
        """
        replies = self.template.escaped([*replies])
        tools, calls = self.template.escape(tools), self.template.escape(calls)
        form = self._form(replies, tools, calls)
        finished, whole = self._rendered(form, replies, tools, calls)
        tails = self._tails(form, finished, whole, tools)
        if tails is None:
            raise self._error(OTHERWISE, replies)
        finished, whole = tails
        ids = self._encoded(whole)
        if not (turn and turn[-1] in self.ends):
            return ids
        # Some templates have no end token: the next turn's first token ends the one before.
        common = _common(ids, self._encoded(finished))
        end = self._first_end(ids[:common])
        if end is None and ids[:1] == [turn[-1]]:
            end = 0
        return ids if end is None else ids[end + 1 :]

    def around(
        self, turn: Sequence[int], replies: Sequence[Message], tools: Tools, calls: Calls = ()
    ) -> list[str]:
        """The texts before, between and after the contents of these replies to a turn."""
        word = self._words(replies, tools, calls).reply
        probes = [{**reply, "content": word} for reply in replies]
        text: str = self.tokenizer.decode(self.after(turn, probes, tools, calls))
        return text.split(word)

    def notes(self) -> list[str]:
        """What the template changes in earlier turns once tools or users reply; nothing if it keeps
        them as they were drawn, and for a model without a template."""
        if not self.template.exists:
            return []
        changes = list[str]()
        for role, name in (("tool", "tools"), ("user", "users")):
            try:
                change = self._form([{"role": role, "content": ""}], None, ()).change
            except UserError:
                continue  # it is raised where an environment replies so
            if change:
                changes.append(f"{change} before replies of {name}")
        if not changes:
            return []
        note = (
            f"{self.template.settings.model}: earlier turns of an episode stay as they were drawn; "
            f"its chat template {' and '.join(changes)}, so in use its contexts differ from those "
            f"of training, unless they are continued by token ids as here"
        )
        return [note]

    # ---- which placeholder the template keeps

    def _form(self, replies: Sequence[Message], tools: Tools, calls: Calls) -> _Form:
        words = self._words(replies, tools, calls)
        key = words, tuple(reply.get("role") for reply in replies), bool(tools), len(calls)
        if key not in self._forms:
            self._forms[key] = self._kept(words, replies, tools, calls)
        return self._forms[key]

    def _words(self, replies: Sequence[Message], tools: Tools, calls: Calls) -> _Words:
        """Words that nothing else has from which the template makes the conversation up to the
        contents of replies."""
        others = [{**reply, "content": ""} for reply in replies]
        source = self.tokenizer.chat_template, self.template.arguments
        return _Words.outside(repr((source, tools, calls, others)))

    def _kept(self, words: _Words, replies: Sequence[Message], tools: Tools, calls: Calls) -> _Form:
        """The first form that the template keeps. Raises UserError with the fault of the first."""
        changes, errors = list[str](), list[UserError]()
        probes = [{**reply, "content": words.reply} for reply in replies]
        for form in self._candidates(words, replies, tools, calls):
            try:
                change = self._change(form, probes, tools, calls)
            except UserError as refused:
                errors.append(refused)
                continue
            if not change:
                return replace(form, change=changes[0] if changes and not form.thinking else "")
            changes.append(change)
            errors.append(self._error(change, replies))
        raise errors[0]

    def _candidates(
        self, words: _Words, replies: Sequence[Message], tools: Tools, calls: Calls
    ) -> Iterator[_Form]:
        """A turn that thinks, as the prompt begins it, and one that does not; each with calls, too,
        which some templates require before a tool's reply, and first if it has calls."""
        opened = self._opened(tools)
        tag = next((tag for tag in THOUGHTS if opened.startswith(tag)), "<think>")
        closed = opened.strip() != "" and opened.strip() != tag
        replied = any(reply.get("role") == "tool" for reply in replies)
        called = (True, False) if calls else (False, True) if replied else (False,)
        for thinking in (opened if closed else THOUGHTS[tag].format(words.thought), ""):
            for each in called:
                yield _Form(words, thinking, calls=each)

    def _opened(self, tools: Tools) -> str:
        """The thinking that the template begins for the assistant, "" if none."""
        opening = self.template.opening(tools)
        places = [place for tag in THOUGHTS if (place := opening.find(tag)) >= 0]
        return opening[min(places) :] if places else ""

    def _change(self, form: _Form, replies: Sequence[Message], tools: Tools, calls: Calls) -> str:
        """What the template changes in this turn before the replies, "" for nothing."""
        finished, whole = self._rendered(form, replies, tools, calls)
        prompt = self._render([], tools)
        words = form.words
        if words.turn not in finished:
            return "leaves out what the assistant writes"
        if words.thought in form.thinking and words.thought not in whole:
            return "drops the assistant's thinking"
        if self._tails(form, finished, whole, tools) is None:
            return OTHERWISE
        if form.thinking and not finished.startswith(prompt):
            return f"begins the assistant's turn with {prompt[-60:]!r}, but not an earlier turn"
        return "leaves them out" if whole.count(words.reply) < len(replies) else ""

    def _tails(
        self, form: _Form, finished: str, whole: str, tools: Tools
    ) -> tuple[str, str] | None:
        """What follows the turn's own text in both conversations; None if they have no end of the
        turn in common.

        finished: the conversation up to the turn; whole: with what follows.
        """
        same, word = _common(finished, whole), form.words.turn
        if form.thinking:
            place = other = finished[:same].rfind(word)
            known = True
        else:
            known = len(self._render([], tools, **FINISHED)) <= same
            place, other = finished.find(word), whole.find(word)
        if not known or min(place, other) < 0:
            return None
        tails = finished[place + len(word) :], whole[other + len(word) :]
        if form.calls:
            common = tails[0][: _common(*tails)]
            last = max(common.rfind(self.tokenizer.decode([end])) for end in self.ends)
            return (tails[0][last:], tails[1][last:]) if last >= 0 else None
        ids = self._encoded(tails[0])
        kept = ids[: _common(ids, self._encoded(tails[1]))]
        ended = self._first_end(ids) is None or self._first_end(kept) is not None
        return tails if ended else None

    # ---- rendering and encoding

    def _rendered(
        self, form: _Form, replies: Sequence[Message], tools: Tools, calls: Calls
    ) -> tuple[str, str]:
        """The placeholder conversation up to its turn, and with the replies."""
        turn = form.turn(replies, calls)
        return self._render([turn], tools, **FINISHED), self._render([turn, *replies], tools)

    def _render(self, messages: Sequence[Message], tools: Tools, **options: bool) -> str:
        conversation = [{"role": "user", "content": ASK}, *map(dict, messages)]
        return self.template.render(conversation, tools, **options)

    def _encoded(self, text: str) -> list[int]:
        """The ids of a text that follows a word: at the beginning of a text, some tokenizers add a
        space."""
        texts = [WORD, WORD + text, text]
        word, whole, alone = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        ids: list[int] = whole[len(word) :] if whole[: len(word)] == word else alone
        return ids

    def _first_end(self, ids: Sequence[int]) -> int | None:
        return next((place for place, token in enumerate(ids) if token in self.ends), None)

    def _error(self, change: str, replies: Sequence[Message]) -> UserError:
        roles = ", ".join(sorted({repr(reply.get("role")) for reply in replies}))
        return UserError(
            f"{self.template.settings.model}: before messages of the role {roles}, its chat "
            f"template {change}, so a conversation cannot be continued; set a template that keeps "
            f"earlier turns as they were (policy.chat_template: {{chat_template: ...}})"
        )


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the longest common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
