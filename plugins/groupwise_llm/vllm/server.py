"""Server: the calls to a vLLM server: its configuration, completions, new weights, sleep."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from groupwise.kit.errors import UserError
from groupwise_llm.vllm.client import (
    LARGEST,
    LOAD_ADAPTER,
    RESET_FEATURES,
    UNLOAD_ADAPTER,
    Client,
    RefusedError,
)
from groupwise_llm.vllm.prompt import Prompt

VERSION = "0.32"
"""The first version that states for every completion which weights sampled it."""
ORIGINAL = "default"
"""The tag of the weights that a server has started with."""
UNFINISHED = "groupwise: being replaced"
"""The tag of weights while they are being loaded."""
ENGINE_FAILED, UNKNOWN = 500, 404
ADAPTERS_HINT = "; sampler.adapters: false sends the whole model, with adapters merged"
TOKEN_BYTES = 1000
"""Most bytes that an answer has for a token: its id, its text and a log-prob."""


@dataclass(frozen=True, kw_only=True)
class ServerInfo:
    """How a server was started, by its own account.

    max_tokens: of prompt and completion together; max_completions: in one request; logprobs_mode,
    chunked_prefill, sleep_mode: vLLM's options; workers: number of processes that hold weights, of
    all data-parallel copies; backend: of weight transfer; lora_rank: the largest of adapters, None
    if it takes none; lora_updates: whether it takes adapters after its start; pictures: whether it
    takes any. dtype, quantization, cache_dtype: of its weights, and of the cache of keys and
    values; speculative: whether another model or method proposes tokens.
    """

    max_tokens: int
    max_completions: int
    logprobs_mode: str
    device: str
    chunked_prefill: bool
    sleep_mode: bool
    workers: int
    backend: str | None
    lora_rank: int | None
    lora_updates: bool
    pictures: bool
    dtype: str
    quantization: str | None
    cache_dtype: str
    speculative: bool


class Server:
    """One server. A refused request raises a UserError that says what to do."""

    def __init__(self, client: Client) -> None:
        self.client, self.url = client, client.url

    def answers(self) -> bool:
        """Whether it can be reached now."""
        return self.client.answers()

    def info(self) -> ServerInfo:
        try:
            answer = self.client.get("server_info", config_format="json")
            config, variables = answer["vllm_config"], answer.get("vllm_env") or {}
            model, parallel = config["model_config"], config["parallel_config"]
            scheduler = config["scheduler_config"]
            transfer = config.get("weight_transfer_config") or {}
            lora = config.get("lora_config") or {}
            vision = model.get("multimodal_config") or {"language_model_only": True}
            return ServerInfo(
                max_tokens=model["max_model_len"],
                max_completions=scheduler["max_num_seqs"],
                chunked_prefill=scheduler["enable_chunked_prefill"],
                logprobs_mode=model["logprobs_mode"],
                device=config["device_config"]["device"],
                sleep_mode=model["enable_sleep_mode"],
                workers=parallel["world_size"] * parallel["data_parallel_size"],
                backend=transfer.get("backend"),
                lora_rank=lora.get("max_lora_rank"),
                lora_updates=bool(variables.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")),
                pictures=not vision["language_model_only"],
                dtype=str(model["dtype"]).removeprefix("torch."),
                quantization=model["quantization"],
                cache_dtype=str(config["cache_config"]["cache_dtype"]),
                speculative=config.get("speculative_config") is not None,
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(
                f"sampler: {self.url} does not describe its configuration as vLLM {VERSION} does; "
                f"is it another server, or another version?"
            ) from error
        except RefusedError as refused:
            raise self._refusal(refused, "describe its configuration") from refused

    # ---- completions

    def generate(
        self, prompt: Prompt, sampling: Mapping[str, Any], *, model: str | None
    ) -> list[Any] | None:
        """The choices in the answer to a request, unchecked. Raises LostError; UserError where the
        server has read another prompt.

        model: the adapters to sample with, by name; None where the server does not know them, after
        a restart.
        """
        answer = self._completed(prompt, sampling, model)
        if answer is None:
            return None
        choices = answer.get("choices")
        if not isinstance(choices, list):
            raise UserError(f"sampler: {self.url} answered a request without completions")
        return choices

    def score(self, prompt: Prompt, ids: Sequence[int], *, model: str | None) -> list[float]:
        """The log-probs of the prompt's last tokens, `ids`, at temperature 1, in nats. Raises as
        `generate`; UserError where the server does not state them."""
        sampling = {"n": 1, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        answer = self._completed(prompt, sampling, model)
        if answer is None:
            raise UserError(f"sampler: {self.url} does not know the adapters that it has loaded")
        try:
            last = answer["prompt_logprobs"][-len(ids) :]
            pairs = zip(ids, last, strict=True)
            return [float(own[str(token)]["logprob"]) for token, own in pairs]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"sampler: {self.url} does not state the log-probs of a prompt (prompt_logprobs), "
                f"as vLLM {VERSION} does; is it another server, or another version?"
            ) from error

    def _completed(
        self, prompt: Prompt, sampling: Mapping[str, Any], model: str | None
    ) -> dict[str, Any] | None:
        """The answer to a request; None where the server does not know the adapters `model`."""
        body = {**prompt.body, "sampling_params": dict(sampling)}
        if model is not None:
            body["model"] = model
        try:
            most = sampling["n"] * sampling["max_tokens"] * TOKEN_BYTES
            answer = self.client.post("inference/v1/generate", body, largest=LARGEST + most)
        except RefusedError as refused:
            if model is not None and refused.status == UNKNOWN:
                return None
            raise self._refusal(refused, "generate") from refused
        if not isinstance(answer, dict):
            raise UserError(f"sampler: {self.url} answered a request without completions")
        prompt.check(answer.get("prompt_token_ids"), self.url)
        return answer

    # ---- weights

    @property
    def tag(self) -> str:
        """The tag of the weights that the server has."""
        try:
            return str(self.client.get("weight_info")["weight_version"])
        except (KeyError, TypeError) as error:
            raise UserError(
                f"sampler: {self.url} does not state the version of its weights as vLLM {VERSION} "
                f"does; is it another server, or another version?"
            ) from error
        except RefusedError as refused:
            raise self._refusal(refused, "state the version of its weights") from refused

    def set_tag(self, tag: str) -> None:
        self._post("update_weight_version", {"new_version": tag})

    def begin_exchange(self) -> None:
        """Let requests wait, which go on with the next weights, and drop what was computed."""
        self._post("pause", {}, mode="keep", clear_cache=True)
        self.set_tag(UNFINISHED)

    def finish_exchange(self, tag: str) -> None:
        """Go on with the weights that were loaded since, under this tag.

        What older weights have computed is dropped, also the keys and values of requests that wait:
        with these later tokens would be drawn from a mixture of both.
        """
        self._reset_caches()
        self.set_tag(tag)
        self.resume()

    def resume(self) -> None:
        """Let requests go on."""
        self._post("resume", {})

    def try_to_resume(self) -> None:
        """After an error, which is raised: who waits for a request would wait for ever."""
        if self.answers():
            with suppress(UserError):
                self.resume()

    @contextmanager
    def exchange(self, tag: str) -> Iterator[None]:
        """The context in which weights of this tag are loaded, while requests wait."""
        self.begin_exchange()
        try:
            yield
        except BaseException:
            self.try_to_resume()
            raise
        self.finish_exchange(tag)

    def load(self, folder: str) -> None:
        """Load the weights from the files of a folder."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self._post("collective_rpc", body, loads=True)

    def load_adapter(self, folder: str, name: str) -> None:
        """Load the adapters in a folder, as peft saves them, under a new name."""
        self._post(LOAD_ADAPTER, {"lora_name": name, "lora_path": folder}, loads=True)

    def unload_adapter(self, name: str) -> None:
        """Forget these adapters, if the server has them."""
        try:
            self.client.post(UNLOAD_ADAPTER, {"lora_name": name})
        except RefusedError as refused:
            if refused.status != UNKNOWN:
                raise self._refusal(refused, "forget adapters") from refused

    def _reset_caches(self) -> None:
        self._post(RESET_FEATURES, {})
        answer = self._post("reset_prefix_cache", {}, reset_running_requests=True)
        if not (isinstance(answer, dict) and answer.get("success", True)):
            raise UserError(
                f"sampler: {self.url} could not drop its cache, computed with older weights; does "
                f"another run use it?"
            )

    def transfer(self, step: str, body: Mapping[str, Any]) -> None:
        """A step of vLLM's own protocol for weight transfer."""
        self._post(step, dict(body), loads=True)

    def sleep(self) -> None:
        """Free the device's memory; weights move to the host's."""
        self._post("sleep", {}, level=1)

    def wake(self) -> None:
        self._post("wake_up", {})

    def _post(self, path: str, body: Any, *, loads: bool = False, **query: Any) -> Any:
        try:
            return self.client.post(path, body, repeats=not loads, **query)
        except RefusedError as refused:
            if loads and refused.status == ENGINE_FAILED:
                raise UserError(
                    f"sampler: the vLLM server at {self.url} cannot load the policy's weights: "
                    f"{refused.reason}. Was it started with the policy's model? Its own log says "
                    f"more{ADAPTERS_HINT if path == LOAD_ADAPTER else ''}"
                ) from refused
            raise self._refusal(refused, f"do {path}") from refused

    def _refusal(self, refused: RefusedError, request: str) -> UserError:
        hint = {
            401: "; set sampler.api_key",
            403: "; start it with --enable-scale-out",
            404: f"; start it with VLLM_SERVER_DEV_MODE=1, and at least vLLM {VERSION}",
        }.get(refused.status, "")
        return UserError(
            f"sampler: the vLLM server at {self.url} refuses to {request}: {refused.reason}{hint}"
        )
