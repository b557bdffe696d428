"""Form: which JSON object a judge has to answer with, and how an answer is read: strictly.

Only an answer that is one such object counts, with all its fields, no others, and values of the
schema. Anything else is unreadable: it says nothing about the completion, so it is never a score.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from groupwise.kit import foreign_json
from groupwise_judge.rubric import REASONING
from groupwise_messages.thinking import TAGS

Value = int | str


class UnreadableError(Exception):
    """A judge's answer does not count; kind: one of `KINDS`; reason: a phrase for the sample."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


KINDS = ("prose", "fields", "range", "cut", "refused", "unanswered")
"""Why an answer does not count: not a JSON object; fields that are missing or too many; values
outside their range; cut off at `max_tokens`; refused by judge or server; none came."""


class Answer(Protocol):
    """How an answer is asked for by a schema, and read."""

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema; None if the answer is not JSON."""

    def read(self, text: str) -> tuple[dict[str, Value], str]:
        """The values of an answer by field, and the reasons. Raises UnreadableError."""


@dataclass(frozen=True)
class Form:
    """The fields of an answer, each with its permitted values; reasoning: whether a string with the
    judge's reasons comes first."""

    fields: Mapping[str, Sequence[Value]]
    reasoning: bool = True

    def schema(self) -> dict[str, Any]:
        """The JSON schema; permitted values are listed, which every server that takes schemas
        understands, and ranges not."""
        reasons = {REASONING: {"type": "string"}} if self.reasoning else {}
        scores = {
            name: {"type": _type(values), "enum": list(values)}
            for name, values in self.fields.items()
        }
        properties = {**reasons, **scores}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def request(self) -> str:
        """A sentence that asks for it, with the form written out."""
        reasons = {REASONING: "your reasons, in two or three sentences"} if self.reasoning else {}
        shown = {name: _permitted(values) for name, values in self.fields.items()}
        lines = [f"  {json.dumps(k, ensure_ascii=False)}: {v}" for k, v in shown.items()]
        first = [f'  "{name}": "{text}"' for name, text in reasons.items()]
        body = ",\n".join([*first, *lines])
        return f"Answer with one JSON object of this form and nothing else:\n{{\n{body}\n}}"

    def read(self, text: str) -> tuple[dict[str, Value], str]:
        """The values of an answer by field, and the reasons.

        Thinking before the object is skipped, and so is a code fence around it. Raises
        UnreadableError.
        """
        text = text.strip()
        for opening, closing in TAGS.items():
            if text.startswith(opening):
                text = text.rpartition(closing)[2].strip()
        try:
            answer = foreign_json.read(
                _unfenced(text), object_pairs_hook=_distinct, parse_constant=_constant
            )
        except ValueError as error:
            raise UnreadableError("prose", f"answered {text!r:.120}, which is not JSON") from error
        if not isinstance(answer, dict):
            raise UnreadableError("prose", f"answered {text!r:.120}, which is not an object")
        return self._values(answer), str(answer.get(REASONING, ""))

    def _values(self, answer: dict[str, Any]) -> dict[str, Value]:
        expected = {*self.fields, *([REASONING] if self.reasoning else [])}
        if missing := [name for name in self.fields if name not in answer]:
            raise UnreadableError("fields", f"answered without {missing[0]!r}")
        if surplus := sorted(answer.keys() - expected):
            raise UnreadableError("fields", f"answered with {surplus[0]!r:.60}, a field too many")
        for name, permitted in self.fields.items():
            value = answer[name]
            # True is 1 to Python, and 4.0 is 4: neither is of the schema.
            if type(value) is not type(permitted[0]) or value not in permitted:
                raise UnreadableError(
                    "range", f"answered {name}: {value!r:.40}, expected {_permitted(permitted)}"
                )
        return {name: answer[name] for name in self.fields}


def _type(values: Sequence[Value]) -> str:
    return "string" if isinstance(values[0], str) else "integer"


def _permitted(values: Sequence[Value]) -> str:
    if isinstance(values, range):
        return f"an integer from {values[0]} to {values[-1]}"
    return " or ".join(json.dumps(value) for value in values)


def _unfenced(text: str) -> str:
    """What is between the first and the last line, if these are those of a code fence."""
    opening, _, rest = text.partition("\n")
    body, _, closing = rest.rpartition("\n")
    is_code = opening.rstrip() in ("```", "```json") and closing.strip() == "```"
    return body if is_code else text


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs as a mapping; a key that occurs twice has two values, and so none."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise UnreadableError("fields", f"answered {name!r:.60} twice")
    return dict(pairs)


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
