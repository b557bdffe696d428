"""Wording: how a row becomes a prompt, by a template over its columns and as chat messages."""

import re
from collections.abc import Collection
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise import attachments
from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.section import mistake_at
from groupwise.prompt_source import Row, is_chat

PLACE = re.compile(r"\{\{([^\W\d]\w*)\}\}|\{([^\W\d]\w*)\}")
"""`{{name}}`, which stands for the text `{name}`, or `{name}`, which stands for a column."""


class Wording(BaseModel):
    """The options of prompt sources whose rows are worded; a source's `Config` inherits them.

    In a template only `{name}` is replaced, so JSON and LaTeX need no escapes: `{"x": 1}`, `{}` and
    `\\boxed{}` stay as they are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str | None = Field(
        None,
        description="text of the prompt, where `{name}` stands for what the row has in that "
        "column, and `{{name}}` for `{name}` itself; unset, the prompt is the row's own",
    )
    chat: bool = Field(
        False,
        description="make the prompt a user's message, for models that have a chat template",
    )
    system: str | None = Field(
        None,
        description="system message of prompts that have none, such as the form of the answer; "
        "needs `chat: true`",
    )

    @model_validator(mode="after")
    def _system_is_a_message(self) -> Self:
        if self.system is not None and not self.chat:
            raise mistake_at(("system",), "`system` needs `chat: true`: a string has no messages")
        return self

    def check(self, columns: Collection[str]) -> None:
        """Raise ValueError where the template names a column that is not one of these."""
        for name in self._columns:
            if name not in columns:
                raise ValueError(
                    f"the template names the column {name!r}{did_you_mean(name, columns)} (there "
                    f"are {', '.join(columns)}); for the text {{{name}}} itself, write "
                    f"{{{{{name}}}}}"
                )

    def worded(self, row: Row, own: Any) -> Any:
        """The prompt of a row: a string, or a list of messages where `chat` is set.

        own: the row's own prompt, which is taken where there is no template. One that is neither a
        string nor messages is returned as it is, for `check_row` to refuse.
        """
        text = own if self.template is None else self._filled(row)
        if not self.chat or not (is_chat(text) or (isinstance(text, str) and text)):
            return text
        messages = list(text) if is_chat(text) else [{"role": "user", "content": text}]
        if self.system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system})
        return messages

    def of_text(self, text: str) -> Row:
        """The row of a text that stands in the place of the template's only column, or of the
        prompt. Raises UserError for a template of several columns."""
        names = [*dict.fromkeys(self._columns)]
        if len(names) > 1:
            raise UserError(
                f"prompts: the template is made of {', '.join(names)}, and one text cannot stand "
                f"for all of them; leave it out, prompts.template=null, and write the whole prompt"
            )
        row = dict.fromkeys(names, text)
        return {**row, "prompt": self.worded(row, text)}

    @property
    def _columns(self) -> list[str]:
        return [name for _, name in PLACE.findall(self.template or "") if name]

    def _filled(self, row: Row) -> str:
        def text(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return f"{{{literal}}}"
            value = row[name]
            if is_chat(value):
                raise UserError(
                    f"prompts: the template names the column {name!r}, which holds chat messages, "
                    f"and makes one string of its columns; set `prompt: {name}` without a template"
                )
            if attachments.is_open(value):
                raise UserError(
                    f"prompts: the template names the column {name!r}, which holds a picture: "
                    f"leave it out, since pictures of columns stand before the text of the prompt"
                )
            return "" if value is None else str(value)  # an empty cell of a table is None

        return PLACE.sub(text, self.template or "")
