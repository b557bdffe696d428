"""TRL's options of the loss: they choose the algorithm here, and its options."""

from groupwise_commands.porting.port import Port
from groupwise_commands.porting.trl.batch import batch

NORMALIZED = {"grpo": "sequence", "bnpo": "token", "dapo": "token", "dr_grpo": "constant"}
"""By `loss_type`, `algorithm.normalize`."""
OWN = ("cispo", "sapo", "vespo", "luspo")
"""The values of `loss_type` that are algorithms of their own here."""
TOKEN_MEAN = (
    "the mean over all tokens of an update, over all processes and micro-batches; algorithm `dapo` "
    "would also clip at 0.28 and replace groups of equal reward"
)
LOCAL_MEAN = "theirs is the mean over the tokens of each micro-batch; here over those of an update"


def write_algorithm(port: Port) -> None:
    loss, level = port.get("loss_type"), port.get("importance_sampling_level")
    if loss in OWN:
        port.write("algorithm.name", loss)
        if (level == "sequence") != (loss == "luspo") and loss != "vespo":
            port.lose(f"importance_sampling_level: {level}", f"{loss} has ratios of its own here")
    elif loss in NORMALIZED:
        name = "gspo" if level == "sequence" else "dr_grpo" if loss == "dr_grpo" else "grpo"
        port.write("algorithm.name", name)
        if loss != "grpo" and name != "dr_grpo":
            reason = {"dapo": TOKEN_MEAN, "bnpo": LOCAL_MEAN}.get(loss, "")
            port.write("algorithm.normalize", NORMALIZED[loss], reason)
    else:
        port.lose_value("loss_type", "no such loss; grpo is written")
        port.write("algorithm.name", "grpo")


def write_clip(port: Port) -> None:
    """The clip range, always where our default of the algorithm is another one."""
    loss, low, high = (port.get(name) for name in ("loss_type", "epsilon", "epsilon_high"))
    if loss == "cispo":
        _cispo(port, high)
    if loss in OWN[:3]:
        return
    narrow = port.ours("algorithm.name") in ("gspo", "luspo")
    if port.states("epsilon") or narrow:
        why = "theirs; the paper's range, 3e-4 and 4e-4 for gspo, is the default here"
        port.write("algorithm.clip_low", low, why if narrow and not port.states("epsilon") else "")
    if high is not None or narrow:
        port.write("algorithm.clip_high", low if high is None else high)


def _cispo(port: Port, high: float | None) -> None:
    if high is None or high <= 1:
        cap = port.get("epsilon") if high is None else high
        port.lose(
            f"epsilon_high: {cap:g} of cispo",
            f"TRL caps ratios at it, so it multiplies every gradient by {cap:g}, which AdamW "
            f"cancels; here the cap is 1 + clip_high = 5, as TRL recommends",
        )
    else:
        why = f"the largest ratio there, {high:g}; here that minus 1"
        port.write("algorithm.clip_high", round(high - 1, 10), why)


def write_cap(port: Port) -> None:
    if port.get("delta") is not None and port.get("loss_type") not in OWN[:3]:
        port.write("algorithm.ratio_cap", port.get("delta"))


def write_scale(port: Port) -> None:
    value = port.get("scale_rewards")
    scale = {True: "group", False: "none", "True": "group", "False": "none"}.get(value, value)
    if port.written.get("algorithm.name") == "dr_grpo":
        why = "dr_grpo leaves out the division by the std here, loss_type dr_grpo does not there"
        port.write("algorithm.scale", scale, why if scale != "none" else "")
    elif port.states("scale_rewards"):
        port.write("algorithm.scale", scale, _scaled(scale))


def _scaled(scale: str) -> str:
    return "the std of an update here, of a generation there" if scale == "batch" else ""


def write_beta(port: Port) -> None:
    beta = port.get("beta")
    if not beta:
        return
    port.write("algorithm.beta", beta)
    if port.get("use_bias_correction_kl"):
        port.lose_value(
            "use_bias_correction_kl",
            "theirs multiplies the KL by the ratio of the policies, ours (kl: k3) does not: the KL "
            "has the same value in the first update of a step, and another gradient",
        )


def write_aggregated(port: Port) -> None:
    if port.get("multi_objective_aggregation") != "normalize_then_sum":
        return
    if port.ours("algorithm.name") == "grpo":
        port.write("algorithm.name", "gdpo", "normalize_then_sum: each reward is normalised first")
    else:
        port.lose_value(
            "multi_objective_aggregation",
            f"gdpo here, which is not combined with {port.written['algorithm.name']}",
        )


def write_reference(port: Port) -> None:
    if not port.get("sync_ref_model"):
        return
    if not port.get("beta"):
        port.lose("sync_ref_model: true", "without beta there is no reference")
        return
    updates = port.get("ref_model_sync_steps")
    every = batch(port).steps(updates)
    why = f"{updates} updates there" if every != updates else ""
    port.write("algorithm.reference_every", every, why)
    mix = port.get("ref_model_mixup_alpha")
    if port.get("use_peft") and mix != 1:
        port.lose(f"ref_model_mixup_alpha: {mix}", "adapters cannot be mixed; the policy is copied")
    else:
        port.write("algorithm.reference_mix", mix)


def write_quantile(port: Port) -> None:
    share = port.get("top_entropy_quantile")
    if share == 0:
        port.lose_value("top_entropy_quantile", "a share above 0 is needed here")
    else:
        port.write("algorithm.top_entropy_quantile", share)


def write_entropy(port: Port) -> None:
    if not port.get("entropy_coef"):
        return
    normalize = port.written.get("algorithm.normalize", "sequence")
    why = (
        ""
        if normalize == "token"
        else "theirs is always the mean over tokens, ours averaged as the loss is"
    )
    port.write("algorithm.entropy", port.get("entropy_coef"), why)
