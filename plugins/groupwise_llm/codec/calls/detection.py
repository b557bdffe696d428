"""Detection: the format in which a chat template writes the calls of a message."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.kit.errors import UserError
from groupwise.tool_call import ToolCall, assistant_message
from groupwise_llm.codec.calls.elements import GLM, QWEN3_CODER
from groupwise_llm.codec.calls.format import Format
from groupwise_llm.codec.calls.harmony import Harmony
from groupwise_llm.codec.calls.llama import Llama
from groupwise_llm.codec.calls.mistral import Mistral
from groupwise_llm.codec.calls.tags import Tags
from groupwise_llm.codec.characters import common_prefix
from groupwise_llm.codec.template import FINISHED, ChatTemplate
from groupwise_messages.thinking import after_thinking

FORMATS: Mapping[str, Format] = {
    "hermes": Tags(),
    "qwen3_coder": QWEN3_CODER,
    "glm": GLM,
    "mistral": Mistral(),
    "gpt_oss": Harmony(),
    "llama": Llama(),
}
ASK = {"role": "user", "content": "Question?"}
CALL = ToolCall("probe", {"text": "Probe", "number": 3}, id="000000000")
TYPES = {"text": {"type": "string"}, "number": {"type": "integer"}}
PROBE = {
    "type": "function",
    "function": {
        "name": CALL.name,
        "description": "Probes.",
        "parameters": {"type": "object", "properties": TYPES, "required": [*TYPES]},
    },
}


def detected(template: ChatTemplate, ends: Sequence[str]) -> Format | None:
    """The first format that reads from a rendered message the call that it has; None if none does,
    or the template has no place for calls. ends: the texts of the tokens that end a turn."""
    messages = [ASK, assistant_message("", [CALL])]
    try:
        prompt = template.render([ASK], [PROBE])
        whole = template.render(messages, [PROBE], **FINISHED)
    except UserError:
        return None
    text = whole[common_prefix(prompt, whole) :]
    stop = max((text.rfind(end) for end in ends), default=-1)
    text = text if stop < 0 else text[:stop]
    return next((own for own in FORMATS.values() if _reads(own, text)), None)


def shows_tools(template: ChatTemplate) -> bool:
    """Whether tools change what the template renders."""
    return template.render([ASK], [PROBE]) != template.render([ASK])


def _reads(own: Format, text: str) -> bool:
    # A template may open thinking, and close it.
    calls: Sequence[Any] = own.parse(after_thinking(text), [PROBE], "").calls
    made = [(call.name, call.arguments, call.fault) for call in calls]
    return made == [(CALL.name, CALL.arguments, None)]
