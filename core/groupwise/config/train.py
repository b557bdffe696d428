"""The section `train`: steps, batch sizes, optimizer, memory, checkpoints."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from groupwise.kit.section import Section, mistake_at


class ReplaySection(Section):
    """Reuse earlier right completions for prompts that are rarely answered right."""

    at_least: int = Field(
        default=1,
        ge=1,
        description="right completions that a group should have; if it has fewer, earlier right "
        "ones of the same row replace wrong ones",
    )
    age: int | None = Field(
        default=100,
        ge=1,
        description="steps after which a kept completion is dropped; null: no limit",
    )
    size: int = Field(
        default=256,
        ge=1,
        description="completions to keep, in the memory of every process and in checkpoints",
    )

    @model_validator(mode="after")
    def _is_large_enough(self) -> Self:
        if self.size < self.at_least:
            raise mistake_at(
                ("size",),
                f"{self.size} kept completions are fewer than the {self.at_least} that a group "
                "should have (at_least)",
            )
        return self


class KeepSection(Section):
    """Which rollouts of a group are trained on."""

    extremes: int = Field(
        ge=2,
        multiple_of=2,
        description="the most rollouts of a group: half of them those with the highest rewards, "
        "half those with the lowest",
    )


class SamplesSection(Section):
    """Some completions of every step, in the run's folder, on its page and in trackers."""

    per_step: int = Field(
        default=4,
        ge=1,
        description="completions of a step: the best, the worst, the longest, the first, and then "
        "others in the order of the step",
    )
    steps: int = Field(
        default=1000,
        ge=1,
        description="the most steps whose completions are kept: of a longer run every second step, "
        "every fourth, and so on",
    )


class TrainSection(Section):
    steps: int = Field(
        default=100, ge=0, description="training steps; each samples its own rollouts"
    )
    data_epochs: float | None = Field(
        default=None,
        gt=0,
        description="passes over the training prompts, in place of `steps`: the run has as many "
        "steps as they take; groups that an algorithm draws to replace others are not counted",
    )
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="stop training after this time, which includes evaluations between steps; the "
        "learning rate's decay then follows steps or time, whichever is further",
    )
    groups_per_step: int = Field(default=8, ge=1, description="prompts per step")
    group_size: int = Field(
        default=8,
        ge=1,
        description="completions per prompt; at least 2 for algorithms that compare the "
        "completions of a prompt",
    )
    updates_per_rollout: int = Field(
        default=1,
        ge=1,
        description="optimizer updates that the groups of a step are split into; must divide "
        "`groups_per_step`",
    )
    epochs: int = Field(
        default=1,
        ge=1,
        description="passes over a step's rollouts; those over the prompts are `data_epochs`",
    )
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        default="adamw",
        description="adamw_8bit (bitsandbytes) keeps the moments in 8 bits: a quarter of their "
        "memory",
    )
    learning_rate: float = Field(default=1e-6, ge=0, description="of AdamW, after the warmup")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="decay of the learning rate; linear and cosine reach 0 at the end of the run: "
        "after `steps`, or `minutes` if those are over first",
    )
    schedule_steps: int | None = Field(
        default=None,
        ge=1,
        description="steps after which the decay reaches 0, whatever `steps` and `minutes` are; at "
        "least `steps`. Set it if you may resume the run for longer",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="steps over which the learning rate rises"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="of AdamW")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="of AdamW"
    )
    epsilon: float = Field(
        default=1e-8,
        gt=0,
        description="of AdamW, added to the root of the second moment; lower it if gradients are "
        "as small: the run warns of that",
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=True,
        description="limit of the gradient's norm; .inf for none",
    )
    ema: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay of an exponential moving average of the trained weights; if set, the "
        "average is what is evaluated and saved, and what the policy has after the run",
    )
    ema_every: int = Field(
        default=1, ge=1, description="optimizer updates between updates of the average"
    )
    microbatch: int = Field(
        default=16384,
        ge=1,
        description="decisions in one forward and backward pass, padding included; for a language "
        "model tokens, with those of prompts. Lower it to save memory: the gradient stays the same",
    )
    shard: StrictBool | Literal["node"] | Annotated[int, Field(ge=2)] = Field(
        default=False,
        description="divide weights, gradients and optimizer state among the processes (FSDP2), "
        "if one device cannot hold them: true among all, `node` among those of each node, a number "
        "among each so many; the nodes or groups are then copies of each other (HSDP)",
    )
    tf32: bool = Field(
        default=False,
        description="on a GPU, compute float32 matrix products in TF32: faster, with 10 bits of "
        "mantissa instead of 23",
    )
    sample_batch: int = Field(
        default=512,
        ge=1,
        description="rollouts sampled and scored at once (by an engine: scored at once); lower "
        "it to save memory",
    )
    ahead: int | None = Field(
        default=None,
        ge=0,
        description="how many steps ahead groups are sampled, so that an engine samples while "
        "updates run: at most (ahead + 1) x groups_per_step groups are begun and not yet trained, "
        "so their weights are about so many steps older; if unset, 1 where an engine has a device "
        "of its own and algorithm.importance is then ratio, else 0",
    )
    max_refills: int = Field(
        default=3,
        ge=0,
        description="most rounds of resampling per step, if the algorithm replaces groups of "
        "equal reward",
    )
    replay: ReplaySection | None = Field(
        default=None,
        description="reuse earlier right completions of prompts that are rarely answered right; "
        "`{}` takes the defaults ([Choosing prompts and replaying successes](data.md))",
    )
    keep: KeepSection | None = Field(
        default=None,
        description="train only on the best and the worst of each group, with the advantages of "
        "the whole group; all of them if unset ([Best and worst of a group]"
        "(data.md#best-and-worst-of-a-group))",
    )
    samples: SamplesSection | None = Field(
        default=SamplesSection(),
        description="some completions of every step, with their rewards and advantages, in "
        "`samples/training.jsonl`; null: none "
        "([Completions of training](runs.md#completions-of-training))",
    )
    max_skipped_updates: int = Field(
        default=10,
        ge=0,
        description="an update whose gradient is not finite is skipped; the run ends after more "
        "than this many in a row",
    )
    max_failed: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of a step's or an evaluation's completions that may fail; the run ends "
        "after three with more than that in a row; 1: however many "
        "([Failed samples](rewards.md#failed-samples))",
    )
    timeout: float = Field(
        default=600.0,
        gt=0,
        le=1e6,
        description="seconds that a process waits in a collective for the others, before it ends "
        "with an error; reading, checking and writing checkpoints and starting an engine may take "
        "longer, as long as the process that works shows signs of life",
    )
    stop_on_collapse: bool = Field(
        default=False,
        description="end the run where KL, gradient norm, entropy or the share of truncated "
        "completions leaves its own past ([Collapse](runs.md#collapse)), with the checkpoint from "
        "before; false: only warn",
    )
    checkpoint_every: int = Field(
        default=0, ge=0, description="steps between checkpoints; 0: only by minutes"
    )
    checkpoint_minutes: float | None = Field(
        default=15.0,
        gt=0,
        description="minutes between checkpoints, each written at the end of a step; null: only "
        "by steps",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, description="how many checkpoints to keep, the last ones"
    )

    @model_validator(mode="before")
    @classmethod
    def _leaves_out_null_steps(cls, data: Any) -> Any:
        """`steps: null` is no steps in a file that another line, or an override, leaves out."""
        is_null = isinstance(data, Mapping) and data.get("steps", 0) is None
        return {k: v for k, v in data.items() if k != "steps"} if is_null else data

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
    def _decays_no_earlier_than_it_ends(self) -> Self:
        planned = None if self.data_epochs is not None else self.schedule_steps
        if planned is not None and planned < self.steps and self.schedule != "constant":
            raise mistake_at(
                ("schedule_steps",),
                f"the learning rate would be 0 after step {planned}, and train.steps is "
                f"{self.steps}: schedule_steps must be at least train.steps",
            )
        return self

    @model_validator(mode="after")
    def _keeps_wrong_ones(self) -> Self:
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
                "adamw_8bit does not support sharded weights; set train.optimizer: adamw, or leave "
                "out train.shard",
            )
        return self
