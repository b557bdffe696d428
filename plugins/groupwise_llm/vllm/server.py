"""Server: what a vLLM server is asked: what it is, completions, other weights, sleep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.errors import UserError
from groupwise_llm.vllm.client import Client, RefusedError

VERSION = "0.32"
"""The first that tells of every completion which weights drew it."""
ENGINE_FAILED = 500


@dataclass(frozen=True, kw_only=True)
class Facts:
    """How a server was started.

    longest: tokens of a prompt and its completion; widest: completions of one request; words: what
    kind of log-probs it states; cuts: whether it reads a long prompt in parts; workers: processes
    that hold weights; backend: of weight transfer.
    """

    longest: int
    widest: int
    words: str
    device: str
    cuts: bool
    sleeps: bool
    workers: int
    backend: str | None


class Server:
    """One server. Whatever it refuses is a UserError that says what to do."""

    def __init__(self, client: Client) -> None:
        self.client, self.url = client, client.url

    def facts(self) -> Facts:
        try:
            config = self.client.get("server_info", config_format="json")["vllm_config"]
            model, parallel = config["model_config"], config["parallel_config"]
            scheduler = config["scheduler_config"]
            transfer = config.get("weight_transfer_config") or {}
            return Facts(
                longest=model["max_model_len"],
                widest=scheduler["max_num_seqs"],
                cuts=scheduler["enable_chunked_prefill"],
                words=model["logprobs_mode"],
                device=config["device_config"]["device"],
                sleeps=model["enable_sleep_mode"],
                workers=parallel["world_size"],
                backend=transfer.get("backend"),
            )
        except (KeyError, TypeError) as error:
            raise UserError(
                f"sampler: {self.url} does not describe itself as vLLM {VERSION} does; is it "
                f"another server, or another version?"
            ) from error
        except RefusedError as refused:
            raise self._refusal(refused, "tell how it was started") from refused

    # ---- completions

    def generate(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> list[Any]:
        """The choices of a request, as they are answered."""
        body = {"token_ids": list(ids), "sampling_params": dict(sampling)}
        try:
            answer = self.client.post("inference/v1/generate", body)
        except RefusedError as refused:
            raise self._refusal(refused, "generate") from refused
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list):
            raise UserError(f"sampler: {self.url} answered a request without completions")
        return choices

    # ---- weights

    @property
    def tag(self) -> str:
        """What the weights it has were called."""
        try:
            return str(self.client.get("weight_info")["weight_version"])
        except RefusedError as refused:
            raise self._refusal(refused, "tell which weights it has") from refused

    def name_weights(self, tag: str) -> None:
        self._post("update_weight_version", {"new_version": tag})

    def load(self, folder: str) -> None:
        """Take the weights in the files of a folder; nothing computed with others remains."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self._post("collective_rpc", body, loads=True)
        self.forget()

    def forget(self) -> None:
        """Drop what is cached of prompts: it was computed with other weights."""
        answer = self._post("reset_prefix_cache", {})
        if not (isinstance(answer, dict) and answer.get("success", True)):
            raise UserError(
                f"sampler: {self.url} could not drop its cache of prompts, which older weights "
                f"computed; does another run draw from it?"
            )

    def transfer(self, step: str, body: Mapping[str, Any]) -> None:
        """A step of vLLM's own protocol of weight transfer."""
        self._post(step, dict(body), loads=True)

    def sleep(self) -> None:
        """Free the device's memory; weights wait in the host's."""
        self._post("sleep", {}, level=1)

    def wake(self) -> None:
        self._post("wake_up", {})

    def _post(self, path: str, body: Any, *, loads: bool = False, **query: Any) -> Any:
        try:
            return self.client.post(path, body, patient=not loads, **query)
        except RefusedError as refused:
            if loads and refused.status == ENGINE_FAILED:
                raise UserError(
                    f"sampler: the vLLM server at {self.url} cannot load the policy's weights: "
                    f"{refused.reason}. Was it started with the policy's model? Its own log says "
                    f"more"
                ) from refused
            raise self._refusal(refused, f"do {path}") from refused

    def _refusal(self, refused: RefusedError, what: str) -> UserError:
        hint = {
            401: "; set sampler.api_key",
            403: "; start it with --enable-scale-out",
            404: f"; start it with VLLM_SERVER_DEV_MODE=1, and at least vLLM {VERSION}",
        }.get(refused.status, "")
        return UserError(
            f"sampler: the vLLM server at {self.url} refuses to {what}: {refused.reason}{hint}"
        )
