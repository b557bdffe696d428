"""Suffixes: what a chat template puts between an assistant's turn and the next one, as token ids.

A conversation is never encoded again: the tokens of a turn stay as they were drawn, and the
template's text between that turn and the next one is appended. It is found by rendering a short
conversation with a placeholder in the turn's place.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.errors import UserError
from groupwise_llm.codec.template import FINISHED, ChatTemplate

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None

ASK, THOUGHT, TURN, REPLY = "Question?", "Consideration", "Placeholder", "Observation"
"""Words of the placeholder conversation: the user's, the assistant's thinking, its answer, and what
a tool or the user replies."""
THINKING = {"<think>": f"<think>\n{THOUGHT}\n</think>\n\n", "[THINK]": f"[THINK]{THOUGHT}[/THINK]"}


@dataclass(frozen=True)
class _Form:
    """A placeholder turn that the template keeps: its text, and whether it also calls tools."""

    content: str
    calls: bool

    def turn(self, replies: Sequence[Message]) -> dict[str, Any]:
        """The turn before these replies; it calls the tools that reply."""
        turn = {"role": "assistant", "content": self.content}
        if not self.calls:
            return turn
        tools = [reply for reply in replies if reply.get("role") == "tool"]
        calls = [
            {
                "id": str(reply.get("tool_call_id") or f"{number:09d}"),
                "type": "function",
                "function": {"name": str(reply.get("name") or "tool"), "arguments": {}},
            }
            for number, reply in enumerate(tools)
        ]
        return {**turn, "tool_calls": calls}


class Suffixes:
    """The suffixes of a template; ends: ids of the tokens that end a turn."""

    def __init__(self, template: ChatTemplate, ends: Collection[int]) -> None:
        self.template, self.tokenizer = template, template.tokenizer
        self.ends = frozenset(ends)
        self._forms: dict[tuple[tuple[Any, ...], bool], _Form] = {}

    def after(self, turn: Sequence[int], replies: Sequence[Message], tools: Tools) -> list[int]:
        """The ids that follow those of a turn: its end, unless the model drew one, the replies of
        tools or the user, and what begins the next turn.

        Raises UserError where the template writes earlier turns differently once replies follow
        them: the model would be trained on contexts that the template never makes in use.
        """
        key = tuple(reply.get("role") for reply in replies), bool(tools)
        if key not in self._forms:
            self._forms[key] = self._form(replies, tools)
        form = self._forms[key]
        finished, whole = self._rendered(form, replies, tools)
        start = self._end_of_turn(form, finished, whole)
        ids = self._encoded(whole[start:])
        if not (turn and turn[-1] in self.ends):
            return ids
        # Some templates have no end token: the next turn's first token ends the one before.
        common = _common(ids, self._encoded(finished[start:]))
        end = self._first_end(ids[:common])
        if end is None and ids[:1] == [turn[-1]]:
            end = 0
        return ids if end is None else ids[end + 1 :]

    # ---- which placeholder the template keeps

    def _form(self, replies: Sequence[Message], tools: Tools) -> _Form:
        """The first form that the template keeps. Raises UserError with the fault of the first."""
        faults = []
        probes = [{**reply, "content": REPLY} for reply in replies]
        for form in self._candidates(replies, tools):
            try:
                self._check(form, probes, tools)
                return form
            except UserError as fault:
                faults.append(fault)
        raise faults[0]

    def _candidates(self, replies: Sequence[Message], tools: Tools) -> Iterator[_Form]:
        """A turn that thinks, as the prompt begins it; and with calls, which some templates require
        before a tool's reply."""
        opened = self._opened(tools)
        tag = next((tag for tag in THINKING if opened.startswith(tag)), "<think>")
        closed = opened.strip() != "" and opened.strip() != tag
        content = (opened if closed else THINKING[tag]) + TURN
        yield _Form(content, calls=False)
        if any(reply.get("role") == "tool" for reply in replies):
            yield _Form(content, calls=True)

    def _opened(self, tools: Tools) -> str:
        """The thinking that the template begins for the assistant, "" if none."""
        opening = self.template.opening(tools)
        places = [place for tag in THINKING if (place := opening.find(tag)) >= 0]
        return opening[min(places) :] if places else ""

    def _check(self, form: _Form, replies: Sequence[Message], tools: Tools) -> None:
        """Raise UserError where the template does not keep this turn before the replies."""
        finished, whole = self._rendered(form, replies, tools)
        role = f"a message of the role {replies[0].get('role')!r}"
        prompt = self._render([], tools)
        if TURN not in finished:
            raise self._fault("leaves out what the assistant writes")
        if THOUGHT in form.content and THOUGHT not in whole:
            raise self._fault(f"drops the assistant's thinking once {role} follows")
        self._end_of_turn(form, finished, whole)
        if not finished.startswith(prompt):
            raise self._fault(
                f"begins the assistant's turn with {prompt[-60:]!r}, but not an earlier turn"
            )
        if whole.count(REPLY) < len(replies):
            raise self._fault(f"leaves out {role}")

    def _end_of_turn(self, form: _Form, finished: str, whole: str) -> int:
        """The character of the conversation at which the turn's own text ends.

        finished: the conversation up to the turn; whole: with what follows.
        """
        common = finished[: _common(finished, whole)]
        stop = common.rfind(TURN) + len(TURN)
        if TURN in common and not form.calls:
            ids = self._encoded(finished[stop:])
            kept = ids[: _common(ids, self._encoded(whole[stop:]))]
            if self._first_end(ids) is None or self._first_end(kept) is not None:
                return stop
        elif TURN in common:
            last = max(common.rfind(self.tokenizer.decode([end]), stop) for end in self.ends)
            if last >= 0:
                return last
        raise self._fault("writes an earlier turn of the assistant otherwise than the last one")

    # ---- rendering and encoding

    def _rendered(self, form: _Form, replies: Sequence[Message], tools: Tools) -> tuple[str, str]:
        """The placeholder conversation up to its turn, and with the replies."""
        turn = form.turn(replies)
        return self._render([turn], tools, **FINISHED), self._render([turn, *replies], tools)

    def _render(self, messages: Sequence[Message], tools: Tools, **options: bool) -> str:
        conversation = [{"role": "user", "content": ASK}, *map(dict, messages)]
        return self.template.render(conversation, tools, **options)

    def _encoded(self, text: str) -> list[int]:
        """The ids of a text that follows a word: at the beginning of a text, some tokenizers add a
        space."""
        texts = [TURN, TURN + text, text]
        word, whole, alone = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        ids: list[int] = whole[len(word) :] if whole[: len(word)] == word else alone
        return ids

    def _first_end(self, ids: Sequence[int]) -> int | None:
        return next((place for place, token in enumerate(ids) if token in self.ends), None)

    def _fault(self, fault: str) -> UserError:
        return UserError(
            f"{self.template.settings.model}: its chat template {fault}, so a model trained on "
            f"several turns would meet other contexts in use; set a template that keeps earlier "
            f"turns as they were (policy.chat_template: {{chat_template: ...}})"
        )


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """The length of the longest common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
