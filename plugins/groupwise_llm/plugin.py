"""Registers policies of language models, families of vision-language models, the vLLM sampler and
drafts of configurations."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("language_model", "groupwise_llm.policy:LanguageModel", extra="llm")
    register(
        "vision_language_model",
        "groupwise_llm.vision_language_model:VisionLanguageModel",
        extra="llm",
    )


@hookimpl
def register_families(register: Register) -> None:
    room = "groupwise_llm.vision.families"
    register("qwen2_vl", f"{room}.qwen2_vl:Qwen2VL", extra="llm")
    register("qwen2_5_vl", f"{room}.qwen2_vl:Qwen2VL", extra="llm")


@hookimpl
def register_samplers(register: Register) -> None:
    register("vllm", "groupwise_llm.vllm.sampler:VLLM", extra="llm")


@hookimpl
def register_drafts(register: Register) -> None:
    register("model", "groupwise_llm.draft:LanguageDraft")
