"""Registers policies of language models, families of vision-language models, the vLLM sampler,
drafts of configurations, and the objects of transformers that stand for policies."""

from groupwise.hookspecs import Register, hookimpl

FAMILIES = {
    "qwen2_vl": "qwen2_vl:Qwen2VL",
    "qwen2_5_vl": "qwen2_vl:Qwen2VL",
    "qwen3_vl": "qwen3_vl:Qwen3VL",
    "qwen3_vl_moe": "qwen3_vl:Qwen3VL",
    "qwen3_5": "qwen2_vl:Qwen2VL",
    "qwen3_5_moe": "qwen2_vl:Qwen2VL",
    "gemma3": "gemma3:Gemma3",
    "idefics3": "idefics3:Idefics3",
    "smolvlm": "idefics3:Idefics3",
    "llava_next": "llava_next:LlavaNext",
    "internvl": "internvl:InternVL",
}
"""By model type, in `groupwise_llm.vision.families`."""


@hookimpl
def register_policies(register: Register) -> None:
    register("language_model", "groupwise_llm.policy:LanguageModel", extra="llm")
    register(
        "vision_language_model",
        "groupwise_llm.vision_language_model:VisionLanguageModel",
        extra="vision",
    )


@hookimpl
def register_families(register: Register) -> None:
    room = "groupwise_llm.vision.families"
    for model_type, name in FAMILIES.items():
        register(model_type, f"{room}.{name}", extra="vision")


@hookimpl
def register_samplers(register: Register) -> None:
    register("vllm", "groupwise_llm.vllm.sampler:VLLM", extra="llm")


@hookimpl
def register_drafts(register: Register) -> None:
    register("model", "groupwise_llm.draft:LanguageDraft")


@hookimpl
def register_objects(register: Register) -> None:
    room = "groupwise_llm.stands"
    register("transformers.modeling_utils.PreTrainedModel", f"{room}:MODEL", extra="llm")
    for name in (
        "transformers.tokenization_utils_base.PreTrainedTokenizerBase",
        "transformers.processing_utils.ProcessorMixin",
    ):
        register(name, f"{room}:TOKENIZER", extra="llm")
