"""UniRL's options of the algorithm, the updates, the data and the run."""

import math
from typing import Any

from groupwise_commands.porting.option import Group, changed, same, settled
from groupwise_commands.porting.pictures import CPS, MEAN, add_reward, write_beta
from groupwise_commands.porting.port import Port
from groupwise_commands.porting.unirl.model import is_text

SCORERS = {
    "PickScoreRewardScorer": "pickscore",
    "HPSv2RewardScorer": "hpsv2",
    "CLIPRewardScorer": "clipscore",
    "OCRRewardScorer": "ocr",
    "ImageRewardScorer": "imagereward",
}
"""By their class, the common name of a reward."""
NORMALIZED = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum-norm": "constant",
}
"""By `loss_agg_mode`, `algorithm.normalize`."""


def _algorithm(port: Port) -> None:
    kind = str(port.get("algorithm._target_")).rpartition(".")[2]
    text = is_text(port)
    if kind not in ("FlowGRPO", "GRPO"):
        name = "grpo" if text else "flow_grpo"
        port.lose(f"algorithm._target_: {kind}", f"{name} is written; see docs/algorithms.md")
    port.write("algorithm.name", "grpo" if text else "flow_grpo")
    clip = port.get("algorithm.clip_range")
    if clip is not None:
        why = "" if text else CPS if port.ours("policy.sde") == "cps" else MEAN
        port.write("algorithm.clip_low", clip, why)
    if (high := port.get("algorithm.clip_range_high")) is not None:
        port.write("algorithm.clip_high", high)
    sde = port.written.get("policy.sde", "")
    write_beta(port, port.get("algorithm.beta"), sde, published=False)
    mode = port.get("algorithm.loss_agg_mode")
    if text and mode in NORMALIZED:
        port.write("algorithm.normalize", NORMALIZED[mode])
        if mode == "seq-mean-token-sum-norm" and port.get("algorithm.horizon"):
            port.write("algorithm.length", port.get("algorithm.horizon"))
    elif mode is not None:
        port.lose_value("algorithm.loss_agg_mode", "sequence, the mean of each, is written")
    if port.get("algorithm.clip_schedule") not in (None, "constant"):
        port.lose_value("algorithm.clip_schedule", "the clip range is constant")


def _scale(port: Port) -> None:
    if not port.get("normalize_adv_by_std"):
        port.write("algorithm.scale", "none")
    elif port.get("adv_use_global_std"):
        port.write("algorithm.scale", "batch", "over an update here, over a rollout there")


def _updates(port: Port) -> None:
    theirs, groups = port.get("stack.num_updates_per_batch"), port.get("batch_size")
    updates = math.gcd(theirs, groups)
    if updates > 1 or theirs > 1:
        why = f"{theirs} there; here an update has whole groups" if updates != theirs else ""
        port.write("train.updates_per_rollout", updates, why)


def _rewards(port: Port) -> None:
    kind = str(port.get("reward.backend._target_")).rpartition(".")[2]
    if kind == "MathVerifyRewardScorer":
        port.rewards.append({"name": "math", "rules": "any_form", "gold": "answer"})
        port.todo.append("rewards: math: `gold` is the column of answers")
    elif not add_reward(port, SCORERS.get(kind, ""), 1.0, several=False):
        port.lose(f"reward.backend._target_: {kind}", "no such reward; name one in `rewards`")


def _prompts(port: Port) -> None:
    path = port.get("data_source.args.run.data_path")
    if not path:
        return
    if path.endswith(".txt"):
        folder, _, file = path.rpartition("/")
        port.write("prompts.path", folder or ".")
        port.write("prompts.options.data_files", file)
        port.write("prompts.prompt", "text", "the column of a text file, whose lines are prompts")
    else:
        port.write("prompts.path", path)


def _tracking(port: Port) -> None:
    value: Any = port.get("logging.report_to_wandb")
    if value is True or value == "true":
        port.write("tracking", ["wandb"])


TRAINING = Group(
    title="Algorithm and updates",
    options=(
        changed(
            "algorithm._target_",
            "`algorithm`",
            _algorithm,
            None,
            "`FlowGRPO` is `flow_grpo`, `GRPO` of language models `grpo`",
            always=True,
        ),
        settled("algorithm.clip_range", here="`algorithm.clip_low`"),
        settled("algorithm.clip_range_high", here="`algorithm.clip_high`"),
        settled(
            "algorithm.beta",
            here="`algorithm.beta`",
            note="of the exact KL (2 std^2), as `kl: exact` here",
            default=0.0,
        ),
        settled(
            "algorithm.loss_agg_mode",
            "algorithm.horizon",
            here="`algorithm.normalize`, `algorithm.length`",
        ),
        settled("algorithm.clip_schedule", here="none"),
        settled(
            "algorithm.*",
            note="log-probs before an update are always computed as in training",
        ),
        changed("adv_use_global_std", "`algorithm.scale`", _scale, False, "`batch`"),
        changed("normalize_adv_by_std", "`algorithm.scale: none`", _scale, True),
        settled("adv_normalization_scope", here="`algorithm.scale`"),
        same("batch_size", "train.groups_per_step", 1, "prompts of a rollout", always=True),
        changed(
            "stack.num_updates_per_batch",
            "`train.updates_per_rollout`",
            _updates,
            1,
        ),
        same("stack.max_grad_norm", "train.max_grad_norm", 1.0),
        settled("stack.*", here="`train.microbatch`", note="does not change the gradient"),
    ),
)
RUN = Group(
    title="Data, rewards, run",
    options=(
        changed(
            "data_source.args.run.data_path",
            "`prompts: {name: dataset, path: ...}`",
            _prompts,
            None,
            kind=(str,),
            always=True,
        ),
        settled(
            "data_source.*",
            here="`prompts`, `evaluation.source`",
            note="their evaluation data: a section like `prompts`",
        ),
        changed("reward.backend._target_", "`rewards`", _rewards, None, always=True),
        settled("reward.*", "eval_rewards.*", here="`rewards`, `watch`"),
        same("num_rollouts", "train.steps", 100, always=True),
        same("eval_interval", "evaluation.every", 0),
        same("eval_num_prompts", "evaluation.prompts", 64),
        same("eval_samples_per_prompt", "evaluation.samples", 4),
        same("save_interval", "train.checkpoint_every", 0),
        same("save_dir", "output", None),
        changed("logging.report_to_wandb", "`tracking`", _tracking, None),
        settled("logging.*", here="`tracking`"),
        settled("rollout.*", "sync.*", note="sampled in process, with the weights of training"),
        settled(
            "num_devices",
            "layout",
            "train_fraction",
            "reward_fraction",
            "transport_kind",
            "workers_per_device",
            "transfer_queue.*",
            "weight_sync_interval",
            "train_resident",
            "rollout_resident",
            "reward_resident",
            "enable_fsdp_offload",
            "offload_train_during_reward",
            "rollout_sleep_after_generate",
            "accumulate_rollouts",
            "eval_chunk_prompts",
            "eval_cfg_text_scale",
            "load_dir",
            "save_mode",
            "task_config.*",
            "trainer.*",
            "name",
            "defaults",
            "hydra.*",
            "worker_max_concurrency",
            "reward_stack.*",
            "control.*",
            "ema.*",
            "eval_temperature",
            "eval_data.*",
            note="machines: `torchrun`; see [clusters](cluster.md)",
        ),
    ),
)
