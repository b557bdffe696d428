"""How a model may be run, tried on the model itself, where it lies, rather than looked up by name.

Everything is held against the model called plainly on one row at a time, without padding, cache or
mask: the pass over whole rows that training takes, that with a shared prompt, and decoding step by
step in every way there is, from the quickest to the most careful.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from groupwise.errors import UserError, first_line
from groupwise_llm import drawing, modes, sampling
from groupwise_llm.body import Body
from groupwise_llm.stepping import Way
from groupwise_llm.trial import STEPS, Trial, gap_of, log_probs, scaled, truth

TOLERANCE = (1e-4, 1e-3)
"""In nats, for what computes in float32: NOISE times what batching alone changes, within these."""
NOISE = 20.0
ROUNDED = 0.2
"""The same for bf16, which rounds in every layer."""
HEAD_ROUNDED = 0.01
"""In nats, for the head alone: what bf16 rounds of a logit of 4, which its softmax hardly sees."""
OWN_HEAD = (
    "this model does more than multiply by its output embedding: its own logits are used, which "
    "takes more memory"
)
WAYS = (
    Way(),
    Way(shared=False),
    Way(padded=False),
    Way(shared=False, padded=False),
    Way(shared=False, padded=False, cached=False),
)


@dataclass(frozen=True)
class Ability:
    """How completions are decoded, and whether training shares prompts; notes say what is slower
    than it might be, and why."""

    decoding: Way
    shared_training: bool
    notes: Sequence[str] = ()


def ability(body: Body, *, share: bool, checkpoints: bool, name: str) -> Ability:
    """Raises UserError where log-probs of this model cannot be had by any pass.

    share: whether prompts are wanted shared; checkpoints: whether activations are recomputed;
    name: what the model is called in messages. `body.plain_head` is settled on the way,
    and the model is left in eval mode.
    """
    trial = Trial.of(body)
    modes.set_training(body.model, False)
    notes: list[str] = []
    with _float32(body, trial, name) as right:
        tolerance = _settle_head(body, trial, right, name)
        if not body.plain_head:
            notes.append(OWN_HEAD)
        if checkpoints:
            _check_training(body, trial, right, tolerance=tolerance, name=name)
        if body.model is not body.causal:
            _check_adapters(body, trial)
        shared = False
        if share and checkpoints:
            notes.append(
                "prompts are shared in sampling only: gradient checkpointing drops the cache"
            )
        elif share:
            reason = _sharing_fails(body, trial, tolerance)
            shared = reason is None
            if reason:
                notes.append(f"prompts are not shared in training: {reason}")
        decoding, reason = _decoding(body, trial, tolerance, share=share)
        if reason:
            notes.append(f"completions are sampled {_manner(decoding)}: {reason}")
    return Ability(decoding, shared, tuple(notes))


@contextmanager
def _float32(body: Body, trial: Trial, name: str) -> Iterator[Tensor]:
    """Without autocast, whose rounding would hide a lot; kernels that refuse float32 get what
    they will be given. Yields the truth about the trial."""
    precision = body.precision
    body.precision = "float32"
    try:
        try:
            right = truth(body, trial.rows, trial.ids, trial.mask)
        except Exception:
            body.precision = precision
            try:
                right = truth(body, trial.rows, trial.ids, trial.mask)
            except Exception as error:
                raise UserError(f"{name}: the model does not run: {_short(error)}") from error
        yield right
    finally:
        body.precision = precision


def _settle_head(body: Body, trial: Trial, right: Tensor, name: str) -> float:
    """Take the model's own logits where ours are not the same; the tolerance of all that follows.

    Rows are computed together and padded on the right here, which changes rounding alone.
    """
    least, most = (ROUNDED, ROUNDED) if body.rounds else TOLERANCE
    may_be_plain, body.plain_head = body.plain_head, False
    try:
        with torch.no_grad():
            own = log_probs(body, trial, share=False)
    except Exception as error:
        raise UserError(f"{name}: a pass over several rows fails: {_short(error)}") from error
    gap = gap_of(own, right)
    if not gap <= most:
        raise UserError(
            f"{name}: log-probs of its tokens change by {gap:.2g} nats when other tokens follow "
            f"them, so it is no causal language model, and GRPO cannot train it"
        )
    body.plain_head = may_be_plain
    if may_be_plain:
        try:
            with torch.no_grad():
                plain = log_probs(body, trial, share=False)
            # Both of the same rows: what is left is the head's doing alone.
            body.plain_head = gap_of(plain, own) <= (HEAD_ROUNDED if body.rounds else most)
        except Exception:
            body.plain_head = False
    return max(least, min(most, NOISE * gap))


def _check_training(
    body: Body, trial: Trial, right: Tensor, *, tolerance: float, name: str
) -> None:
    """Hold the layers' training mode, which gradient checkpointing needs, against eval mode."""
    modes.set_training(body.model, True)
    try:
        gap = gap_of(log_probs(body, trial, share=False).detach(), right)
    except Exception as error:
        raise UserError(
            f"{name}: gradient checkpointing fails ({_short(error)}); set "
            f"policy.gradient_checkpointing: false"
        ) from error
    finally:
        modes.set_training(body.model, False)
    if gap > tolerance:
        raise UserError(
            f"{name}: under gradient checkpointing its log-probs are off by {gap:.2g} nats from "
            f"those it samples by; set policy.gradient_checkpointing: false"
        )


def _check_adapters(body: Body, trial: Trial) -> None:
    """Raise UserError for adapters beside weights that the model reads past its own layers.

    They would learn nothing, and training on several processes stops at them. Experts that no
    token chose are left alone.
    """
    trained = {n: p for n, p in body.model.named_parameters() if p.requires_grad}
    total = log_probs(body, trial, share=False).sum()
    gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    names = [n for n, g in zip(trained, gradients, strict=True) if g is None and "expert" not in n]
    idle = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in names})
    if idle:
        raise UserError(
            f"policy.lora: adapters on {', '.join(idle)} have no effect, as the model reads these "
            f"weights by itself; set lora.options: {{exclude_modules: [{', '.join(idle)}]}}"
        )


def _sharing_fails(body: Body, trial: Trial, tolerance: float) -> str | None:
    """Why training must not share prompts, by log-probs and their gradient; None if it may."""
    try:
        answers = []
        for share in (False, True):
            with scaled(body) as scale:
                values = log_probs(body, trial, share=share)
                slopes = torch.linspace(-1, 1, len(values), device=values.device)
                (gradient,) = torch.autograd.grad((slopes * values).sum(), scale)
            answers.append((values.detach(), gradient))
    except Exception as error:
        return f"this model's cache refuses ({_short(error)})"
    (plain, slope), (shared, other) = answers
    gap = gap_of(shared, plain)
    if gap > tolerance:
        return f"log-probs differ by {gap:.2g} with this model's cache"
    off = float((slope - other).norm() / slope.norm().clamp(min=1e-12))
    if not off <= (0.1 if body.rounds else 1e-2):
        return f"gradients differ by {off:.1%} with this model's cache"
    return None


@torch.no_grad()
def _decoding(body: Body, trial: Trial, tolerance: float, *, share: bool) -> tuple[Way, str]:
    """The first way whose log-probs are right, and why not the quickest."""
    reason = ""
    ways = [way for way in WAYS if share or not way.shared]
    for way in ways:
        if way.cached and body.cache_argument is None:
            reason = reason or "this model takes no cache of transformers' kind"
            continue
        try:
            gap = _decoding_gap(body, trial, way)
        except Exception as error:
            reason = reason or f"this model's cache refuses ({_short(error)})"
            continue
        if gap <= tolerance:
            return way, "" if way == ways[0] else reason
        reason = reason or f"log-probs are off by {gap:.2g} otherwise"
    raise UserError(
        f"completions of this model cannot be sampled with the log-probs that it is trained on: "
        f"{reason}"
    )


def _decoding_gap(body: Body, trial: Trial, way: Way) -> float:
    """How far the log-probs of tokens are off that were sampled this way; a row ends midway."""

    def stop(ids: Tensor, _: Any) -> Tensor:
        midway = ids.shape[1] == STEPS // 2
        return (torch.arange(len(ids), device=ids.device) == 0) & midway

    decoder = sampling.Decoder(
        body=body,
        way=way,
        filters=LogitsProcessorList(),
        ends=torch.empty(0, dtype=torch.int64, device=body.device),
        stop=stop,
        temperature=1.0,
        drawn_at=1.0,
        max_new_tokens=STEPS,
        cache_tokens=2**30,
        looks=1,  # wherever it lies: the row that ends must leave the cache
    )
    # Of three rows two go on, so that it shows if they are mixed up.
    draws = drawing.uniforms(range(3 * len(trial.prompts)), STEPS)
    sampled = sampling.decode(decoder, trial.prompts, 3, draws)
    rows = [prompt for prompt in trial.prompts for _ in range(3)]
    right = truth(body, rows, sampled.ids, sampled.mask)
    return gap_of(sampled.log_probs[sampled.mask], right)


def _short(error: Exception) -> str:
    return shorten(first_line(error), 120, placeholder=" ...")


def _manner(way: Way) -> str:
    if not way.cached:
        return "without a cache, which is slow"
    parts = [] if way.shared else ["without sharing prompts"]
    return " and ".join([*parts, *([] if way.padded else ["by prompts of equal length"])])
