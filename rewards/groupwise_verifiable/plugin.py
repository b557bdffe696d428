"""Registers this package's plugins as `module:attribute`, so nothing heavy is imported."""

from groupwise import hookimpl
from groupwise.hookspecs import Register


@hookimpl
def register_rewards(register: Register) -> None:
    """Registers every reward of this package under its name in a configuration."""
    here = "groupwise_verifiable"
    register("math", f"{here}.mathematics.reward:MathEquivalence", extra="math")
    register("exact_answer", f"{here}.text.answers:ExactAnswer")
    register("answer_f1", f"{here}.text.squad:AnswerF1")
    register("numeric_answer", f"{here}.text.answers:NumericAnswer")
    register("think_answer_format", f"{here}.text.format:ThinkAnswerFormat")
    register("think_format", f"{here}.text.format:ThinkFormat")
    register("tag_count", f"{here}.text.format:TagCount")
    register("length", f"{here}.mathematics.length:Length", extra="math")
    register("cosine_length", f"{here}.mathematics.length:CosineLength", extra="math")
    register("token_count", f"{here}.text.token_count:TokenCount")
    register("sum_steps", f"{here}.mathematics.sums:SumSteps")
    register("soft_overlong", f"{here}.text.overlong:SoftOverlong")
    register("repetition", f"{here}.text.repetition:Repetition")
    register("language_consistency", f"{here}.text.language:LanguageConsistency", extra="llm")
    register("reasoning_gym", f"{here}.puzzles.reward:ReasoningGymScore", extra="llm")
    register("reward_model", f"{here}.text.reward_model:RewardModel", extra="llm")
    register("learned_text", f"{here}.text.learned:LearnedText", extra="llm")
    register("image_contents", f"{here}.images.contents:ImageContents", extra="flow")
    register("image_text", f"{here}.images.ocr:ImageText", extra="flow")
    register("jpeg_size", f"{here}.images.jpeg:JpegSize", extra="flow")
    register("per_step", f"{here}.images.per_step:PerStep", extra="flow")
    register("image_diversity", f"{here}.images.diversity:ImageDiversity")
    register("unchanged", f"{here}.images.unchanged:Unchanged", extra="flow")
    register("per_frame", f"{here}.videos.per_frame:PerFrame", extra="flow")
    register("motion", f"{here}.videos.motion:Motion", extra="flow")
    register("smoothness", f"{here}.videos.motion:Smoothness", extra="flow")


@hookimpl
def register_prompts(register: Register) -> None:
    """Registers the prompt sources of this package."""
    register("reasoning_gym", "groupwise_verifiable.puzzles.source:ReasoningGym", extra="llm")


@hookimpl
def register_watches(register: Register) -> None:
    """Registers what is watched of every picture and video."""
    here = "groupwise_verifiable.watches"
    register("darkness", f"{here}:DARKNESS")
    register("edges", f"{here}:EDGES")
    register("color_entropy", f"{here}:COLOR_ENTROPY")
    register("motion", f"{here}:MOTION")
