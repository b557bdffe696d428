"""verl-omni's options of the updates, the data, the rewards and the run."""

import math
from typing import Any

from groupwise_commands.porting.option import Group, absent, changed, same, settled
from groupwise_commands.porting.pictures import CPS, MEAN, write_beta
from groupwise_commands.porting.port import Port

KEY = "actor_rollout_ref.actor"
NAMES = {"flow_grpo": "flow_grpo", "mix_grpo": "flow_grpo", "grpo_guard": "flow_guard"}
"""By their `algorithm`, ours."""
LOW_FOR_LORA = 1e-5


def _algorithm(port: Port) -> None:
    stated = port.get("actor_rollout_ref.model.algorithm")
    name = NAMES.get(stated)
    if name is None:
        port.lose(
            f"actor_rollout_ref.model.algorithm: {stated}",
            "flow_grpo is written; docs/algorithms.md has those that are here",
        )
    port.write("algorithm.name", name or "flow_grpo")
    cps = port.ours("policy.sde") == "cps"
    port.write(
        "algorithm.clip_low", port.get(f"{KEY}.diffusion_loss.clip_ratio"), CPS if cps else MEAN
    )


def _scale(port: Port) -> None:
    if not port.get("algorithm.norm_adv_by_std_in_grpo"):
        port.write("algorithm.scale", "none")
    elif port.get("algorithm.global_std"):
        port.write("algorithm.scale", "batch", "over an update here, over a step there; both n - 1")


def _kl(port: Port) -> None:
    if port.get(f"{KEY}.use_kl_loss"):
        beta, sde = port.get(f"{KEY}.kl_loss_coef"), port.ours("policy.sde")
        write_beta(port, beta, sde, published=True)


def _updates(port: Port) -> None:
    prompts, part = port.get("data.train_batch_size"), port.get(f"{KEY}.ppo_mini_batch_size")
    port.write("train.groups_per_step", prompts)
    theirs = max(1, prompts // part)
    updates = math.gcd(theirs, prompts)
    if theirs > 1:
        why = f"{prompts} prompts / {part} of an update"
        port.write("train.updates_per_rollout", updates, why)


def _rate(port: Port) -> None:
    rate = port.get(f"{KEY}.optim.lr")
    low = port.get("actor_rollout_ref.model.lora_rank") and rate < LOW_FOR_LORA
    why = "theirs, but low for adapters, which usually take 1e-4 to 3e-4 for images"
    port.write("train.learning_rate", rate, why if low else "")


def _steps(port: Port) -> None:
    if steps := port.get("trainer.total_training_steps"):
        port.write("train.steps", steps)
    else:
        passes, prompts = port.get("trainer.total_epochs"), port.get("data.train_batch_size")
        port.todo.append(
            f"train.steps: total_epochs {passes} of N prompts is {passes} N / {prompts} steps; "
            f"until it is set it is the default, 100"
        )


def _every(name: str, key: str) -> Any:
    def put(port: Port) -> None:
        if port.get(name) > 0:
            port.write(key, port.get(name))

    return put


def _prompts(port: Port) -> None:
    files = port.get("data.train_files")
    first = files[0] if isinstance(files, list) else files
    port.write("prompts.name", "dataset")
    port.write("prompts.path", first or "prompts.parquet")
    if not first:
        port.todo.append("prompts.path: a file or a hub name; the script computes it")
    if isinstance(files, list) and len(files) > 1:
        port.lose(f"data.train_files: {files[1:]}", "one data set; join them in a file")
    if port.get("data.prompt_key") != "prompt":
        port.write("prompts.prompt", port.get("data.prompt_key"))
    if port.get("data.truncation") != "error":
        port.write("policy.long_prompts", "cut")
    elif port.get("data.filter_overlong_prompts"):
        port.write("policy.long_prompts", "skip")


def _rewards(port: Port) -> None:
    path, name = (port.get(f"reward.custom_reward_function.{key}") for key in ("path", "name"))
    port.rewards.append({"name": "my_rewards:reward"})
    if path:
        why = "called for one sample there, for a batch here: `rewards: [module:function]`"
        port.lose(f"reward.custom_reward_function: {path}, {name}", why)
    for key in ("reward.reward_model.model_path",):
        if value := port.get(key):
            why = (
                "`generative_judge` or `judge` ask such a model; the reward `image_text` reads text"
            )
            port.lose(f"{key}: {value}", why)
    port.todo.append("rewards: name yours; the written one is a placeholder")


def _trackers(port: Port) -> None:
    value = port.get("trainer.logger")
    names = [value] if isinstance(value, str) else value or []
    known = [each for each in names if each in ("wandb", "tensorboard", "mlflow", "swanlab")]
    if known:
        port.write("tracking", known)


def _betas(port: Port) -> None:
    port.write("train.betas", port.get(f"{KEY}.optim.betas"))


ACTOR = Group(
    title="Updates",
    options=(
        changed(
            "actor_rollout_ref.model.algorithm",
            "`algorithm`",
            _algorithm,
            "flow_grpo",
            "`flow_grpo`; `grpo_guard` is `flow_guard`",
            always=True,
        ),
        settled(
            f"{KEY}.diffusion_loss.clip_ratio",
            here="`algorithm.clip_low`",
            note="log-probs are means over a latent's dimensions in both",
            default=1e-4,
        ),
        same(f"{KEY}.diffusion_loss.adv_clip_max", "algorithm.advantage_clip", 5.0),
        absent(f"{KEY}.loss_scale_factor", note="the loss is not scaled"),
        changed(
            f"{KEY}.use_kl_loss",
            "`algorithm.beta` with `kl: published`",
            _kl,
            False,
            "theirs divides by 2 g^2, not by 2 std^2",
        ),
        settled(f"{KEY}.kl_loss_coef", here="`algorithm.beta`", default=0.001),
        absent(f"{KEY}.use_distill_loss", note="[a teacher](distillation.md)", default=False),
        changed(
            "algorithm.global_std",
            "`algorithm.scale: batch`",
            _scale,
            True,
            "over an update here",
            always=True,
        ),
        settled("algorithm.norm_adv_by_std_in_grpo", here="`algorithm.scale: none`", default=True),
        settled("algorithm.*", here="`algorithm`", note="of other methods"),
        changed(
            "data.train_batch_size",
            "`train.groups_per_step`",
            _updates,
            1024,
            "prompts",
            always=True,
        ),
        settled(
            f"{KEY}.ppo_mini_batch_size",
            here="`train.updates_per_rollout`",
            note="prompts of an update there, the number of updates here",
            default=256,
        ),
        same(f"{KEY}.ppo_epochs", "train.epochs", 1),
        changed(f"{KEY}.optim.lr", "`train.learning_rate`", _rate, 1e-6, always=True),
        same(f"{KEY}.optim.weight_decay", "train.weight_decay", 0.01, always=True),
        changed(f"{KEY}.optim.betas", "`train.betas`", _betas, (0.9, 0.999), kind=(list, tuple)),
        same(f"{KEY}.grad_clip", "train.max_grad_norm", 1.0),
        same(f"{KEY}.optim.clip_grad", "train.max_grad_norm", 1.0),
        changed(
            f"{KEY}.optim.lr_warmup_steps",
            "`train.warmup_steps`",
            _every(f"{KEY}.optim.lr_warmup_steps", "train.warmup_steps"),
            -1,
        ),
        settled(
            f"{KEY}.*",
            "actor_rollout_ref.ref.*",
            "actor_rollout_ref.teacher.*",
            here="`train.shard`, `train.microbatch`",
            note="sharding, offloading and micro-batches do not change the gradient",
        ),
    ),
)
RUN = Group(
    title="Data, rewards, run",
    options=(
        changed(
            "data.train_files",
            "`prompts: {name: dataset, path: ...}`",
            _prompts,
            None,
            always=True,
        ),
        settled("data.prompt_key", here="`prompts.prompt`", default="prompt"),
        settled("data.truncation", here="`policy.long_prompts`", default="error"),
        settled("data.filter_overlong_prompts", here="`policy.long_prompts: skip`", default=False),
        same("data.shuffle", "prompts.shuffle", True),
        same("data.seed", "seed", None),
        settled("data.*", here="`prompts`, `evaluation.source`"),
        changed(
            "reward.custom_reward_function.path",
            "`rewards`",
            _rewards,
            note="functions of a batch, as `module:function`",
            always=True,
        ),
        settled("reward.custom_reward_function.name", here="`rewards`", default="compute_score"),
        settled("reward.reward_model.model_path", here="`rewards: [generative_judge]`"),
        settled("reward.*", here="`rewards`, each with a `weight`"),
        changed("trainer.total_training_steps", "`train.steps`", _steps, kind=(int,), always=True),
        settled("trainer.total_epochs", here="`train.steps`", default=30),
        changed(
            "trainer.save_freq",
            "`train.checkpoint_every`",
            _every("trainer.save_freq", "train.checkpoint_every"),
            -1,
        ),
        changed(
            "trainer.test_freq",
            "`evaluation.every`",
            _every("trainer.test_freq", "evaluation.every"),
            -1,
        ),
        same("trainer.default_local_dir", "output", None),
        changed("trainer.logger", "`tracking`", _trackers),
        settled("trainer.*", note="processes: `torchrun`; see [clusters](cluster.md)"),
        settled(
            "actor_rollout_ref.hybrid_engine",
            "actor_rollout_ref.nccl_timeout",
            "global_profiler.*",
            "ray_kwargs.*",
            "transfer_queue.*",
            "skip.*",
            note="of Ray and its workers",
        ),
    ),
)
