"""Registers the language-model policy, the vLLM sampler and drafts of configurations."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("language_model", "groupwise_llm.policy:LanguageModel", extra="llm")


@hookimpl
def register_samplers(register: Register) -> None:
    register("vllm", "groupwise_llm.vllm.sampler:VLLM", extra="llm")


@hookimpl
def register_drafts(register: Register) -> None:
    register("model", "groupwise_llm.draft:LanguageDraft")
