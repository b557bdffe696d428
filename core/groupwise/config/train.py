"""The section `train`: how much and how fast."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from groupwise.config.section import Section, mistake_at


class ReplaySection(Section):
    """Earlier right completions, for prompts of which hardly any is right."""

    at_least: int = Field(
        default=1,
        ge=1,
        description="right completions that a group should have; wrong ones give way to earlier "
        "right ones of the same prompt where it has fewer",
    )
    size: int = Field(
        default=256,
        ge=1,
        description="completions kept, in the memory of every process and in checkpoints",
    )

    @model_validator(mode="after")
    def _holds_those_of_a_group(self) -> Self:
        if self.size < self.at_least:
            raise mistake_at(
                ("size",),
                f"{self.size} kept completions are fewer than the {self.at_least} that a group "
                "should have (at_least)",
            )
        return self


class TrainSection(Section):
    steps: int = Field(
        default=100, ge=0, description="training steps, each with rollouts of its own"
    )
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="stop training after that time, evaluations between steps included",
    )
    groups_per_step: int = Field(default=8, ge=1, description="prompts drawn for a step")
    group_size: int = Field(
        default=8,
        ge=1,
        description="completions sampled for each prompt; at least 2 for algorithms that compare "
        "the completions of a prompt",
    )
    updates_per_rollout: int = Field(
        default=1,
        ge=1,
        description="optimizer updates a step's groups are cut into; must divide them",
    )
    epochs: int = Field(default=1, ge=1, description="passes over a step's rollouts")
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        default="adamw",
        description="adamw_8bit keeps the moments in 8 bits, by bitsandbytes: a quarter of their "
        "memory",
    )
    learning_rate: float = Field(default=1e-6, ge=0, description="of AdamW, after the warmup")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="how the learning rate falls; linear and cosine end at 0, after `steps`",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="steps over which the learning rate rises"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="of AdamW")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="of AdamW"
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=True,
        description="clip the gradient's norm; .inf clips nothing",
    )
    ema: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay of an exponential moving average of what is trained; if set, it is "
        "evaluated and saved",
    )
    ema_every: int = Field(
        default=1, ge=1, description="optimizer updates from one averaging to the next"
    )
    microbatch: int = Field(
        default=16384,
        ge=1,
        description="decisions in one forward and backward pass, padding included; of a language "
        "model tokens, those of prompts too",
    )
    shard: bool = Field(
        default=False,
        description="divide weights, gradients and optimizer among the processes (FSDP2), where "
        "one device cannot hold them",
    )
    tf32: bool = Field(
        default=False,
        description="on a GPU, take matrix products of float32 in TF32: quicker, of 10 bits in "
        "place of 23",
    )
    sample_batch: int = Field(default=512, ge=1, description="rollouts sampled at once")
    ahead: Literal[0, 1] = Field(
        default=0,
        description="steps that are sampled before the present one is learned from: with 1 an "
        "engine samples while the update runs, by weights one step older",
    )
    max_refills: int = Field(
        default=3, ge=0, description="rounds of resampling when the algorithm replaces groups"
    )
    replay: ReplaySection | None = Field(
        default=None,
        description="learn again from earlier right completions of prompts that are hardly ever "
        "answered rightly; `{}` takes the defaults ([Data that teaches](data.md))",
    )
    max_skipped_updates: int = Field(
        default=10,
        ge=0,
        description="updates in a row whose gradient may be not finite, and which are skipped, "
        "before the run ends",
    )
    checkpoint_every: int = Field(
        default=0, ge=0, description="steps between checkpoints; 0: by minutes alone"
    )
    checkpoint_minutes: float | None = Field(
        default=15.0,
        gt=0,
        description="write a checkpoint after the first step that ends this long after the last "
        "one; null: by steps alone",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, description="how many checkpoints stay, the last"
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.groups_per_step % self.updates_per_rollout:
            raise mistake_at(
                ("updates_per_rollout",),
                f"{self.updates_per_rollout} updates cannot share {self.groups_per_step} groups "
                "evenly: updates_per_rollout must divide groups_per_step",
            )
        return self

    @model_validator(mode="after")
    def _wrong_ones_stay(self) -> Self:
        if self.replay is not None and self.replay.at_least >= self.group_size:
            raise mistake_at(
                ("replay", "at_least"),
                f"{self.replay.at_least} right completions leave no wrong one in a group of "
                f"{self.group_size}, so that nothing could be learned: it must be less than "
                "train.group_size",
            )
        return self

    @model_validator(mode="after")
    def _moments_can_be_divided(self) -> Self:
        if self.shard and self.optimizer == "adamw_8bit":
            raise mistake_at(
                ("optimizer",),
                "adamw_8bit takes no weights that are divided among processes; set "
                "train.optimizer: adamw, or leave out train.shard",
            )
        return self
