"""Settings: the configuration of the language-model policy."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.options import PathOrName
from groupwise.trust import LoadingArguments


class Lora(BaseModel):
    """Adapters by peft; everything beyond these goes to `peft.LoraConfig` through `options`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, ge=1, description="rank of the adapters")
    alpha: float | None = Field(
        None, gt=0, description="their scale is alpha / rank; twice the rank if unset"
    )
    targets: str | list[str] = Field("all-linear", description="modules that get adapters")
    merge: bool = Field(
        True, description="sample with adapters merged: quicker, for a copy of adapted weights"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="further peft arguments")


class Choice(BaseModel):
    """How evaluations choose tokens; what is unset is as in training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = Field(None, gt=0, description="as in training if unset")
    top_k: int | None = Field(None, ge=0, description="as in training if unset")
    top_p: float | None = Field(None, gt=0, le=1, description="as in training if unset")
    min_p: float | None = Field(None, ge=0, lt=1, description="as in training if unset")
    repetition_penalty: float | None = Field(None, gt=0, description="as in training if unset")


class Settings(BaseModel):
    """Which model, how it is loaded, and how it samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: PathOrName = Field(description="path or hub name of a causal language model")
    loading: LoadingArguments = Field(
        default_factory=dict,
        description="transformers' from_pretrained arguments; a `dtype` holds for what is frozen, "
        "`trust_remote_code` is false unless set",
    )
    quantize: Literal["4bit", "8bit"] | None = Field(
        None,
        description="hold what is frozen beneath adapters in so many bits, by bitsandbytes: 4bit "
        "is NF4 with its scales quantised, too (QLoRA)",
    )
    lora: Lora | None = Field(None, description="train adapters only; full training if unset")
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="bf16 computes with a copy of the weights; what is trained is held in float32 "
        "either way",
    )
    head_precision: Literal["float32", "bf16"] | None = Field(
        None, description="of the product that gives logits; as `precision` if unset"
    )
    max_new_tokens: int = Field(512, ge=1, description="completions are cut off there")
    max_prompt_tokens: int | None = Field(
        None,
        ge=1,
        description="longest prompt; what the model's positions leave beside completions if unset",
    )
    long_prompts: Literal["error", "skip", "cut"] = Field(
        "error",
        description="end before the first step, leave such rows out, or keep their last tokens",
    )
    temperature: float = Field(1.0, gt=0, description="of sampling, and of the log-probs")
    top_k: int = Field(0, ge=0, description="sample among the k likeliest; 0 is off")
    top_p: float = Field(1.0, gt=0, le=1, description="sample from the nucleus of this mass")
    min_p: float = Field(0.0, ge=0, lt=1, description="drop tokens below this share of the top")
    repetition_penalty: float = Field(1.0, gt=0, description="transformers' penalty; 1 is off")
    evaluation: Choice = Field(
        default_factory=Choice, description="how evaluations sample, where otherwise"
    )
    stop: list[str] = Field(default_factory=list, description="strings that end a completion")
    share_prompt: bool = Field(True, description="compute a prompt once for its whole group")
    cache_tokens: int = Field(
        262144,
        ge=1,
        description="most tokens in the sampler's cache; more completions are sampled in turns",
    )
    gradient_checkpointing: bool = Field(False, description="less memory, more time")
    chat_template: dict[str, Any] = Field(
        default_factory=dict, description="further arguments of apply_chat_template"
    )

    @model_validator(mode="after")
    def _head_is_no_less(self) -> Self:
        if self.precision == "float32" and self.head_precision == "bf16":
            raise ValueError(
                "head_precision: a head in bf16 needs precision: bf16; with precision: float32 all "
                "is computed in float32"
            )
        return self

    def for_evaluation(self) -> "Settings":
        """The same with what evaluations choose otherwise."""
        return self.model_copy(update=self.evaluation.model_dump(exclude_none=True))
