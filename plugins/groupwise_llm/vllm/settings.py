"""Settings: the configuration of the vLLM sampler."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from groupwise.kit.options import PathOrName, PathToWrite


def address(text: str) -> str:
    """An address of a server, without a slash at its end. Raises ValueError."""
    if not text.startswith(("http://", "https://")):
        raise ValueError(f"expected addresses such as http://host:8000, found {text!r}")
    return text.rstrip("/")


class Start(BaseModel):
    """A server that the run itself starts on this machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: PathOrName | None = Field(
        None,
        description="Python interpreter of the environment that has vLLM; the run's own if unset",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="further options of `vllm serve`, by name without the leading dashes",
    )
    environment: dict[str, str] = Field(
        default_factory=dict, description="further environment variables of the server"
    )
    wait: float = Field(600.0, gt=0, description="longest time to wait for its start, in seconds")


class Settings(BaseModel):
    """Which servers, how weights are sent there, and how long to wait for them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: list[str] | PathToWrite = Field(
        default_factory=list,
        description="addresses of running servers: http://host:port; or a file with one a line, "
        "which is read again before each batch: servers may be replaced by others",
    )
    start: Start | None = Field(
        None, description="start a server on this machine, instead of `servers`"
    )
    transfer: Literal["files", "nccl"] | None = Field(
        None,
        description="how weights are sent: nccl from GPU to GPU, or files; if unset nccl where "
        "training is on a GPU that servers do not share (no sleep, no start), and servers are "
        "listed; adapters alone always go by files",
    )
    adapters: bool | None = Field(
        None,
        description="with `policy.lora`: true sends only the adapters (vLLM's LoRA), false the "
        "whole model with adapters merged; if unset, only the adapters where that is possible",
    )
    folder: PathToWrite | None = Field(
        None,
        description="for transfer: files, a folder that trainer and servers both see; /dev/shm "
        "(memory) if unset",
    )
    address: str = Field(
        "127.0.0.1",
        description="for transfer: nccl, the address where the servers reach this machine",
    )
    sleep: bool = Field(
        False,
        description="servers share GPUs with training, and free them while nothing is sampled",
    )
    timeout: float = Field(
        1800.0,
        gt=0,
        description="longest time for one answer as a whole, in seconds; of a server that works "
        "its completions are then failed samples",
    )
    patience: float = Field(
        120.0,
        ge=0,
        description="how long a failed request to the last server is repeated, in seconds; covers "
        "a restart",
    )
    api_key: SecretStr | None = Field(None, description="API key, where servers require one")

    @field_validator("servers")
    @classmethod
    def _plain(cls, servers: list[str] | str) -> list[str] | str:
        if isinstance(servers, str):
            if servers.startswith(("http://", "https://")):
                raise ValueError(f"expected a list or a file: servers: [{servers!r}]")
            return servers
        plain = [address(server) for server in servers]
        if len({*plain}) < len(plain):
            raise ValueError("the same server is listed twice")
        return plain

    @model_validator(mode="after")
    def _either(self) -> Self:
        if bool(self.servers) == (self.start is not None):
            raise ValueError(
                "set either servers (addresses of running servers) or start (the run starts one)"
            )
        if isinstance(self.servers, str) and self.transfer == "nccl":
            raise ValueError(
                "transfer: nccl and a file of servers: NCCL connects all of them once, so none can "
                "be replaced; list their addresses in servers, or set transfer: files"
            )
        if self.sleep and self.transfer == "nccl":
            raise ValueError(
                "sleep: true and transfer: nccl: NCCL cannot connect two processes on one GPU; for "
                "servers that share GPUs with training set transfer: files"
            )
        if self.adapters and self.transfer == "nccl":
            raise ValueError(
                "adapters: true and transfer: nccl: vLLM reads adapters from files; set transfer: "
                "files, or leave it unset"
            )
        return self

    @property
    def has_lasting_servers(self) -> bool:
        """Whether they have GPUs of their own, and are the same for the whole run."""
        return isinstance(self.servers, list) and not self.sleep and self.start is None
