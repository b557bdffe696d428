"""Calls: what a turn calls, in the format of the policy's model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from groupwise.kit.errors import UserError
from groupwise.tool_call import ToolCall
from groupwise_llm.codec.calls.detection import FORMATS, detected, shows_tools
from groupwise_llm.codec.calls.format import Format, Parsed
from groupwise_llm.codec.calls.mistral import Mistral
from groupwise_llm.codec.calls.tags import Tags
from groupwise_llm.codec.calls.templated import Templated
from groupwise_llm.codec.completions import Completions
from groupwise_llm.codec.contexts import Context, Turn, is_reply
from groupwise_llm.codec.prompts import Prompts


class Calls:
    """Reads the calls of turns: where `policy.tool_calls` says how they are written, or tools are
    shown; ends: ids of the tokens that end a turn."""

    def __init__(self, prompts: Prompts, completions: Completions, ends: Collection[int]) -> None:
        self.prompts, self.completions, self.ends = prompts, completions, ends
        self.template, self.tokenizer = prompts.template, prompts.tokenizer
        self._checked = False

    @cached_property
    def format(self) -> Format | None:
        """How the model writes calls; None if that is not known."""
        own = self.prompts.settings.tool_calls
        if own is None:
            template_format = self._detected()
            fits = Templated.fits(self.tokenizer)
            return Templated(self.tokenizer, template_format) if fits else template_format
        if own.format != "tags":
            return FORMATS[own.format]
        call = (own.tool, own.argument) if own.tool and own.argument else None
        return Tags(str(own.begin), str(own.end), call)

    def _detected(self) -> Format | None:
        ends = [self.tokenizer.decode([token]) for token in self.ends]
        return detected(self.template, ends)

    def check(self) -> None:
        """Raise UserError where tools cannot be shown, or calls would not be noticed."""
        settings = self.prompts.settings
        if self._checked or settings.tool_calls is not None:
            return
        if not shows_tools(self.template):
            raise UserError(
                f"{settings.model}: its chat template does not show tools to the model; set one "
                f"that does (policy.chat_template: {{chat_template: ...}}), or describe the tools "
                f"in the prompts and set policy.tool_calls to how the model is to call them"
            )
        if self.format is None:
            raise UserError(
                f"{settings.model}: it is not known in which form this model calls tools, as its "
                f"chat template has none of {', '.join(FORMATS)}; set policy.tool_calls, for "
                f'example to {{format: tags, begin: "<call>", end: "</call>"}}'
            )
        self._checked = True

    def read(self, context: Context, turn: Turn) -> Turn:
        """The turn, drawn in this context, with its calls."""
        format_ = self._format_in(context)
        if format_ is None or turn.ended == "failed":
            return turn
        text = self.completions.raw(turn.ids, ends=format_.reads_end)
        parsed = format_.parse(text, context.tools or (), self._before(context))
        return replace(
            turn, calls=tuple(self._numbered(parsed, context)), content=self._content(parsed)
        )

    def _format_in(self, context: Context) -> Format | None:
        configured = self.prompts.settings.tool_calls is not None
        return self.format if configured or context.tools else None

    def _content(self, parsed: Parsed) -> str | None:
        content = parsed.content
        if content is not None and not self.completions.keep_special:
            for token in self.tokenizer.all_special_tokens:
                content = content.replace(token, "")
        return content

    def _numbered(self, parsed: Parsed, context: Context) -> Sequence[ToolCall]:
        """The calls with ids of nine figures where templates demand these."""
        if not isinstance(self.format, Mistral):
            return parsed.calls
        drawn = len(context.completion_ids)
        calls = enumerate(parsed.calls, drawn)
        return [call if call.id else replace(call, id=f"{n:09d}") for n, call in calls]

    def _before(self, context: Context) -> str:
        """What the assistant's turn has before the next part of it is drawn."""
        parts = list[str]()
        for segment in reversed(context.segments):
            if is_reply(segment):
                return self._opening(context.tools) + "".join(reversed(parts))
            parts.append(self.completions.raw(segment.ids))
        return self._begun(context) + "".join(reversed(parts))

    def _begun(self, context: Context) -> str:
        prompt = context.prompt
        if isinstance(prompt, str) or self.template.continues(prompt):
            row = {"prompt": prompt if isinstance(prompt, str) else [*prompt]}
            return self.prompts.thinking_prefix({**row, "tools": context.tools})
        return self._opening(context.tools)

    def _opening(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        key = bool(tools)
        if key not in self._openings:
            self._openings[key] = self.template.opening(tools)
        return self._openings[key]

    @cached_property
    def _openings(self) -> dict[bool, str]:
        """By whether tools are shown, what the template begins the assistant's turn with."""
        return {}
