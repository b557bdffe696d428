"""flow_grpo's options of sampling, training and the run."""

import math

from groupwise.kit.errors import UserError
from groupwise_commands.porting.flow_grpo.nft import is_nft
from groupwise_commands.porting.port import Port

CPS = (
    "the same number, but their log-prob of CPS lacks 1 / (2 std^2) and ours is the Gaussian's: "
    "where a step's std is 0.7 both are equal, below it ours clips earlier"
)
MEAN = "log-probs are means over a latent's dimensions in both, hence so narrow a range"
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


def write_batch(port: Port) -> None:
    port.write("policy.batch", _batch_size(port))


def write_groups(port: Port) -> None:
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


def write_scale(port: Port) -> None:
    scale = "batch" if port.get("sample.global_std") else "group"
    port.write("algorithm.scale", scale)  # also where the counts of the reason are unknown
    group = port.get("sample.num_image_per_prompt")
    port.write("algorithm.scale", scale, _of_std(_images(port), group))


def write_clip(port: Port) -> None:
    if is_nft(port):
        return
    port.write("algorithm.name", "flow_grpo")
    value = port.get("train.clip_range")
    port.write("algorithm.clip_low", value, CPS if port.get("sample.sde_type") == "cps" else MEAN)


def write_beta(port: Port) -> None:
    """The weight of the KL, which for `sde` theirs divides by 2 g^2."""
    if is_nft(port):
        return
    beta, sde = port.get("train.beta"), port.ours("policy.sde")
    if beta:
        port.write("algorithm.beta", beta)
    if beta and sde == "flow":
        why = "theirs is |mean difference|^2 / (2 g^2), the exact KL (2 std^2) times (s - s')"
        port.write("algorithm.kl", "published", why)


def write_average(port: Port) -> None:
    if not port.get("train.ema"):
        return
    times = max(1, port.get("train.gradient_accumulation_steps"))
    why = f"0.9, applied {times} times in a row, once for each batch of an update"
    port.write("train.ema", round(EMA**times, 4), why if times > 1 else "")
    port.write("train.ema_every", 1 if is_nft(port) else 8)


def write_betas(port: Port) -> None:
    port.write("train.betas", [port.get("train.adam_beta1"), port.get("train.adam_beta2")])


def _of_std(images: int, group: int) -> str:
    """The reason that a std differs: n in theirs, n - 1 in ours; counts of both scales."""
    return (
        f"theirs divides by n, ours by n - 1, so our advantages are {_shrunk(images):.2%} smaller "
        f"over {images:,} images, {_shrunk(group):.1%} over {group}"
    )


def _shrunk(count: int) -> float:
    return 1 - math.sqrt((count - 1) / count) if count > 1 else 0.0
