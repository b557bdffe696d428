"""Demands: what a server must be, so that a policy can be trained on what it draws."""

from groupwise.errors import UserError
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.nccl import BACKEND
from groupwise_llm.vllm.server import Facts, Server
from groupwise_llm.vllm.settings import Settings


def check(
    server: Server, facts: Facts, policy: LanguageModel, settings: Settings, backend: str
) -> None:
    """Raise UserError where the server was started otherwise; backend: of weight transfer."""
    if need := _need(facts, policy, settings, backend):
        raise UserError(f"sampler: the vLLM server at {server.url} {need}")


def _need(facts: Facts, policy: LanguageModel, settings: Settings, backend: str) -> str | None:
    if facts.words != "processed_logprobs":
        return (
            f"states {facts.words}, and training needs those of the distribution that is drawn "
            f"from; start it with --logprobs-mode processed_logprobs"
        )
    longest = policy.config.max_new_tokens
    if facts.longest <= longest:
        return (
            f"takes {facts.longest} tokens of prompt and completion, and policy.max_new_tokens is "
            f"{longest}; start it with a larger --max-model-len"
        )
    if settings.sleep and not facts.sleeps:
        return "cannot sleep (sampler.sleep); start it with --enable-sleep-mode"
    if backend == BACKEND and facts.backend != BACKEND:
        return (
            "takes no weights by NCCL (sampler.transfer); start it with --weight-transfer-config "
            '\'{"backend": "nccl"}\', or set transfer: files'
        )
    if facts.device == "cpu" and _is_tied(policy):
        return (
            "runs on a CPU, and there keeps the old output embedding where it is tied to the "
            "input's, as this model's is; untie it (tie_word_embeddings: false in its config.json, "
            "lm_head.weight among its weights), or use a GPU"
        )
    return None


def _is_tied(policy: LanguageModel) -> bool:
    model = policy.causal.causal
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight
