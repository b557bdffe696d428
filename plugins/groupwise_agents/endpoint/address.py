"""Address: where an agent finds its model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """What the `openai` client takes; api_key: part of the base URL, too."""

    base_url: str
    api_key: str
    model: str
