"""Demands: what a server must be, so that a policy can be trained on what it draws."""

from collections.abc import Iterator

from groupwise.errors import UserError
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.nccl import BACKEND
from groupwise_llm.vllm.server import Facts, Server
from groupwise_llm.vllm.settings import Settings


def check(
    server: Server, facts: Facts, policy: LanguageModel, settings: Settings, backend: str
) -> None:
    """Raise UserError where the server was started otherwise; backend: of weight transfer."""
    for need in _needs(facts, policy, settings, backend):
        raise UserError(f"sampler: the vLLM server at {server.url} {need}")


def _needs(facts: Facts, policy: LanguageModel, settings: Settings, backend: str) -> Iterator[str]:
    """What is not as it must be, and how it comes to be."""
    if facts.words != "processed_logprobs":
        yield (
            f"states {facts.words}, and training needs those of the distribution that is drawn "
            f"from; start it with --logprobs-mode processed_logprobs"
        )
    longest = policy.config.max_new_tokens
    if facts.longest <= longest:
        yield (
            f"takes {facts.longest} tokens of prompt and completion, and policy.max_new_tokens is "
            f"{longest}; start it with a larger --max-model-len"
        )
    if settings.sleep and not facts.sleeps:
        yield "cannot sleep (sampler.sleep); start it with --enable-sleep-mode"
    if backend == BACKEND and facts.backend != BACKEND:
        yield (
            "takes no weights by NCCL (sampler.transfer); start it with --weight-transfer-config "
            '\'{"backend": "nccl"}\', or set transfer: files'
        )
    if facts.device == "cpu" and facts.cuts:
        # vLLM 0.32: "CPU Generator does not use offset", which ends the engine.
        yield (
            "runs on a CPU and reads long prompts in parts, where a request with a seed makes it "
            "fail; start it with --no-enable-chunked-prefill"
        )
    if facts.device == "cpu" and _is_tied(policy):
        yield (
            "runs on a CPU, and there keeps the old output embedding where it is tied to the "
            "input's, as this model's is; untie it (tie_word_embeddings: false in its config.json, "
            "lm_head.weight among its weights), or use a GPU"
        )


def _is_tied(policy: LanguageModel) -> bool:
    model = policy.causal.causal
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight
