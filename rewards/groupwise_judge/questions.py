"""Questions: what a judge in this process is asked about each sample."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise_judge.material import column, contexts
from groupwise_judge.messages import Exhibit, Message, exhibits, messages
from groupwise_judge.pictures import seen
from groupwise_judge.settings import Shown
from groupwise_messages.wording import PLACE

INSTRUCTIONS = "You are a strict and fair judge of what a model completed."


def is_whole(question: str) -> bool:
    """Whether a question names `{prompt}`, `{completion}` or a column, and so holds them itself."""
    return any(name for _, name in PLACE.findall(question))


class Questions:
    """A question about each sample, as chats.

    One that holds what it is about is the text of the user's message, after the pictures, as
    published scorers ask. Any other one comes after the material, which stands in fences.
    """

    def __init__(self, question: str, instructions: str | None, shown: Shown) -> None:
        """instructions: the system message; if None, none or, with fences, a general one."""
        self._question, self._instructions, self._shown = question, instructions, shown

    def chats(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any] | None],
    ) -> list[list[Message]]:
        """The chat about each sample. Raises ValueError for a missing column, and for a prompt, a
        completion or a picture that cannot be shown; also for a question that names `{completion}`
        (or `{prompt}`) where that is a picture without text."""
        before = contexts(self._shown, prompts, columns)
        shown = [seen(completion, self._shown.frames) for completion in completions]
        judged = [exhibits("completion", completion) for completion in shown]
        if is_whole(self._question):
            pairs = zip(before, judged, strict=True)
            return [self._filled(*pair, columns, row) for row, pair in enumerate(pairs)]
        instructions = self._instructions or INSTRUCTIONS
        return [
            messages(instructions, [*context, *completion], self._question)
            for context, completion in zip(before, judged, strict=True)
        ]

    def _filled(
        self,
        prompt: Sequence[Exhibit],
        completion: Sequence[Exhibit],
        columns: Mapping[str, Sequence[Any] | None],
        row: int,
    ) -> list[Message]:
        """The pictures of prompt and completion, and the question with what it names filled in."""

        def text(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return f"{{{literal}}}"
            if name in _OWN:
                return _text(name, prompt if name == "prompt" else completion)
            value = column(columns, name)[row]
            return "" if value is None else str(value)

        parts = [part for exhibit in (*prompt, *completion) for part in exhibit.parts]
        images = [{"type": "image", "image": part} for part in parts if not isinstance(part, str)]
        question = {"type": "text", "text": PLACE.sub(text, self._question)}
        chat: list[Message] = [{"role": "user", "content": [*images, question]}]
        if self._instructions is not None:
            chat.insert(0, {"role": "system", "content": self._instructions})
        return chat


_OWN = ("prompt", "completion")


def _text(name: str, material: Sequence[Exhibit]) -> str:
    """What stands for `{prompt}` or `{completion}`. Raises ValueError for pictures alone."""
    parts = [part for exhibit in material for part in exhibit.parts]
    texts = [part for part in parts if isinstance(part, str)]
    if parts and not texts:
        raise ValueError(
            f"`question` names {{{name}}}, but a {name} is a picture without text: leave "
            f"{{{name}}} out of it; the judge sees the picture before the question"
        )
    return "\n".join(texts)
