"""Templated: calls by the tokenizer's own `response_template`, which transformers parses."""

from typing import Any

from transformers.utils.chat_parsing.response_templates import load_response_template

from groupwise.tool_call import ToolCall, calls_of
from groupwise_llm.codec.calls.format import Format, Parsed, Tools


class Templated(Format):
    """What `tokenizer.parse_response` reads.

    It refuses a turn as a whole; then `detected`, the format that the chat template shows, says
    which call is malformed.
    """

    reads_end = True

    def __init__(self, tokenizer: Any, detected: Format | None) -> None:
        self.tokenizer, self.detected = tokenizer, detected
        self.field = load_response_template(tokenizer.response_template).fields["tool_calls"]

    def parse(self, text: str, tools: Tools, before: str) -> Parsed:
        try:
            message = self.tokenizer.parse_response(text, prefix=before, tools=list(tools))
        except Exception as error:  # specifications are data from anywhere, and so are texts
            return self._refused(text, tools, before, error)
        calls = calls_of([message])
        if all(call.fault is not None for call in calls):
            return Parsed(calls)
        return Parsed(calls, str(message.get("content") or ""))

    def _refused(self, text: str, tools: Tools, before: str, error: Exception) -> Parsed:
        if self.detected is not None:
            parsed = self.detected.parse(text, tools, before)
            if any(call.fault is not None for call in parsed.calls):
                return parsed
        if self.field.open_re is None or not self.field.open_re.search(text):
            return Parsed()
        reason = str(error).split("\n", 1)[0]
        return Parsed((ToolCall("", fault=f"the call is malformed: {reason}"),))

    @staticmethod
    def fits(tokenizer: Any) -> bool:
        """Whether the tokenizer has a template of responses that says how calls are written."""
        match getattr(tokenizer, "response_template", None):
            case {"fields": {"tool_calls": _}}:
                return True
        return False
