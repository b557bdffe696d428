"""Registers the language-model policy and the vLLM sampler."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("language_model", "groupwise_llm.policy:LanguageModel", extra="llm")


@hookimpl
def register_samplers(register: Register) -> None:
    register("vllm", "groupwise_llm.vllm.sampler:VLLM", extra="llm")
