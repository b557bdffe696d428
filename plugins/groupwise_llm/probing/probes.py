"""Probes: which fast paths are right for a model, tried on the loaded model, not looked up by name.

The reference is the model's own forward on one row at a time, without padding, cache or mask.
Compared with it are: the training pass over whole rows, the training pass with shared prompts, and
decoding (`ways`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise_llm.decoding.way import Way
from groupwise_llm.model.causal import CausalModel, head_is_linear
from groupwise_llm.model.copies import Numerics
from groupwise_llm.probing import ways
from groupwise_llm.probing.trial import TOLERANCE, Trial, gap_of, short
from groupwise_llm.training.passes import SHARING, Pass

NOISE = 20.0
"""The tolerance in float32 is this many times the gap that batching alone causes, clamped to
`TOLERANCE`."""
ROUNDED = 0.2
"""Tolerance in nats for bf16, which rounds in every layer."""
HEAD_ROUNDED = 0.01
"""Tolerance in nats for rounding in the head alone, about bf16's rounding of a logit of 4."""
OWN_HEAD = (
    "this model's own logits are more than output embedding @ hidden state, so the model computes "
    "all of them, which takes more memory"
)


@dataclass(frozen=True, kw_only=True)
class Ability:
    """The model's numerics, how completions are decoded, by which passes it is trained, and
    whether a KV cache goes on from one turn to the next; notes say which fast path is not taken,
    and why."""

    numerics: Numerics
    decoding: Way
    training: Pass
    continues: bool
    notes: Sequence[str] = ()

    @property
    def shared_training(self) -> bool:
        """Whether a training pass computes equal prompts once."""
        return self.training in SHARING


def ability(
    model: CausalModel,
    *,
    precision: str,
    head: str | None,
    share: bool,
    longest: int | None,
    name: str,
) -> Ability:
    """Probe the model. Raises UserError where no pass gives the right log-probs.

    precision, head: of the run's `Numerics`; share: whether sharing prompts is tried;
    longest: most tokens of a row in the run, None if unlimited; name: of the model, for messages.
    """
    trial, notes = Trial.of(model), []
    numerics, right = _arithmetic(trial, precision, name)
    numerics, tolerance = _head(trial, numerics, right, name)
    if not numerics.plain_head:
        notes.append(OWN_HEAD)
    if longest is not None:
        _check_neighbour(trial, numerics, right, longest, tolerance=tolerance, name=name)
    if model.recomputation is not None:
        _check_recomputing(trial, numerics, name)
    if model.model is not model.causal:
        _check_adapters(trial, numerics)
    own = replace(numerics, precision=precision, head=head)
    training, reason = _fastest_pass(trial, numerics, own, tolerance) if share else ("plain", None)
    if reason:
        notes.append(f"prompts are not shared in training: {reason}")
    decoding, reason = ways.fastest(trial, numerics, tolerance, share=share)
    if reason:
        notes.append(f"completions are sampled {ways.description(decoding)}: {reason}")
    mixes = decoding.cached and decoding.padded
    continues = mixes and ways.continues(trial, numerics, decoding, tolerance)
    if precision != "float32":
        _check_precision(trial, own, decoding, training, name=name)
    return Ability(
        numerics=own,
        decoding=decoding,
        training=training,
        continues=continues,
        notes=tuple(notes),
    )


def _arithmetic(trial: Trial, precision: str, name: str) -> tuple[Numerics, Tensor]:
    """The numerics to probe in, and the true log-probs [k] of the trial in them.

    float32, since rounding to bf16 would hide errors; where the model's kernels refuse float32, the
    run's own precision.
    """
    numerics = Numerics(precision="float32", plain_head=head_is_linear(trial.model.causal))
    try:
        return numerics, trial.truth(numerics)
    except Exception:
        trial.model.recover()
        numerics = replace(numerics, precision=precision)
    try:
        return numerics, trial.truth(numerics)
    except Exception as error:
        raise UserError(f"{name}: the model does not run: {short(error)}") from error


@torch.no_grad()
def _head(trial: Trial, numerics: Numerics, right: Tensor, name: str) -> tuple[Numerics, float]:
    """Numerics with the model's own logits where ours differ from them; and the tolerance of all
    further probes.

    Rows are batched and padded on the right here, which in a causal model changes rounding alone.
    """
    rounds = trial.model.rounds(numerics.precision)
    least, most = (ROUNDED, ROUNDED) if rounds else TOLERANCE
    by_itself = replace(numerics, plain_head=False)
    try:
        own = trial.log_probs(by_itself, by="plain")
    except Exception as error:
        raise UserError(f"{name}: a pass over several rows fails: {short(error)}") from error
    gap = gap_of(own, right)
    if not gap <= most:
        raise UserError(
            f"{name}: log-probs of its tokens change by {gap:.2g} nats when other tokens follow "
            f"them, so it is no causal language model, and GRPO cannot train it"
        )
    tolerance = max(least, min(most, NOISE * gap))
    if numerics.plain_head:
        try:
            plain = trial.log_probs(numerics, by="plain")
        except Exception:
            trial.model.recover()
            return by_itself, tolerance
        # Same rows, same batch: only the head can make a difference.
        if gap_of(plain, own) <= (HEAD_ROUNDED if rounds else most):
            return numerics, tolerance
    return by_itself, tolerance


@torch.no_grad()
def _check_neighbour(
    trial: Trial, numerics: Numerics, right: Tensor, longest: int, *, tolerance: float, name: str
) -> None:
    """Raise UserError where log-probs change beside a row at the last positions of the longest row.

    The other row has few tokens, only their positions are far on, so this takes one short pass.
    """
    try:
        gap = gap_of(*trial.beside_the_farthest(numerics, right, longest))
    except Exception:  # a model that takes no positions, or that has fewer than it states
        trial.model.recover()
        return
    if not gap <= tolerance:
        raise UserError(
            f"{name}: log-probs of a row change by {gap:.2g} nats when a row of {longest} tokens "
            f"is in the same pass, so this model cannot be trained on rows of such lengths; set "
            f"policy.max_prompt_tokens, so that prompt and completion stay below the length at "
            f"which its positions are encoded otherwise (often original_max_position_embeddings "
            f"in config.json)"
        )


def _check_recomputing(trial: Trial, numerics: Numerics, name: str) -> None:
    """Raise UserError where recomputing layers changes the gradient."""
    recomputation = trial.model.recomputation
    assert recomputation is not None
    with recomputation.off():
        _, right = trial.log_probs_and_gradient(numerics, by="plain")
    try:
        _, slope = trial.log_probs_and_gradient(numerics, by="plain")
        off = _relative_distance(slope, right)
    except Exception as error:
        raise UserError(
            f"{name}: gradient checkpointing fails ({short(error)}); set "
            f"policy.gradient_checkpointing: false"
        ) from error
    if not off <= _gradient_tolerance(trial, numerics):
        raise UserError(
            f"{name}: under gradient checkpointing gradients are off by {off:.1%}; set "
            f"policy.gradient_checkpointing: false"
        )


def _check_precision(
    trial: Trial, numerics: Numerics, decoding: Way, training: Pass, *, name: str
) -> None:
    """Raise UserError where the model does not run in the run's precision."""
    try:
        values, slope = trial.log_probs_and_gradient(numerics, by=training)
        finite = bool(values.isfinite().all() and slope.isfinite().all())
        finite = finite and ways.gap(trial, numerics, decoding) < torch.inf
        reason = "" if finite else "its log-probs are not finite"
    except Exception as error:
        reason = short(error)
    if reason:
        raise UserError(
            f"{name}: the model does not run in {numerics.precision} ({reason}); set "
            f"policy.precision: float32"
        )


def _check_adapters(trial: Trial, numerics: Numerics) -> None:
    """Raise UserError for adapters without a gradient: the model reads these weights directly,
    without calling the adapted layer.

    They would learn nothing, and DDP fails at parameters without gradients. Experts are not
    checked: the trial's few tokens do not reach all of them.
    """
    trained = {n: p for n, p in trial.model.named_parameters() if p.requires_grad}
    trial.log_probs(numerics, by="plain").sum().backward()
    names = [n for n, p in trained.items() if p.grad is None and "expert" not in n]
    trial.model.zero_grad()
    idle = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in names})
    if idle:
        raise UserError(
            f"policy.lora: adapters on {', '.join(idle)} have no effect: the model reads these "
            f"weights without calling the layer; set lora.options: "
            f"{{exclude_modules: [{', '.join(idle)}]}}"
        )


def _fastest_pass(
    trial: Trial, numerics: Numerics, own: Numerics, tolerance: float
) -> tuple[Pass, str | None]:
    """The fastest training pass with the log-probs and gradient of plain rows; the reason where
    none that shares prompts has them. own: the numerics of the run."""
    reason = None
    for by in SHARING:
        reason = _reason_against(trial, numerics, by, tolerance)
        if reason is None and by == "packed" and own.precision != numerics.precision:
            reason = _reason_against(trial, own, by, ROUNDED)  # other kernels than in float32
        if reason is None:
            return by, None
    return "plain", reason


def _reason_against(trial: Trial, numerics: Numerics, by: Pass, tolerance: float) -> str | None:
    """Why a pass is not right: other log-probs, or another gradient; None if it is."""
    try:
        plain, slope = trial.log_probs_and_gradient(numerics, by="plain")
        shared, other = trial.log_probs_and_gradient(numerics, by=by)
    except Exception as error:
        trial.model.recover()
        if trial.model.recomputation is not None:
            return (
                f"with gradient checkpointing only a cache of keys and values can be shared "
                f"({short(error)})"
            )
        return f"a pass with this model's cache fails ({short(error)})"
    gap = gap_of(shared, plain)
    if gap > tolerance:
        return f"log-probs differ by {gap:.2g} with this model's cache"
    off = _relative_distance(other, slope)
    if not off <= _gradient_tolerance(trial, numerics):
        return f"gradients differ by {off:.1%} with this model's cache"
    return None


def _relative_distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


def _gradient_tolerance(trial: Trial, numerics: Numerics) -> float:
    return 0.1 if trial.model.rounds(numerics.precision) else 1e-2
