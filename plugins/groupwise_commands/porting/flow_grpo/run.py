"""flow_grpo's options of sampling, training and the run."""

import math

from groupwise.errors import UserError
from groupwise_commands.porting.flow_grpo.nft import NFT, is_nft
from groupwise_commands.porting.option import Group, absent, changed, same, settled
from groupwise_commands.porting.pictures import CPS, MEAN, of_std, write_beta
from groupwise_commands.porting.port import Port

EMA = 0.9
"""The decay in their scripts, every 8 updates."""


def _batch_size(port: Port) -> int:
    """Images in a batch of sampling; the first name is of their older scripts."""
    size: int = port.get("sample.mini_num_image_per_prompt") or port.get("sample.train_batch_size")
    return size


def _images(port: Port) -> int:
    """Images of an epoch, over all processes."""
    batches: int = port.get("sample.num_batches_per_epoch")
    return batches * _batch_size(port) * port.processes


def _batch(port: Port) -> None:
    port.write("policy.batch", _batch_size(port))


def _groups(port: Port) -> None:
    group = port.get("sample.num_image_per_prompt")
    port.write("train.group_size", group)
    images = _images(port)
    if images % group or not images:
        raise UserError(
            f"{port.settings.source}: {images} images of an epoch (sample.num_batches_per_epoch x "
            f"batch x {port.processes} GPUs) are not a multiple of {group} per prompt; set "
            f"--processes to the number of GPUs"
        )
    gpus = f"{port.processes} GPU{'' if port.processes == 1 else 's'}"
    port.write(
        "train.groups_per_step", images // group, f"{images:,} images on {gpus} / {group} a prompt"
    )
    batches, accumulated = (
        port.get(name)
        for name in ("sample.num_batches_per_epoch", "train.gradient_accumulation_steps")
    )
    theirs = max(1, batches // max(1, accumulated))
    updates = math.gcd(theirs, images // group)
    why = f"{batches} batches / {accumulated} accumulated"
    if updates != theirs:
        why += f" are {theirs} there; here an update has whole groups"
    port.write("train.updates_per_rollout", updates, why)


def _scale(port: Port) -> None:
    scale = "batch" if port.get("sample.global_std") else "group"
    port.write("algorithm.scale", scale)
    group = port.get("sample.num_image_per_prompt")
    port.write("algorithm.scale", scale, of_std(_images(port), group))


def _clip(port: Port) -> None:
    if is_nft(port):
        return
    port.write("algorithm.name", "flow_grpo")
    value = port.get("train.clip_range")
    port.write("algorithm.clip_low", value, CPS if port.get("sample.sde_type") == "cps" else MEAN)


def _beta(port: Port) -> None:
    if is_nft(port):
        return
    write_beta(port, port.get("train.beta"), port.ours("policy.sde"), published=True)


def _average(port: Port) -> None:
    if not port.get("train.ema"):
        return
    times = max(1, port.get("train.gradient_accumulation_steps"))
    why = f"0.9, applied {times} times in a row, once for each batch of an update"
    port.write("train.ema", round(EMA**times, 4), why if times > 1 else "")
    port.write("train.ema_every", 1 if is_nft(port) else 8)


def _betas(port: Port) -> None:
    port.write("train.betas", [port.get("train.adam_beta1"), port.get("train.adam_beta2")])


def _optimizer(port: Port) -> None:
    if port.get("train.use_8bit_adam"):
        port.write("train.optimizer", "adamw_8bit")


def _output(port: Port) -> None:
    if port.get("save_dir"):
        port.write("output", port.get("save_dir"))


SAMPLING = Group(
    title="Batch",
    options=(
        changed(
            "sample.num_image_per_prompt",
            "`train.group_size`",
            _groups,
            1,
            "counts here are totals over all GPUs",
            always=True,
        ),
        settled(
            "sample.num_batches_per_epoch",
            here="`train.groups_per_step`",
            note="x batch x GPUs / images of a prompt",
            default=2,
        ),
        changed(
            "sample.train_batch_size",
            "`policy.batch`",
            _batch,
            1,
            "images in one pass on each GPU; does not change the gradient",
        ),
        changed(
            "sample.mini_num_image_per_prompt",
            "`policy.batch`",
            _batch,
            note="of their older scripts",
        ),
        settled("sample.batch_size", here="`policy.batch`", note="of their older scripts"),
        settled(
            "train.batch_size",
            here="`train.microbatch`",
            note="in decisions; it does not change the gradient",
            default=1,
        ),
        settled("sample.test_batch_size", here="`policy.batch`", default=1),
        settled(
            "train.gradient_accumulation_steps",
            here="`train.updates_per_rollout`",
            note="the number of updates in a step, instead of the number of batches in an update",
            default=1,
        ),
        absent("sample.sample_time_per_prompt", note="of Wan's script", default=1),
        changed(
            "sample.global_std",
            "`algorithm.scale`",
            _scale,
            True,
            "`batch` is over an update here, over an epoch there; their std divides by n, ours by "
            "n - 1",
            always=True,
        ),
        absent("sample.kl_reward", note="the KL is in the loss: `algorithm.beta`", default=0),
    ),
)
TRAINING = Group(
    title="Training",
    options=(
        same("train.num_inner_epochs", "train.epochs", 1),
        changed(
            "train.clip_range",
            "`algorithm: {name: flow_grpo, clip_low: ...}`",
            _clip,
            1e-4,
            "log-probs are means over a latent's dimensions in both",
            always=True,
        ),
        absent(
            "train.clip_range_lt",
            "train.clip_range_gt",
            "train.clip_range_low",
            "train.clip_range_high",
            note="of their BAGEL and GARDO scripts; `algorithm.clip_low`, `clip_high`",
            default=1e-4,
        ),
        same("train.adv_clip_max", "algorithm.advantage_clip", 5),
        changed(
            "train.beta",
            "`algorithm.beta` with `kl: published`",
            _beta,
            0.0,
            "`exact`, the default, is the KL of the Gaussians (2 std^2); theirs divides by 2 g^2 "
            "for `sde`, and has the exact one for `cps`",
        ),
        same("train.learning_rate", "train.learning_rate", 3e-4, always=True),
        same(
            "train.adam_weight_decay",
            "train.weight_decay",
            1e-4,
            "0 here unless set",
            always=True,
        ),
        changed("train.adam_beta1", "`train.betas`", _betas, 0.9),
        changed("train.adam_beta2", "`train.betas`", _betas, 0.999),
        same("train.adam_epsilon", "train.epsilon", 1e-8),
        changed("train.use_8bit_adam", "`train.optimizer: adamw_8bit`", _optimizer, False),
        same("train.max_grad_norm", "train.max_grad_norm", 1.0),
        changed(
            "train.ema",
            "`train.ema`, `train.ema_every: 8`",
            _average,
            False,
            "theirs is 0.9, but called for each batch of an update, with weights that have not "
            "changed: 0.9 to the power of `train.gradient_accumulation_steps`, so 0.81 for SD3.5 "
            "and 0.53 for FLUX on 32 GPUs. Theirs also rises to 0.9 over the first 80 updates, by "
            "(1 + n) / (10 + n)",
        ),
        absent("train.lora_path", note="`policy.model` may be a saved model"),
        absent("train.sft", "train.sft_batch_size", note="no supervised data", default=0.0),
        absent("train.algorithm", "kl_thres", "reset_freq", note="of their GARDO script"),
        absent("diffusion_loss", note="of Wan's script", default=False),
        *NFT,
    ),
)
RUN = Group(
    title="Run",
    options=(
        same("num_epochs", "train.steps", 100000, always=True),
        same("save_freq", "train.checkpoint_every", 20, always=True),
        same("eval_freq", "evaluation.every", 20, always=True),
        same("num_checkpoint_limit", "train.keep_checkpoints", 5, always=True),
        same("seed", "seed", 42),
        same("allow_tf32", "train.tf32", True, always=True),
        changed("save_dir", "`output`", _output, ""),
        settled(
            "run_name",
            "logdir",
            "debug",
            here="`output`, `tracking`",
            note="names and logs of a run",
        ),
        settled("resume_from", here="`groupwise resume`"),
        settled(
            "per_prompt_stat_tracking",
            note="advantages are always within a prompt's group",
            default=True,
        ),
    ),
)
