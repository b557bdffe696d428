"""Text: what a server's observations are for a model."""

import json
from collections.abc import Mapping
from typing import Any

from groupwise_agents.content import joined, of_parts

OWN = ("done", "reward", "metadata")
"""Fields of every observation, which say nothing of the environment."""


def text_of_observation(observation: Any) -> str:
    """A string as it is, one that is the only field of an observation as well; else its fields as
    JSON, without `done`, `reward` and `metadata`."""
    if isinstance(observation, str):
        return observation
    if hasattr(observation, "model_dump"):
        observation = observation.model_dump(mode="json")
    if not isinstance(observation, Mapping):
        return "" if observation is None else str(observation)
    fields = {name: value for name, value in observation.items() if name not in OWN}
    match [*fields.values()]:
        case []:
            return ""
        case [str(text)]:
            return text
    return json.dumps(fields, ensure_ascii=False, default=str)


def with_observation(
    messages: list[Mapping[str, Any]], observation: str
) -> list[Mapping[str, Any]]:
    """The messages, with the first observation at the end of the last one, on a line of its own."""
    if not observation:
        return messages
    *before, last = messages
    content = last["content"] or ""
    own = content if isinstance(content, str) else of_parts(content)
    return [*before, {**last, "content": joined(own, f"\n{observation}")}]
