"""Request: what the endpoint reads of a request for a chat completion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from groupwise_agents.content import NOT_SELF_CONTAINED, is_self_contained
from groupwise_agents.endpoint.refusal import Refusal, invalid

READ = frozenset({"model", "messages", "tools", "stream", "max_tokens", "max_completion_tokens"})
FIXED: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "stop": ("", []),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
}
"""Parameters that ask for another kind of answer, with the values that ask for none."""
WITHOUT_EFFECT = frozenset(
    {
        *("metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier"),
        *("service_tier", "store", "stream_options", "user"),
    }
)

Positive = Annotated[int, Field(ge=1)]


class _Read(BaseModel):
    """A part of a request; what it has besides these fields is the chat template's to read."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _CalledFunction(_Read):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(_Read):
    id: str | None = None
    function: _CalledFunction


class _Part(_Read):
    type: str
    text: str | None = None


class _Message(_Read):
    role: str
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_Call] | None = None


class _Schema(_Read):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(_Read):
    function: _Schema


class _Body(_Read):
    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    stream: bool | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the endpoint reads of a request.

    limit: the most tokens of the answer, None for the policy's own limit; ignored: the names of
    parameters that the run does not follow: it samples as its policy says.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    limit: int | None
    ignored: Sequence[str]

    @classmethod
    def of(cls, body: Any) -> "Request":
        """Raises Refusal for what is not a request, or asks for another kind of answer."""
        if not isinstance(body, Mapping):
            raise invalid("the body must be a JSON object")
        sent = {name: value for name, value in body.items() if value is not None}
        for name, plain in FIXED.items():
            if name in sent and sent[name] not in plain:
                raise Refusal(
                    400,
                    "unsupported_parameter",
                    f"{name}: {sent[name]!r:.200} is not supported: a run answers with one "
                    f"completion at a time, as its policy samples it; leave `{name}` out",
                )
        try:
            read = _Body.model_validate(sent)
        except ValidationError as error:
            raise invalid(_first(error)) from error
        messages = sent["messages"]
        if not all(is_self_contained(message.get("content")) for message in messages):
            raise invalid(NOT_SELF_CONTAINED)
        limit = read.max_completion_tokens
        return cls(
            model=read.model,
            messages=messages,
            tools=[] if sent.get("tool_choice") == "none" else sent.get("tools", []),
            limit=read.max_tokens if limit is None else limit,
            ignored=sorted(sent.keys() - READ - FIXED.keys() - WITHOUT_EFFECT),
        )


def _first(error: ValidationError) -> str:
    """The first mistake of a request, with its place."""
    mistake = error.errors(include_url=False)[0]
    place = ".".join(map(str, mistake["loc"]))
    return f"{place}: {mistake['msg']}, received {mistake['input']!r:.200}"
