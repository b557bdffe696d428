"""What this package registers. Imports nothing heavy: names point at `module:attribute`."""

from groupwise import hookimpl
from groupwise.hookspecs import Register


@hookimpl
def register_rewards(register: Register) -> None:
    """Registers every reward of this package by the name a configuration gives."""
    here = "groupwise_verifiable"
    register("math", f"{here}.math:MathEquivalence", extra="math")
    register("exact_answer", f"{here}.answers:ExactAnswer")
    register("numeric_answer", f"{here}.answers:NumericAnswer")
    register("think_answer_format", f"{here}.format:ThinkAnswerFormat")
    register("think_format", f"{here}.format:ThinkFormat")
    register("tag_count", f"{here}.format:TagCount")
    register("length", f"{here}.length:Length", extra="math")
    register("cosine_length", f"{here}.length:CosineLength", extra="math")
    register("soft_overlong", f"{here}.overlong:SoftOverlong")
    register("repetition", f"{here}.repetition:Repetition")
    register("language_consistency", f"{here}.language:LanguageConsistency", extra="llm")
    register("reasoning_gym", f"{here}.reasoning:ReasoningGymScore", extra="llm")
    register("reward_model", f"{here}.reward_model:RewardModel", extra="llm")
    register("image_contents", f"{here}.contents:ImageContents", extra="flow")
    register("image_text", f"{here}.ocr:ImageText", extra="flow")
    register("jpeg_size", f"{here}.jpeg:JpegSize", extra="flow")
    register("image_diversity", f"{here}.diversity:ImageDiversity")


@hookimpl
def register_prompts(register: Register) -> None:
    """Registers the prompt sources of this package."""
    register("reasoning_gym", "groupwise_verifiable.puzzles:ReasoningGym", extra="llm")
