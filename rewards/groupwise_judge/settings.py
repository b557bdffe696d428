"""Settings that all judges share: which server and model, how it is asked, and what it reads."""

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from groupwise.kit.options import PathToWrite

CACHE = "~/.cache/groupwise/judgements.sqlite"
OWN = ("model", "messages", "temperature", "max_tokens", "seed", "response_format", "stream", "n")
"""What a request contains already, so that `options` cannot."""


class Seen(BaseModel):
    """How much of a completion the judge sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    frames: int = Field(
        default=4,
        ge=1,
        description="Of a video, how many frames the judge sees, as pictures in their order, "
        "evenly spaced, the first and the last among them; 1: the first.",
    )


class Shown(Seen):
    """What the judge reads besides the completion."""

    prompt: bool = Field(default=True, description="Whether the judge reads the prompt.")
    reference: str | None = Field(
        default=None,
        min_length=1,
        description="Column with reference answers for the judge; a row without one has none.",
    )


class ServerSettings(Shown):
    """Which server is asked, and how."""

    server: str = Field(
        description="Address of an OpenAI-compatible server, such as http://localhost:8000/v1."
    )
    model: str = Field(min_length=1, description="The judge's name on the server.")
    api_key: SecretStr | None = Field(
        default=None, description="Key for the server: ${NAME} reads it from the environment."
    )
    answers: int = Field(
        default=1, ge=1, le=64, description="Answers per question, of which the mean counts."
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        description="Temperature of answers; if unset 0, and 1 with several answers. "
        "`options: {temperature: null}` leaves it to the server.",
    )
    max_tokens: int = Field(default=1024, ge=1, description="Most tokens of an answer.")
    reasoning: bool = Field(
        default=True, description="Whether the judge writes its reasons before it scores."
    )
    response_format: Literal["auto", "json_schema", "none"] = Field(
        default="auto",
        description="Whether the server is asked to keep to the schema; auto: unless it refuses. "
        "Answers are checked in any case.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Further fields of a request, such as reasoning_effort; null removes a field.",
    )
    timeout: float = Field(default=60.0, gt=0, description="Seconds for one answer.")
    retries: int = Field(
        default=4, ge=0, description="How often a failed request is repeated, ever more slowly."
    )
    concurrency: int = Field(
        default=16, ge=1, description="Requests in flight, on each process of the run."
    )
    requests_per_minute: float | None = Field(
        default=None, gt=0, description="Most requests a minute, over all processes of the run."
    )
    input_price: float = Field(default=0.0, ge=0, description="Price of a million input tokens.")
    output_price: float = Field(default=0.0, ge=0, description="Price of a million output tokens.")
    cache: PathToWrite | None = Field(
        default=CACHE,
        description="SQLite file with answers, shared by runs and processes; null: in memory only.",
    )

    @property
    def address(self) -> str:
        """The server as messages name it: without a user and a password."""
        parts = urlsplit(self.server)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @field_validator("server")
    @classmethod
    def _address(cls, server: str) -> str:
        if not server.startswith(("http://", "https://")) or not _host(server):
            raise ValueError(
                f"expected an address such as http://localhost:8000/v1, got {server!r}"
            )
        return server.rstrip("/").removesuffix("/chat/completions")

    @field_validator("options")
    @classmethod
    def _further(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key in (key for key in OWN if options.get(key) is not None):
            raise ValueError(f"{key!r} is not a further field: every request sets it")
        return options

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.server.startswith("https://") and "api_key" not in self.model_fields_set:
            raise ValueError(
                f"the judge at {self.address} needs a key: set `api_key: ${{NAME}}`, where NAME is "
                f"the environment variable that holds it, or `api_key: null` if it takes none"
            )
        if self.answers > 1 and self.temperature == 0:
            raise ValueError(
                f"answers: {self.answers} at temperature: 0 would all be the same; set a "
                f"temperature above 0, or answers: 1"
            )
        return self


def _host(address: str) -> str | None:
    """The host of an address; None if it has none, or a port that is no number."""
    try:
        parts = urlsplit(address)
        return parts.hostname if parts.port != 0 else None
    except ValueError:
        return None
