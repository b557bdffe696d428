"""Settings: the configuration of the vLLM sampler."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from groupwise.options import PathOrName


class Start(BaseModel):
    """A server that the run starts itself, on this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: PathOrName | None = Field(
        None, description="interpreter of the environment that has vLLM; the run's own if unset"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="further options of `vllm serve`, without the dashes before their names",
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="further environment variables of the server"
    )
    wait: float = Field(600.0, gt=0, description="seconds that the server may take to start")


class Settings(BaseModel):
    """Which servers, how weights get there, and how long is waited for them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: list[str] = Field(
        default_factory=list, description="addresses of running servers: http://host:port"
    )
    start: Start | None = Field(
        None, description="start a server on this machine, where none is named"
    )
    transfer: Literal["files", "nccl"] | None = Field(
        None,
        description="how weights get there: nccl from GPU to GPU, or files; if unset nccl from a "
        "GPU, unless the servers share it (sleep)",
    )
    folder: PathOrName | None = Field(
        None,
        description="where files of weights lie while they are followed, and servers find them; "
        "memory (/dev/shm) if unset",
    )
    address: str = Field(
        "127.0.0.1", description="under which the servers reach this machine, with transfer: nccl"
    )
    sleep: bool = Field(
        False, description="servers share GPUs with training, and sleep while nothing is sampled"
    )
    timeout: float = Field(
        1800.0, gt=0, description="seconds that a server may take to answer a request"
    )
    patience: float = Field(
        120.0,
        ge=0,
        description="seconds for which a request that failed is sent again, as while a server "
        "restarts",
    )
    api_key: SecretStr | None = Field(None, description="of servers that ask for one")

    @field_validator("servers")
    @classmethod
    def _plain(cls, servers: list[str]) -> list[str]:
        for server in servers:
            if not server.startswith(("http://", "https://")):
                raise ValueError(f"expected addresses such as http://host:8000, found {server!r}")
        if len({server.rstrip("/") for server in servers}) < len(servers):
            raise ValueError("a server is named twice")
        return [server.rstrip("/") for server in servers]

    @model_validator(mode="after")
    def _either(self) -> Self:
        if bool(self.servers) == (self.start is not None):
            raise ValueError(
                "set either servers (addresses of running ones) or start (the run starts one)"
            )
        if self.sleep and self.transfer == "nccl":
            raise ValueError(
                "sleep: true and transfer: nccl: servers that share a GPU with training get their "
                "weights by files, as NCCL joins no two processes on one GPU"
            )
        return self
