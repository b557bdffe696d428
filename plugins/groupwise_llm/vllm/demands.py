"""Demands: how a server must be started, so that its completions can be trained on."""

from collections.abc import Iterator

from groupwise.kit.errors import UserError
from groupwise_llm.model import rotary
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.nccl import BACKEND
from groupwise_llm.vllm.prompt import family_of
from groupwise_llm.vllm.server import Server, ServerInfo
from groupwise_llm.vllm.settings import Settings

ADAPTERS = "adapters"
"""The backend of weight transfer by which servers get adapters alone."""


def check(
    server: Server, info: ServerInfo, policy: LanguageModel, settings: Settings, backend: str
) -> None:
    """Raise UserError where the server was started differently; backend: of weight transfer."""
    for need in _needs(info, policy, settings, backend):
        raise UserError(f"sampler: the vLLM server at {server.url} {need}")


def _needs(
    info: ServerInfo, policy: LanguageModel, settings: Settings, backend: str
) -> Iterator[str]:
    """Each problem, and the option that solves it."""
    if info.logprobs_mode != "processed_logprobs":
        yield (
            f"states {info.logprobs_mode}, and training needs log-probs of the distribution that "
            f"is sampled from; start it with --logprobs-mode processed_logprobs"
        )
    yield from _other_precision(info, policy)
    longest = policy.config.max_new_tokens
    if info.max_tokens <= longest:
        yield (
            f"takes {info.max_tokens} tokens of prompt and completion, and "
            f"policy.max_new_tokens is {longest}; start it with a larger --max-model-len"
        )
    limit = rotary.original_positions(policy.causal.causal.config.get_text_config())
    most = policy.prompts.longest
    if limit and most and (info.max_tokens > limit) != (most > limit):
        yield (
            f"takes {info.max_tokens} tokens of prompt and completion, and the policy {most}: "
            f"vLLM encodes the positions of this model's rows otherwise if it takes more than "
            f"{limit}; start it with --max-model-len {most}, or set policy.max_prompt_tokens"
        )
    if family_of(policy) and not info.pictures:
        yield "takes no pictures; start it with the policy's model, without --language-model-only"
    if settings.sleep and not info.sleep_mode:
        yield "cannot sleep (sampler.sleep); start it with --enable-sleep-mode"
    if backend == BACKEND and info.backend != BACKEND:
        yield (
            "takes no weights by NCCL (sampler.transfer); start it with --weight-transfer-config "
            '\'{"backend": "nccl"}\', or set transfer: files'
        )
    if info.device == "cpu" and info.chunked_prefill:
        # vLLM 0.32 then fails with "CPU Generator does not use offset", and the engine ends.
        yield (
            "runs on a CPU with chunked prefill, where a request with a seed makes it fail; start "
            "it with --no-enable-chunked-prefill"
        )
    if info.device == "cpu" and backend != ADAPTERS and _is_tied(policy):
        yield (
            "runs on a CPU, where it keeps the old output embedding of a model whose input and "
            "output embeddings are tied, as this model's are; untie them (tie_word_embeddings: "
            "false in config.json, lm_head.weight among the weights), or use a GPU"
        )


def _other_precision(info: ServerInfo, policy: LanguageModel) -> Iterator[str]:
    """How the server computes with other numbers than the policy: training would correct for the
    difference in every step, or reinforce it."""
    dtype = "bfloat16" if policy.config.precision == "bf16" else "float32"
    if info.dtype != dtype:
        yield (
            f"computes in {info.dtype}, and the policy in {policy.config.precision} "
            f"(policy.precision); start it with --dtype {dtype}"
        )
    if info.quantization is not None:
        yield (
            f"quantises the weights that it is sent ({info.quantization}), and the policy is "
            f"trained without; start it without --quantization, from the policy's model"
        )
    if info.cache_dtype not in ("auto", dtype):
        yield (
            f"keeps its cache in {info.cache_dtype}, and computes other log-probs from it; start "
            f"it with --kv-cache-dtype auto"
        )
    if info.speculative:
        yield (
            "decodes speculatively, with a draft that gets none of the run's weights and log-probs "
            "that depend on it; start it without --speculative-config"
        )


def _is_tied(policy: LanguageModel) -> bool:
    model = policy.causal.causal
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight
