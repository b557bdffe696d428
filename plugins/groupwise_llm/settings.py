"""Settings: the configuration of the language-model policy."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from groupwise.kit import lora
from groupwise.kit.options import PathNameOrObject, PathOrName, TakesObject
from groupwise.kit.trust import LoadingArguments


class Lora(lora.Lora):
    """LoRA adapters by peft; `options` takes any further argument of `peft.LoraConfig`."""

    targets: str | list[str] = Field(
        "all-linear",
        description="modules that get adapters; all-linear leaves out routers of experts",
    )
    merge: bool = Field(
        True,
        description="sample with merged adapters: faster, takes memory for a copy of the adapted "
        "weights",
    )


class Choice(BaseModel):
    """How evaluations sample tokens; unset options are as in training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = Field(None, gt=0, description="as in training if unset")
    top_k: int | None = Field(None, ge=0, description="as in training if unset")
    top_p: float | None = Field(None, gt=0, le=1, description="as in training if unset")
    min_p: float | None = Field(None, ge=0, lt=1, description="as in training if unset")
    repetition_penalty: float | None = Field(None, gt=0, description="as in training if unset")


class ToolCalls(BaseModel):
    """How the model writes calls of tools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["hermes", "qwen3_coder", "glm", "mistral", "gpt_oss", "llama", "tags"] = Field(
        description="as these models do; `tags`: as JSON with `name` and `arguments` between "
        "`begin` and `end`"
    )
    begin: str | None = Field(None, min_length=1, description="what a call begins with (tags)")
    end: str | None = Field(None, min_length=1, description="what a call ends with (tags)")
    tool: str | None = Field(
        None,
        min_length=1,
        description="name of the tool that tags call, if they contain one argument of it as plain "
        "text",
    )
    argument: str | None = Field(None, min_length=1, description="name of that argument")

    @model_validator(mode="after")
    def _tags_are_given(self) -> Self:
        if (self.begin is None or self.end is None) and self.format == "tags":
            raise ValueError("format: tags needs begin and end, the texts around a call")
        if self.format != "tags" and {self.begin, self.end, self.tool, self.argument} != {None}:
            raise ValueError("begin, end, tool and argument are options of format: tags")
        if (self.tool is None) != (self.argument is None):
            raise ValueError(
                "tool and argument belong together: the tool that is called, and which argument "
                "of it stands between the tags"
            )
        return self


class Settings(TakesObject):
    """Which model, how to load it, and how it samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    auto: ClassVar[str] = "AutoModelForCausalLM"
    """The class of transformers that loads the model."""
    frozen_note: ClassVar[str] = "weights that text does not use are not trained"
    """On parts of a model that are not trained, after their names and number of weights."""

    model: PathOrName = Field(
        description="path or hub name of a causal language model; in Python also the model itself, "
        "which is then trained in place"
    )
    tokenizer: PathNameOrObject = Field(
        None,
        description="path or hub name of another tokenizer than the model's own; in Python also "
        "the tokenizer, or processor, itself",
    )
    loading: LoadingArguments = Field(
        default_factory=dict,
        description="arguments of transformers' from_pretrained; `dtype` applies to frozen weights "
        "(trained ones are float32), `trust_remote_code` is false and `use_safetensors` true "
        "unless set",
    )
    quantize: Literal["4bit", "8bit"] | None = Field(
        None,
        description="quantise the frozen weights beneath adapters by bitsandbytes, to save memory: "
        "4bit is NF4 with double quantisation (QLoRA)",
    )
    lora: Lora | None = Field(None, description="train adapters only; full training if unset")
    precision: Literal["float32", "bf16"] = Field(
        "float32",
        description="of computation; bf16 reads a bf16 copy of the weights, and trained weights "
        "stay float32",
    )
    head_precision: Literal["float32", "bf16"] | None = Field(
        None, description="precision of the output layer (logits); as `precision` if unset"
    )
    max_new_tokens: int = Field(512, ge=1, description="longest completion, in tokens")
    max_prompt_tokens: int | None = Field(
        None,
        ge=1,
        description="longest prompt; the model's positions minus max_new_tokens if unset",
    )
    long_prompts: Literal["error", "skip", "cut"] = Field(
        "error",
        description="stop before the first step, leave out rows with long prompts, or keep the "
        "last tokens of such prompts",
    )
    temperature: float = Field(1.0, gt=0, description="of sampling and of the log-probs")
    top_k: int = Field(0, ge=0, description="sample among the k most likely tokens; 0 is off")
    top_p: float = Field(1.0, gt=0, le=1, description="sample from the nucleus of this mass")
    min_p: float = Field(
        0.0, ge=0, lt=1, description="drop tokens less likely than min_p times the most likely one"
    )
    repetition_penalty: float = Field(1.0, gt=0, description="transformers' penalty; 1 is off")
    evaluation: Choice = Field(
        default_factory=Choice, description="sampling options that differ in evaluations"
    )
    stop: list[str] = Field(default_factory=list, description="strings that end a completion")
    keep_special_tokens: bool = Field(
        True,
        description="completions' texts contain the tokens that the tokenizer marks as special "
        "(`<|channel|>`, `[THINK]`), except end tokens and padding at the end",
    )
    special_tokens_in_content: Literal["allow", "escape"] = Field(
        "allow",
        description="what the names of control tokens (`<|im_end|>`) become in messages, answers "
        "of tools, schemas and observations: those tokens, as on most servers, or, with a space "
        "after the first character, ordinary text",
    )
    share_prompt: bool = Field(
        True, description="compute a prompt once for all rollouts that have it"
    )
    cache_tokens: int = Field(
        262144,
        ge=1,
        description="most tokens in the sampler's KV cache; completions beyond it wait until "
        "others have ended",
    )
    cuda_graphs: bool = Field(
        True,
        description="on a GPU, sample tokens by CUDA graphs, where the model's code allows it",
    )
    compile: bool = Field(
        True,
        description="with CUDA graphs, compile norms and rotary embeddings of a token, which takes "
        "some seconds when a run starts (torch.compile)",
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute layers in the backward pass: less memory, more time"
    )
    tool_calls: ToolCalls | None = Field(
        None,
        description="how the model writes calls of tools; if unset, as its tokenizer or chat "
        "template says, where tools are shown to it",
    )
    chat_template: dict[str, Any] = Field(
        default_factory=dict, description="further arguments of apply_chat_template"
    )

    @model_validator(mode="after")
    def _is_loaded_once(self) -> Self:
        if self.instance is not None and (self.loading or self.quantize):
            raise ValueError(
                "`loading` and `quantize` say how a model is read from files, and this one is an "
                "object that was read already: leave them out, or pass its folder or hub name"
            )
        return self

    @model_validator(mode="after")
    def _head_is_no_less(self) -> Self:
        if self.precision == "float32" and self.head_precision == "bf16":
            raise ValueError(
                "head_precision: bf16 needs precision: bf16; with precision: float32 everything is "
                "computed in float32"
            )
        return self

    def trained_parts(self, model: Any) -> Sequence[Any]:
        """Modules that are trained beside those that every text goes through."""
        return ()

    def for_evaluation(self) -> "Settings":
        """These settings with the sampling options of evaluations."""
        return self.model_copy(update=self.evaluation.model_dump(exclude_none=True))
