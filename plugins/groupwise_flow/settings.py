"""Settings: the configurations of policies over pipelines: what they share, and that of `flow`."""

from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from groupwise.kit import lora
from groupwise.kit.options import PathOrName, TakesObject
from groupwise.kit.section import Section, mistake_at
from groupwise.kit.trust import LoadingArguments
from groupwise_flow.effect import Effect
from groupwise_flow.named_adapter import AdapterOption
from groupwise_flow.process.windows import Window
from groupwise_flow.sde import Noise

Precision = Literal["float32", "bf16", "fp16"]


class Lora(lora.Lora):
    """LoRA adapters by peft; `options` takes any further argument of `peft.LoraConfig`."""

    rank: int = Field(32, ge=1, description="rank of the adapters")
    targets: list[str] | None = Field(
        None, description="modules that get adapters; the attention projections if unset"
    )


class Size(Section):
    """The size of images or videos; what is unset is as in training."""

    height: int | None = Field(None, ge=1, description="of images, in pixels")
    width: int | None = Field(None, ge=1, description="of images, in pixels")
    frames: int | None = Field(None, ge=1, description="of videos")


class Settings(TakesObject):
    """Which pipeline, how to load it, and how it denoises at evaluation: of every policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[PathOrName, Effect.VELOCITIES] = Field(
        description="path or hub name of a diffusers pipeline; in Python also the pipeline itself, "
        "which is then trained in place"
    )
    loading: Annotated[LoadingArguments, Effect.VELOCITIES] = Field(
        default_factory=dict,
        description="arguments of diffusers' from_pretrained; `trust_remote_code` is false and "
        "`use_safetensors` true unless set",
    )
    adapter: Annotated[AdapterOption | None, Effect.VELOCITIES] = Field(
        None,
        description="`module:attribute` of an Adapter class, or its registered name; with options "
        "of its own as `{name: NAME, OPTION: VALUE}`; chosen by the pipeline's class if unset",
    )
    lora: Annotated[Lora | None, Effect.VELOCITIES] = Field(
        None, description="train adapters only; full training if unset"
    )
    precision: Annotated[Precision, Effect.VELOCITIES] = Field(
        "float32",
        description="of computation (bf16, fp16: autocast) and of stored frozen weights, except "
        "the autoencoder; trained weights are float32",
    )
    height: Annotated[int | None, Effect.DECISIONS] = Field(
        None, ge=1, description="of images, in pixels; the model's if unset"
    )
    width: Annotated[int | None, Effect.DECISIONS] = Field(
        None, ge=1, description="of images, in pixels; the model's if unset"
    )
    frames: Annotated[int | None, Effect.DECISIONS] = Field(
        None, ge=1, description="of videos; the model's if unset"
    )
    frame_rate: Annotated[float | None, Effect.VELOCITIES] = Field(
        None, gt=0, description="of videos, in frames a second; the model's if unset"
    )
    evaluation_size: Annotated[Size | None, Effect.NOTHING] = Field(
        None, description="of images and videos at evaluation; as in training if unset"
    )
    tiled_decoding: Annotated[bool, Effect.NOTHING] = Field(
        False,
        description="decode images and videos tile by tile, with seams blended: less memory, more "
        "time, slightly other pixels",
    )
    steps: Annotated[int, Effect.DECISIONS] = Field(
        10, ge=2, description="denoising steps in training"
    )
    evaluation_steps: Annotated[int, Effect.NOTHING] = Field(
        40, ge=1, description="denoising steps at evaluation, all without noise (ODE)"
    )
    guidance: Annotated[float, Effect.VELOCITIES] = Field(
        1.0,
        ge=0,
        description="guidance scale at evaluation; 1 is off, and only models that take it as an "
        "input (FLUX.1-dev) have smaller ones",
    )
    training_guidance: Annotated[float | None, Effect.VELOCITIES] = Field(
        None, ge=0, description="guidance scale in training; as at evaluation if unset"
    )
    negative_prompt: Annotated[str, Effect.VELOCITIES] = Field(
        "", description="prompt of the unconditional pass of classifier-free guidance"
    )
    prompt_tokens: Annotated[int, Effect.VELOCITIES] = Field(
        256,
        ge=1,
        description="longest prompt, in tokens, with the template that some models put around it: "
        "the pipeline's max_sequence_length, which most limit to 256 or 512",
    )
    long_prompts: Annotated[Literal["error", "skip", "cut"], Effect.NOTHING] = Field(
        "error",
        description="for prompts with more tokens: stop before the first step, leave them out, or "
        "cut off their end",
    )
    encoders: Annotated[Literal["resident", "offload", "cached"], Effect.NOTHING] = Field(
        "resident",
        description="where the text encoders are: always on the device; in CPU memory, and on the "
        "device only while prompts are encoded; or, once all prompts of the data set are encoded "
        "and cached before the first step, nowhere",
    )
    keep_prompts: Annotated[int, Effect.NOTHING] = Field(
        4096,
        ge=1,
        description="most encoded prompts cached in CPU memory, the latest used; with "
        "`encoders: cached` at least the number of distinct prompts",
    )
    batch: Annotated[int, Effect.NOTHING] = Field(
        64, ge=1, description="most images in one pass of the model"
    )
    gradient_checkpointing: Annotated[bool, Effect.NOTHING] = Field(
        False, description="recompute blocks in the backward pass: less memory, more time"
    )

    @model_validator(mode="after")
    def _is_loaded_once(self) -> Self:
        if self.instance is not None and (self.loading or self.encoders == "cached"):
            raise ValueError(
                "`loading` and `encoders: cached` read the pipeline from files, and this one is an "
                "object: leave them out, or pass its folder or hub name"
            )
        return self

    @model_validator(mode="after")
    def _has_known_noise(self) -> Self:
        try:
            _ = self.noise
        except ValueError as error:
            raise mistake_at(("noise_level",), str(error)) from error
        return self

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """Of the steps with noise in training."""

    @property
    def guidance_in_training(self) -> float:
        return self.guidance if self.training_guidance is None else self.training_guidance

    @property
    def trains_unconditional(self) -> bool:
        """Whether the unconditional branch of guidance, where there is one, has a gradient."""
        return True

    @property
    def kept_graphs(self) -> int:
        """Passes per rollout whose graph is kept from sampling to the update."""
        return 0

    # ---- what a rollout of training holds, for the policy and for estimates of memory

    @property
    @abstractmethod
    def max_decisions(self) -> int:
        """Decisions of a rollout."""

    @property
    @abstractmethod
    def stored_latents(self) -> int:
        """Latents in a rollout's trajectory, unconditional velocities included."""

    @property
    @abstractmethod
    def sampling_latents(self) -> int:
        """Latents per rollout on the device while sampling, beside the present ones and their
        velocity."""


class FlowSettings(Settings):
    """Of the policy whose decisions are denoising steps: which are, and how they draw."""

    sde: Annotated[Literal["flow", "cps", "dance", "ddim"], Effect.DECISIONS] = Field(
        "flow",
        description="formula of a stochastic step: Flow-SDE, CPS, DanceGRPO's SDE, or DDIM with "
        "eta, for models that predict the noise",
    )
    noise_level: Annotated[float, Effect.DECISIONS] = Field(
        0.7,
        ge=0,
        description="scale of a decision's noise; usually 0.7 for flow, 0.8 for cps, 0.3 for dance "
        "and 1 for ddim, whose eta it is",
    )
    window: Annotated[Window, Effect.NOTHING] = Field(
        default=Window(), description="which steps are decisions: stochastic, and trained on"
    )
    last_step: Annotated[Literal["ode", "noise"], Effect.NOTHING] = Field(
        "ode",
        description="how the last step is taken, which is never trained on: without noise, or with "
        "noise as in published runs with `window: {kind: all}`",
    )
    shared_noise: Annotated[bool, Effect.NOTHING] = Field(
        False,
        description="a group starts from the same noise, and computes the steps before its window "
        "once",
    )
    keep_graph: Annotated[bool, Effect.NOTHING] = Field(
        False,
        description="keep the graph of sampling's passes for the first update, which then needs no "
        "forward pass: the same gradient, for the memory of activations of all decisions of a step",
    )
    guidance_gradient: Annotated[Literal["both", "conditional"], Effect.NOTHING] = Field(
        "both",
        description="branches of classifier-free guidance that have a gradient in training: both, "
        "which is the gradient of the log-prob, or only the conditional one, as in some published "
        "runs",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        try:
            self.window.check(self.steps)
        except ValueError as error:
            raise mistake_at(("window",), str(error)) from error
        if self.last_step == "noise" and self.window.kind != "all":
            raise mistake_at(
                ("last_step",),
                f"noise needs window: {{kind: all}}; outside a {self.window.kind} window steps "
                f"have no noise",
            )
        if self.keep_graph and (problem := self._without_graph):
            raise mistake_at(("keep_graph",), problem)
        if self.noise_level == 0:
            raise mistake_at(
                ("noise_level",),
                "0 makes every step deterministic, so there are no decisions to train on; set it "
                "above 0",
            )
        return self

    @property
    def noise(self) -> Noise:
        return Noise(self.sde, self.noise_level)

    @property
    def kept_graphs(self) -> int:
        return self.max_decisions if self.keep_graph else 0

    @property
    def _without_graph(self) -> str:
        """Why the graph of sampling cannot be kept; "" if it can."""
        if self.window.kind == "random":
            return (
                "a random window has its decisions at other steps for each group, and a pass of "
                "sampling has several groups; set window: {kind: all}, fixed or sliding"
            )
        if self.window.share < 1:
            return "a share of the window is trained on, and the graphs of the rest would stay"
        if self.shared_noise:
            return "with shared_noise a pass of sampling stands for several images; remove one"
        if self.precision == "fp16":
            return "fp16 computes a gradient again where it overflows; set precision: bf16"
        if self.guidance_gradient == "conditional":
            return "it keeps the gradient of both branches; remove guidance_gradient: conditional"
        return ""

    @property
    def trains_unconditional(self) -> bool:
        return self.guidance_gradient == "both"

    @property
    def max_decisions(self) -> int:
        return self.window.length(self.steps)

    @property
    def stored_latents(self) -> int:
        """The path from the first decision on, and unconditional velocities that are reused."""
        constants = 0 if self.trains_unconditional else self.max_decisions
        return self.max_decisions + 1 + constants

    @property
    def sampling_latents(self) -> int:
        """The noise of each stochastic step, and what is stored."""
        return self.max_decisions + (self.last_step == "noise") + self.stored_latents
